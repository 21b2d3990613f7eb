/* `once check --deep`: reads every key of a store and says which do not fit: a value that cannot be read, an entry that
 * its index does not name, a name of nothing.
 *
 * Workers go on meanwhile. Nothing is locked, and no two round trips are one moment; but whatever changes the place of
 * an unfinished entry gives it a new stamp in the same commit, and so do lanes. So a value that is the same before and
 * behind the look at what belongs to it was that all the time, and what does not fit to it is damage. What has changed
 * is looked at again. Groups, numbers of letters and stamps are never used twice.
 *
 * Values have no checksums, so one that was changed into another possible one is not noticed. */
#include "store/redis/verify.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/banned.h"

enum { PAGE = 128, FEW = 4, TRIES = 5, PART_BYTES = 4 << 20 };

static bool same(once_bytes x, once_bytes y)
{
    return x.len == y.len && (x.len == 0 || memcmp(x.data, y.data, x.len) == 0);
}

static once_bytes copy(once_redis_looking *l, once_bytes bytes, bool *fine)
{
    once_bytes out = {0};
    if (bytes.len && !once_arena_copy(&l->arena, bytes, &out)) *fine = false;
    return out;
}

/* --- keys --- */

typedef struct known_key {
    char kind; /* 0: none of ours */
    once_bytes whole;
    once_hash id;
    once_bytes consumer;
    uint64_t number;
} known_key;

static bool is_word(once_bytes rest, const char *word)
{
    return rest.len == strlen(word) && memcmp(rest.data, word, rest.len) == 0;
}

/* strchr finds the end of a text, too. */
static bool one_of(const char *kinds, char kind) { return kind && strchr(kinds, kind); }

/* As once writes it: 'L1', never 'L01'. */
static bool read_letter_number(once_bytes text, uint64_t *out)
{
    return text.len && text.data[0] != '0' && once__reply_read_number(text, out);
}

static known_key read_key(const once_redis *r, once_bytes whole)
{
    const size_t prefix = strlen(r->prefix);
    known_key key = {.whole = whole};
    once_bytes rest = {whole.data + prefix, whole.len - prefix};
    if (rest.len == 0) return key;
    const char kind = rest.data[0];
    if (is_word(rest, "head")) key.kind = 'h';
    else if (is_word(rest, "turn") || is_word(rest, "trial") || is_word(rest, "testclock")) key.kind = 't';
    else if (one_of("elo", kind) && rest.len == 17) key.kind = kind;
    else if (one_of("nfUw", kind) && rest.len == 1) key.kind = kind;
    else if (kind == 'L' && read_letter_number((once_bytes){rest.data + 1, rest.len - 1}, &key.number)) key.kind = kind;
    else if (kind == 'i' && rest.len > 1 && one_of("WwCux", rest.data[1])) key.kind = kind;
    else if (one_of("cgda", kind)) key.kind = kind;
    if (one_of("elo", kind) && key.kind == kind) key.id = once__redis_id_read(rest.data + 1);
    const size_t before = kind == 'i' ? 2 : 1;
    if (one_of("icgda", kind) && key.kind == kind) key.consumer = (once_bytes){rest.data + before, rest.len - before};
    return key;
}

static const char *type_of(char kind)
{
    if (one_of("hnfUg", kind)) return "hash";
    if (one_of("iocd", kind)) return "zset";
    return kind == 'w' ? "set" : kind == 'a' ? "list" : "string";
}

static int found(once_redis_looking *l, once_redis_flaw flaw, once_error *err) { return l->found(l, &flaw, err); }

static int found_at(once_redis_looking *l, once_redis_flaw_kind kind, once_bytes key, once_bytes in_words,
                    once_error *err)
{
    return found(l, (once_redis_flaw){.kind = kind, .key = key, .in_words = in_words}, err);
}

static int ask(once_redis_looking *l, once_error *err)
{
    char refused[24];
    const int rc = once__redis_exchange(l->r->link, &l->r->pipe, refused, err);
    if (rc == ONCE_E_DENIED && strcmp(refused, "NOPERM") == 0) {
        once_error why = *err;
        return once_fail(
            err, rc,
            "to read the whole store this user of redis needs rights that docs/redis.md names, 'SCAN' among them: %s",
            why.text);
    }
    return rc;
}

/* How many to read next where so many had so many bytes: few at first, twice as many while they are small, and no more
 * than fit. */
static size_t next_page(size_t page, size_t n, uint64_t bytes)
{
    const uint64_t fit = n && bytes ? (uint64_t)PART_BYTES * n / bytes : PAGE, twice = 2 * page,
                   next = fit < twice ? fit : twice;
    return next < 1 ? 1 : next > PAGE ? PAGE : (size_t)next;
}

/* A page of all keys of the store, of about so many; they are copied. */
static int scan(once_redis_looking *l, char cursor[24], size_t count, once_bytes **keys, size_t *n, once_error *err)
{
    once_redis *r = l->r;
    once_arena_reset(&l->arena);
    once__redis_ask_scan(r, "", cursor, count);
    const int rc = ask(l, err);
    if (rc != ONCE_OK) return rc;
    const redisReply *page = once__reply_keys(r->pipe.replies[0]);
    bool fine = true;
    once__reply_cursor(r->pipe.replies[0], cursor);
    *n = once__reply_n(page);
    *keys = once_arena_new(&l->arena, once_bytes, *n + 1);
    for (size_t i = 0; i < *n && *keys; i++) (*keys)[i] = copy(l, once__reply_at(page, i), &fine);
    return *keys && fine ? ONCE_OK : once__redis_nomem(err);
}

/* --- commands --- */

static once_redis_pipe *pipe_of(once_redis_looking *l) { return &l->r->pipe; }

static void ask_key(once_redis_looking *l, once_reply_kind kind, const char *command, once_bytes key)
{
    once__redis_command(pipe_of(l), kind, 2);
    once__redis_text(pipe_of(l), command);
    once__redis_arg(pipe_of(l), key.data, key.len);
}

/* One value of a hash or a score of a sorted set; nil, where it is not there. */
static void ask_in(once_redis_looking *l, const char *command, const char *kind, once_bytes rest, const void *member,
                   size_t len)
{
    once__redis_command(pipe_of(l), ONCE_REPLY_VALUE, 3);
    once__redis_text(pipe_of(l), command);
    once__redis_put_key(l->r, kind, rest.data, rest.len);
    once__redis_arg(pipe_of(l), member, len);
}

static void ask_id_in(once_redis_looking *l, const char *command, const char *kind, once_hash key, const void *member,
                      size_t len)
{
    unsigned char bytes[16];
    once__redis_id_write(key, bytes);
    ask_in(l, command, kind, (once_bytes){(const char *)bytes, sizeof bytes}, member, len);
}

static void begin_values(once_redis_looking *l, size_t n)
{
    once__redis_command(pipe_of(l), ONCE_REPLY_STRINGS, n + 1);
    pipe_of(l)->asked[pipe_of(l)->n - 1].n = n;
    once__redis_text(pipe_of(l), "MGET");
}

static void ask_value(once_redis_looking *l, const char *kind, once_hash id)
{
    begin_values(l, 1);
    once__redis_put_id_key(l->r, kind, id);
}

static void ask_range(once_redis_looking *l, once_bytes key, int64_t last)
{
    once__redis_command(pipe_of(l), ONCE_REPLY_TEXT, 4);
    once__redis_text(pipe_of(l), "GETRANGE");
    once__redis_arg(pipe_of(l), key.data, key.len);
    once__redis_number(pipe_of(l), 0);
    once__redis_number(pipe_of(l), last);
}

static once_bytes reply(once_redis_looking *l, size_t i) { return once__reply_bytes(pipe_of(l)->replies[i]); }
static once_bytes first_of(once_redis_looking *l, size_t i) { return once__reply_at(pipe_of(l)->replies[i], 0); }

/* Values of so many ids, copied; empty: it is not there, or is nothing that can be read. */
static int read_ids(once_redis_looking *l, const char *kind, const once_hash *ids, size_t n, once_bytes *out,
                    once_error *err)
{
    bool fine = true;
    if (n == 0) return ONCE_OK;
    once__redis_pipe_clear(pipe_of(l));
    begin_values(l, n);
    for (size_t i = 0; i < n; i++) once__redis_put_id_key(l->r, kind, ids[i]);
    const int rc = ask(l, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        out[i] = copy(l, once__reply_at(pipe_of(l)->replies[0], i), &fine);
        l->bytes += out[i].len;
    }
    return rc != ONCE_OK || fine ? rc : once__redis_nomem(err);
}

static once_bytes id_key(once_redis_looking *l, const char *kind, once_hash id)
{
    char key[ONCE_REDIS_KEY];
    bool fine = true;
    return copy(l, (once_bytes){key, once__redis_id_key(l->r, kind, id, key)}, &fine);
}

/* --- types --- */

int once__redis_look_at_types(once_redis_looking *l, once_error *err)
{
    char cursor[24] = "0";
    int rc;
    do {
        once_bytes *keys;
        size_t n;
        rc = scan(l, cursor, PAGE, &keys, &n, err);
        if (rc != ONCE_OK || n == 0) continue;
        once__redis_pipe_clear(pipe_of(l));
        for (size_t i = 0; i < n; i++) ask_key(l, ONCE_REPLY_DONE, "TYPE", keys[i]);
        rc = ask(l, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            const known_key key = read_key(l->r, keys[i]);
            const once_bytes type = reply(l, i);
            if (is_word(type, "none")) continue; /* gone meanwhile */
            if (!key.kind) rc = found_at(l, FLAW_STRANGER, keys[i], (once_bytes){0}, err);
            else if (!is_word(type, type_of(key.kind)))
                rc = found_at(l, FLAW_TYPE, keys[i], copy(l, type, &(bool){true}), err);
        }
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    return rc;
}

/* --- entries --- */

typedef struct seen {
    once_hash id;
    once_bytes value;
    once_entry entry;
    once_redis_finished names;
    unsigned char group[16];
    size_t at; /* its first reply */
    bool skip; /* nothing to compare */
} seen;

/* Whoever knows its key stands under the id of that. What was copied or renamed is none of ours: mended, its message
 * would run twice. */
bool once__redis_is_own(const once_redis *r, const once_entry *e)
{
    const once_secret secret = r->shelf.store.secret;
    if (e->state == ONCE_STATE_ABSENT || once_state_finished(e->state) ||
        once_hash_equal(e->id, once_key_id(secret, &e->scope, e->key)))
        return true;
    return once_key_looks_long(e->key) && once_hash_equal(e->id, once_long_key_id(secret, &e->scope, e->key));
}

/* Otherwise that is told of the entry, and nothing of what names it. */
static bool read_own(const once_redis_looking *l, once_bytes value, once_hash id, once_entry *out)
{
    once_redis_finished names;
    return once__redis_read_entry(value, id, out, &names) && once__redis_is_own(l->r, out);
}

static once_bytes shown(const seen *s) { return once_state_finished(s->entry.state) ? (once_bytes){0} : s->entry.key; }

static once_redis_flaw flaw_of(once_redis_looking *l, const seen *s, once_redis_flaw_kind kind)
{
    return (once_redis_flaw){.kind = kind,
                             .key = id_key(l, "e", s->id),
                             .id = s->id,
                             .in_words = shown(s),
                             .stored = s->value,
                             .lane = s->entry.lane,
                             .index = once__redis_index_of(&s->entry),
                             .consumer = s->entry.scope.consumer};
}

static uint64_t stamp_of(once_bytes value)
{
    once_redis_open_head head = {0};
    return once__redis_read_head(value, &head) ? head.stamp : 0;
}

static int64_t listed_at(const once_entry *e)
{
    return once__redis_index_of(e) != ONCE_REDIS_WAITING_BARE ? e->due_ms
           : once_entry_expires(e)                            ? e->expires_ms
                                                              : ONCE_NEVER;
}

/* Where it should be, in a fixed order of commands. */
static void ask_places(once_redis_looking *l, seen *s)
{
    const once_entry *e = &s->entry;
    const char index = once__redis_index_of(e), kind[] = {'i', index, 0};
    unsigned char id[16];
    once__redis_id_write(s->id, id);
    s->at = pipe_of(l)->n;
    ask_key(l, ONCE_REPLY_LEFT, "PTTL", id_key(l, "e", s->id));
    if (once_state_finished(e->state)) {
        ask_in(l, "HGET", "n", (once_bytes){0}, &s->names.scope, sizeof s->names.scope);
        ask_in(l, "HGET", "n", (once_bytes){0}, &s->names.origin, sizeof s->names.origin);
        return;
    }
    if (index == ONCE_REDIS_CLAIMED_BARE) {
        once__redis_group_write(e->due_ms, stamp_of(s->value), s->group);
        ask_in(l, "ZSCORE", "c", e->scope.consumer, s->group, sizeof s->group);
        ask_in(l, "HGET", "g", e->scope.consumer, s->group, sizeof s->group);
    } else {
        ask_in(l, "ZSCORE", kind, e->scope.consumer, id, sizeof id);
        once__redis_command(pipe_of(l), ONCE_REPLY_COUNT, 3);
        once__redis_text(pipe_of(l), "SISMEMBER");
        once__redis_put_key(l->r, "w", NULL, 0);
        once__redis_arg(pipe_of(l), e->scope.consumer.data, e->scope.consumer.len);
    }
    if (e->state == ONCE_STATE_DEAD) {
        unsigned char unique[16];
        once__redis_id_write((once_hash){e->id.a ^ e->token.a, e->id.b ^ e->token.b}, unique);
        ask_in(l, "HGET", "U", (once_bytes){0}, unique, sizeof unique);
    } else if (!once_hash_is_zero(e->lane)) {
        unsigned char member[ONCE_REDIS_MEMBER], old[ONCE_REDIS_OLD_MEMBER];
        once__redis_member_write((once_redis_member){e->order, e->seen_ms, e->id}, member, old);
        ask_value(l, "l", e->lane);
        ask_id_in(l, "ZSCORE", "o", e->lane, member, sizeof member);
        ask_id_in(l, "ZSCORE", "o", e->lane, old, sizeof old);
    }
}

/* The server ends what has an end, at that time, and nothing else. */
static bool ends_well(const once_redis_looking *l, int64_t expires_ms, int64_t left_ms, int64_t now_ms)
{
    enum { SLACK_MS = 5000 };
    if (once__redis_test_clock(l->r)) return true;
    if (expires_ms >= INT64_MAX / 4) return left_ms == -1;
    const int64_t expected_ms = expires_ms - now_ms;
    return left_ms >= 0 && left_ms >= expected_ms - SLACK_MS && left_ms <= expected_ms + SLACK_MS;
}

const once_bytes once__redis_lost = ONCE_BYTES("(lost)");
const once_scope once__redis_lost_scope = {.consumer = ONCE_BYTES("(lost)"), .operation = ONCE_BYTES("(lost)")};

void once__redis_lost_name(once_buf *to, bool scope)
{
    if (scope) once__redis_write_scope(to, &once__redis_lost_scope);
    else once__redis_write_origin(to, once__redis_lost, 0, once__redis_lost);
}

/* Under 8 bytes of a hash of itself; or what a repair put there. */
static bool is_name(once_redis_looking *l, uint64_t id, once_bytes value, bool is_scope)
{
    once_scope scope;
    once_bytes place, who;
    uint64_t run;
    if (!(is_scope ? once__redis_read_scope(value, &scope) : once__redis_read_origin(value, &place, &run, &who)))
        return false;
    if ((once_siphash128(l->r->shelf.store.secret, value.data, value.len).a | 1) == id) return true;
    once_buf_clear(&l->r->value);
    once__redis_lost_name(&l->r->value, is_scope);
    return same(once_buf_bytes(&l->r->value), value);
}

static int judge_finished(once_redis_looking *l, const seen *s, once_error *err)
{
    const uint64_t names[] = {s->names.scope, s->names.origin};
    int rc = ONCE_OK;
    for (size_t i = 0; i < 2 && rc == ONCE_OK; i++) {
        if (is_name(l, names[i], reply(l, s->at + 1 + i), i == 0)) continue;
        once_redis_flaw flaw = flaw_of(l, s, FLAW_NO_NAME);
        flaw.name = names[i];
        flaw.scope = i == 0;
        rc = found(l, flaw, err);
    }
    return rc;
}

static bool names_id(once_bytes ids, once_hash id)
{
    for (size_t at = 0; at + 16 <= ids.len; at += 16)
        if (once_hash_equal(once__redis_id_read(ids.data + at), id)) return true;
    return false;
}

static int judge_index(once_redis_looking *l, const seen *s, once_error *err)
{
    const once_bytes listed = reply(l, s->at + 1);
    double at;
    if (once__redis_index_of(&s->entry) == ONCE_REDIS_CLAIMED_BARE)
        return listed.len && names_id(reply(l, s->at + 2), s->id) ? ONCE_OK
                                                                  : found(l, flaw_of(l, s, FLAW_NO_GROUP), err);
    if (!listed.len) return found(l, flaw_of(l, s, FLAW_NO_INDEX), err);
    const int64_t when_ms = listed_at(&s->entry);
    if (!once__reply_read_score(listed, &at) || at != (when_ms == ONCE_NEVER ? INFINITY : (double)when_ms))
        return found(l, flaw_of(l, s, FLAW_OTHER_TIME), err);
    const bool swept =
        once__redis_index_of(&s->entry) != ONCE_REDIS_WAITING_BARE || once__reply_count(pipe_of(l)->replies[s->at + 2]);
    return swept ? ONCE_OK : found(l, flaw_of(l, s, FLAW_NO_CONSUMER), err);
}

static int judge_lane(once_redis_looking *l, const seen *s, once_error *err)
{
    const once_bytes value = first_of(l, s->at + 3);
    once_redis_lane_record lane = {0};
    if (value.len && !once__redis_read_lane(value, &lane)) return ONCE_OK; /* that is told of the lane */
    int rc = value.len ? ONCE_OK : found(l, flaw_of(l, s, FLAW_NO_LANE), err);
    if (rc == ONCE_OK)
        rc = reply(l, s->at + 4).len || reply(l, s->at + 5).len ? ONCE_OK : found(l, flaw_of(l, s, FLAW_NO_PLACE), err);
    const bool occupies = names_id((once_bytes){(const char *)lane.claimed, 16 * lane.n_claimed}, s->id);
    if (rc == ONCE_OK && value.len && once_state_occupies(s->entry.state) && !occupies)
        rc = found(l, flaw_of(l, s, FLAW_NOT_OCCUPIED), err);
    return rc;
}

static int judge(once_redis_looking *l, const seen *s, int64_t now_ms, once_error *err)
{
    const once_entry *e = &s->entry;
    int rc = ends_well(l, once_entry_expires(e) ? e->expires_ms : ONCE_NEVER,
                       once__reply_left(pipe_of(l)->replies[s->at]), now_ms)
                 ? ONCE_OK
                 : found(l, flaw_of(l, s, FLAW_ENDS), err);
    if (rc != ONCE_OK) return rc;
    if (once_state_finished(e->state)) return judge_finished(l, s, err);
    rc = judge_index(l, s, err);
    if (rc != ONCE_OK) return rc;
    if (e->state == ONCE_STATE_DEAD) {
        if (reply(l, s->at + 3).len) return ONCE_OK;
        if (!ONCE_REDIS_ROOM(l->dead)) return once__redis_nomem(err);
        l->dead.at[l->dead.n++] = s->id;
        return ONCE_OK;
    }
    return once_hash_is_zero(e->lane) ? ONCE_OK : judge_lane(l, s, err);
}

static int found_elsewhere(once_redis_looking *l, const seen *s, once_error *err)
{
    once_redis_flaw flaw = flaw_of(l, s, FLAW_OTHER_KEY);
    const once_entry *e = &s->entry;
    flaw.place = id_key(
        l, "e",
        (once_key_looks_long(e->key) ? once_long_key_id : once_key_id)(l->r->shelf.store.secret, &e->scope, e->key));
    return found(l, flaw, err);
}

/* Reads them; what cannot be used is told, and not compared. */
static int read_entries(once_redis_looking *l, const once_hash *ids, size_t n, seen *out, once_error *err)
{
    once_bytes *values = once_arena_new(&l->arena, once_bytes, n + 1);
    if (!values) return once__redis_nomem(err);
    int rc = read_ids(l, "e", ids, n, values, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        seen *s = &out[i];
        *s = (seen){.id = ids[i], .value = values[i], .skip = true};
        if (!values[i].len) continue; /* gone meanwhile, or empty: that is asked for */
        const bool readable = once__redis_read_entry(values[i], ids[i], &s->entry, &s->names);
        const char *flaw = readable ? once_entry_flaw(&s->entry) : NULL;
        if (!readable) rc = found_at(l, FLAW_UNREADABLE, id_key(l, "e", ids[i]), (once_bytes){0}, err);
        else if (flaw) rc = found_at(l, FLAW_UNUSABLE, id_key(l, "e", ids[i]), (once_bytes){flaw, strlen(flaw)}, err);
        else if (!once__redis_is_own(l->r, &s->entry)) rc = found_elsewhere(l, s, err);
        else s->skip = false;
    }
    return rc;
}

/* It is there and has nothing in it. */
static int look_for_empty(once_redis_looking *l, const char *kind, const once_hash *ids, const once_bytes *values,
                          size_t n, once_error *err)
{
    once__redis_pipe_clear(pipe_of(l));
    size_t asked = 0;
    for (size_t i = 0; i < n; i++) {
        if (values[i].len) continue;
        ask_key(l, ONCE_REPLY_COUNT, "STRLEN", id_key(l, kind, ids[i]));
        ask_key(l, ONCE_REPLY_COUNT, "EXISTS", id_key(l, kind, ids[i]));
        asked++;
    }
    int rc = asked ? ask(l, err) : ONCE_OK;
    for (size_t i = 0, at = 0; i < n && asked && rc == ONCE_OK; i++) {
        if (values[i].len) continue;
        const bool empty =
            once__reply_count(pipe_of(l)->replies[at]) == 0 && once__reply_count(pipe_of(l)->replies[at + 1]) == 1;
        at += 2;
        if (empty) rc = found_at(l, FLAW_EMPTY, id_key(l, kind, ids[i]), (once_bytes){0}, err);
    }
    return rc;
}

/* Those that changed meanwhile stay in `ids`. */
static int look_at_entries(once_redis_looking *l, once_hash *ids, size_t *n, bool first, once_error *err)
{
    seen *list = once_arena_new(&l->arena, seen, *n + 1);
    once_bytes *values = once_arena_new(&l->arena, once_bytes, *n + 1);
    size_t left = 0;
    if (!list || !values) return once__redis_nomem(err);
    int rc = read_entries(l, ids, *n, list, err);
    for (size_t i = 0; i < *n; i++) values[i] = list[i].value;
    if (rc == ONCE_OK && first) rc = look_for_empty(l, "e", ids, values, *n, err);
    if (rc != ONCE_OK) return rc;
    once__redis_pipe_clear(pipe_of(l));
    once__redis_words(pipe_of(l), ONCE_REPLY_TIME, "TIME");
    for (size_t i = 0; i < *n; i++)
        if (!list[i].skip) ask_places(l, &list[i]);
    const size_t again = pipe_of(l)->n;
    for (size_t i = 0; i < *n; i++)
        if (!list[i].skip)
            ask_range(l, id_key(l, "e", list[i].id),
                      once__redis_is_finished(list[i].value) ? -1 : ONCE_REDIS_STAMPED - 1);
    rc = ask(l, err);
    if (rc != ONCE_OK) return rc;
    const int64_t now_ms = once__reply_time_ms(pipe_of(l)->replies[0]);
    for (size_t i = 0, at = again; i < *n && rc == ONCE_OK; i++) {
        if (list[i].skip) continue;
        const once_bytes now = reply(l, at++);
        const size_t len = now.len < list[i].value.len ? now.len : list[i].value.len;
        const bool stayed = now.len && memcmp(now.data, list[i].value.data, len) == 0 &&
                            (!once__redis_is_finished(list[i].value) || now.len == list[i].value.len);
        if (stayed) rc = judge(l, &list[i], now_ms, err);
        else ids[left++] = list[i].id;
    }
    *n = left;
    return rc;
}

/* Values are as large as messages, so not more of them are read at once than fit. Each part has an arena of its own. */
static int look_at_all_entries(once_redis_looking *l, once_hash *ids, size_t n, once_error *err)
{
    uint64_t *sizes = once_arena_new(&l->arena, uint64_t, n + 1), all = 0;
    if (!sizes) return once__redis_nomem(err);
    if (n == 0) return ONCE_OK;
    once__redis_pipe_clear(pipe_of(l));
    for (size_t i = 0; i < n; i++) ask_key(l, ONCE_REPLY_COUNT, "STRLEN", id_key(l, "e", ids[i]));
    int rc = ask(l, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) all += sizes[i] = once__reply_count(pipe_of(l)->replies[i]);
    const once_arena whole = l->arena;
    for (size_t at = 0, end; at < n && rc == ONCE_OK; at = end) {
        uint64_t bytes = sizes[at];
        for (end = at + 1; end < n && bytes + sizes[end] <= PART_BYTES; end++) bytes += sizes[end];
        size_t left = end - at;
        for (int i = 0; i < TRIES && rc == ONCE_OK && left; i++) {
            l->arena = (once_arena){0};
            rc = look_at_entries(l, ids + at, &left, i == 0, err);
            once_arena_release(&l->arena);
        }
    }
    l->arena = whole;
    l->page = next_page(l->page ? l->page : FEW, n, all);
    return rc;
}

/* --- what names entries --- */

/* A page of a sorted set, a hash or a set: pairs; they are copied. */
static int scan_pairs(once_redis_looking *l, const char *command, once_bytes key, char cursor[24], once_bytes **out,
                      size_t *n, once_error *err)
{
    bool fine = true;
    once__redis_pipe_clear(pipe_of(l));
    once__redis_command(pipe_of(l), ONCE_REPLY_PAGE, 5);
    once__redis_text(pipe_of(l), command);
    once__redis_arg(pipe_of(l), key.data, key.len);
    once__redis_text(pipe_of(l), cursor);
    once__redis_text(pipe_of(l), "COUNT");
    once__redis_number(pipe_of(l), PAGE);
    const int rc = ask(l, err);
    if (rc != ONCE_OK) return rc;
    const redisReply *page = once__reply_keys(pipe_of(l)->replies[0]);
    once__reply_cursor(pipe_of(l)->replies[0], cursor);
    *n = once__reply_n(page) / 2;
    *out = once_arena_new(&l->arena, once_bytes, 2 * *n + 1);
    for (size_t i = 0; i < 2 * *n && *out; i++) (*out)[i] = copy(l, once__reply_at(page, i), &fine);
    return *out && fine ? ONCE_OK : once__redis_nomem(err);
}

typedef int pair_look(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n, once_error *err);

/* All of a large key: what a page needs is given back behind it. */
static int each_pair(once_redis_looking *l, const known_key *at, const char *command, pair_look *look, once_error *err)
{
    char cursor[24] = "0";
    once_arena page = {0}, whole = l->arena;
    int rc;
    l->arena = page;
    l->part = 0; /* of another list nothing is known of this one */
    do {
        once_bytes *pairs;
        size_t n;
        once_arena_reset(&l->arena);
        rc = scan_pairs(l, command, at->whole, cursor, &pairs, &n, err);
        if (rc == ONCE_OK && n) rc = look(l, at, pairs, n, err);
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    once_arena_release(&l->arena);
    l->arena = whole;
    return rc;
}

/* Those whose entries are read. */
static int in_parts(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n, pair_look *look,
                    once_error *err)
{
    const once_arena whole = l->arena;
    int rc = ONCE_OK;
    for (size_t at = 0, part; at < n && rc == ONCE_OK; at += part) {
        const size_t most = l->part ? l->part : FEW;
        part = n - at < most ? n - at : most;
        l->arena = (once_arena){0};
        l->bytes = 0;
        rc = look(l, key, pairs + 2 * at, part, err);
        once_arena_release(&l->arena);
        l->part = next_page(most, part, l->bytes);
    }
    l->arena = whole;
    return rc;
}

static int ids_of(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n, once_hash *out,
                  once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        if (pairs[2 * i].len == 16) out[i] = once__redis_id_read(pairs[2 * i].data);
        else rc = found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
    }
    return rc;
}

/* What the index says of it is so: it is there; or has ended by itself, and its place waits for a sweep. */
static bool belongs(const once_redis_looking *l, once_bytes value, once_hash id, char index, once_bytes consumer,
                    double at, int64_t now_ms)
{
    once_entry entry;
    if (!value.len) return index == ONCE_REDIS_WAITING_BARE && at <= (double)now_ms;
    return !read_own(l, value, id, &entry) ||
           (once__redis_index_of(&entry) == index && same(entry.scope.consumer, consumer));
}

/* The index still has it, and the entry is the same before and behind that. */
static int confirm_listed(once_redis_looking *l, const known_key *key, once_hash id, once_error *err)
{
    const char index = key->whole.data[strlen(l->r->prefix) + 1], kind[] = {'i', index, 0};
    unsigned char bytes[16];
    double at = 0;
    bool fine = true;
    once__redis_id_write(id, bytes);
    for (int i = 0; i < TRIES; i++) {
        once__redis_pipe_clear(pipe_of(l));
        once__redis_words(pipe_of(l), ONCE_REPLY_TIME, "TIME");
        ask_value(l, "e", id);
        ask_in(l, "ZSCORE", kind, key->consumer, bytes, sizeof bytes);
        ask_value(l, "e", id);
        const int rc = ask(l, err);
        if (rc != ONCE_OK) return rc;
        const int64_t now_ms = once__reply_time_ms(pipe_of(l)->replies[0]);
        const once_bytes before = first_of(l, 1), score = reply(l, 2), behind = first_of(l, 3);
        if (!score.len ||
            (once__reply_read_score(score, &at) && belongs(l, behind, id, index, key->consumer, at, now_ms)))
            return ONCE_OK;
        if (!same(before, behind) || (!before.len && i == 0)) continue;
        const once_bytes value = copy(l, behind, &fine);
        if (!fine) return once__redis_nomem(err);
        return found(l,
                     (once_redis_flaw){.kind = value.len ? FLAW_LISTED : FLAW_LISTED_GONE,
                                       .key = key->whole,
                                       .in_words = id_key(l, "e", id),
                                       .id = id,
                                       .stored = value,
                                       .index = index,
                                       .consumer = key->consumer},
                     err);
    }
    return ONCE_OK;
}

static int look_at_part_of_index(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n,
                                 once_error *err)
{
    const char index = key->whole.data[strlen(l->r->prefix) + 1];
    once_hash *ids = once_arena_new(&l->arena, once_hash, n + 1);
    once_bytes *values = once_arena_new(&l->arena, once_bytes, n + 1);
    if (!ids || !values) return once__redis_nomem(err);
    int rc = ids_of(l, key, pairs, n, ids, err);
    if (rc == ONCE_OK) rc = read_ids(l, "e", ids, n, values, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        if (pairs[2 * i].len == 16 && !belongs(l, values[i], ids[i], index, key->consumer, INFINITY, 0))
            rc = confirm_listed(l, key, ids[i], err);
    return rc;
}

static int look_at_index(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n,
                         once_error *err)
{
    return in_parts(l, key, pairs, n, look_at_part_of_index, err);
}

/* --- lanes --- */

static bool stands(const once_redis_looking *l, once_bytes value, const once_redis_member *member, once_hash lane)
{
    once_entry entry;
    if (!value.len) return false;
    if (!read_own(l, value, member->id, &entry)) return true;
    if (!once_state_unfinished(entry.state) || !once_hash_equal(entry.lane, lane) || entry.order != member->order)
        return false;
    return member->seen_ms == ONCE_REDIS_SEEN_BEFORE || member->seen_ms == entry.seen_ms;
}

/* Whoever changes an entry of a lane gives the lane another stamp. */
static int confirm_stands(once_redis_looking *l, const known_key *key, const once_redis_member *member,
                          once_bytes bytes, once_error *err)
{
    bool fine = true;
    for (int i = 0; i < TRIES; i++) {
        once__redis_pipe_clear(pipe_of(l));
        ask_value(l, "l", key->id);
        ask_value(l, "e", member->id);
        ask_id_in(l, "ZSCORE", "o", key->id, bytes.data, bytes.len);
        ask_value(l, "e", member->id);
        ask_value(l, "l", key->id);
        const int rc = ask(l, err);
        if (rc != ONCE_OK) return rc;
        const once_bytes value = first_of(l, 3);
        if (!reply(l, 2).len || stands(l, value, member, key->id)) return ONCE_OK;
        if (!same(first_of(l, 0), first_of(l, 4)) || !same(first_of(l, 1), value)) continue;
        const once_bytes stored = copy(l, value, &fine);
        if (!fine) return once__redis_nomem(err);
        return found(l,
                     (once_redis_flaw){.kind = stored.len ? FLAW_STANDS : FLAW_STANDS_GONE,
                                       .key = key->whole,
                                       .in_words = id_key(l, "e", member->id),
                                       .id = member->id,
                                       .stored = stored,
                                       .lane = key->id,
                                       .member = *member,
                                       .bytes = bytes},
                     err);
    }
    return ONCE_OK;
}

bool once__redis_member_is(once_redis_member member, once_bytes bytes)
{
    unsigned char now[ONCE_REDIS_MEMBER], old[ONCE_REDIS_OLD_MEMBER];
    once__redis_member_write(member, now, old);
    return same(bytes, bytes.len == sizeof old ? (once_bytes){(const char *)old, sizeof old}
                                               : (once_bytes){(const char *)now, sizeof now});
}

/* Of an entry that stands there: its place is written as once writes it, and by its bytes alone it is in order. */
static int judge_place(once_redis_looking *l, const known_key *key, const once_redis_member *member,
                       const once_bytes pair[2], once_bytes value, once_error *err)
{
    once_entry entry;
    if ((once__redis_member_is(*member, pair[0]) && is_word(pair[1], "0")) || !read_own(l, value, member->id, &entry))
        return ONCE_OK;
    return found(l,
                 (once_redis_flaw){.kind = FLAW_PLACE,
                                   .key = key->whole,
                                   .in_words = id_key(l, "e", member->id),
                                   .id = member->id,
                                   .stored = value,
                                   .lane = key->id,
                                   .member = *member,
                                   .bytes = pair[0]},
                 err);
}

static int look_at_some_members(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n,
                                once_error *err)
{
    once_redis_member *members = once_arena_new(&l->arena, once_redis_member, n + 1);
    once_hash *ids = once_arena_new(&l->arena, once_hash, n + 1);
    once_bytes *values = once_arena_new(&l->arena, once_bytes, n + 1);
    bool *readable = once_arena_new(&l->arena, bool, n + 1);
    int rc = ONCE_OK;
    if (!members || !ids || !values || !readable) return once__redis_nomem(err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        readable[i] = once__redis_member_read(pairs[2 * i], &members[i]);
        if (!readable[i]) rc = found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        ids[i] = members[i].id;
    }
    if (rc == ONCE_OK) rc = read_ids(l, "e", ids, n, values, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        if (readable[i] && stands(l, values[i], &members[i], key->id))
            rc = judge_place(l, key, &members[i], &pairs[2 * i], values[i], err);
        else if (readable[i]) rc = confirm_stands(l, key, &members[i], pairs[2 * i], err);
    return rc;
}

static int look_at_members(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n,
                           once_error *err)
{
    return in_parts(l, key, pairs, n, look_at_some_members, err);
}

static int judge_lane_record(once_redis_looking *l, once_hash id, once_bytes value, const once_redis_lane_record *lane,
                             size_t at, once_error *err)
{
    int rc = ONCE_OK;
    const bool members = once__reply_count(pipe_of(l)->replies[at]) > 0;
    const int64_t left_ms = once__reply_left(pipe_of(l)->replies[at + 1]),
                  now_ms = once__reply_time_ms(pipe_of(l)->replies[0]);
    if (!members && !lane->n_claimed && !once__redis_lane_is_empty(l->r, lane, left_ms))
        rc = found(
            l, (once_redis_flaw){.kind = FLAW_LANE_STAYS, .key = id_key(l, "l", id), .lane = id, .stored = value}, err);
    else if (!ends_well(l, members ? ONCE_NEVER : lane->expires_ms, left_ms, now_ms))
        rc = found(l, (once_redis_flaw){.kind = FLAW_LANE_ENDS, .key = id_key(l, "l", id), .lane = id, .stored = value},
                   err);
    for (size_t i = 1; i < lane->n_claimed && rc == ONCE_OK; i++) {
        const once_hash who = once__redis_id_read(lane->claimed + 16 * i);
        if (names_id((once_bytes){(const char *)lane->claimed, 16 * i}, who))
            rc = found(l,
                       (once_redis_flaw){.kind = FLAW_OCCUPIED_TWICE,
                                         .key = id_key(l, "l", id),
                                         .in_words = id_key(l, "e", who),
                                         .id = who,
                                         .lane = id,
                                         .stored = value},
                       err);
    }
    for (size_t i = 0; i < lane->n_claimed && rc == ONCE_OK; i++) {
        const once_hash who = once__redis_id_read(lane->claimed + 16 * i);
        once_entry entry = {.state = ONCE_STATE_ABSENT};
        const once_bytes there = once__reply_at(pipe_of(l)->replies[at + 2], i);
        if (there.len && !read_own(l, there, who, &entry)) continue;
        if (once_state_occupies(entry.state) && once_hash_equal(entry.lane, id)) continue;
        rc = found(l,
                   (once_redis_flaw){.kind = there.len ? FLAW_OCCUPIED : FLAW_OCCUPIED_GONE,
                                     .key = id_key(l, "l", id),
                                     .in_words = id_key(l, "e", who),
                                     .id = who,
                                     .lane = id,
                                     .stored = value},
                   err);
    }
    return rc;
}

static int look_at_lane(once_redis_looking *l, once_hash id, once_bytes value, bool *changed, once_error *err)
{
    once_redis_lane_record lane;
    once_lane view;
    *changed = false;
    if (!once__redis_read_lane(value, &lane) ||
        !once__lane_read(lane.has_version ? lane.version : ONCE_LANE_NO_VERSION, lane.expires_ms, lane.kept, 0, &view))
        return found_at(l, FLAW_UNREADABLE, id_key(l, "l", id), (once_bytes){0}, err);
    once__redis_pipe_clear(pipe_of(l));
    once__redis_words(pipe_of(l), ONCE_REPLY_TIME, "TIME");
    ask_key(l, ONCE_REPLY_COUNT, "ZCARD", id_key(l, "o", id));
    ask_key(l, ONCE_REPLY_LEFT, "PTTL", id_key(l, "l", id));
    if (lane.n_claimed) begin_values(l, lane.n_claimed);
    for (size_t i = 0; i < lane.n_claimed; i++)
        once__redis_put_id_key(l->r, "e", once__redis_id_read(lane.claimed + 16 * i));
    ask_value(l, "l", id);
    const int rc = ask(l, err);
    if (rc != ONCE_OK) return rc;
    *changed = !same(first_of(l, pipe_of(l)->n - 1), value);
    return *changed ? ONCE_OK : judge_lane_record(l, id, value, &lane, 1, err);
}

static int look_at_lanes(once_redis_looking *l, const once_hash *ids, size_t n, once_error *err)
{
    once_bytes *values = once_arena_new(&l->arena, once_bytes, n + 1);
    if (!values) return once__redis_nomem(err);
    int rc = read_ids(l, "l", ids, n, values, err);
    if (rc == ONCE_OK && n) rc = look_for_empty(l, "l", ids, values, n, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        bool changed = true;
        for (int k = 0; k < TRIES && changed && values[i].len && rc == ONCE_OK; k++) {
            if (k) rc = read_ids(l, "l", &ids[i], 1, &values[i], err);
            if (rc == ONCE_OK && values[i].len) rc = look_at_lane(l, ids[i], values[i], &changed, err);
        }
    }
    return rc;
}

/* --- groups of claims --- */

/* Those that were claimed in it, and still are: of their first bytes. */
static uint64_t count_claims(const redisReply *heads, uint64_t stamp)
{
    uint64_t n = 0;
    for (size_t i = 0; i < once__reply_n(heads); i++) {
        once_redis_open_head head;
        if (once__redis_read_head(once__reply_at(heads, i), &head) && head.stamp == stamp &&
            head.state == ONCE_STATE_CLAIMED && !head.has_message)
            n++;
    }
    return n;
}

/* Nobody enters a group behind its first commit; who leaves it changes its count. */
static int look_at_group(once_redis_looking *l, const known_key *key, once_bytes group, once_error *err)
{
    bool fine = true;
    for (int i = 0; i < TRIES; i++) {
        once__redis_pipe_clear(pipe_of(l));
        ask_in(l, "HGET", "g", key->consumer, group.data, group.len);
        ask_in(l, "ZSCORE", "c", key->consumer, group.data, group.len);
        int rc = ask(l, err);
        if (rc != ONCE_OK) return rc;
        const once_bytes ids = copy(l, reply(l, 0), &fine), left = copy(l, reply(l, 1), &fine);
        if (!fine) return once__redis_nomem(err);
        if (!left.len) return ONCE_OK; /* all have left it meanwhile */
        if (ids.len % 16) return found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        once__redis_pipe_clear(pipe_of(l));
        if (ids.len) begin_values(l, ids.len / 16);
        for (size_t at = 0; at < ids.len; at += 16)
            once__redis_put_id_key(l->r, "e", once__redis_id_read(ids.data + at));
        ask_in(l, "ZSCORE", "c", key->consumer, group.data, group.len);
        rc = ask(l, err);
        if (rc != ONCE_OK) return rc;
        double count;
        if (!same(reply(l, pipe_of(l)->n - 1), left)) continue;
        const uint64_t claims = ids.len ? count_claims(pipe_of(l)->replies[0], once__redis_group_stamp(group.data)) : 0;
        if (once__reply_read_score(left, &count) && count == (double)claims && ids.len) return ONCE_OK;
        return found(
            l,
            (once_redis_flaw){
                .kind = FLAW_COUNT, .key = key->whole, .consumer = key->consumer, .group = group, .stored = ids},
            err);
    }
    return ONCE_OK;
}

static int look_at_groups(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n,
                          once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        if (pairs[2 * i].len == 16) rc = look_at_group(l, key, pairs[2 * i], err);
        else rc = found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
    }
    return rc;
}

static int look_at_claims(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n,
                          once_error *err)
{
    once__redis_pipe_clear(pipe_of(l));
    for (size_t i = 0; i < n; i++) {
        ask_in(l, "ZSCORE", "c", key->consumer, pairs[2 * i].data, pairs[2 * i].len);
        ask_in(l, "HGET", "g", key->consumer, pairs[2 * i].data, pairs[2 * i].len);
    }
    int rc = ask(l, err);
    bool *alone = once_arena_new(&l->arena, bool, n + 1);
    if (!alone) return once__redis_nomem(err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) alone[i] = !reply(l, 2 * i).len && reply(l, 2 * i + 1).len;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const bool whole = pairs[2 * i].len == 16 && pairs[2 * i + 1].len && pairs[2 * i + 1].len % 16 == 0;
        if (!whole) rc = found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        else if (alone[i])
            rc = found(l,
                       (once_redis_flaw){.kind = FLAW_GROUP_ALONE,
                                         .key = key->whole,
                                         .consumer = key->consumer,
                                         .group = pairs[2 * i],
                                         .stored = pairs[2 * i + 1]},
                       err);
    }
    return rc;
}

/* --- letters --- */

static void ask_letter(once_redis_looking *l, once_bytes number, int64_t last)
{
    once__redis_command(pipe_of(l), ONCE_REPLY_TEXT, 4);
    once__redis_text(pipe_of(l), "GETRANGE");
    once__redis_put_key(l->r, "L", number.data, number.len);
    once__redis_number(pipe_of(l), 0);
    once__redis_number(pipe_of(l), last);
}

static bool has_unique(once_bytes head, const void *unique)
{
    return head.len >= 17 && memcmp(head.data + 1, unique, 16) == 0;
}

/* What makes the letter the same one is under the number of another, or of none (`bytes`). Only a letter that is there,
 * and is the same, is one too many. */
static int judge_unique(once_redis_looking *l, once_redis_flaw *flaw, once_error *err)
{
    unsigned char unique[16];
    once__redis_id_write(flaw->unique, unique);
    flaw->kind = FLAW_LETTER_NO_UNIQUE;
    if (!flaw->bytes.len) return found(l, *flaw, err);
    once__redis_pipe_clear(pipe_of(l));
    ask_letter(l, flaw->bytes, 16);
    const int rc = ask(l, err);
    if (rc != ONCE_OK) return rc;
    if (has_unique(reply(l, 0), unique)) flaw->kind = FLAW_LETTER_OTHER_UNIQUE;
    flaw->place = flaw->bytes;
    return found(l, *flaw, err);
}

static int judge_letter(once_redis_looking *l, const known_key *key, const once_letter *letter, once_hash unique,
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
    const once_bytes listed = reply(l, at), points_to = reply(l, at + 1), now = reply(l, at + 2);
    double score;
    if (!now.len) return ONCE_OK; /* dropped meanwhile */
    const bool is_listed = listed.len && once__reply_read_score(listed, &score) && score == (double)key->number;
    const bool is_unique = same(points_to, (once_bytes){number, (size_t)len});
    bool fine = true;
    int rc = ONCE_OK;
    flaw.kind = FLAW_LETTER_NOT_LISTED;
    if (!is_listed) rc = found(l, flaw, err);
    flaw.bytes = copy(l, points_to, &fine);
    if (rc == ONCE_OK && !fine) return once__redis_nomem(err);
    return rc == ONCE_OK && !is_unique ? judge_unique(l, &flaw, err) : rc;
}

static int note_letter(once_redis_looking *l, const known_key *key, const once_letter *letter, once_error *err)
{
    if (key->number > l->last_letter) l->last_letter = key->number;
    if (once_hash_is_zero(letter->entry)) return ONCE_OK;
    if (!ONCE_REDIS_ROOM(l->buried)) return once__redis_nomem(err);
    l->buried.at[l->buried.n++] = letter->entry;
    return ONCE_OK;
}

static int look_at_copied_letter(once_redis_looking *l, const known_key *key, once_error *err)
{
    once_letter letter;
    once_hash unique;
    bool fine = true;
    char number[24];
    unsigned char field[16];
    const int len = snprintf(number, sizeof number, "%llu", (unsigned long long)key->number);
    once__redis_pipe_clear(pipe_of(l));
    ask_range(l, key->whole, -1);
    ask_key(l, ONCE_REPLY_COUNT, "EXISTS", key->whole);
    int rc = ask(l, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes value = copy(l, reply(l, 0), &fine);
    if (!fine) return once__redis_nomem(err);
    if (!value.len)
        return once__reply_count(pipe_of(l)->replies[1]) ? found_at(l, FLAW_EMPTY, key->whole, (once_bytes){0}, err)
                                                         : ONCE_OK;
    if (!once__redis_read_letter(value, key->number, &letter, &unique))
        return found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
    rc = note_letter(l, key, &letter, err);
    once__redis_id_write(unique, field);
    once__redis_pipe_clear(pipe_of(l));
    ask_in(l, "ZSCORE", "d", letter.scope.consumer, number, (size_t)len);
    ask_in(l, "HGET", "U", (once_bytes){0}, field, sizeof field);
    ask_range(l, key->whole, 0);
    if (rc == ONCE_OK) rc = ask(l, err);
    return rc == ONCE_OK ? judge_letter(l, key, &letter, unique, value, 0, err) : rc;
}

/* It is as large as a message, so its copy does not stay until the end of the page. */
static int look_at_letter(once_redis_looking *l, const known_key *key, once_error *err)
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
    return copy(l, (once_bytes){key, once__redis_key(l->r, "L", number.data, number.len, key)}, &fine);
}

/* A letter that is not there, and is still named behind that: it was not dropped in between. */
static int look_at_listed_letters(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n,
                                  once_error *err)
{
    enum { HEAD = 1024 }; /* its scope is in it, but for very long names */
    bool *gone = once_arena_new(&l->arena, bool, n + 1), fine = true;
    once_bytes *of_others = once_arena_new(&l->arena, once_bytes, n + 1);
    if (!gone || !of_others) return once__redis_nomem(err);
    once__redis_pipe_clear(pipe_of(l));
    for (size_t i = 0; i < n; i++) {
        ask_letter(l, pairs[2 * i], HEAD - 1);
        ask_in(l, "ZSCORE", "d", key->consumer, pairs[2 * i].data, pairs[2 * i].len);
    }
    int rc = ask(l, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_bytes head = reply(l, 2 * i);
        once_scope scope;
        if (!reply(l, 2 * i + 1).len) continue; /* dropped meanwhile */
        gone[i] = !head.len;
        if (once__redis_read_letter_scope(head, &scope) && !same(scope.consumer, key->consumer))
            of_others[i] = copy(l, head, &fine);
    }
    if (!fine) return once__redis_nomem(err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        uint64_t number = 0;
        if (!read_letter_number(pairs[2 * i], &number))
            rc = found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        else if (of_others[i].len)
            rc = found(l,
                       (once_redis_flaw){.kind = FLAW_LETTER_OF_OTHER,
                                         .key = key->whole,
                                         .in_words = pairs[2 * i],
                                         .number = number,
                                         .stored = of_others[i],
                                         .consumer = key->consumer,
                                         .place = letter_key(l, pairs[2 * i])},
                       err);
        else if (gone[i])
            rc = found(l,
                       (once_redis_flaw){
                           .kind = FLAW_LETTER_GONE, .key = key->whole, .in_words = pairs[2 * i], .number = number},
                       err);
    }
    return rc;
}

static int look_at_uniques(once_redis_looking *l, const known_key *key, const once_bytes *pairs, size_t n,
                           once_error *err)
{
    bool *gone = once_arena_new(&l->arena, bool, n + 1);
    if (!gone) return once__redis_nomem(err);
    once__redis_pipe_clear(pipe_of(l));
    for (size_t i = 0; i < n; i++) {
        ask_letter(l, pairs[2 * i + 1], 16);
        ask_in(l, "HGET", "U", (once_bytes){0}, pairs[2 * i].data, pairs[2 * i].len);
    }
    int rc = ask(l, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_bytes head = reply(l, 2 * i);
        const bool is_its = pairs[2 * i].len == 16 && has_unique(head, pairs[2 * i].data);
        gone[i] = !is_its && same(reply(l, 2 * i + 1), pairs[2 * i + 1]);
    }
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        if (pairs[2 * i].len != 16) rc = found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        else if (gone[i])
            rc = found(l,
                       (once_redis_flaw){.kind = FLAW_UNIQUE_GONE,
                                         .key = key->whole,
                                         .in_words = pairs[2 * i + 1],
                                         .unique = once__redis_id_read(pairs[2 * i].data),
                                         .stored = pairs[2 * i + 1]},
                       err);
    }
    return rc;
}

static int look_at_audits(once_redis_looking *l, const known_key *key, once_error *err)
{
    int rc = ONCE_OK;
    size_t n = PAGE;
    for (int64_t at = 0; rc == ONCE_OK && n == PAGE; at += PAGE) {
        bool damaged = false;
        once__redis_pipe_clear(pipe_of(l));
        once__redis_command(pipe_of(l), ONCE_REPLY_TEXTS, 4);
        once__redis_text(pipe_of(l), "LRANGE");
        once__redis_arg(pipe_of(l), key->whole.data, key->whole.len);
        once__redis_number(pipe_of(l), at);
        once__redis_number(pipe_of(l), at + PAGE - 1);
        rc = ask(l, err);
        n = rc == ONCE_OK ? once__reply_n(pipe_of(l)->replies[0]) : 0;
        for (size_t i = 0; i < n; i++) {
            once_audit audit;
            damaged |= !once__redis_read_audit(once__reply_at(pipe_of(l)->replies[0], i), &audit);
        }
        if (damaged) rc = found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
    }
    return rc;
}

/* --- all of them --- */

static int look_at_other(once_redis_looking *l, const known_key *key, once_error *err)
{
    switch (key->kind) {
    case 'i': return each_pair(l, key, "ZSCAN", look_at_index, err);
    case 'o': return each_pair(l, key, "ZSCAN", look_at_members, err);
    case 'c': return each_pair(l, key, "ZSCAN", look_at_groups, err);
    case 'g': return each_pair(l, key, "HSCAN", look_at_claims, err);
    case 'd': return each_pair(l, key, "ZSCAN", look_at_listed_letters, err);
    case 'U': return each_pair(l, key, "HSCAN", look_at_uniques, err);
    case 'L': return look_at_letter(l, key, err);
    case 'a': return look_at_audits(l, key, err);
    default: return ONCE_OK;
    }
}

/* Entries and lanes have their own ends, and whoever waits for its turn; nothing else has one. */
static bool ends_never(char kind) { return kind && !one_of("elt", kind); }

static int look_at_ends(once_redis_looking *l, const once_bytes *keys, size_t n, once_error *err)
{
    once__redis_pipe_clear(pipe_of(l));
    for (size_t i = 0; i < n; i++)
        if (ends_never(read_key(l->r, keys[i]).kind)) ask_key(l, ONCE_REPLY_LEFT, "PTTL", keys[i]);
    int rc = pipe_of(l)->n ? ask(l, err) : ONCE_OK;
    for (size_t i = 0, at = 0; i < n && rc == ONCE_OK; i++) {
        if (!ends_never(read_key(l->r, keys[i]).kind)) continue;
        if (once__reply_left(pipe_of(l)->replies[at++]) >= 0)
            rc = found_at(l, FLAW_LIMITED, keys[i], (once_bytes){0}, err);
    }
    return rc;
}

int once__redis_look_at_some(once_redis_looking *l, char cursor[24], once_error *err)
{
    once_bytes *keys;
    size_t n, n_entries = 0, n_lanes = 0;
    int rc = scan(l, cursor, l->page ? l->page : FEW, &keys, &n, err);
    if (rc != ONCE_OK) return rc;
    once_hash *entries = once_arena_new(&l->arena, once_hash, n + 1),
              *lanes = once_arena_new(&l->arena, once_hash, n + 1);
    if (!entries || !lanes) return once__redis_nomem(err);
    if (l->what & ONCE_REDIS_LOOK_OTHERS) rc = look_at_ends(l, keys, n, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const known_key key = read_key(l->r, keys[i]);
        if (key.kind == 'e') entries[n_entries++] = key.id;
        else if (key.kind == 'l') lanes[n_lanes++] = key.id;
        else if (l->what & ONCE_REDIS_LOOK_OTHERS) rc = look_at_other(l, &key, err);
    }
    if (rc == ONCE_OK && l->what & ONCE_REDIS_LOOK_ENTRIES) rc = look_at_all_entries(l, entries, n_entries, err);
    if (rc == ONCE_OK && l->what & ONCE_REDIS_LOOK_OTHERS) rc = look_at_lanes(l, lanes, n_lanes, err);
    l->keys += n;
    return rc;
}

static int by_id(const void *x, const void *y)
{
    return once_hash_compare(*(const once_hash *)x, *(const once_hash *)y);
}

/* Dead, and its letter is neither found by what makes it unique nor among those that were seen. */
static int look_for_letter(once_redis_looking *l, once_hash id, once_error *err)
{
    seen s = {.id = id};
    if (l->buried.n && bsearch(&id, l->buried.at, l->buried.n, sizeof id, by_id)) return ONCE_OK;
    int rc = read_ids(l, "e", &id, 1, &s.value, err);
    if (rc != ONCE_OK || !s.value.len || !once__redis_read_entry(s.value, id, &s.entry, &s.names) ||
        s.entry.state != ONCE_STATE_DEAD)
        return rc;
    once__redis_pipe_clear(pipe_of(l));
    ask_places(l, &s);
    rc = ask(l, err);
    return rc != ONCE_OK || reply(l, s.at + 3).len ? rc : found(l, flaw_of(l, &s, FLAW_NO_LETTER), err);
}

/* Older programs would take the store for one of theirs; workers would take it for one that has forgotten commits; and
 * letters would get no number. */
static int look_at_head(once_redis_looking *l, once_error *err)
{
    static const char *const fields[] = {"letters", "secret", "commits"};
    char key[ONCE_REDIS_KEY], last[24];
    once_redis_flaw flaw = {.key = {key, once__redis_key(l->r, "head", NULL, 0, key)}, .number = l->last_letter};
    uint64_t letters = 0;
    once__redis_pipe_clear(pipe_of(l));
    for (size_t i = 0; i < 3; i++) ask_in(l, "HGET", "head", (once_bytes){0}, fields[i], strlen(fields[i]));
    int rc = ask(l, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes text = reply(l, 0);
    const bool no_number = text.len && !once__reply_read_number(text, &letters), new = l->r->format >= 2;
    const bool no_secret = new && !is_word(reply(l, 1), ONCE_REDIS_NO_SECRET), no_commits = new && !reply(l, 2).len;
    flaw.kind = no_number ? FLAW_LETTERS_NUMBER : FLAW_LAST_LETTER;
    flaw.in_words = flaw.key;
    flaw.place = (once_bytes){last, (size_t)snprintf(last, sizeof last, "%llu", (unsigned long long)l->last_letter)};
    if (no_number || letters < l->last_letter) rc = found(l, flaw, err);
    flaw.kind = FLAW_HEAD_SECRET;
    if (rc == ONCE_OK && no_secret) rc = found(l, flaw, err);
    flaw.kind = FLAW_HEAD_COMMITS;
    return rc == ONCE_OK && no_commits && l->keys > 1 ? found(l, flaw, err) : rc;
}

/* Keys that are on another node would seem to be gone. */
static int not_while_it_moves(once_redis_looking *l, once_error *err)
{
    char why[400];
    if (once__redis_doubt(&l->r->shelf.store, why, sizeof why))
        return once_fail(err, ONCE_E_UNAVAILABLE, "the store cannot be read as a whole now: %s", why);
    return once__redis_clustered(l->r->link) ? once__redis_look_for_strays(l->r, err) : ONCE_OK;
}

int once__redis_look_begin(once_redis_looking *l, once_error *err)
{
    const int rc = not_while_it_moves(l, err);
    l->connections = once__redis_connections(l->r->link);
    return rc;
}

int once__redis_look_end(once_redis_looking *l, once_error *err)
{
    once_arena_reset(&l->arena);
    if (l->buried.n) qsort(l->buried.at, l->buried.n, sizeof *l->buried.at, by_id);
    int rc = ONCE_OK;
    for (size_t i = 0; i < l->dead.n && rc == ONCE_OK && l->what & ONCE_REDIS_LOOK_OTHERS; i++)
        rc = look_for_letter(l, l->dead.at[i], err);
    if (rc == ONCE_OK && l->what & ONCE_REDIS_LOOK_OTHERS) rc = look_at_head(l, err);
    if (rc == ONCE_OK) rc = not_while_it_moves(l, err);
    if (rc == ONCE_OK && once__redis_connections(l->r->link) != l->connections)
        rc = once_fail(err, ONCE_E_UNAVAILABLE,
                       "redis was connected anew in the middle of it, so keys may have been left out; run it again");
    return rc;
}

void once__redis_look_release(once_redis_looking *l)
{
    once_arena_release(&l->arena);
    free(l->buried.at);
    free(l->dead.at);
}

/* --- telling --- */

static const struct {
    const char *text;
    bool mended;
} words[FLAW_KINDS] = {
    [FLAW_TYPE] = {"is of the type '%s', which once does not write there", false},
    [FLAW_STRANGER] = {"is no key of once: somebody else wrote it", false},
    [FLAW_EMPTY] = {"is empty", false},
    [FLAW_LIMITED] = {"has a time to live, and once never gives it one: what is in it would be lost", true},
    [FLAW_UNREADABLE] = {"holds what cannot be read", false},
    [FLAW_UNUSABLE] = {"cannot be used: %s", false},
    [FLAW_OTHER_KEY] = {"(key '%s') stands under another id than that of its key: somebody copied or renamed it. Stop "
                        "all workers; if there is no \"%.290s\", rename"
                        " it (RENAME) to that; delete it (DEL) only if that is there and is not told of in this way, "
                        "too: those two were swapped. Then check again",
                        false},
    [FLAW_NO_INDEX] = {"(key '%s') is not in the index of its state, so nobody finds it", true},
    [FLAW_OTHER_TIME] = {"(key '%s') is in the index of its state under another time", true},
    [FLAW_NO_GROUP] = {"(key '%s') is claimed, and in no group of claims, so nobody sees the end of its lease", true},
    [FLAW_NO_CONSUMER] = {"(key '%s') waits for its message, and its consumer is not known to a sweep", true},
    [FLAW_NO_LANE] = {"(key '%s') stands in a lane that has no record", true},
    [FLAW_NO_PLACE] = {"(key '%s') has lost its place in its lane: those behind it would pass it, or wait for ever",
                       true},
    [FLAW_NOT_OCCUPIED] = {"(key '%s') is at work or unknown, and its lane does not know that", true},
    [FLAW_NO_LETTER] = {"(key '%s') is dead, and its letter is gone", false},
    [FLAW_ENDS] = {"has another time to live than its value says: it would be forgotten too early, or never", true},
    [FLAW_NO_NAME] = {"refers to a name that is not there, or is another", true},
    [FLAW_LISTED] = {"names the entry \"%s\", which belongs elsewhere", true},
    [FLAW_LISTED_GONE] = {"names the entry \"%s\", which is gone", false},
    [FLAW_STANDS] = {"names the entry \"%s\", which does not stand there", true},
    [FLAW_STANDS_GONE] = {"names the entry \"%s\", which is gone", false},
    [FLAW_PLACE] =
        {"has a place of the entry \"%s\" that is not as once writes it: the lane would stop, or go out of its order",
         true},
    [FLAW_OCCUPIED] = {"is occupied by the entry \"%s\", which is not at work there", true},
    [FLAW_OCCUPIED_GONE] = {"is occupied by the entry \"%s\", which is gone", false},
    [FLAW_OCCUPIED_TWICE] = {"is occupied by the entry \"%s\" twice: it would never be free", true},
    [FLAW_LANE_ENDS] = {"has another time to live than its lane: it would be forgotten too early, or never", true},
    [FLAW_LANE_STAYS] = {"is a lane in which somebody stands, and who that is is gone", true},
    [FLAW_COUNT] = {"has a group of claims with another number of claims than there are", true},
    [FLAW_GROUP_ALONE] = {"has a group of claims that nobody counts", true},
    [FLAW_LETTER_NOT_LISTED] = {"(key '%s') is a letter that is not in the list of its consumer, or elsewhere in it",
                                true},
    [FLAW_LETTER_NO_UNIQUE] = {"(key '%s') is a letter that would not be known if it came again", true},
    [FLAW_LETTER_OTHER_UNIQUE] = {"(key '%s') is a letter, and the letter %s counts as the same one: replay or discard "
                                  "that one ('once replay', 'once discard'), and then let"
                                  " 'once check --repair' make this one known",
                                  false},
    [FLAW_LETTER_GONE] = {"names the letter %s, which is gone", false},
    [FLAW_LETTER_OF_OTHER] = {"names the letter %s, which is of another consumer", true},
    [FLAW_UNIQUE_GONE] = {"names the letter %s, which is gone or another: one like it could not be buried", true},
    [FLAW_LAST_LETTER] = {"has a smaller number of the last letter than there is: the next one could not be written",
                          true},
    [FLAW_LETTERS_NUMBER] =
        {"has no number of the last letter in its field 'letters': stop all workers, and say 'HSET %s letters %s'",
         false},
    [FLAW_HEAD_SECRET] =
        {"has lost its field 'secret', or it is another one: programs of an older format would write there", true},
    [FLAW_HEAD_COMMITS] = {"has lost its field 'commits', by which workers notice that commits were forgotten", true},
};

bool once__redis_is_mended(once_redis_flaw_kind kind) { return words[kind].mended; }

enum { SAID_MAX = 20, TEXTS_MAX = 2 * FLAW_KINDS * SAID_MAX };

/* A key may be named twice by the server; it is told once. */
typedef struct telling {
    void (*damage)(void *user, const char *text);
    void *user;
    size_t n[FLAW_KINDS];
    uint64_t told[TEXTS_MAX];
    size_t n_told;
} telling;

static bool is_new(telling *t, const char *text, once_secret secret)
{
    const uint64_t hash = once_siphash128(secret, text, strlen(text)).a;
    for (size_t i = 0; i < t->n_told; i++)
        if (t->told[i] == hash) return false;
    if (t->n_told < TEXTS_MAX) t->told[t->n_told++] = hash;
    return true;
}

static int tell(once_redis_looking *l, const once_redis_flaw *flaw, once_error *err)
{
    telling *t = l->user;
    char key[ONCE_REDIS_QUOTED], about[ONCE_REDIS_QUOTED], place[ONCE_REDIS_QUOTED], shown_key[ONCE_SHOWN_KEY],
        said[900], text[1400];
    const bool in_words = strncmp(words[flaw->kind].text, "(key", 4) == 0;
    (void)err;
    if (t->n[flaw->kind] >= SAID_MAX) return ONCE_OK;
    const char *what = in_words ? once__shown_key(flaw->in_words, shown_key) : once__redis_quote(flaw->in_words, about);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(said, sizeof said, words[flaw->kind].text, what, once__redis_quote(flaw->place, place));
#pragma GCC diagnostic pop
    (void)snprintf(text, sizeof text, "\"%.290s\" %s%s", once__redis_quote(flaw->key, key), said,
                   words[flaw->kind].mended ? "; 'once check --repair' mends that" : "");
    if (!is_new(t, text, l->r->shelf.store.secret)) return ONCE_OK;
    t->n[flaw->kind]++;
    t->damage(t->user, text);
    return ONCE_OK;
}

int once__redis_verify(once_backend *store, void (*damage)(void *user, const char *text), void *user, once_error *err)
{
    telling told = {.damage = damage, .user = user};
    once_redis_looking l = {.r = (once_redis *)store,
                            .found = tell,
                            .user = &told,
                            .what = ONCE_REDIS_LOOK_ENTRIES | ONCE_REDIS_LOOK_OTHERS};
    char cursor[24] = "0";
    int rc = once__redis_look_begin(&l, err);
    if (rc == ONCE_OK) rc = once__redis_look_at_types(&l, err);
    const bool typed = told.n[FLAW_TYPE] == 0; /* otherwise what refers to it cannot be asked */
    do {
        if (rc != ONCE_OK || !typed) break;
        rc = once__redis_look_at_some(&l, cursor, err);
        if (rc == ONCE_OK && store->progress) store->progress(store->progress_user, l.keys);
    } while (strcmp(cursor, "0") != 0);
    if (rc == ONCE_OK && typed) rc = once__redis_look_end(&l, err);
    once__redis_look_release(&l);
    return rc;
}
