/* Signature Version 4: the values that AWS publishes (its test suite, and the example of its documentation), and the
 * same as botocore for many requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef ONCE_WITH_SQS
#include "aws/aws.h"
#include "base/buf.h"
#include "testenv.h"

#define SUITE_S 1440938160 /* 2015-08-30T12:36:00Z */
#define HOST "https://example.amazonaws.com"
#define TOKEN                                                                                                          \
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwt" \
    "hAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVX" \
    "AkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
#define LETTERS "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

static const once_aws_keys suite_keys = {.id = {"AKIDEXAMPLE", 11},
                                         .secret = {"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", 40}};

typedef struct vector {
    const char *name, *method, *path;
    const char *headers[5];
    const char *signature;
    const char *body;
    const char *token;
} vector;

#define VANILLA "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
#define POST_VANILLA "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"

static const vector suite[] = {
    {"get-vanilla", "GET", "/", {0}, VANILLA},
    {"no path", "GET", "", {0}, VANILLA},
    {"get-relative-normalized", "GET", "/example/..", {0}, VANILLA},
    {"get-relative-relative-normalized", "GET", "/example1/example2/../..", {0}, VANILLA},
    {"get-slash-normalized", "GET", "//", {0}, VANILLA},
    {"get-slash-dot-slash-normalized", "GET", "/./", {0}, VANILLA},
    {"get-slash-pointless-dot-normalized",
     "GET",
     "/./example",
     {0},
     "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5"},
    {"get-slashes-normalized",
     "GET",
     "//example//",
     {0},
     "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84"},
    {"get-space-normalized",
     "GET",
     "/example space/",
     {0},
     "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
    {"get-unreserved", "GET", "/" LETTERS, {0}, "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
    {"get-utf8", "GET", "/\u1234", {0}, "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
    {"get-vanilla-empty-query-key",
     "GET",
     "/?Param1=value1",
     {0},
     "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
    {"get-vanilla-query-order-encoded",
     "GET",
     "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
     {0},
     "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
    {"get-vanilla-query-order-key-case",
     "GET",
     "/?Param2=value2&Param1=value1",
     {0},
     "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
    {"get-vanilla-query-unreserved",
     "GET",
     "/?" LETTERS "=" LETTERS,
     {0},
     "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
    {"get-vanilla-utf8-query",
     "GET",
     "/?\u1234=bar",
     {0},
     "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
    {"get-vanilla-with-session-token",
     "GET",
     "/",
     {0},
     "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
     .token = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"},
    {"get-header-key-duplicate",
     "GET",
     "/",
     {"My-Header1:value2", "My-Header1:value2", "My-Header1:value1"},
     "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
    {"get-header-value-multiline",
     "GET",
     "/",
     {"My-Header1:value1\n  value2\n     value3"},
     "cfd34249e4b1c8d6b91ef74165d41a32e5fab3306300901bb65a51a73575eefd"},
    {"get-header-value-order",
     "GET",
     "/",
     {"My-Header1:value4", "My-Header1:value1", "My-Header1:value3", "My-Header1:value2"},
     "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
    {"get-header-value-trim",
     "GET",
     "/",
     {"My-Header1: value1", "My-Header2: \"a   b   c\""},
     "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
    {"post-vanilla", "POST", "/", {0}, POST_VANILLA},
    {"post-header-key-sort",
     "POST",
     "/",
     {"My-Header1:value1"},
     "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
    {"post-header-value-case",
     "POST",
     "/",
     {"My-Header1:VALUE1"},
     "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
    {"post-sts-header-before",
     "POST",
     "/",
     {0},
     "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
     .token = TOKEN},
    {"post-vanilla-query",
     "POST",
     "/?Param1=value1",
     {0},
     "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
    {"post-x-www-form-urlencoded",
     "POST",
     "/",
     {"Content-Type:application/x-www-form-urlencoded", "Content-Length:13",
      "x-amz-content-sha256:9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e"},
     "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
     .body = "Param1=value1"},
};

static const char *find_line(const char **lines, const char *name)
{
    for (; *lines; lines++)
        if (strncmp(*lines, name, strlen(name)) == 0) return *lines + strlen(name);
    return NULL;
}

static void gives_the_values_that_aws_publishes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof suite / sizeof suite[0]; i++) {
        const vector *v = &suite[i];
        char url[300];
        once_arena arena = {0};
        once_error err;
        const char **lines;
        once_aws_keys keys = suite_keys;
        if (v->token) keys.token = once_bytes_of(v->token);
        snprintf(url, sizeof url, "%s%s", HOST, v->path);
        const once_aws_request request = {.method = v->method,
                                          .url = url,
                                          .headers = v->headers,
                                          .body = v->body ? once_bytes_of(v->body) : (once_bytes){0}};
        assert_int_equal(once_aws_sign(&request, &keys, "us-east-1", "service", SUITE_S, &arena, &lines, &err),
                         ONCE_OK);
        const char *found = find_line(lines, "Authorization: ");
        assert_non_null(found);
        found = strstr(found, "Signature=");
        assert_non_null(found);
        if (strcmp(found + 10, v->signature) != 0) fail_msg("%s: %s, not %s", v->name, found + 10, v->signature);
        once_arena_release(&arena);
    }
}

/* The example of the documentation, with all of its lines. */
static void gives_all_lines_of_the_documented_example(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_error err;
    const char **lines;
    const char *const headers[] = {"Content-Type: application/x-www-form-urlencoded; charset=utf-8", NULL};
    const once_aws_request request = {.method = "GET",
                                      .url = "https://iam.amazonaws.com:443/?Action=ListUsers&Version=2010-05-08",
                                      .headers = headers};
    assert_int_equal(once_aws_sign(&request, &suite_keys, "us-east-1", "iam", SUITE_S, &arena, &lines, &err), ONCE_OK);
    assert_string_equal(lines[0], headers[0]);
    assert_ptr_not_equal(lines[0], headers[0]); /* all of them live in the arena */
    assert_string_equal(lines[1], "X-Amz-Date: 20150830T123600Z");
    assert_string_equal(lines[2], "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/"
                                  "aws4_request, SignedHeaders=content-type;host;x-amz-date, Signature="
                                  "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7");
    assert_null(lines[3]);

    once_aws_keys with_token = suite_keys;
    with_token.token = ONCE_BYTES("t0ken");
    assert_int_equal(once_aws_sign(&request, &with_token, "us-east-1", "iam", SUITE_S, &arena, &lines, &err), ONCE_OK);
    assert_string_equal(lines[2], "X-Amz-Security-Token: t0ken");
    assert_non_null(strstr(lines[3], "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token,"));
    once_arena_release(&arena);
}

static void refuses_what_is_no_request(void **state)
{
    (void)state;
    static const char *const urls[] = {"ftp://h/", "h/", "https:///", "https://user:secret@h/"};
    static const char *const headers[] = {"no colon", NULL};
    once_arena arena = {0};
    once_error err;
    const char **lines;
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        const once_aws_request request = {.method = "GET", .url = urls[i]};
        assert_int_equal(once_aws_sign(&request, &suite_keys, "r", "s", SUITE_S, &arena, &lines, &err), ONCE_E_CONFIG);
        assert_null(strstr(err.text, "secret"));
    }
    const once_aws_request request = {.method = "GET", .url = HOST, .headers = headers};
    assert_int_equal(once_aws_sign(&request, &suite_keys, "r", "s", SUITE_S, &arena, &lines, &err), ONCE_E_CONFIG);
    assert_int_equal(once_aws_sign(&(once_aws_request){.method = "GET", .url = HOST}, &suite_keys, "r", "s",
                                   INT64_C(400000000000), &arena, &lines, &err),
                     ONCE_E_CONFIG);
    once_arena_release(&arena);
}

/* --- as botocore -------------------------------------------------------------------------------------------------- */

#define REQUESTS 300

/* A random text of characters that may be in `what`. */
static const char *any(uint64_t *random, const char *what, size_t max, char *out)
{
    const size_t len = test_random(random) % (max + 1), n = strlen(what);
    for (size_t i = 0; i < len; i++) out[i] = what[test_random(random) % n];
    out[len] = '\0';
    return out;
}

/* A query whose bytes are letters or encoded. Each parameter has a name. */
static void put_query(uint64_t *random, once_buf *url)
{
    const size_t n = test_random(random) % 6;
    char text[20];
    for (size_t i = 0; i < n; i++) {
        once_buf_printf(url, "%sk%s", i ? "&" : "?", any(random, "abAB1-._~", 3, text));
        if (test_random(random) % 4 == 0) once_buf_printf(url, "%%%02X", (unsigned)(test_random(random) % 256));
        if (test_random(random) % 4) once_buf_printf(url, "=%s", any(random, "abAB12-._~", 8, text));
    }
}

static void make_request(uint64_t *random, once_buf *url, once_buf *body, char headers[3][120])
{
    char text[80];
    once_buf_clear(url);
    once_buf_clear(body);
    once_buf_printf(url, "http%s://host%s/%s", test_random(random) % 2 ? "s" : "",
                    test_random(random) % 2 ? ":8443" : "", any(random, "ab/.%20~+$-_", 12, text));
    put_query(random, url);
    for (size_t i = 0; i < 200 && test_random(random) % 50; i++) {
        const char byte = (char)(1 + test_random(random) % 127);
        once_buf_append(body, &byte, 1);
    }
    for (size_t i = 0; i < 3; i++)
        snprintf(headers[i], sizeof headers[i], "X-%c%zu-%s: v%s", i % 2 ? 'b' : 'A', i, i % 2 ? "Name" : "nAMe",
                 any(random, "abc   ,;=\"", 12, text));
}

static void put_json(once_buf *out, const char *name, const char *value)
{
    once_buf_printf(out, "%s\"%s\":", out->data[out->len - 1] == '{' ? "" : ",", name);
    once_buf_json(out, once_bytes_of(value));
}

static void write_request(FILE *to, const once_buf *url, const once_buf *body, char headers[3][120], const char *token)
{
    once_buf line;
    once_buf_init(&line, 100000);
    once_buf_puts(&line, "{");
    put_json(&line, "method", "POST");
    put_json(&line, "url", url->data);
    put_json(&line, "body", body->data ? body->data : "");
    put_json(&line, "id", "AKIDEXAMPLE");
    put_json(&line, "secret", suite_keys.secret.data);
    put_json(&line, "token", token);
    put_json(&line, "region", "eu-central-1");
    put_json(&line, "service", "sqs");
    put_json(&line, "time", "20150830T123600Z");
    once_buf_puts(&line, ",\"headers\":{");
    for (size_t i = 0; i < 3; i++) {
        char name[120];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(headers[i], ":"), headers[i]);
        put_json(&line, name, headers[i] + strlen(name) + 2);
    }
    once_buf_puts(&line, "}}\n");
    assert_false(line.failed);
    fputs(line.data, to);
    once_buf_release(&line);
}

static void signs_as_botocore(void **state)
{
    (void)state;
    char path[] = "/tmp/once-sign-XXXXXX", command[500], theirs[2000];
    char(*ours)[2000] = calloc(REQUESTS, sizeof *ours);
    uint64_t random = 20261116;
    once_buf url, body;
    const int fd = mkstemp(path);
    FILE *to = fdopen(fd, "w");
    assert_non_null(to);
    once_buf_init(&url, 10000);
    once_buf_init(&body, 10000);
    for (size_t i = 0; i < REQUESTS; i++) {
        char headers[3][120];
        once_arena arena = {0};
        once_error err;
        const char **lines;
        once_aws_keys keys = suite_keys;
        make_request(&random, &url, &body, headers);
        if (i % 2) keys.token = ONCE_BYTES("t0ken/+=");
        const char *const list[] = {headers[0], headers[1], headers[2], NULL};
        const once_aws_request request = {
            .method = "POST", .url = url.data, .headers = list, .body = once_buf_bytes(&body)};
        write_request(to, &url, &body, headers, keys.token.len ? keys.token.data : "");
        assert_int_equal(once_aws_sign(&request, &keys, "eu-central-1", "sqs", SUITE_S, &arena, &lines, &err), ONCE_OK);
        snprintf(ours[i], sizeof ours[i], "%s", find_line(lines, "Authorization: "));
        once_arena_release(&arena);
    }
    fclose(to);
    snprintf(command, sizeof command, "/usr/bin/python3 %s/tests/lib/awssign.py <%s", ONCE_SOURCE_ROOT, path);
    FILE *from = popen(command, "r");
    assert_non_null(from);
    for (size_t i = 0; i < REQUESTS; i++) {
        if (!fgets(theirs, sizeof theirs, from)) fail_msg("botocore gave no signature; missing: python3-botocore?");
        theirs[strcspn(theirs, "\n")] = '\0';
        assert_string_equal(ours[i], theirs);
    }
    assert_int_equal(pclose(from), 0);
    unlink(path);
    once_buf_release(&url);
    once_buf_release(&body);
    free(ours);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_values_that_aws_publishes),
        cmocka_unit_test(gives_all_lines_of_the_documented_example),
        cmocka_unit_test(refuses_what_is_no_request),
        cmocka_unit_test(signs_as_botocore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    print_message("no libcurl\n");
    return 0;
}
#endif
