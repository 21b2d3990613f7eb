/* The check of entries: each can be read, is stored under the id of its key, and is named by every index, group and
 * lane that must name it. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/look.h"

#include "base/banned.h"

typedef struct seen {
    once_hash id;
    once_bytes value;
    once_entry entry;
    once_redis_finished names;
    unsigned char group[16];
    size_t at; /* position of its first reply */
    bool skip; /* there is nothing to compare */
} seen;

/* An entry that has its key must be stored under the id of that key. One that was copied or renamed is not repaired:
 * its message would run twice. */
bool once__redis_is_own(const once_redis *r, const once_entry *e)
{
    const once_secret secret = r->storage.store.secret;
    if (e->state == ONCE_STATE_ABSENT || once_state_finished(e->state) ||
        once_hash_equal(e->id, once_key_id(secret, &e->scope, e->key)))
        return true;
    return once_key_looks_long(e->key) && once_hash_equal(e->id, once_long_key_id(secret, &e->scope, e->key));
}

bool once__look_read_own(const once_redis_looking *l, once_bytes value, once_hash id, once_entry *out)
{
    once_redis_finished names;
    return once__redis_read_entry(value, id, out, &names) && once__redis_is_own(l->r, out);
}

static once_bytes shown(const seen *s) { return once_state_finished(s->entry.state) ? (once_bytes){0} : s->entry.key; }

static once_redis_flaw flaw_of(once_redis_looking *l, const seen *s, once_redis_flaw_kind kind)
{
    return (once_redis_flaw){.kind = kind,
                             .key = once__look_id_key(l, "e", s->id),
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

/* Asks everything that must name the entry, in a fixed order of commands. */
static void ask_places(once_redis_looking *l, seen *s)
{
    assert(!s->skip && s->entry.state != ONCE_STATE_ABSENT);
    const once_entry *e = &s->entry;
    const char index = once__redis_index_of(e), kind[] = {'i', index, 0};
    unsigned char id[16];
    once__redis_id_write(s->id, id);
    s->at = once__look_pipe(l)->n;
    once__look_ask_key(l, ONCE_REPLY_LEFT, "PTTL", once__look_id_key(l, "e", s->id));
    if (once_state_finished(e->state)) {
        once__look_ask_in(l, "HGET", "n", (once_bytes){0}, &s->names.scope, sizeof s->names.scope);
        once__look_ask_in(l, "HGET", "n", (once_bytes){0}, &s->names.origin, sizeof s->names.origin);
        return;
    }
    if (index == ONCE_REDIS_CLAIMED_BARE) {
        once__redis_group_write(e->due_ms, stamp_of(s->value), s->group);
        once__look_ask_in(l, "ZSCORE", "c", e->scope.consumer, s->group, sizeof s->group);
        once__look_ask_in(l, "HGET", "g", e->scope.consumer, s->group, sizeof s->group);
    } else {
        once__look_ask_in(l, "ZSCORE", kind, e->scope.consumer, id, sizeof id);
        once__redis_command(once__look_pipe(l), ONCE_REPLY_COUNT, 3);
        once__redis_text(once__look_pipe(l), "SISMEMBER");
        once__redis_put_key(l->r, "w", NULL, 0);
        once__redis_arg(once__look_pipe(l), e->scope.consumer.data, e->scope.consumer.len);
    }
    if (e->state == ONCE_STATE_DEAD) {
        unsigned char unique[16];
        once__redis_id_write((once_hash){e->id.a ^ e->token.a, e->id.b ^ e->token.b}, unique);
        once__look_ask_in(l, "HGET", "U", (once_bytes){0}, unique, sizeof unique);
    } else if (!once_hash_is_zero(e->lane)) {
        unsigned char member[ONCE_REDIS_MEMBER], old[ONCE_REDIS_OLD_MEMBER];
        once__redis_member_write((once_redis_member){e->order, e->seen_ms, e->id}, member, old);
        once__look_ask_value(l, "l", e->lane);
        once__look_ask_id_in(l, "ZSCORE", "o", e->lane, member, sizeof member);
        once__look_ask_id_in(l, "ZSCORE", "o", e->lane, old, sizeof old);
    }
}

const once_bytes once__redis_lost = ONCE_BYTES("(lost)");
const once_scope once__redis_lost_scope = {.consumer = ONCE_BYTES("(lost)"), .operation = ONCE_BYTES("(lost)")};

void once__redis_lost_name(once_buf *to, bool scope)
{
    if (scope) once__redis_write_scope(to, &once__redis_lost_scope);
    else once__redis_write_origin(to, once__redis_lost, 0, once__redis_lost);
}

/* A name is stored under 8 bytes of a hash of itself; a repair may have put a replacement there. */
static bool is_name(once_redis_looking *l, uint64_t id, once_bytes value, bool is_scope)
{
    once_scope scope;
    once_bytes place, who;
    uint64_t run;
    if (!(is_scope ? once__redis_read_scope(value, &scope) : once__redis_read_origin(value, &place, &run, &who)))
        return false;
    if ((once_siphash128(l->r->storage.store.secret, value.data, value.len).a | 1) == id) return true;
    once_buf_clear(&l->r->value);
    once__redis_lost_name(&l->r->value, is_scope);
    return once_bytes_equal(once_buf_bytes(&l->r->value), value);
}

static int judge_finished(once_redis_looking *l, const seen *s, once_error *err)
{
    assert(once_state_finished(s->entry.state));
    const uint64_t names[] = {s->names.scope, s->names.origin};
    int rc = ONCE_OK;
    for (size_t i = 0; i < 2 && rc == ONCE_OK; i++) {
        if (is_name(l, names[i], once__look_reply(l, s->at + 1 + i), i == 0)) continue;
        once_redis_flaw flaw = flaw_of(l, s, FLAW_NO_NAME);
        flaw.name = names[i];
        flaw.scope = i == 0;
        rc = once__look_found(l, flaw, err);
    }
    return rc;
}

static int judge_index(once_redis_looking *l, const seen *s, once_error *err)
{
    assert(once__redis_index_of(&s->entry) != ONCE_REDIS_NOWHERE);
    const once_bytes listed = once__look_reply(l, s->at + 1);
    double at;
    if (once__redis_index_of(&s->entry) == ONCE_REDIS_CLAIMED_BARE)
        return listed.len && once__look_names_id(once__look_reply(l, s->at + 2), s->id)
                   ? ONCE_OK
                   : once__look_found(l, flaw_of(l, s, FLAW_NO_GROUP), err);
    if (!listed.len) return once__look_found(l, flaw_of(l, s, FLAW_NO_INDEX), err);
    const int64_t when_ms = listed_at(&s->entry);
    if (!once__reply_read_score(listed, &at) || at != (when_ms == ONCE_NEVER ? INFINITY : (double)when_ms))
        return once__look_found(l, flaw_of(l, s, FLAW_OTHER_TIME), err);
    const bool swept = once__redis_index_of(&s->entry) != ONCE_REDIS_WAITING_BARE ||
                       once__reply_count(once__look_pipe(l)->replies[s->at + 2]);
    return swept ? ONCE_OK : once__look_found(l, flaw_of(l, s, FLAW_NO_CONSUMER), err);
}

static int judge_lane(once_redis_looking *l, const seen *s, once_error *err)
{
    assert(!once_hash_is_zero(s->entry.lane));
    const once_bytes value = once__look_first(l, s->at + 3);
    once_redis_lane_record lane = {0};
    if (value.len && !once__redis_read_lane(value, &lane)) return ONCE_OK; /* the check of lanes reports that */
    int rc = value.len ? ONCE_OK : once__look_found(l, flaw_of(l, s, FLAW_NO_LANE), err);
    if (rc == ONCE_OK)
        rc = once__look_reply(l, s->at + 4).len || once__look_reply(l, s->at + 5).len
                 ? ONCE_OK
                 : once__look_found(l, flaw_of(l, s, FLAW_NO_PLACE), err);
    const bool occupies = once__look_names_id((once_bytes){(const char *)lane.claimed, 16 * lane.n_claimed}, s->id);
    if (rc == ONCE_OK && value.len && once_state_occupies(s->entry.state) && !occupies)
        rc = once__look_found(l, flaw_of(l, s, FLAW_NOT_OCCUPIED), err);
    return rc;
}

static int judge(once_redis_looking *l, const seen *s, int64_t now_ms, once_error *err)
{
    assert(!s->skip);
    const once_entry *e = &s->entry;
    int rc = once__look_ends_well(l, once_entry_expires(e) ? e->expires_ms : ONCE_NEVER,
                                  once__reply_left(once__look_pipe(l)->replies[s->at]), now_ms)
                 ? ONCE_OK
                 : once__look_found(l, flaw_of(l, s, FLAW_ENDS), err);
    if (rc != ONCE_OK) return rc;
    if (once_state_finished(e->state)) return judge_finished(l, s, err);
    rc = judge_index(l, s, err);
    if (rc != ONCE_OK) return rc;
    if (e->state == ONCE_STATE_DEAD) {
        if (once__look_reply(l, s->at + 3).len) return ONCE_OK;
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
    flaw.place = once__look_id_key(
        l, "e",
        (once_key_looks_long(e->key) ? once_long_key_id : once_key_id)(l->r->storage.store.secret, &e->scope, e->key));
    return once__look_found(l, flaw, err);
}

/* Reads entries. One that cannot be used is reported, and not compared. */
static int read_entries(once_redis_looking *l, const once_hash *ids, size_t n, seen *out, once_error *err)
{
    once_bytes *values = once_arena_new(&l->arena, once_bytes, n + 1);
    if (!values) return once__redis_nomem(err);
    int rc = once__look_read_ids(l, "e", ids, n, values, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        seen *s = &out[i];
        *s = (seen){.id = ids[i], .value = values[i], .skip = true};
        if (!values[i].len) continue; /* gone since, or empty, which is checked separately */
        const bool readable = once__redis_read_entry(values[i], ids[i], &s->entry, &s->names);
        const char *flaw = readable ? once_entry_flaw(&s->entry) : NULL;
        if (!readable)
            rc = once__look_found_at(l, FLAW_UNREADABLE, once__look_id_key(l, "e", ids[i]), (once_bytes){0}, err);
        else if (flaw)
            rc = once__look_found_at(l, FLAW_UNUSABLE, once__look_id_key(l, "e", ids[i]),
                                     (once_bytes){flaw, strlen(flaw)}, err);
        else if (!once__redis_is_own(l->r, &s->entry)) rc = found_elsewhere(l, s, err);
        else s->skip = false;
    }
    return rc;
}

/* Entries that have changed during the check stay in `ids`. */
static int look_at_entries(once_redis_looking *l, once_hash *ids, size_t *n, bool first, once_error *err)
{
    seen *list = once_arena_new(&l->arena, seen, *n + 1);
    once_bytes *values = once_arena_new(&l->arena, once_bytes, *n + 1);
    size_t left = 0;
    if (!list || !values) return once__redis_nomem(err);
    int rc = read_entries(l, ids, *n, list, err);
    for (size_t i = 0; i < *n; i++) values[i] = list[i].value;
    if (rc == ONCE_OK && first) rc = once__look_for_empty(l, "e", ids, values, *n, err);
    if (rc != ONCE_OK) return rc;
    once__redis_pipe_clear(once__look_pipe(l));
    once__redis_words(once__look_pipe(l), ONCE_REPLY_TIME, "TIME");
    for (size_t i = 0; i < *n; i++)
        if (!list[i].skip) ask_places(l, &list[i]);
    const size_t again = once__look_pipe(l)->n;
    for (size_t i = 0; i < *n; i++)
        if (!list[i].skip)
            once__look_ask_range(l, once__look_id_key(l, "e", list[i].id),
                                 once__redis_is_finished(list[i].value) ? -1 : ONCE_REDIS_STAMPED - 1);
    rc = once__look_ask(l, err);
    if (rc != ONCE_OK) return rc;
    const int64_t now_ms = once__reply_time_ms(once__look_pipe(l)->replies[0]);
    for (size_t i = 0, at = again; i < *n && rc == ONCE_OK; i++) {
        if (list[i].skip) continue;
        const once_bytes now = once__look_reply(l, at++);
        const size_t len = now.len < list[i].value.len ? now.len : list[i].value.len;
        const bool stayed = now.len && memcmp(now.data, list[i].value.data, len) == 0 &&
                            (!once__redis_is_finished(list[i].value) || now.len == list[i].value.len);
        if (stayed) rc = judge(l, &list[i], now_ms, err);
        else ids[left++] = list[i].id;
    }
    *n = left;
    return rc;
}

/* Values are as large as messages, so only as many are read at once as fit. Each part has an arena of its own. */
int once__look_at_entries(once_redis_looking *l, once_hash *ids, size_t n, once_error *err)
{
    uint64_t *sizes = once_arena_new(&l->arena, uint64_t, n + 1), all = 0;
    if (!sizes) return once__redis_nomem(err);
    if (n == 0) return ONCE_OK;
    once__redis_pipe_clear(once__look_pipe(l));
    for (size_t i = 0; i < n; i++) once__look_ask_key(l, ONCE_REPLY_COUNT, "STRLEN", once__look_id_key(l, "e", ids[i]));
    int rc = once__look_ask(l, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) all += sizes[i] = once__reply_count(once__look_pipe(l)->replies[i]);
    const once_arena whole = l->arena;
    for (size_t at = 0, end; at < n && rc == ONCE_OK; at = end) {
        uint64_t bytes = sizes[at];
        for (end = at + 1; end < n && bytes + sizes[end] <= ONCE_LOOK_PART_BYTES; end++) bytes += sizes[end];
        size_t left = end - at;
        for (int i = 0; i < ONCE_LOOK_TRIES && rc == ONCE_OK && left; i++) {
            l->arena = (once_arena){0};
            rc = look_at_entries(l, ids + at, &left, i == 0, err);
            once_arena_release(&l->arena);
        }
    }
    l->arena = whole;
    l->page = once__redis_next_page(l->page ? l->page : ONCE_LOOK_FEW, n, all, ONCE_LOOK_PAGE);
    return rc;
}

static int by_id(const void *x, const void *y)
{
    return once_hash_compare(*(const once_hash *)x, *(const once_hash *)y);
}

/* A dead entry whose letter is neither in the hash of uniques nor among the letters that were seen. */
static int look_for_letter(once_redis_looking *l, once_hash id, once_error *err)
{
    seen s = {.id = id};
    if (l->buried.n && bsearch(&id, l->buried.at, l->buried.n, sizeof id, by_id)) return ONCE_OK;
    int rc = once__look_read_ids(l, "e", &id, 1, &s.value, err);
    if (rc != ONCE_OK || !s.value.len || !once__redis_read_entry(s.value, id, &s.entry, &s.names) ||
        s.entry.state != ONCE_STATE_DEAD)
        return rc;
    once__redis_pipe_clear(once__look_pipe(l));
    ask_places(l, &s);
    rc = once__look_ask(l, err);
    return rc != ONCE_OK || once__look_reply(l, s.at + 3).len
               ? rc
               : once__look_found(l, flaw_of(l, &s, FLAW_NO_LETTER), err);
}

int once__look_for_letters(once_redis_looking *l, once_error *err)
{
    int rc = ONCE_OK;
    if (l->buried.n) qsort(l->buried.at, l->buried.n, sizeof *l->buried.at, by_id);
    for (size_t i = 0; i < l->dead.n && rc == ONCE_OK; i++) rc = look_for_letter(l, l->dead.at[i], err);
    return rc;
}
