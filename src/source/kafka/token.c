/* Tokens for SASL OAUTHBEARER, from a command (`token`). The command writes a JSON Web Token to standard output; its
 * `exp` says until when it can be used, and its `sub` who we are. librdkafka asks for the next one after four fifths of
 * that time.
 *
 * Thread rule: a thread of librdkafka calls it, one call at a time for each client. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/json.h"
#include "base/no_memory.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

#define TOKEN_MAX ((size_t)64 << 10) /* bytes */
#define TOKEN_MS 30000               /* how long the command may take */

extern char **environ;

/* --- the command -------------------------------------------------------------------------------------------------- */

/* Its output goes to `out`. It has no input, and a process group of its own, so that it can be ended as a whole. */
static int start(char *const argv[], int out, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none;
    if (posix_spawn_file_actions_init(&files) != 0) return ENOMEM;
    if (posix_spawnattr_init(&how) != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    (void)sigemptyset(&none);
    int rc = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    if (rc == 0) rc = posix_spawnattr_setsigmask(&how, &none);
    if (rc == 0) rc = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (rc == 0) rc = posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (rc == 0) rc = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (rc == 0) rc = posix_spawnp(pid, argv[0], &files, &how, argv, environ);
    (void)posix_spawnattr_destroy(&how);
    (void)posix_spawn_file_actions_destroy(&files);
    return rc;
}

/* Until it has ended, or must end. */
static void wait_for_end(const kafka_source *k, pid_t pid, bool whole, int64_t until_ns, int *status)
{
    bool killed = false;
    for (;;) {
        if (!killed && (!whole || once__kafka_now_ns(k) >= until_ns || atomic_load(&k->closing)))
            killed = kill(-pid, SIGKILL) == 0;
        const pid_t ended = waitpid(pid, status, killed ? 0 : WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR)) return;
        if (ended == 0) once_env_sleep_ms(k->base.env, 5);
    }
}

/* All of its output. False: it took too long, or wrote too much, or the source is closed. */
static bool read_all(const kafka_source *k, int fd, int64_t until_ns, once_buf *out)
{
    for (;;) {
        char part[4096];
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (once__kafka_now_ns(k) >= until_ns || atomic_load(&k->closing)) return false;
        if (poll(&ready, 1, 100) <= 0) continue;
        const ssize_t got = read(fd, part, sizeof part);
        if (got == 0) return true;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 || !once_buf_append(out, part, (size_t)got)) return false;
    }
}

static int run_command(const kafka_source *k, char *const argv[], once_buf *out, once_error *err)
{
    const int64_t until_ns = once__kafka_now_ns(k) + TOKEN_MS * INT64_C(1000000);
    int fds[2];
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return once_fail(err, ONCE_E_UNAVAILABLE, "'token': no pipe: %s", once_errno_text(errno));
    const int failed = start(argv, fds[1], &pid);
    (void)close(fds[1]);
    bool whole = false;
    int status = 0;
    if (!failed) {
        whole = read_all(k, fds[0], until_ns, out);
        wait_for_end(k, pid, whole, until_ns, &status);
    }
    (void)close(fds[0]);
    if (failed)
        return once_fail(err, ONCE_E_UNAVAILABLE, "'token': cannot run '%s': %s", argv[0], once_errno_text(failed));
    if (!whole)
        return once_fail(err, ONCE_E_UNAVAILABLE, "'token': '%s' took longer than %d s, or wrote more than 64 KiB",
                         argv[0], TOKEN_MS / 1000);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ONCE_OK;
    return once_fail(err, ONCE_E_UNAVAILABLE, "'token': '%s' ended with %s %d; run it by hand to see why", argv[0],
                     WIFEXITED(status) ? "exit status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* --- the token ---------------------------------------------------------------------------------------------------- */

static int digit_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* base64url without padding. False: it is none, or memory is out. */
static bool decode(once_bytes text, once_buf *out)
{
    uint32_t bits = 0;
    int n = 0;
    for (size_t i = 0; i < text.len; i++) {
        const int digit = digit_of(text.data[i]);
        if (digit < 0) return false;
        bits = bits << 6 | (uint32_t)digit;
        n += 6;
        if (n < 8) continue;
        n -= 8;
        const char byte = (char)(bits >> n & 0xff);
        if (!once_buf_append(out, &byte, 1)) return false;
    }
    return true;
}

/* The part between the two dots; empty: it is no such token. */
static once_bytes claims_of(const char *token)
{
    const char *first = strchr(token, '.');
    const char *second = first ? strchr(first + 1, '.') : NULL;
    return second ? (once_bytes){first + 1, (size_t)(second - first) - 1} : (once_bytes){0};
}

bool once__kafka_read_token(const char *token, int64_t *expires_ms, once_arena *arena, once_bytes *subject)
{
    once_buf text;
    once_json json;
    int64_t expires_s = 0;
    bool ok = false;
    once_buf_init(&text, TOKEN_MAX);
    once_json_init(&json);
    const once_bytes claims = claims_of(token);
    if (claims.len && decode(claims, &text) && once_json_parse(&json, once_buf_bytes(&text), NULL, NULL) == ONCE_OK) {
        const once_json_value root = once_json_root(&json);
        const once_json_value expires = once_json_member(&json, root, ONCE_BYTES("exp"));
        once_bytes name;
        ok = once_json_int64(expires, &expires_s) && expires_s > 0 && expires_s < INT64_MAX / 1000 &&
             once_json_string(once_json_member(&json, root, ONCE_BYTES("sub")), arena, &name) && name.len > 0 &&
             once_arena_copy(arena, name, subject);
        if (ok) *expires_ms = expires_s * 1000;
    }
    once_json_release(&json);
    once_buf_release(&text);
    return ok;
}

static int fetch_token(const kafka_source *k, rd_kafka_t *client, once_arena *arena, once_error *err)
{
    const once_kafka_spec *kafka = k->kafka;
    char **argv = once_arena_new(arena, char *, kafka->n_token + 1);
    once_bytes argument, subject;
    int64_t expires_ms;
    once_buf out;
    for (size_t i = 0; argv && i < kafka->n_token; i++) {
        if (!once_arena_copy(arena, kafka->token[i], &argument)) argv = NULL;
        else argv[i] = (char *)(uintptr_t)argument.data;
    }
    if (!argv) return once_no_memory(err, "for the command of 'token'");
    once_buf_init(&out, TOKEN_MAX);
    int rc = run_command(k, argv, &out, err);
    while (rc == ONCE_OK && out.len && strchr(" \r\n\t", out.data[out.len - 1])) out.data[--out.len] = '\0';
    if (rc == ONCE_OK && (!out.len || !once__kafka_read_token(out.data, &expires_ms, arena, &subject)))
        rc = once_fail(err, ONCE_E_DENIED, "'token': '%s' wrote no JSON Web Token with 'exp' and 'sub'", argv[0]);
    char why[300] = "";
    if (rc == ONCE_OK && rd_kafka_oauthbearer_set_token(client, out.data, expires_ms, subject.data, NULL, 0, why,
                                                        sizeof why) != RD_KAFKA_RESP_ERR_NO_ERROR)
        rc = once_fail(err, ONCE_E_DENIED, "'token': librdkafka does not accept the token of '%s': %s", argv[0], why);
    if (out.data) explicit_bzero(out.data, out.len);
    once_buf_release(&out);
    return rc;
}

void once__kafka_refresh_token(rd_kafka_t *client, const char *config, void *opaque)
{
    const kafka_source *k = opaque;
    once_arena arena = {0};
    once_error failure;
    (void)config;
    if (atomic_load(&k->closing)) return; /* the pipeline may be gone */
    assert(k->kafka->n_token > 0);
    /* librdkafka tries again after ten seconds, and reports it as an error meanwhile. */
    if (fetch_token(k, client, &arena, &failure) != ONCE_OK)
        (void)rd_kafka_oauthbearer_set_token_failure(client, failure.text);
    once_arena_release(&arena);
}
