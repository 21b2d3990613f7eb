/* A check of all keys of a store, page by page. Each kind of key has a file of its own (look.h). This file has what
 * belongs to no kind, and what can be judged only when all keys were seen. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/look.h"

#include "base/banned.h"

int once__redis_look_at_types(once_redis_looking *l, once_error *err)
{
    char cursor[24] = "0";
    int rc;
    do {
        once_bytes *keys;
        size_t n;
        rc = once__look_scan(l, cursor, ONCE_LOOK_PAGE, &keys, &n, err);
        if (rc != ONCE_OK || n == 0) continue;
        once__redis_pipe_clear(once__look_pipe(l));
        for (size_t i = 0; i < n; i++) once__look_ask_key(l, ONCE_REPLY_DONE, "TYPE", keys[i]);
        rc = once__look_ask(l, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            const once_look_key key = once__look_key(l->r, keys[i]);
            const once_bytes type = once__look_reply(l, i);
            if (once__look_is_word(type, "none")) continue; /* gone since */
            if (!key.kind) rc = once__look_found_at(l, FLAW_STRANGER, keys[i], (once_bytes){0}, err);
            else if (!once__look_is_type(key.kind, type))
                rc = once__look_found_at(l, FLAW_TYPE, keys[i], once__look_copy(l, type, &(bool){true}), err);
        }
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    return rc;
}

static int look_at_other(once_redis_looking *l, const once_look_key *key, once_error *err)
{
    switch (key->kind) {
    case 'i': return once__look_each_pair(l, key, "ZSCAN", once__look_at_index, err);
    case 'o': return once__look_each_pair(l, key, "ZSCAN", once__look_at_members, err);
    case 'c': return once__look_each_pair(l, key, "ZSCAN", once__look_at_groups, err);
    case 'g': return once__look_each_pair(l, key, "HSCAN", once__look_at_claims, err);
    case 'd': return once__look_each_pair(l, key, "ZSCAN", once__look_at_listed_letters, err);
    case 'U': return once__look_each_pair(l, key, "HSCAN", once__look_at_uniques, err);
    case 'L': return once__look_at_letter(l, key, err);
    case 'a': return once__look_at_audits(l, key, err);
    default: return ONCE_OK;
    }
}

/* Entries and lanes expire, and so does the turn; no other key has a time to live. */
static bool ends_never(char kind) { return kind && !once__look_one_of("elt", kind); }

static int look_at_ends(once_redis_looking *l, const once_bytes *keys, size_t n, once_error *err)
{
    once__redis_pipe_clear(once__look_pipe(l));
    for (size_t i = 0; i < n; i++)
        if (ends_never(once__look_key(l->r, keys[i]).kind)) once__look_ask_key(l, ONCE_REPLY_LEFT, "PTTL", keys[i]);
    int rc = once__look_pipe(l)->n ? once__look_ask(l, err) : ONCE_OK;
    for (size_t i = 0, at = 0; i < n && rc == ONCE_OK; i++) {
        if (!ends_never(once__look_key(l->r, keys[i]).kind)) continue;
        if (once__reply_left(once__look_pipe(l)->replies[at++]) >= 0)
            rc = once__look_found_at(l, FLAW_LIMITED, keys[i], (once_bytes){0}, err);
    }
    return rc;
}

int once__redis_look_at_some(once_redis_looking *l, char cursor[24], once_error *err)
{
    assert(l->what != 0 && l->found);
    once_bytes *keys;
    size_t n, n_entries = 0, n_lanes = 0;
    int rc = once__look_scan(l, cursor, l->page ? l->page : ONCE_LOOK_FEW, &keys, &n, err);
    if (rc != ONCE_OK) return rc;
    once_hash *entries = once_arena_new(&l->arena, once_hash, n + 1),
              *lanes = once_arena_new(&l->arena, once_hash, n + 1);
    if (!entries || !lanes) return once__redis_nomem(err);
    if (l->what & ONCE_REDIS_LOOK_OTHERS) rc = look_at_ends(l, keys, n, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_look_key key = once__look_key(l->r, keys[i]);
        if (key.kind == 'e') entries[n_entries++] = key.id;
        else if (key.kind == 'l') lanes[n_lanes++] = key.id;
        else if (l->what & ONCE_REDIS_LOOK_OTHERS) rc = look_at_other(l, &key, err);
    }
    if (rc == ONCE_OK && l->what & ONCE_REDIS_LOOK_ENTRIES) rc = once__look_at_entries(l, entries, n_entries, err);
    if (rc == ONCE_OK && l->what & ONCE_REDIS_LOOK_OTHERS) rc = once__look_at_lanes(l, lanes, n_lanes, err);
    l->keys += n;
    return rc;
}

/* Without `secret` older programs would use the store; without `commits` workers would report lost commits; without
 * `letters` new dead letters would get no number. */
static int look_at_head(once_redis_looking *l, once_error *err)
{
    static const char *const fields[] = {"letters", "secret", "commits"};
    char key[ONCE_REDIS_KEY], last[24];
    once_redis_flaw flaw = {.key = {key, once__redis_key(l->r, "head", NULL, 0, key)}, .number = l->last_letter};
    uint64_t letters = 0;
    once__redis_pipe_clear(once__look_pipe(l));
    for (size_t i = 0; i < 3; i++) once__look_ask_in(l, "HGET", "head", (once_bytes){0}, fields[i], strlen(fields[i]));
    int rc = once__look_ask(l, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes text = once__look_reply(l, 0);
    const bool no_number = text.len && !once__reply_read_number(text, &letters), new = l->r->format >= 2;
    const bool no_secret = new && !once__look_is_word(once__look_reply(l, 1), ONCE_REDIS_NO_SECRET),
               no_commits = new && !once__look_reply(l, 2).len;
    flaw.kind = no_number ? FLAW_LETTERS_NUMBER : FLAW_LAST_LETTER;
    flaw.in_words = flaw.key;
    flaw.place = (once_bytes){last, (size_t)snprintf(last, sizeof last, "%llu", (unsigned long long)l->last_letter)};
    if (no_number || letters < l->last_letter) rc = once__look_found(l, flaw, err);
    flaw.kind = FLAW_HEAD_SECRET;
    if (rc == ONCE_OK && no_secret) rc = once__look_found(l, flaw, err);
    flaw.kind = FLAW_HEAD_COMMITS;
    return rc == ONCE_OK && no_commits && l->keys > 1 ? once__look_found(l, flaw, err) : rc;
}

/* Keys that have moved to another node would seem to be gone. */
static int not_while_it_moves(once_redis_looking *l, once_error *err)
{
    char why[400];
    if (once__redis_doubt(&l->r->storage.store, why, sizeof why))
        return once_fail(err, ONCE_E_UNAVAILABLE, "the whole store cannot be read at the moment: %s", why);
    return once__redis_clustered(l->r->link) ? once__redis_look_for_strays(l->r, err) : ONCE_OK;
}

int once__redis_look_begin(once_redis_looking *l, once_error *err)
{
    assert(l->r && l->found);
    const int rc = not_while_it_moves(l, err);
    l->connections = once__redis_connections(l->r->link);
    return rc;
}

int once__redis_look_end(once_redis_looking *l, once_error *err)
{
    once_arena_reset(&l->arena);
    const bool others = l->what & ONCE_REDIS_LOOK_OTHERS;
    int rc = others ? once__look_for_letters(l, err) : ONCE_OK;
    if (rc == ONCE_OK && others) rc = look_at_head(l, err);
    if (rc == ONCE_OK) rc = not_while_it_moves(l, err);
    if (rc == ONCE_OK && once__redis_connections(l->r->link) != l->connections)
        rc = once_fail(err, ONCE_E_UNAVAILABLE,
                       "the connection to redis was lost and made again, so keys may have been left out; run it again");
    return rc;
}

void once__redis_look_release(once_redis_looking *l)
{
    once_arena_release(&l->arena);
    free(l->buried.at);
    free(l->dead.at);
}
