/* Encodes the arguments of the commit script part by part (redis.h) while write.c goes over the transaction. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "store/redis/commit.h"

#include "base/banned.h"

void once__redis_part_count(once_redis_part *to, size_t n)
{
    char text[24];
    const int len = snprintf(text, sizeof text, "%zu", n);
    once__redis_encode(&to->args, text, (size_t)len);
    to->n_args++;
}

/* Appends arguments that are already encoded. */
static void append(once_buf *to, const once_buf *encoded)
{
    if (encoded->failed) to->failed = true;
    else if (encoded->len) once_buf_append(to, encoded->data, encoded->len);
}

void once__redis_part_arg(once_redis_part *to, const void *data, size_t len)
{
    assert(len == 0 || data);
    once__redis_encode(&to->args, data, len);
    to->n_args++;
}

void once__redis_declare(once_redis *r, once_redis_part *to, const char *kind, const void *rest, size_t len)
{
    assert(len == 0 || rest);
    once_buf_clear(&r->key);
    once_buf_puts(&r->key, r->prefix);
    once_buf_puts(&r->key, kind);
    if (len) once_buf_append(&r->key, rest, len);
    if (r->key.failed) to->keys.failed = true;
    else once__redis_encode(&to->keys, r->key.data, r->key.len);
    to->n_keys++;
}

static void begin_command(once_redis *r, once_redis_part *to, const char *command, const char *kind, once_bytes rest,
                          size_t n)
{
    assert(r->owed == 0); /* all arguments of the command before were put */
    once__redis_declare(r, to, kind, rest.data, rest.len);
    once__redis_part_count(to, 1 + n);
    once__redis_part_arg(to, command, strlen(command));
    to->n++;
    r->command = to;
    r->owed = n;
}

void once__redis_do(once_redis *r, const char *command, const char *kind, once_bytes rest, size_t n)
{
    begin_command(r, &r->parts[ONCE_REDIS_COMMANDS], command, kind, rest, n);
}

void once__redis_undo(once_redis *r, const char *command, const char *kind, once_bytes rest, size_t n)
{
    begin_command(r, &r->parts[ONCE_REDIS_REMOVALS], command, kind, rest, n);
}

void once__redis_put(once_redis *r, const void *data, size_t len)
{
    assert(r->owed > 0);
    r->owed--;
    once__redis_part_arg(r->command, data, len);
}

void once__redis_put_text(once_redis *r, const char *text) { once__redis_put(r, text, strlen(text)); }

size_t once__redis_number_text(int64_t number, char out[24])
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
    do digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) digits[--at] = '-';
    memcpy(out, digits + at, sizeof digits - at);
    return sizeof digits - at;
}

void once__redis_put_number(once_redis *r, int64_t number)
{
    char text[24];
    once__redis_put(r, text, once__redis_number_text(number, text));
}

void once__redis_expect_now(once_redis *r)
{
    static const char *const kinds[] = {"f", "U"};
    once_redis_part *to = &r->parts[ONCE_REDIS_FIELDS];
    for (size_t i = 0; i < 2; i++) {
        once_redis_expected *some = &r->expected[i];
        if (some->n == 0) continue;
        once__redis_declare(r, to, kinds[i], NULL, 0);
        once__redis_part_count(to, some->n);
        append(&to->args, &some->names);
        append(&to->args, &some->values);
        to->n_args += 2 * some->n;
        to->n++;
        some->n = 0;
        once_buf_clear(&some->names);
        once_buf_clear(&some->values);
    }
}

void once__redis_expect_field(once_redis *r, char hash_kind, const void *field, size_t field_len, once_bytes value)
{
    assert(field_len > 0);
    assert(hash_kind == 'f' || hash_kind == 'U');
    once_redis_expected *to = &r->expected[hash_kind == 'U'];
    once__redis_encode(&to->names, field, field_len);
    once__redis_encode(&to->values, value.data, value.len);
    to->n++;
    if (to->n == ONCE_REDIS_ARGS_MAX) once__redis_expect_now(r);
}

/* The server expires keys only where its clock is the store's. */
static bool expires_by_itself(const once_redis *r, int64_t expires_ms)
{
    return !once__redis_test_clock(r) && expires_ms < INT64_MAX / 4;
}

void once__redis_put_value(once_redis *r, const char *kind, once_hash id, once_bytes stored, once_redis_fate what,
                           int64_t expires_ms)
{
    assert(what != ONCE_REDIS_DELETE || stored.len > 0);
    once_redis_values *to = &r->values[stored.len > ONCE_REDIS_SMALL];
    char key[ONCE_REDIS_KEY], time[24] = "";
    const size_t len = once__redis_id_key(r, kind, id, key);
    const size_t head =
        once__redis_is_finished(stored) || stored.len < ONCE_REDIS_STAMPED ? stored.len : ONCE_REDIS_STAMPED;
    const size_t time_len =
        what == ONCE_REDIS_WRITE && expires_by_itself(r, expires_ms) ? once__redis_number_text(expires_ms, time) : 0;
    if (r->value.failed) to->keys.failed = true;
    if (stored.len == 0 && what == ONCE_REDIS_WRITE && time_len == 0) {
        once_redis_part *new = &r->parts[ONCE_REDIS_NEW];
        once__redis_encode(&new->keys, key, len);
        new->n_keys++;
        once__redis_part_arg(new, r->value.data, r->value.len);
        new->n++;
        return;
    }
    once__redis_encode(&to->keys, key, len);
    once__redis_encode(&to->was, stored.data, head);
    once__redis_encode(&to->now, r->value.data, what == ONCE_REDIS_WRITE ? r->value.len : 0);
    once__redis_encode(&to->how,
                       what == ONCE_REDIS_WRITE  ? time
                       : what == ONCE_REDIS_KEEP ? "-"
                                                 : "d",
                       what == ONCE_REDIS_WRITE ? time_len : 1);
    to->n++;
}

void once__redis_commit_each(once_redis *r, void (*visit)(once_buf *buf))
{
    for (int i = 0; i < 2; i++) {
        visit(&r->values[i].keys);
        visit(&r->values[i].was);
        visit(&r->values[i].now);
        visit(&r->values[i].how);
    }
    for (size_t i = 0; i < ONCE_REDIS_PARTS; i++) {
        visit(&r->parts[i].keys);
        visit(&r->parts[i].args);
    }
    for (size_t i = 0; i < 2; i++) {
        visit(&r->expected[i].names);
        visit(&r->expected[i].values);
    }
}

void once__redis_commit_clear(once_redis *r)
{
    once__redis_commit_each(r, once_buf_clear);
    r->owed = 0;
    r->values[0].n = r->values[1].n = r->expected[0].n = r->expected[1].n = 0;
    for (size_t i = 0; i < ONCE_REDIS_PARTS; i++) r->parts[i].n = r->parts[i].n_keys = r->parts[i].n_args = 0;
}
