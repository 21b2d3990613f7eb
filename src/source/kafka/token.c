/* Tokens for SASL OAUTHBEARER, from a command (`token`). The command writes a JSON Web Token to standard output; its
 * `exp` says until when it can be used, and its `sub` who we are. librdkafka asks for the next one after four fifths of
 * that time.
 *
 * Thread rule: a thread of librdkafka calls it, one call at a time for each client. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/capture.h"
#include "base/json.h"
#include "base/no_memory.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

#define TOKEN_MAX ((size_t)64 << 10) /* bytes */
#define TOKEN_MS 30000               /* how long the command may take */

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

static bool is_closing(void *user)
{
    const kafka_source *k = user;
    return atomic_load(&k->closing);
}

static int run_command(kafka_source *k, char *const argv[], once_buf *out, once_error *err)
{
    const once_cancel cancel = {is_closing, k};
    once_error failure;
    const int rc = once_capture(argv, k->base.env, TOKEN_MS, &cancel, out, &failure);
    return rc == ONCE_OK ? ONCE_OK : once_fail(err, rc, "'token': %s", failure.text);
}

static int fetch_token(kafka_source *k, rd_kafka_t *client, once_arena *arena, once_error *err)
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
    kafka_source *k = opaque;
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
