/* The check of dead letters, of the lists and uniques that name them, and of audit records. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "store/redis/look.h"

#include "base/banned.h"

static void ask_letter(once_redis_looking *l, once_bytes number, int64_t last)
{
    once__redis_command(once__look_pipe(l), ONCE_REPLY_TEXT, 4);
    once__redis_text(once__look_pipe(l), "GETRANGE");
    once__redis_put_key(l->r, "L", number.data, number.len);
    once__redis_number(once__look_pipe(l), 0);
    once__redis_number(once__look_pipe(l), last);
}

static bool has_unique(once_bytes head, const void *unique)
{
    return head.len >= 17 && memcmp(head.data + 1, unique, 16) == 0;
}

/* The hash of uniques names another letter, or none, for this one (`bytes`). It is a duplicate only if the other letter
 * exists and has the same unique. */
static int judge_unique(once_redis_looking *l, once_redis_flaw *flaw, once_error *err)
{
    unsigned char unique[16];
    once__redis_id_write(flaw->unique, unique);
    flaw->kind = FLAW_LETTER_NO_UNIQUE;
    if (!flaw->bytes.len) return once__look_found(l, *flaw, err);
    once__redis_pipe_clear(once__look_pipe(l));
    ask_letter(l, flaw->bytes, 16);
    const int rc = once__look_ask(l, err);
    if (rc != ONCE_OK) return rc;
    if (has_unique(once__look_reply(l, 0), unique)) flaw->kind = FLAW_LETTER_OTHER_UNIQUE;
    flaw->place = flaw->bytes;
    return once__look_found(l, *flaw, err);
}

static int judge_letter(once_redis_looking *l, const once_look_key *key, const once_letter *letter, once_hash unique,
                        once_bytes value, size_t at, once_error *err)
{
    char number[24];
    const int len = snprintf(number, sizeof number, "%llu", (unsigned long long)key->number);
    once_redis_flaw flaw = {.key = key->whole,
                            .in_words = letter->key,
                            .consumer = letter->scope.consumer,
                            .number = key->number,
                            .unique = unique,
                            .stored = value};
    const once_bytes listed = once__look_reply(l, at), points_to = once__look_reply(l, at + 1),
                     now = once__look_reply(l, at + 2);
    double score;
    if (!now.len) return ONCE_OK; /* dropped since */
    const bool is_listed = listed.len && once__reply_read_score(listed, &score) && score == (double)key->number;
    const bool is_unique = once_bytes_equal(points_to, (once_bytes){number, (size_t)len});
    bool fine = true;
    int rc = ONCE_OK;
    flaw.kind = FLAW_LETTER_NOT_LISTED;
    if (!is_listed) rc = once__look_found(l, flaw, err);
    flaw.bytes = once__look_copy(l, points_to, &fine);
    if (rc == ONCE_OK && !fine) return once__redis_nomem(err);
    return rc == ONCE_OK && !is_unique ? judge_unique(l, &flaw, err) : rc;
}

static int note_letter(once_redis_looking *l, const once_look_key *key, const once_letter *letter, once_error *err)
{
    assert(key->number > 0);
    if (key->number > l->last_letter) l->last_letter = key->number;
    if (once_hash_is_zero(letter->entry)) return ONCE_OK;
    if (!ONCE_REDIS_ROOM(l->buried)) return once__redis_nomem(err);
    l->buried.at[l->buried.n++] = letter->entry;
    return ONCE_OK;
}

static int look_at_copied_letter(once_redis_looking *l, const once_look_key *key, once_error *err)
{
    assert(key->kind == 'L' && key->number > 0);
    once_letter letter;
    once_hash unique;
    bool fine = true;
    char number[24];
    unsigned char field[16];
    const int len = snprintf(number, sizeof number, "%llu", (unsigned long long)key->number);
    once__redis_pipe_clear(once__look_pipe(l));
    once__look_ask_range(l, key->whole, -1);
    once__look_ask_key(l, ONCE_REPLY_COUNT, "EXISTS", key->whole);
    int rc = once__look_ask(l, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes value = once__look_copy(l, once__look_reply(l, 0), &fine);
    if (!fine) return once__redis_nomem(err);
    if (!value.len)
        return once__reply_count(once__look_pipe(l)->replies[1])
                   ? once__look_found_at(l, FLAW_EMPTY, key->whole, (once_bytes){0}, err)
                   : ONCE_OK;
    if (!once__redis_read_letter(value, key->number, &letter, &unique))
        return once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
    rc = note_letter(l, key, &letter, err);
    once__redis_id_write(unique, field);
    once__redis_pipe_clear(once__look_pipe(l));
    once__look_ask_in(l, "ZSCORE", "d", letter.scope.consumer, number, (size_t)len);
    once__look_ask_in(l, "HGET", "U", (once_bytes){0}, field, sizeof field);
    once__look_ask_range(l, key->whole, 0);
    if (rc == ONCE_OK) rc = once__look_ask(l, err);
    return rc == ONCE_OK ? judge_letter(l, key, &letter, unique, value, 0, err) : rc;
}

/* A letter is as large as a message, so its copy is freed before the end of the page. */
int once__look_at_letter(once_redis_looking *l, const once_look_key *key, once_error *err)
{
    const once_arena whole = l->arena;
    l->arena = (once_arena){0};
    const int rc = look_at_copied_letter(l, key, err);
    once_arena_release(&l->arena);
    l->arena = whole;
    return rc;
}

static once_bytes letter_key(once_redis_looking *l, once_bytes number)
{
    char key[ONCE_REDIS_KEY];
    bool fine = true;
    return once__look_copy(l, (once_bytes){key, once__redis_key(l->r, "L", number.data, number.len, key)}, &fine);
}

/* A letter is missing only if the list still names it after the letter was looked for: else it was dropped. */
int once__look_at_listed_letters(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                                 once_error *err)
{
    assert(key->kind == 'd' && n > 0);
    enum { HEAD = 1024 }; /* holds the scope, unless names are very long */
    bool *gone = once_arena_new(&l->arena, bool, n + 1), fine = true;
    once_bytes *of_others = once_arena_new(&l->arena, once_bytes, n + 1);
    if (!gone || !of_others) return once__redis_nomem(err);
    once__redis_pipe_clear(once__look_pipe(l));
    for (size_t i = 0; i < n; i++) {
        ask_letter(l, pairs[2 * i], HEAD - 1);
        once__look_ask_in(l, "ZSCORE", "d", key->consumer, pairs[2 * i].data, pairs[2 * i].len);
    }
    int rc = once__look_ask(l, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_bytes head = once__look_reply(l, 2 * i);
        once_scope scope;
        if (!once__look_reply(l, 2 * i + 1).len) continue; /* dropped since */
        gone[i] = !head.len;
        if (once__redis_read_letter_scope(head, &scope) && !once_bytes_equal(scope.consumer, key->consumer))
            of_others[i] = once__look_copy(l, head, &fine);
    }
    if (!fine) return once__redis_nomem(err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        uint64_t number = 0;
        if (!once__look_letter_number(pairs[2 * i], &number))
            rc = once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        else if (of_others[i].len)
            rc = once__look_found(l,
                                  (once_redis_flaw){.kind = FLAW_LETTER_OF_OTHER,
                                                    .key = key->whole,
                                                    .in_words = pairs[2 * i],
                                                    .number = number,
                                                    .stored = of_others[i],
                                                    .consumer = key->consumer,
                                                    .place = letter_key(l, pairs[2 * i])},
                                  err);
        else if (gone[i])
            rc = once__look_found(
                l,
                (once_redis_flaw){
                    .kind = FLAW_LETTER_GONE, .key = key->whole, .in_words = pairs[2 * i], .number = number},
                err);
    }
    return rc;
}

int once__look_at_uniques(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                          once_error *err)
{
    assert(key->kind == 'U' && n > 0);
    bool *gone = once_arena_new(&l->arena, bool, n + 1);
    if (!gone) return once__redis_nomem(err);
    once__redis_pipe_clear(once__look_pipe(l));
    for (size_t i = 0; i < n; i++) {
        ask_letter(l, pairs[2 * i + 1], 16);
        once__look_ask_in(l, "HGET", "U", (once_bytes){0}, pairs[2 * i].data, pairs[2 * i].len);
    }
    int rc = once__look_ask(l, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_bytes head = once__look_reply(l, 2 * i);
        const bool is_its = pairs[2 * i].len == 16 && has_unique(head, pairs[2 * i].data);
        gone[i] = !is_its && once_bytes_equal(once__look_reply(l, 2 * i + 1), pairs[2 * i + 1]);
    }
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        if (pairs[2 * i].len != 16) rc = once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        else if (gone[i])
            rc = once__look_found(l,
                                  (once_redis_flaw){.kind = FLAW_UNIQUE_GONE,
                                                    .key = key->whole,
                                                    .in_words = pairs[2 * i + 1],
                                                    .unique = once__redis_id_read(pairs[2 * i].data),
                                                    .stored = pairs[2 * i + 1]},
                                  err);
    }
    return rc;
}

int once__look_at_audits(once_redis_looking *l, const once_look_key *key, once_error *err)
{
    assert(key->kind == 'a');
    int rc = ONCE_OK;
    size_t n = ONCE_LOOK_PAGE;
    for (int64_t at = 0; rc == ONCE_OK && n == ONCE_LOOK_PAGE; at += ONCE_LOOK_PAGE) {
        bool damaged = false;
        once__redis_pipe_clear(once__look_pipe(l));
        once__redis_command(once__look_pipe(l), ONCE_REPLY_TEXTS, 4);
        once__redis_text(once__look_pipe(l), "LRANGE");
        once__redis_arg(once__look_pipe(l), key->whole.data, key->whole.len);
        once__redis_number(once__look_pipe(l), at);
        once__redis_number(once__look_pipe(l), at + ONCE_LOOK_PAGE - 1);
        rc = once__look_ask(l, err);
        n = rc == ONCE_OK ? once__reply_n(once__look_pipe(l)->replies[0]) : 0;
        for (size_t i = 0; i < n; i++) {
            once_audit audit;
            damaged |= !once__redis_read_audit(once__reply_at(once__look_pipe(l)->replies[0], i), &audit);
        }
        if (damaged) rc = once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
    }
    return rc;
}
