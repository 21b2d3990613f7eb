/* Where credentials come from, and when they are fetched again, against a server on loopback that answers what a test
 * says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef ONCE_WITH_SQS
#include <netinet/in.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "aws/aws_impl.h"
#include "base/buf.h"
#include "base/duration.h"
#include "testenv.h"

#define SECRET "s3cret/Key+of=the-test"
#define TOKEN "t0ken/of+the=test"

/* --- a server ----------------------------------------------------------------------------------------------------- */

typedef struct route {
    const char *match; /* how the request begins */
    int status;        /* 0: no answer at all, and the connection stays open; -1: `body` is the whole answer */
    char body[2000];
    int calls, delay_ms;
    char request[6000]; /* the last one */
} route;

#define ROUTES 8

static struct {
    int listener, hung[16];
    size_t n_hung;
    unsigned port;
    pthread_t thread;
    pthread_mutex_t lock;
    route routes[ROUTES];
    size_t n;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void nap(long ms) { nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL); }

/* All of a request: its head, and as many bytes as it says. */
static void read_request(int fd, char *text, size_t size)
{
    size_t len = 0, wanted = size;
    while (len < size - 1 && len < wanted) {
        const ssize_t got = read(fd, text + len, size - 1 - len);
        if (got <= 0) break;
        len += (size_t)got;
        text[len] = '\0';
        const char *end = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "\r\nContent-Length:");
        if (end) wanted = (size_t)(end + 4 - text) + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
    }
    text[len] = '\0';
}

static void answer(int fd)
{
    char request[6000], reply[3000];
    route found = {.status = 404};
    read_request(fd, request, sizeof request);
    pthread_mutex_lock(&server.lock);
    for (size_t i = 0; i < server.n; i++) {
        route *r = &server.routes[i];
        if (strncmp(request, r->match, strlen(r->match)) != 0) continue;
        r->calls++;
        memcpy(r->request, request, sizeof request);
        found = *r;
        break;
    }
    if (found.status == 0) server.hung[server.n_hung++] = fd;
    pthread_mutex_unlock(&server.lock);
    if (found.status == 0) return;
    if (found.delay_ms) nap(found.delay_ms);
    const int len = found.status < 0 ? snprintf(reply, sizeof reply, "%s", found.body)
                                     : snprintf(reply, sizeof reply,
                                                "HTTP/1.1 %d X\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                                                found.status, strlen(found.body), found.body);
    (void)!write(fd, reply, (size_t)len);
    close(fd);
}

static void *serve(void *unused)
{
    (void)unused;
    for (;;) {
        const int fd = accept(server.listener, NULL, NULL);
        if (fd < 0) return NULL;
        answer(fd);
    }
}

static route *add_route(const char *match, int status, const char *body)
{
    pthread_mutex_lock(&server.lock);
    assert_true(server.n < ROUTES);
    route *r = &server.routes[server.n++];
    *r = (route){.match = match, .status = status};
    snprintf(r->body, sizeof r->body, "%s", body);
    pthread_mutex_unlock(&server.lock);
    return r;
}

static void change(route *r, int status, const char *body)
{
    pthread_mutex_lock(&server.lock);
    r->status = status;
    snprintf(r->body, sizeof r->body, "%s", body);
    pthread_mutex_unlock(&server.lock);
}

/* --- the environment of a test ------------------------------------------------------------------------------------ */

static char folder[] = "/tmp/once-aws-XXXXXX";
static test_env world;
static const char *const variables[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",
                                        "AWS_PROFILE",
                                        "AWS_DEFAULT_PROFILE",
                                        "AWS_REGION",
                                        "AWS_DEFAULT_REGION",
                                        "AWS_ROLE_ARN",
                                        "AWS_ROLE_SESSION_NAME",
                                        "AWS_WEB_IDENTITY_TOKEN_FILE",
                                        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                                        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                                        "AWS_EC2_METADATA_DISABLED",
                                        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                                        "AWS_EC2_METADATA_V1_DISABLED",
                                        "AWS_ENDPOINT_URL",
                                        "AWS_ENDPOINT_URL_STS",
                                        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
                                        "AWS_CA_BUNDLE"};

static const char *in_folder(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static const char *server_url(const char *path)
{
    static char url[200];
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", server.port, path);
    return url;
}

/* Nothing is set up, and nothing is answered. */
static int set_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) unsetenv(variables[i]);
    pthread_mutex_lock(&server.lock);
    server.n = 0;
    while (server.n_hung) close(server.hung[--server.n_hung]);
    pthread_mutex_unlock(&server.lock);
    unlink(in_folder("credentials"));
    unlink(in_folder("config"));
    setenv("AWS_SHARED_CREDENTIALS_FILE", in_folder("credentials"), 1);
    setenv("AWS_CONFIG_FILE", in_folder("config"), 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    setenv("AWS_ENDPOINT_URL_STS", server_url("/sts"), 1);
    test_env_init(&world, 1);
    return 0;
}

static int start_server(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    server.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server.listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(server.listener, 50), 0);
    assert_int_equal(getsockname(server.listener, (struct sockaddr *)&at, &len), 0);
    server.port = ntohs(at.sin_port);
    assert_non_null(mkdtemp(folder));
    return pthread_create(&server.thread, NULL, serve, NULL);
}

static int stop_server(void **state)
{
    (void)state;
    shutdown(server.listener, SHUT_RDWR);
    pthread_join(server.thread, NULL);
    close(server.listener);
    static const char *const files[] = {"credentials", "config", "token", "count"};
    for (size_t i = 0; i < 4; i++) unlink(in_folder(files[i]));
    return rmdir(folder);
}

/* --- shorthands --------------------------------------------------------------------------------------------------- */

static const once_aws_options no_options;

static once_aws_credentials *open_with(const once_aws_options *options)
{
    once_aws_credentials *c;
    once_error err;
    if (once_aws_credentials_open(options, &world.env, &c, &err) != ONCE_OK) fail_msg("%s", err.text);
    return c;
}

/* The id of the keys that are given out; they are checked. */
static void expect_id(once_aws_credentials *c, const char *id)
{
    once_arena arena = {0};
    once_aws_keys keys;
    once_error err;
    if (once_aws_credentials_get(c, &arena, &keys, &err) != ONCE_OK) fail_msg("%s", err.text);
    assert_string_equal(keys.id.data, id);
    assert_string_equal(keys.secret.data, SECRET);
    once_arena_release(&arena);
}

/* Nothing secret is in any error. */
static void expect_failure(once_aws_credentials *c, int status, const char *text)
{
    once_arena arena = {0};
    once_aws_keys keys = {0};
    once_error err;
    assert_int_not_equal(once_aws_credentials_get(c, &arena, &keys, &err), ONCE_OK);
    if (err.status != status || !strstr(err.text, text)) fail_msg("status %d: %s", err.status, err.text);
    assert_null(strstr(err.text, "s3cret"));
    assert_null(strstr(err.text, "t0ken"));
    assert_null(keys.id.data);
    once_arena_release(&arena);
}

static void expect(const char *id)
{
    once_aws_credentials *c = open_with(&no_options);
    expect_id(c, id);
    once_aws_credentials_close(c);
}

static void expect_error(int status, const char *text)
{
    once_aws_credentials *c = open_with(&no_options);
    expect_failure(c, status, text);
    once_aws_credentials_close(c);
}

static const char *in(int64_t ms)
{
    static char text[ONCE_TIME_TEXT];
    return once_time_format(world.wall_ms + ms, text);
}

static const char *json(const char *id, int64_t ends_in_ms)
{
    static char text[500];
    snprintf(text, sizeof text,
             "{\"Code\":\"Success\",\"AccessKeyId\":\"%s\",\"SecretAccessKey\":\"" SECRET "\",\"Token\":\"" TOKEN
             "\",\"Expiration\":\"%s\"}",
             id, in(ends_in_ms));
    return text;
}

static const char *xml(const char *id, int64_t ends_in_ms)
{
    static char text[800];
    snprintf(text, sizeof text,
             "<?xml version=\"1.0\"?><R xmlns=\"a\"><Result><Credentials><AccessKeyId>%s</AccessKeyId>"
             "<SecretAccessKey>" SECRET "</SecretAccessKey><SessionToken>" TOKEN "</SessionToken>"
             "<Expiration>%s</Expiration></Credentials></Result></R>",
             id, in(ends_in_ms));
    return text;
}

#define HOUR_MS 3600000
#define MINUTE_MS 60000

static void use_container(void) { setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server_url("/container"), 1); }

/* --- providers ---------------------------------------------------------------------------------------------------- */

static void finds_keys_of_the_environment(void **state)
{
    (void)state;
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    expect_error(ONCE_E_DENIED, "environment: AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not");
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    expect("AKENV");
    setenv("AWS_SESSION_TOKEN", "t0ken\r\nHost: elsewhere", 1);
    expect_error(ONCE_E_DENIED, "session token");
    unsetenv("AWS_SESSION_TOKEN");
    setenv("AWS_SECRET_ACCESS_KEY", "s3cret key", 1);
    expect_error(ONCE_E_DENIED, "secret access key");
}

static void keys_of_the_options_are_taken_before_all(void **state)
{
    (void)state;
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    const once_aws_options options = {.keys = {ONCE_BYTES("AKGIVEN"), ONCE_BYTES(SECRET), {0}}};
    once_aws_credentials *c = open_with(&options);
    expect_id(c, "AKGIVEN");
    test_env_pass(&world, 10000);
    once_aws_credentials_refused(c, ONCE_BYTES("AKGIVEN"));
    expect_id(c, "AKGIVEN");
    once_aws_credentials_close(c);
}

static void asks_in_the_order_that_users_know(void **state)
{
    (void)state;
    write_file("token", "web-t0ken\n");
    write_file("credentials", "[default]\naws_access_key_id = AKFILE\naws_secret_access_key = " SECRET "\n");
    add_route("POST /sts", 200, xml("AKWEB", HOUR_MS));
    add_route("GET /container", 200, json("AKBOX", HOUR_MS));
    add_route("PUT /latest/api/token", 200, "session");
    add_route("GET /latest/meta-data/iam/security-credentials/ ", 200, "role");
    add_route("GET /latest/meta-data/iam/security-credentials/role", 200, json("AKHOST", HOUR_MS));
    setenv("AWS_EC2_METADATA_DISABLED", "false", 1);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server_url("/"), 1);
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", in_folder("token"), 1);
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
    use_container();
    expect("AKENV");
    const once_aws_options profile = {.profile = ONCE_BYTES("default")};
    once_aws_credentials *c = open_with(&profile);
    expect_id(c, "AKFILE"); /* a profile that is given is asked first */
    once_aws_credentials_close(c);
    unsetenv("AWS_ACCESS_KEY_ID");
    expect("AKWEB");
    unsetenv("AWS_WEB_IDENTITY_TOKEN_FILE");
    expect("AKFILE");
    write_file("credentials", "[default]\nregion = x\n");
    expect("AKBOX");
    unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    expect("AKHOST");
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    expect_error(ONCE_E_DENIED,
                 "no AWS credentials; environment: AWS_ACCESS_KEY_ID is not set; web identity: "
                 "AWS_WEB_IDENTITY_TOKEN_FILE is not set; profile: 'default' has no credentials; container: "
                 "AWS_CONTAINER_CREDENTIALS_FULL_URI is not set; instance metadata: AWS_EC2_METADATA_DISABLED is true");
}

static void a_provider_that_is_set_up_and_fails_decides(void **state)
{
    (void)state;
    write_file("credentials", "[default]\naws_access_key_id = AKFILE\naws_secret_access_key = " SECRET "\n");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", in_folder("nothing"), 1);
    expect_error(ONCE_E_DENIED, "web identity: AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not");
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
    expect_error(ONCE_E_DENIED, "cannot read the token");
}

static void takes_a_role_with_a_web_identity(void **state)
{
    (void)state;
    route *sts = add_route("POST /sts", 200, xml("AKWEB", HOUR_MS));
    write_file("token", "web/t0ken+\n");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", in_folder("token"), 1);
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
    setenv("AWS_ROLE_SESSION_NAME", "me", 1);
    expect("AKWEB");
    assert_non_null(strstr(sts->request,
                           "\r\n\r\nAction=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam"
                           "%3A%3A1%3Arole%2Fr&RoleSessionName=me&WebIdentityToken=web%2Ft0ken%2B"));
    assert_null(strstr(sts->request, "Authorization"));
    assert_non_null(strstr(sts->request, "\r\nContent-Type: application/x-www-form-urlencoded\r\n"));
    change(sts, 403, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>t0ken</Message></Error></ErrorResponse>");
    expect_error(ONCE_E_DENIED, "web identity: STS answered with status 403, AccessDenied");
    change(sts, 500, "oops");
    expect_error(ONCE_E_UNAVAILABLE, "STS answered with status 500");
    char moved[300];
    route *elsewhere = add_route("GET /elsewhere", 200, xml("AKWEB", HOUR_MS));
    snprintf(moved, sizeof moved, "HTTP/1.1 302 X\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n",
             server_url("/elsewhere"));
    change(sts, -1, moved); /* whoever is there must not get the request */
    expect_error(ONCE_E_DENIED, "STS answered with status 302");
    assert_int_equal(elsewhere->calls, 0);
}

static void an_answer_that_is_not_whole_is_never_taken(void **state)
{
    (void)state;
    char text[1500], whole[1000];
    route *sts = add_route("POST /sts", 200, "");
    write_file("token", "x");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", in_folder("token"), 1);
    setenv("AWS_ROLE_ARN", "arn", 1);
    snprintf(whole, sizeof whole, "%s", xml("AKWEB", HOUR_MS));
    for (size_t len = 0; len < strlen(whole); len += 7) { /* the text ends early, and the length fits */
        snprintf(text, sizeof text, "%.*s", (int)len, whole);
        change(sts, 200, text);
        expect_error(ONCE_E_DENIED, "the answer");
    }
    snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(whole) + 1, whole);
    change(sts, -1, text);
    expect_error(ONCE_E_UNAVAILABLE, "127.0.0.1");
    change(sts, -1, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
    expect_error(ONCE_E_UNAVAILABLE, "127.0.0.1");
    change(sts, -1, "");
    expect_error(ONCE_E_UNAVAILABLE, "127.0.0.1");
    change(sts, 200, xml("AKWEB", 0));
    expect_error(ONCE_E_DENIED, "credentials that have ended");
    change(sts, 200, xml("AK WEB", HOUR_MS));
    expect_error(ONCE_E_DENIED, "access key id");
    change(sts, 200, xml("AKWEB", HOUR_MS));
    expect("AKWEB");
}

static void an_answer_has_a_limit(void **state)
{
    (void)state;
    once_aws_http *http;
    once_buf body;
    once_aws_answer answered;
    once_error err;
    add_route("GET /large", 200, "0123456789");
    const once_aws_call call = {.method = "GET", .url = server_url("/large"), .connect_ms = 1000, .timeout_ms = 5000};
    assert_int_equal(once_aws_http_open(&(once_aws_http_options){0}, &http, &err), ONCE_OK);
    once_buf_init(&body, 9);
    assert_int_equal(once_aws_http_call(http, &call, &body, &answered, &err), ONCE_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "the answer has more than 9 bytes"));
    once_buf_release(&body);
    once_buf_init(&body, 10);
    assert_int_equal(once_aws_http_call(http, &call, &body, &answered, &err), ONCE_OK);
    assert_string_equal(body.data, "0123456789");
    once_buf_release(&body);
    once_aws_http_close(http);
}

static void refuses_addresses_that_are_not_http(void **state)
{
    (void)state;
    static const char *const urls[] = {"file:///etc/passwd", "ftp://127.0.0.1/", "gopher://x/", "http://"};
    once_aws_http *http;
    once_buf body;
    once_aws_answer answered;
    once_error err;
    assert_int_equal(once_aws_http_open(&(once_aws_http_options){0}, &http, &err), ONCE_OK);
    once_buf_init(&body, 1000);
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        const once_aws_call call = {.method = "GET", .url = urls[i], .connect_ms = 1000, .timeout_ms = 1000};
        assert_int_equal(once_aws_http_call(http, &call, &body, &answered, &err), ONCE_E_CONFIG);
    }
    once_buf_release(&body);
    once_aws_http_close(http);
}

/* --- profiles ----------------------------------------------------------------------------------------------------- */

static void expect_profile(const char *name, const char *id)
{
    setenv("AWS_PROFILE", name, 1);
    expect(id);
}

static void expect_profile_error(const char *name, int status, const char *text)
{
    setenv("AWS_PROFILE", name, 1);
    expect_error(status, text);
}

static void finds_keys_of_profiles(void **state)
{
    (void)state;
    once_aws_credentials *c;
    once_error err;
    write_file("credentials",
               "# of the test\n[default]\naws_access_key_id=AKDEFAULT\naws_secret_access_key=" SECRET
               "\n[other]\r\n  ; indented\r\nAWS_Access_Key_Id = AKOTHER\r\naws_secret_access_key = " SECRET
               "\r\ns3 =\n  aws_access_key_id = AKNESTED\n[half]\naws_access_key_id = AKHALF\n");
    write_file("config", "[profile third]\naws_access_key_id = AKTHIRD\naws_secret_access_key = " SECRET
                         "\n[profile \"quoted name\"]\naws_access_key_id = AKQUOTED\naws_secret_access_key = " SECRET
                         "\n[other]\naws_access_key_id = AKNOT\n[profile other]\naws_access_key_id = AKNOTEITHER\n");
    expect("AKDEFAULT");
    expect_profile("other", "AKOTHER");
    expect_profile("third", "AKTHIRD");
    expect_profile("quoted name", "AKQUOTED");
    expect_profile_error("half", ONCE_E_CONFIG, "profile 'half' has aws_access_key_id, and no aws_secret_access_key");
    setenv("AWS_PROFILE", "missing", 1);
    assert_int_equal(once_aws_credentials_open(&no_options, &world.env, &c, &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "profile 'missing' is neither in '/tmp/once-aws-"));
}

static void reads_profiles_that_are_indented(void **state)
{
    (void)state;
    write_file("credentials", "[default]\n  aws_access_key_id = AKIN\n  aws_secret_access_key = " SECRET "\n"
                              "  [second]\n\taws_access_key_id = AKSECOND\n\taws_secret_access_key =\n"
                              "\t\taws_access_key_id = AKDEEPER\n\taws_secret_access_key = " SECRET "\n"
                              "[third]\ns3 =\n  aws_access_key_id = AKNESTED\naws_access_key_id = AKTHIRD\n"
                              "aws_secret_access_key = " SECRET "\n  [fourth]\n  aws_access_key_id = AKNOT\n");
    expect_profile("default", "AKIN");
    expect_profile("second", "AKSECOND");
    expect_profile("third", "AKTHIRD");
    once_error err;
    once_aws_credentials *c;
    const once_aws_options fourth = {.profile = ONCE_BYTES("fourth")}; /* it is part of a value */
    assert_int_equal(once_aws_credentials_open(&fourth, &world.env, &c, &err), ONCE_E_CONFIG);
}

static void a_file_may_be_named_from_the_home(void **state)
{
    (void)state;
    const char *home = getenv("HOME");
    char *before = home ? strdup(home) : NULL;
    write_file("credentials", "[default]\naws_access_key_id = AKHOME\naws_secret_access_key = " SECRET "\n");
    setenv("HOME", folder, 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "~/credentials", 1);
    expect("AKHOME");
    if (before) setenv("HOME", before, 1);
    else unsetenv("HOME");
    free(before);
}

static int open_denied(void *self, const char *path, int flags, int mode)
{
    (void)self, (void)path, (void)flags, (void)mode;
    errno = EACCES;
    return -1;
}

/* A service may not see the home of its user, and has its credentials from elsewhere. */
static void files_that_may_not_be_read_matter_only_to_those_who_ask(void **state)
{
    (void)state;
    once_aws_credentials *c;
    once_error err;
    world.env.open = open_denied;
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    expect("AKENV");
    unsetenv("AWS_ACCESS_KEY_ID");
    expect_error(ONCE_E_DENIED, "/credentials': Permission denied; container: ");
    setenv("AWS_PROFILE", "named", 1);
    assert_int_equal(once_aws_credentials_open(&no_options, &world.env, &c, &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "Permission denied"));
}

static void takes_roles_of_profiles(void **state)
{
    (void)state;
    route *sts = add_route("POST /sts", 200, xml("AKROLE", HOUR_MS));
    char config[2000];
    write_file("token", "web-t0ken");
    write_file("credentials", "[base]\naws_access_key_id = AKBASE\naws_secret_access_key = " SECRET "\n");
    snprintf(config, sizeof config,
             "[profile role]\nrole_arn = arn:r\nsource_profile = base\nexternal_id = ex\nduration_seconds = 900\n"
             "[profile own]\nrole_arn = arn:r\nsource_profile = own\naws_access_key_id = AKOWN\n"
             "aws_secret_access_key = " SECRET "\n"
             "[profile two]\nrole_arn = arn:two\nsource_profile = role\n"
             "[profile web]\nrole_arn = arn:web\nweb_identity_token_file = %s\n"
             "[profile env]\nrole_arn = arn:env\ncredential_source = Environment\n"
             "[profile a]\nrole_arn = arn:a\nsource_profile = b\n[profile b]\nrole_arn = arn:b\nsource_profile = a\n"
             "[profile lost]\nrole_arn = arn:a\nsource_profile = nowhere\n"
             "[profile empty]\nrole_arn = arn:a\nsource_profile = nothing\n[profile nothing]\nregion = x\n"
             "[profile alone]\nrole_arn = arn:a\n"
             "[profile both]\nrole_arn = arn:a\nsource_profile = base\ncredential_source = Environment\n"
             "[profile odd]\nrole_arn = arn:a\ncredential_source = Elsewhere\n"
             "[profile mfa]\nrole_arn = arn:a\nsource_profile = base\nmfa_serial = arn:m\n"
             "[profile sso]\nsso_session = x\n[profile oldsso]\nsso_start_url = https://x\n",
             in_folder("token"));
    write_file("config", config);
    expect_profile("role", "AKROLE");
    assert_non_null(strstr(sts->request, "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Ar&RoleSessionName=once&"
                                         "ExternalId=ex&DurationSeconds=900"));
    assert_non_null(
        strstr(sts->request, "\r\nAuthorization: AWS4-HMAC-SHA256 Credential=AKBASE/20231114/us-east-1/sts/"));
    expect_profile("own", "AKROLE");
    assert_non_null(strstr(sts->request, "Credential=AKOWN/"));
    sts->calls = 0;
    expect_profile("two", "AKROLE"); /* taken with the role of the other profile */
    assert_int_equal(sts->calls, 2);
    assert_non_null(strstr(sts->request, "Credential=AKROLE/"));
    assert_non_null(strstr(sts->request, "\r\nX-Amz-Security-Token: " TOKEN));
    expect_profile("web", "AKROLE");
    assert_non_null(strstr(sts->request, "WebIdentityToken=web-t0ken"));
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    const once_aws_options env = {.profile = ONCE_BYTES("env")};
    once_aws_credentials *c = open_with(&env);
    expect_id(c, "AKROLE");
    once_aws_credentials_close(c);
    assert_non_null(strstr(sts->request, "Credential=AKENV/"));
    unsetenv("AWS_ACCESS_KEY_ID");
    sts->calls = 0;
    expect_profile_error("a", ONCE_E_CONFIG, "source_profile of 'a' leads back to itself");
    expect_profile_error("lost", ONCE_E_CONFIG, "profile 'nowhere' does not exist");
    expect_profile_error("empty", ONCE_E_DENIED, "the source of profile 'empty' has no credentials");
    expect_profile_error("alone", ONCE_E_CONFIG, "has role_arn, and neither source_profile nor");
    expect_profile_error("both", ONCE_E_CONFIG, "has source_profile and credential_source");
    expect_profile_error("odd", ONCE_E_CONFIG, "credential_source 'Elsewhere'");
    expect_profile_error("mfa", ONCE_E_CONFIG, "has mfa_serial");
    expect_profile_error("sso", ONCE_E_CONFIG, "credential_process = aws configure export-credentials --profile sso");
    expect_profile_error("oldsso", ONCE_E_CONFIG, "SSO");
    assert_int_equal(sts->calls, 0);
}

static void runs_the_command_of_a_profile(void **state)
{
    (void)state;
#define PROCESS(text) "[default]\ncredential_process = " text "\n"
    write_file("config",
               PROCESS("printf '{\"Version\":1,\"AccessKeyId\":\"AKRUN\",\"SecretAccessKey\":\"" SECRET "\"}'"));
    expect("AKRUN");
    write_file("config", PROCESS("printf '{\"AccessKeyId\":\"AKRUN\",\"SecretAccessKey\":\"" SECRET "\"}'"));
    expect_error(ONCE_E_DENIED, "credential_process: the output has no 'Version' 1");
    write_file("config", PROCESS("echo s3cret-t0ken; exit 3"));
    expect_error(ONCE_E_UNAVAILABLE,
                 "credential_process: '/bin/sh' ended with exit status 3; run it by hand to see why");
    write_file("config", PROCESS("printf '{\"Version\":1,\"AccessKeyId\":\"AKRUN\"}'"));
    expect_error(ONCE_E_DENIED, "no 'SecretAccessKey'");
    write_file("config", PROCESS("echo s3cret"));
    expect_error(ONCE_E_DENIED, "not JSON");
    write_file("config", PROCESS("head -c 70000 /dev/zero"));
    expect_error(ONCE_E_UNAVAILABLE, "wrote more than 64 KiB");
}

/* --- container and instance --------------------------------------------------------------------------------------- */

static void asks_the_server_of_a_container(void **state)
{
    (void)state;
    route *box = add_route("GET /container", 200, json("AKBOX", HOUR_MS));
    use_container();
    expect("AKBOX");
    assert_null(strstr(box->request, "Authorization"));
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "first", 1);
    expect("AKBOX");
    assert_non_null(strstr(box->request, "\r\nAuthorization: first\r\n"));
    write_file("token", "second\n");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", in_folder("token"), 1);
    expect("AKBOX");
    assert_non_null(strstr(box->request, "\r\nAuthorization: second\r\n"));
    write_file("token", "t0ken\r\nHost: x\r\n");
    box->calls = 0;
    expect_error(ONCE_E_DENIED, "container: the authorization token has control characters");
    assert_int_equal(box->calls, 0);
    unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    change(box, 500, "");
    expect_error(ONCE_E_UNAVAILABLE, "container: the server answered with status 500");
    change(box, 403, "");
    expect_error(ONCE_E_DENIED, "container: the server answered with status 403");
    change(box, 200, "{\"AccessKeyId\":\"AKBOX\",\"SecretAccessKey\":\"" SECRET "\"}");
    expect_error(ONCE_E_DENIED, "no 'Token' or no 'Expiration'");
    change(box, 200, "{\"AccessKeyId\":\"AKBOX\",\"SecretAccessKey\":7}");
    expect_error(ONCE_E_DENIED, "a member of the wrong type");
}

static void asks_no_other_host_without_tls(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "http://192.0.2.1/",           "http://127.0.0.1.example/", "http://127.0.0.1:1@192.0.2.1/",
        "http://localhost.example/x",  "http://[::1].example/",     "ftp://127.0.0.1/",
        "http://169.254.169.254/role", "http://127.evil/"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", bad[i], 1);
        expect_error(ONCE_E_CONFIG, "is neither https nor on this host");
    }
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "@192.0.2.1/", 1);
    expect_error(ONCE_E_CONFIG, "does not begin with '/'");
}

static void asks_the_metadata_of_an_instance(void **state)
{
    (void)state;
    setenv("AWS_EC2_METADATA_DISABLED", "false", 1);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server_url(""), 1);
    route *token = add_route("PUT /latest/api/token", 200, "session-1\n");
    route *role = add_route("GET /latest/meta-data/iam/security-credentials/ ", 200, "the-role\n");
    route *keys = add_route("GET /latest/meta-data/iam/security-credentials/the-role ", 200, json("AKHOST", HOUR_MS));
    expect("AKHOST");
    assert_non_null(strstr(token->request, "\r\nX-aws-ec2-metadata-token-ttl-seconds: 21600\r\n"));
    assert_non_null(strstr(role->request, "\r\nX-aws-ec2-metadata-token: session-1\r\n"));
    assert_non_null(strstr(keys->request, "\r\nX-aws-ec2-metadata-token: session-1\r\n"));
    change(role, 404, "");
    expect_error(ONCE_E_DENIED, "no AWS credentials; "); /* nobody has said that this host must have some */
    expect_error(ONCE_E_DENIED, "instance metadata: the instance has no role");
    change(role, 200, "the role/../x y");
    expect_error(ONCE_E_DENIED, "the name of the role is malformed");
    change(role, 200, "the-role");
    change(keys, 200, "{\"Code\":\"Failed\"}");
    expect_error(ONCE_E_DENIED, "the answer is not a success");
    change(keys, 200, json("AKHOST", HOUR_MS));
    change(token, 403, ""); /* only version 1 would answer */
    role->calls = 0;
    expect_error(ONCE_E_DENIED, "instance metadata: no session token: status 403");
    assert_int_equal(role->calls, 0);
    setenv("AWS_EC2_METADATA_V1_DISABLED", "false", 1);
    expect("AKHOST");
    assert_null(strstr(keys->request, "X-aws-ec2-metadata-token"));
}

/* --- when they are fetched ---------------------------------------------------------------------------------------- */

static void fetches_again_before_they_end(void **state)
{
    (void)state;
    route *box = add_route("GET /container", 200, json("AKONE", HOUR_MS));
    use_container();
    once_aws_credentials *c = open_with(&no_options);
    expect_id(c, "AKONE");
    test_env_pass(&world, 54 * MINUTE_MS);
    expect_id(c, "AKONE");
    assert_int_equal(box->calls, 1);
    change(box, 500, "");
    test_env_pass(&world, 2 * MINUTE_MS); /* four minutes are left */
    expect_id(c, "AKONE");
    assert_int_equal(box->calls, 2);
    expect_id(c, "AKONE"); /* not asked for every call */
    assert_int_equal(box->calls, 2);
    test_env_pass(&world, 10000);
    expect_id(c, "AKONE");
    assert_int_equal(box->calls, 3);
    test_env_pass(&world, 4 * MINUTE_MS); /* they have ended */
    expect_failure(c, ONCE_E_UNAVAILABLE, "container: the server answered with status 500");
    const int calls = box->calls;
    change(box, 200, json("AKTWO", HOUR_MS));
    expect_failure(c, ONCE_E_UNAVAILABLE, "500"); /* many that come at a time do not wait one after the other */
    assert_int_equal(box->calls, calls);
    test_env_pass(&world, 1000);
    expect_id(c, "AKTWO");
    once_aws_credentials_close(c);
}

static void renews_in_time(void **state)
{
    (void)state;
    route *box = add_route("GET /container", 200, json("AKONE", HOUR_MS));
    use_container();
    once_aws_credentials *c = open_with(&no_options);
    expect_id(c, "AKONE");
    change(box, 200, json("AKTWO", 2 * HOUR_MS));
    test_env_pass(&world, 56 * MINUTE_MS);
    expect_id(c, "AKTWO");
    assert_int_equal(box->calls, 2);
    once_aws_credentials_close(c);
}

static void fetches_again_what_was_refused(void **state)
{
    (void)state;
    route *box = add_route("GET /container", 200, json("AKONE", HOUR_MS));
    use_container();
    once_aws_credentials *c = open_with(&no_options);
    expect_id(c, "AKONE");
    change(box, 200, json("AKTWO", HOUR_MS));
    once_aws_credentials_refused(c, ONCE_BYTES("AKONE"));
    expect_id(c, "AKONE"); /* they are new: the server would give the same */
    test_env_pass(&world, 2000);
    once_aws_credentials_refused(c, ONCE_BYTES("AKOLD"));
    expect_id(c, "AKONE");
    assert_int_equal(box->calls, 1);
    once_aws_credentials_refused(c, ONCE_BYTES("AKONE"));
    expect_id(c, "AKTWO");
    assert_int_equal(box->calls, 2);
    test_env_pass(&world, 2000);
    change(box, 500, "");
    once_aws_credentials_refused(c, ONCE_BYTES("AKTWO"));
    expect_failure(c, ONCE_E_UNAVAILABLE, "500"); /* what was refused is not given out again */
    once_aws_credentials_close(c);
}

typedef struct getter {
    once_aws_credentials *c;
    const char *id;
    int64_t ms;
    int rc;
} getter;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void *get_once(void *user)
{
    getter *g = user;
    once_arena arena = {0};
    once_aws_keys keys;
    once_error err;
    const int64_t begin = now_ms();
    g->rc = once_aws_credentials_get(g->c, &arena, &keys, &err);
    if (g->rc == ONCE_OK && strcmp(keys.id.data, g->id) != 0) g->rc = ONCE_E_BUG;
    g->ms = now_ms() - begin;
    once_arena_release(&arena);
    return NULL;
}

#define GETTERS 6

static void run_getters(once_aws_credentials *c, const char *id, getter *list)
{
    pthread_t threads[GETTERS];
    for (size_t i = 0; i < GETTERS; i++) {
        list[i] = (getter){.c = c, .id = id};
        assert_int_equal(pthread_create(&threads[i], NULL, get_once, &list[i]), 0);
    }
    for (size_t i = 0; i < GETTERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(list[i].rc, ONCE_OK);
    }
}

static void one_thread_fetches_and_others_do_not_wait_for_it(void **state)
{
    (void)state;
    getter list[GETTERS];
    route *box = add_route("GET /container", 200, json("AKONE", HOUR_MS));
    box->delay_ms = 400;
    use_container();
    once_aws_credentials *c = open_with(&no_options);
    run_getters(c, "AKONE", list); /* there are none: all wait for one fetch */
    assert_int_equal(box->calls, 1);
    test_env_pass(&world, 56 * MINUTE_MS);
    change(box, 500, ""); /* so that the answer is the same for all */
    run_getters(c, "AKONE", list);
    assert_int_equal(box->calls, 2);
    size_t slow = 0;
    for (size_t i = 0; i < GETTERS; i++) slow += list[i].ms >= 350;
    assert_int_equal(slow, 1);
    once_aws_credentials_close(c);
}

static bool is_set(void *user) { return atomic_load((atomic_bool *)user); }

static void a_call_ends_when_it_is_cancelled(void **state)
{
    (void)state;
    atomic_bool stop = false;
    pthread_t thread;
    route *box = add_route("GET /container", 0, "");
    use_container();
    const once_aws_options options = {.cancel = {is_set, &stop}};
    once_aws_credentials *c = open_with(&options);
    getter g = {.c = c, .id = ""};
    assert_int_equal(pthread_create(&thread, NULL, get_once, &g), 0);
    for (bool asked = false; !asked; nap(5)) {
        pthread_mutex_lock(&server.lock);
        asked = box->calls > 0;
        pthread_mutex_unlock(&server.lock);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(g.rc, ONCE_E_BUSY);
    assert_true(g.ms < 3000);
    once_aws_credentials_close(c);
}

static void a_server_that_never_answers_costs_little_time(void **state)
{
    (void)state;
    add_route("PUT /latest/api/token", 0, "");
    setenv("AWS_EC2_METADATA_DISABLED", "false", 1);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server_url(""), 1);
    const int64_t begin = now_ms();
    expect_error(ONCE_E_DENIED, "no answer within 2000 ms");
    assert_true(now_ms() - begin < 4000);
}

/* --- region and address ------------------------------------------------------------------------------------------- */

static void expect_region(const once_aws_options *options, const char *region)
{
    once_aws_credentials *c = open_with(options);
    if (region) assert_string_equal(once_aws_region(c), region);
    else assert_null(once_aws_region(c));
    once_aws_credentials_close(c);
}

static void finds_the_region(void **state)
{
    (void)state;
    once_aws_credentials *c;
    once_error err;
    expect_region(&no_options, NULL);
    write_file("config", "[default]\nregion = eu-west-1\n[profile p]\nregion = eu-west-2\n");
    expect_region(&no_options, "eu-west-1");
    setenv("AWS_PROFILE", "p", 1);
    expect_region(&no_options, "eu-west-2");
    setenv("AWS_DEFAULT_REGION", "eu-west-3", 1);
    expect_region(&no_options, "eu-west-3");
    setenv("AWS_REGION", "eu-west-4", 1);
    expect_region(&no_options, "eu-west-4");
    const once_aws_options options = {.region = ONCE_BYTES("eu-west-5"), .ca_file = ONCE_BYTES("/ca")};
    expect_region(&options, "eu-west-5");
    setenv("AWS_REGION", "evil.example/", 1);
    assert_int_equal(once_aws_credentials_open(&no_options, &world.env, &c, &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "'evil.example/' is not the name of a region"));
    c = open_with(&options);
    assert_string_equal(once_aws_ca_file(c), "/ca");
    once_aws_credentials_close(c);
}

static void finds_addresses(void **state)
{
    (void)state;
    assert_null(once_aws_endpoint("SQS"));
    setenv("AWS_ENDPOINT_URL", "http://all", 1);
    assert_string_equal(once_aws_endpoint("SQS"), "http://all");
    assert_string_equal(once_aws_endpoint("STS"), server_url("/sts"));
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True", 1);
    assert_null(once_aws_endpoint("STS"));
}

/* --- XML ---------------------------------------------------------------------------------------------------------- */

static void reads_xml(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int found;
        const char *value;
    } cases[] = {
        {"<r><a><b>x</b></a></r>", 1, "x"},
        {"<?xml version='1.0'?>\n<r><!-- <b> --><a k='>' l=\"/>\"><c/><b>1 &lt;&amp;&gt;&quot;&apos;</b></a></r>\n", 1,
         "1 <&>\"'"},
        {"<r><a><b></b></a></r>", 1, ""},
        {"<r><b>x</b></r>", 0, NULL},
        {"<r><a><b><c>x</c></b></a></r>", 0, NULL},
        {"<r/>", 0, NULL},
        {"", -1, NULL},
        {"x", -1, NULL},
        {"<r><a><b>x</b></a>", -1, NULL},
        {"<r><a><b>x</a></b></r>", -1, NULL},
        {"<r></r><r></r>", -1, NULL},
        {"<r></r>x", -1, NULL},
        {"<r><a><b>&x;</b></a></r>", -1, NULL},
        {"<r><a><b>&amp</b></a></r>", -1, NULL},
        {"<!DOCTYPE r><r></r>", -1, NULL},
        {"<r><![CDATA[x]]></r>", -1, NULL},
        {"<r", -1, NULL},
        {"</r>", -1, NULL},
        {"<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a></a></a></a></a></a></a></a></a></a></a></a></a></a></a></"
         "a>"
         "</a></a>",
         -1, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        once_arena arena = {0};
        once_bytes value = {0};
        const int found = once__aws_xml_find(once_bytes_of(cases[i].text), "a", "b", &arena, &value);
        if (found != cases[i].found) fail_msg("%s: %d", cases[i].text, found);
        if (found == 1) assert_string_equal(value.data, cases[i].value);
        once_arena_release(&arena);
    }
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(finds_keys_of_the_environment),
        TEST(keys_of_the_options_are_taken_before_all),
        TEST(asks_in_the_order_that_users_know),
        TEST(a_provider_that_is_set_up_and_fails_decides),
        TEST(takes_a_role_with_a_web_identity),
        TEST(an_answer_that_is_not_whole_is_never_taken),
        TEST(an_answer_has_a_limit),
        TEST(refuses_addresses_that_are_not_http),
        TEST(finds_keys_of_profiles),
        TEST(reads_profiles_that_are_indented),
        TEST(a_file_may_be_named_from_the_home),
        TEST(files_that_may_not_be_read_matter_only_to_those_who_ask),
        TEST(takes_roles_of_profiles),
        TEST(runs_the_command_of_a_profile),
        TEST(asks_the_server_of_a_container),
        TEST(asks_no_other_host_without_tls),
        TEST(asks_the_metadata_of_an_instance),
        TEST(fetches_again_before_they_end),
        TEST(renews_in_time),
        TEST(fetches_again_what_was_refused),
        TEST(one_thread_fetches_and_others_do_not_wait_for_it),
        TEST(a_call_ends_when_it_is_cancelled),
        TEST(a_server_that_never_answers_costs_little_time),
        TEST(finds_the_region),
        TEST(finds_addresses),
        TEST(reads_xml),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
#else
int main(void)
{
    print_message("no libcurl\n");
    return 0;
}
#endif
