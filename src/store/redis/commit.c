/* The commit: one script that compares and then writes. It knows nothing of entries; all rules are in core/entry.c. */
#include <assert.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/redis.h"

#include "base/banned.h"

/* Every key that the script may touch is one of its KEYS. What that is for, as Redis 7.0 does it
 * (tests/integration/test_redis_cluster.py):
 *
 *   - While a slot moves, a key is on one of two nodes, and one that does not exist counts as moved. A script whose
 *   declared keys are not all
 *     on one node is refused before it begins: TRYAGAIN, or ASK when none is there. Nothing has happened then.
 *   - A key that was not declared is found to be away when the script gets there: it ends with an error, and what it
 *   wrote stays.
 *     Declaring is the only help; flags such as allow-cross-slot-keys change nothing about it.
 *   - A declared key that the script itself removes counts as moved from then on: a command for it is such an error. So
 *   what may remove a
 *     key comes last, and what it meets that is not there any more is taken for removed.
 *   - The node that gets the slot (after ASKING) looks at the declared keys in the same way.
 *   - A key of another type, or a number that is none, would end the script in its middle just so, in a cluster or not.
 *   All are looked at
 *     before the first write. So are the places of new letters: one that is taken belongs to a letter that would be
 *     written over.
 *
 * KEYS: the head; values that exist already, small ones first; hashes of fields that are compared; new values; keys of
 * commands; of removals; letters that are dropped; set and hash of each group that is left; index and hash of uniques
 * of each letter; and the next letters, some more than there are to write, because others may write some before us.
 *
 * ARGV: the secret; how long the beginning of each key is; how many there are of each part: values, small ones among
 * them, fields, new values, commands, removals, dropped letters, groups, letters, next letters; and the number of the
 * first of these. Then, of values, what each must begin with now (empty: absent), all of them; what it becomes; and
 * how: empty for good, a number until that time, "d" deleted, "-" only compared. Of fields how many there are of each
 * hash, their names, and their values (empty: absent). New values, which must be absent and stay for good. Commands,
 * each behind the number of its arguments, which are its name and all but the key. Of letters what makes each unique,
 * and the value; they get their numbers here so that they stand in the order of commits. Removals, as commands. Of
 * groups which one, and how many leave it; the last one ends it.
 *
 * Answers 1 something has changed, 2 this is not the store it was, a key that is not what it should be, or written: 2
 * and the number of the commit.
 *
 * MSETNX compares and writes in one; where there are too many for one call, an earlier one is taken back. */
static const char script[] =
    "local head, a, i = KEYS[1], ARGV, 3\n"
    "local call, find, min, sub = redis.call, string.find, math.min, string.sub\n"
    "local about = call('HMGET', head, 'key_secret', 'letters', 'commits')\n"
    "if about[1] ~= a[1] then return 2 end\n"
    "for k = 2, 3 do\n"
    "  local text = about[k] or '0'\n"
    "  if #text > 15 or (text ~= '0' and not find(text, '^[1-9]%d*$')) then return {head} end\n"
    "end\n"
    "local function count() i = i + 1 return tonumber(a[i - 1]) end\n"
    "local n, small, n_fields, n_new, n_commands, n_removals = count(), count(), count(), count(), count(), count()\n"
    "local n_dropped, n_groups, n_letters, n_next, first = count(), count(), count(), count(), count()\n"
    "local fields = 1 + n\n"
    "local news = fields + n_fields\n"
    "local commands = news + n_new\n"
    "local dropped = commands + n_commands + n_removals\n"
    "local groups = dropped + n_dropped\n"
    "local letters = groups + 2 * n_groups\n"
    "local nexts = letters + 2 * n_letters\n"
    "local was, becomes, how = i - 1, i + n - 1, i + 2 * n - 1\n"
    "i = i + 3 * n\n"
    "local types = {n = 'hash', f = 'hash', U = 'hash', g = 'hash', i = 'zset', o = 'zset', c = 'zset', d = 'zset', w "
    "= 'set', a = 'list'}\n"
    "local kind, seen = tonumber(a[2]) + 1, {}\n"
    "local function another_type(from, to)\n"
    "  for k = from + 1, to do\n"
    "    local key = KEYS[k]\n"
    "    local want = not seen[key] and types[sub(key, kind, kind)]\n"
    "    if want then\n"
    "      local is = call('TYPE', key).ok\n"
    "      if is ~= want and is ~= 'none' then return {key} end\n"
    "      seen[key] = true\n"
    "    end\n"
    "  end\n"
    "end\n"
    "local wrong = another_type(fields, news) or another_type(commands, nexts)\n"
    "if wrong then return wrong end\n"
    "for at = 1, small, 4000 do\n"
    "  local last = min(at + 3999, small)\n"
    "  local there = call('MGET', unpack(KEYS, 1 + at, 1 + last))\n"
    "  for k = at, last do\n"
    "    local now, then_ = there[k - at + 1] or '', a[was + k]\n"
    "    if now ~= then_ and (then_ == '' or find(now, then_, 1, true) ~= 1) then return 1 end\n"
    "    if now == '' and a[how + k] ~= '-' and call('EXISTS', KEYS[1 + k]) == 1 then return {KEYS[1 + k]} end\n"
    "  end\n"
    "end\n"
    "for k = small + 1, n do\n"
    "  if call('GETRANGE', KEYS[1 + k], 0, #a[was + k] - 1) ~= a[was + k] then return 1 end\n"
    "end\n"
    "for k = 1, n_fields do\n"
    "  local m = count()\n"
    "  local there = call('HMGET', KEYS[fields + k], unpack(a, i, i + m - 1))\n"
    "  for j = 1, m do\n"
    "    if (there[j] or '') ~= a[i + m + j - 1] then return 1 end\n"
    "  end\n"
    "  i = i + 2 * m\n"
    "end\n"
    "local number = tonumber(about[2] or 0)\n"
    "if n_letters > 0 and (number + 1 < first or number + n_letters >= first + n_next) then return 1 end\n"
    "for k = 1, n_letters do\n"
    "  local key = KEYS[nexts + 1 + number + k - first]\n"
    "  if call('EXISTS', key) == 1 then return {key} end\n"
    "end\n"
    "for at = 1, n_new, 2000 do\n"
    "  local last, list = min(at + 1999, n_new), {}\n"
    "  for k = at, last do\n"
    "    list[2 * (k - at) + 1], list[2 * (k - at) + 2] = KEYS[news + k], a[i + k - 1]\n"
    "  end\n"
    "  if call('MSETNX', unpack(list)) == 0 then\n"
    "    for k = 1, at - 1 do call('DEL', KEYS[news + k]) end\n"
    "    for k = at, last do\n"
    "      local is = call('TYPE', KEYS[news + k]).ok\n"
    "      if is ~= 'string' and is ~= 'none' then return {KEYS[news + k]} end\n"
    "    end\n"
    "    return 1\n"
    "  end\n"
    "end\n"
    "i = i + n_new\n"
    "local set, m = {}, 0\n"
    "for k = 1, n do\n"
    "  local what, key = a[how + k], KEYS[1 + k]\n"
    "  if what == '' then\n"
    "    set[m + 1], set[m + 2] = key, a[becomes + k]\n"
    "    m = m + 2\n"
    "    if m == 4000 then\n"
    "      call('MSET', unpack(set, 1, m))\n"
    "      m = 0\n"
    "    end\n"
    "  elseif what == 'd' then call('DEL', key)\n"
    "  elseif what ~= '-' then call('SET', key, a[becomes + k], 'PXAT', what) end\n"
    "end\n"
    "if m > 0 then call('MSET', unpack(set, 1, m)) end\n"
    "local function each(from, n, how)\n"
    "  for k = from + 1, from + n do\n"
    "    local m = count()\n"
    "    how(a[i], KEYS[k], unpack(a, i + 1, i + m - 1))\n"
    "    i = i + m\n"
    "  end\n"
    "end\n"
    "local function drop(...)\n"
    "  local got = redis.pcall(...)\n"
    "  if type(got) ~= 'table' or not got.err then return got end\n"
    "  if not find(got.err, 'non local key', 1, true) then error(got.err) end\n"
    "end\n"
    "each(commands, n_commands, call)\n"
    "for k = 1, n_letters do\n"
    "  number = number + 1\n"
    "  local text = string.format('%.0f', number)\n"
    "  call('SET', KEYS[nexts + 1 + number - first], a[i + 1])\n"
    "  call('ZADD', KEYS[letters + 2 * k - 1], text, text)\n"
    "  call('HSET', KEYS[letters + 2 * k], a[i], text)\n"
    "  i = i + 2\n"
    "end\n"
    "if n_letters > 0 then call('HINCRBY', head, 'letters', n_letters) end\n"
    "each(commands + n_commands, n_removals, drop)\n"
    "for at = 1, n_dropped, 4000 do call('DEL', unpack(KEYS, dropped + at, dropped + min(at + 3999, n_dropped))) end\n"
    "for k = 1, n_groups do\n"
    "  local set, hash, group, leave = KEYS[groups + 2 * k - 1], KEYS[groups + 2 * k], a[i], a[i + 1]\n"
    "  if tonumber(drop('ZSCORE', set, group) or 0) > tonumber(leave) then\n"
    "    call('ZINCRBY', set, '-' .. leave, group)\n"
    "  else\n"
    "    drop('ZREM', set, group)\n"
    "    drop('HDEL', hash, group)\n"
    "  end\n"
    "  i = i + 2\n"
    "end\n"
    "return 2 + call('HINCRBY', head, 'commits', 1)\n";

enum { SMALL = 1024, ARGS_MAX = 2000, SCRIPT_MAX = 512 << 20 }; /* a server hangs up on a gibibyte */
enum { LETTERS_AHEAD = 64 }; /* so many may be written by others after we have read the number of the last one */

/* --- arguments --- */

static void put_count(once_redis_part *to, size_t n)
{
    char text[24];
    const int len = snprintf(text, sizeof text, "%zu", n);
    once__redis_encode(&to->args, text, (size_t)len);
    to->n_args++;
}

/* Arguments that are encoded already. */
static void append(once_buf *to, const once_buf *encoded)
{
    if (encoded->failed) to->failed = true;
    else if (encoded->len) once_buf_append(to, encoded->data, encoded->len);
}

static void put_arg(once_redis_part *to, const void *data, size_t len)
{
    once__redis_encode(&to->args, data, len);
    to->n_args++;
}

/* A key of the script: its kind and the rest, behind the store's name. */
static void declare(once_redis *r, once_redis_part *to, const char *kind, const void *rest, size_t len)
{
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
    assert(r->owed == 0); /* the one before has all of its arguments */
    declare(r, to, kind, rest.data, rest.len);
    put_count(to, 1 + n);
    put_arg(to, command, strlen(command));
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
    put_arg(r->command, data, len);
}

static void put_text(once_redis *r, const char *text) { once__redis_put(r, text, strlen(text)); }

static size_t number_text(int64_t number, char out[24])
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

static void put_number(once_redis *r, int64_t number)
{
    char text[24];
    once__redis_put(r, text, number_text(number, text));
}

static void expect_now(once_redis *r)
{
    static const char *const kinds[] = {"f", "U"};
    once_redis_part *to = &r->parts[ONCE_REDIS_FIELDS];
    for (size_t i = 0; i < 2; i++) {
        once_redis_expected *some = &r->expected[i];
        if (some->n == 0) continue;
        declare(r, to, kinds[i], NULL, 0);
        put_count(to, some->n);
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
    assert(hash_kind == 'f' || hash_kind == 'U');
    once_redis_expected *to = &r->expected[hash_kind == 'U'];
    once__redis_encode(&to->names, field, field_len);
    once__redis_encode(&to->values, value.data, value.len);
    to->n++;
    if (to->n == ARGS_MAX) expect_now(r);
}

/* --- values --- */

/* Native expiry only where the server's clock is the store's. */
static bool expires_by_itself(const once_redis *r, int64_t expires_ms)
{
    return !once__redis_test_clock(r) && expires_ms < INT64_MAX / 4;
}

typedef enum fate { KEEP, DELETE, WRITE } fate;

/* The value must be the one that was read; a stamp stands for it where there is one. Then it becomes r->value. */
static void put_value(once_redis *r, const char *kind, once_hash id, once_bytes stored, fate what, int64_t expires_ms)
{
    once_redis_values *to = &r->values[stored.len > SMALL];
    char key[ONCE_REDIS_KEY], time[24] = "";
    const size_t len = once__redis_id_key(r, kind, id, key);
    const size_t head =
        once__redis_is_finished(stored) || stored.len < ONCE_REDIS_STAMPED ? stored.len : ONCE_REDIS_STAMPED;
    const size_t time_len = what == WRITE && expires_by_itself(r, expires_ms) ? number_text(expires_ms, time) : 0;
    if (r->value.failed) to->keys.failed = true;
    if (stored.len == 0 && what == WRITE && time_len == 0) {
        once_redis_part *new = &r->parts[ONCE_REDIS_NEW];
        once__redis_encode(&new->keys, key, len);
        new->n_keys++;
        put_arg(new, r->value.data, r->value.len);
        new->n++;
        return;
    }
    once__redis_encode(&to->keys, key, len);
    once__redis_encode(&to->was, stored.data, head);
    once__redis_encode(&to->now, r->value.data, what == WRITE ? r->value.len : 0);
    once__redis_encode(&to->how, what == WRITE ? time : what == KEEP ? "-" : "d", what == WRITE ? time_len : 1);
    to->n++;
}

/* --- entries --- */

static bool same_scope(const once_scope *x, const once_scope *y)
{
    return once_bytes_equal(x->tenant, y->tenant) && once_bytes_equal(x->consumer, y->consumer) &&
           once_bytes_equal(x->operation, y->operation);
}

/* Mostly the names are those of the entry before. */
static bool write_finished(once_redis *r, const once_entry *e, const once_entry *before, once_redis_finished *names)
{
    if (!before || !same_scope(&before->scope, &e->scope)) {
        once_buf_clear(&r->value);
        once__redis_write_scope(&r->value, &e->scope);
        names->scope = once__redis_name_of(r, once_buf_bytes(&r->value));
    }
    if (!before || before->run != e->run || !once_bytes_equal(before->at.place, e->at.place) ||
        !once_bytes_equal(before->who, e->who)) {
        once_buf_clear(&r->value);
        once__redis_write_origin(&r->value, e->at.place, e->run, e->who);
        names->origin = once__redis_name_of(r, once_buf_bytes(&r->value));
    }
    if (r->value.failed || !names->scope || !names->origin) return false;
    once_buf_clear(&r->value);
    once__redis_write_finished(&r->value, e, *names);
    return true;
}

static void write_new_names(once_redis *r)
{
    for (size_t i = 0; i < r->names.n; i++) {
        const once_redis_name *name = &r->names.at[i];
        if (name->written) continue;
        once__redis_do(r, "HSET", "n", (once_bytes){0}, 2);
        once__redis_put(r, &name->id, sizeof name->id);
        once__redis_put(r, name->value.data, name->value.len);
    }
}

static bool write_entries(once_redis *r)
{
    const once_entry *before = NULL;
    once_redis_finished names;
    for (size_t i = 0; i < r->slots.n; i++) {
        const once_redis_slot *slot = r->slots.at[i];
        const once_entry *e = &slot->entry;
        if (!slot->dirty) {
            if (slot->assumed) put_value(r, "e", e->id, slot->stored, KEEP, 0);
            continue;
        }
        const bool finished = once_state_finished(e->state), absent = e->state == ONCE_STATE_ABSENT;
        once_buf_clear(&r->value);
        if (finished && !write_finished(r, e, before, &names)) return false;
        if (finished) before = e;
        if (!finished && !absent) once__redis_write_open(&r->value, e, r->stamp);
        once__redis_kept_note(r, e, once_buf_bytes(&r->value));
        put_value(r, "e", e->id, slot->stored,
                  !absent            ? WRITE
                  : slot->stored.len ? DELETE
                                     : KEEP,
                  once_entry_expires(e) ? e->expires_ms : ONCE_NEVER);
    }
    return true;
}

/* --- indexes --- */

/* An entry that leaves or enters an index, or a group of claims. */
typedef struct change {
    char index;
    bool enters;
    once_bytes consumer;
    int64_t due_ms; /* and stamp: of the group */
    uint64_t stamp;
    const once_entry *entry;
} change;

static uint64_t stamp_of(once_bytes stored)
{
    uint64_t stamp;
    assert(stored.len >= ONCE_REDIS_STAMPED);
    memcpy(&stamp, stored.data + 1, sizeof stamp);
    return le64toh(stamp);
}

/* What a slot changes: up to two. A claim without a body changes its group whenever it is written, because it gets
 * another stamp. */
static size_t changes_of(const once_redis *r, const once_redis_slot *slot, change out[2])
{
    size_t n = 0;
    if (!slot->dirty) return 0;
    const once_entry *e = &slot->entry;
    const char now = once__redis_index_of(e);
    const bool stays =
        now == slot->index && now != ONCE_REDIS_CLAIMED_BARE && once_bytes_equal(slot->consumer, e->scope.consumer);
    if (slot->index && !stays) {
        out[n++] = (change){slot->index, false, slot->consumer, 0, 0, e};
        if (slot->index == ONCE_REDIS_CLAIMED_BARE)
            out[n - 1].due_ms = slot->due_ms, out[n - 1].stamp = stamp_of(slot->stored);
    }
    if (now && (!stays || e->due_ms != slot->due_ms || now == ONCE_REDIS_WAITING_BARE)) {
        out[n++] = (change){now, true, e->scope.consumer, 0, 0, e};
        if (now == ONCE_REDIS_CLAIMED_BARE) out[n - 1].due_ms = e->due_ms, out[n - 1].stamp = r->stamp;
    }
    return n;
}

static int by_group(const void *left, const void *right)
{
    const change *x = left, *y = right;
    if (x->index != y->index) return x->index < y->index ? -1 : 1;
    if (x->enters != y->enters) return x->enters ? 1 : -1;
    if (x->due_ms != y->due_ms) return x->due_ms < y->due_ms ? -1 : 1;
    if (x->stamp != y->stamp) return x->stamp < y->stamp ? -1 : 1;
    if (x->consumer.len != y->consumer.len) return x->consumer.len < y->consumer.len ? -1 : 1;
    return x->consumer.data == y->consumer.data || x->consumer.len == 0
               ? 0
               : memcmp(x->consumer.data, y->consumer.data, x->consumer.len);
}

static void put_score(once_redis *r, const change *c)
{
    const once_entry *e = c->entry;
    const int64_t when_ms = c->index != ONCE_REDIS_WAITING_BARE ? e->due_ms
                            : once_entry_expires(e)             ? e->expires_ms
                                                                : ONCE_NEVER;
    if (when_ms == ONCE_NEVER) put_text(r, "+inf");
    else put_number(r, when_ms);
}

static void write_claims(once_redis *r, const change *list, size_t n)
{
    unsigned char group[16];
    once__redis_group_write(list->due_ms, list->stamp, group);
    if (!list->enters) {
        once_redis_part *to = &r->parts[ONCE_REDIS_GROUPS];
        declare(r, to, "c", list->consumer.data, list->consumer.len);
        declare(r, to, "g", list->consumer.data, list->consumer.len);
        put_arg(to, group, sizeof group);
        put_count(to, n);
        to->n++;
        return;
    }
    once__redis_do(r, "ZADD", "c", list->consumer, 2);
    put_number(r, (int64_t)n);
    once__redis_put(r, group, sizeof group);
    once__redis_do(r, "HSET", "g", list->consumer, 2);
    once__redis_put(r, group, sizeof group);
    once_buf_clear(&r->value);
    for (size_t i = 0; i < n; i++) {
        unsigned char id[16];
        once__redis_id_write(list[i].entry->id, id);
        once_buf_append(&r->value, id, sizeof id);
    }
    if (r->value.failed) r->command->args.failed = true;
    once__redis_put(r, r->value.data, r->value.len);
}

static void write_group(once_redis *r, const change *list, size_t n)
{
    const char kind[] = {'i', list->index, 0};
    const size_t each = list->enters ? 2 : 1;
    if (list->enters && list->index == ONCE_REDIS_WAITING_BARE) { /* so that a sweep finds it */
        once__redis_do(r, "SADD", "w", (once_bytes){0}, 1);
        once__redis_put(r, list->consumer.data, list->consumer.len);
    }
    for (size_t at = 0; at < n; at += ARGS_MAX / 2) {
        const size_t count = n - at < ARGS_MAX / 2 ? n - at : ARGS_MAX / 2;
        if (list->enters) once__redis_do(r, "ZADD", kind, list->consumer, count * each);
        else once__redis_undo(r, "ZREM", kind, list->consumer, count * each);
        for (size_t i = at; i < at + count; i++) {
            unsigned char id[16];
            once__redis_id_write(list[i].entry->id, id);
            if (list->enters) put_score(r, &list[i]);
            once__redis_put(r, id, sizeof id);
        }
    }
}

/* All that leave or enter one index go with one call. */
static bool write_indexes(once_redis *r)
{
    change *list = once_arena_alloc(&r->arena, (2 * r->slots.n + 1) * sizeof *list);
    if (!list) return false;
    size_t n = 0;
    bool sorted = true; /* as it mostly is: all do the same */
    for (size_t i = 0; i < r->slots.n; i++) {
        const size_t before = n;
        n += changes_of(r, r->slots.at[i], list + n);
        for (size_t k = before ? before : 1; k < n && sorted; k++) sorted = by_group(&list[k - 1], &list[k]) <= 0;
    }
    if (!sorted) qsort(list, n, sizeof *list, by_group);
    for (size_t at = 0, end; at < n; at = end) {
        for (end = at + 1; end < n && by_group(&list[at], &list[end]) == 0;) end++;
        (list[at].index == ONCE_REDIS_CLAIMED_BARE ? write_claims : write_group)(r, list + at, end - at);
    }
    return true;
}

/* --- lanes --- */

static void write_member(once_redis *r, const once_redis_lane *lane, once_redis_member member, bool added)
{
    unsigned char bytes[ONCE_REDIS_MEMBER], old[ONCE_REDIS_OLD_MEMBER];
    once__redis_member_write(member, bytes, old);
    unsigned char id[16];
    once__redis_id_write(lane->id, id);
    const once_bytes rest = {(const char *)id, sizeof id};
    if (added) once__redis_do(r, "ZADD", "o", rest, 2);
    else once__redis_undo(r, "ZREM", "o", rest, 2);
    if (added) put_text(r, "0");
    else once__redis_put(r, old, sizeof old);
    once__redis_put(r, bytes, sizeof bytes);
}

static bool is_same_member(once_redis_member x, once_redis_member y)
{
    return x.order == y.order && x.seen_ms == y.seen_ms && once_hash_equal(x.id, y.id);
}

/* What came and went within the transaction is not written. */
static void write_steps(once_redis *r, const once_redis_lane *lane)
{
    for (size_t i = 0; i < lane->n_steps; i++) {
        const struct once_redis_step *last = &lane->steps[i];
        bool is_last = true, was_there = !last->added;
        for (size_t k = 0; k < lane->n_steps && is_last; k++) {
            const struct once_redis_step *other = &lane->steps[k];
            if (k == i || !is_same_member(other->member, last->member)) continue;
            if (k > i) is_last = false;
        }
        for (size_t k = 0; k < i; k++) {
            const struct once_redis_step *other = &lane->steps[k];
            if (!is_same_member(other->member, last->member)) continue;
            was_there = !other->added;
            break;
        }
        if (is_last && was_there != last->added) write_member(r, lane, last->member, last->added);
    }
}

static bool write_lanes(once_redis *r)
{
    for (size_t i = 0; i < r->lanes.n; i++) {
        const once_redis_lane *lane = r->lanes.at[i];
        const bool kept =
            (lane->version != ONCE_LANE_NO_VERSION || lane->record.len) && lane->expires_ms > r->shelf.now_ms;
        const bool members = lane->n_known + lane->hidden > 0;
        once_buf_clear(&r->value);
        if (!lane->dirty || (!kept && !members)) {
            put_value(r, "l", lane->id, lane->stored, lane->dirty && lane->stored.len ? DELETE : KEEP, 0);
        } else {
            unsigned char *claimed = once_arena_alloc(&r->arena, 16 * lane->n_claimed);
            if (!claimed) return false;
            for (size_t k = 0; k < lane->n_claimed; k++) once__redis_id_write(lane->claimed[k], claimed + 16 * k);
            const once_redis_lane_record record = {r->stamp,       lane->version != ONCE_LANE_NO_VERSION,
                                                   lane->version,  lane->expires_ms,
                                                   lane->record,   claimed,
                                                   lane->n_claimed};
            once__redis_write_lane(&r->value, &record);
            put_value(r, "l", lane->id, lane->stored, WRITE, members ? ONCE_NEVER : lane->expires_ms);
        }
        if (lane->dirty) write_steps(r, lane);
    }
    return true;
}

/* --- facts --- */

static void write_facts(once_redis *r)
{
    for (size_t i = 0; i < r->facts.n; i++) {
        const once_redis_fact *fact = &r->facts.at[i];
        if (!fact->written) continue;
        if (fact->read) once__redis_expect_field(r, 'f', fact->name, strlen(fact->name), fact->was);
        if (fact->value.len) once__redis_do(r, "HSET", "f", (once_bytes){0}, 2);
        else once__redis_undo(r, "HDEL", "f", (once_bytes){0}, 1);
        put_text(r, fact->name);
        if (fact->value.len) once__redis_put(r, fact->value.data, fact->value.len);
    }
}

/* --- letters --- */

static void write_new_letter(once_redis *r, const once_redis_letter *put)
{
    once_redis_part *to = &r->parts[ONCE_REDIS_LETTERS];
    unsigned char field[16];
    once__redis_id_write(put->unique, field);
    declare(r, to, "d", put->letter.scope.consumer.data, put->letter.scope.consumer.len);
    declare(r, to, "U", NULL, 0);
    put_arg(to, field, sizeof field);
    once_buf_clear(&r->value);
    once__redis_write_letter(&r->value, &put->letter, put->unique);
    put_arg(to, r->value.data, r->value.len);
    to->n++;
}

/* It must be as it was read: its count is in its head. */
static void write_counted_letter(once_redis *r, const once_redis_letter *put)
{
    once_redis_values *to = &r->values[put->stored.len > SMALL];
    char number[24];
    const size_t len = number_text((int64_t)put->letter.id, number);
    char key[ONCE_REDIS_KEY];
    once__redis_encode(&to->keys, key, once__redis_key(r, "L", number, len, key));
    once__redis_encode(&to->was, put->stored.data,
                       put->stored.len < ONCE_REDIS_LETTER_HEAD ? put->stored.len : ONCE_REDIS_LETTER_HEAD);
    once_buf_clear(&r->value);
    once__redis_write_letter(&r->value, &put->letter, put->unique);
    once__redis_encode(&to->now, r->value.data, r->value.len);
    once__redis_encode(&to->how, "", 0);
    to->n++;
}

static bool write_letters(once_redis *r)
{
    for (size_t i = 0; i < r->puts.n; i++) {
        (r->puts.at[i].stored.len ? write_counted_letter : write_new_letter)(r, &r->puts.at[i]);
        if (r->value.failed) return false;
    }
    return true;
}

static bool is_written(const once_redis *r, once_hash unique)
{
    for (size_t i = 0; i < r->puts.n; i++)
        if (once_hash_equal(r->puts.at[i].unique, unique)) return true;
    return false;
}

/* What makes them the same ones stays where another letter takes its place. */
static void write_dropped_uniques(once_redis *r, const once_redis_dropped *list, size_t n)
{
    size_t gone = 0;
    for (size_t i = 0; i < n; i++) gone += !is_written(r, list[i].unique);
    if (gone) once__redis_undo(r, "HDEL", "U", (once_bytes){0}, gone);
    for (size_t i = 0; i < n; i++) {
        unsigned char field[16];
        if (is_written(r, list[i].unique)) continue;
        once__redis_id_write(list[i].unique, field);
        once__redis_put(r, field, sizeof field);
    }
}

static void write_dropped_letters(once_redis *r)
{
    const once_redis_dropped *list = r->dropped.at;
    once_redis_part *gone = &r->parts[ONCE_REDIS_DROPPED];
    for (size_t at = 0, end; at < r->dropped.n; at = end) {
        for (end = at + 1;
             end < r->dropped.n && end - at < ARGS_MAX && once_bytes_equal(list[end].consumer, list[at].consumer);)
            end++;
        once__redis_undo(r, "ZREM", "d", list[at].consumer, end - at);
        for (size_t i = at; i < end; i++) {
            char number[24];
            const size_t len = number_text((int64_t)list[i].id, number);
            once__redis_put(r, number, len);
            declare(r, gone, "L", number, len);
            gone->n++;
        }
        write_dropped_uniques(r, list + at, end - at);
    }
}

/* --- audits --- */

static void write_audits(once_redis *r)
{
    for (size_t at = 0, end; at < r->audits.n; at = end) {
        const once_bytes consumer = r->audits.at[at].consumer;
        for (end = at + 1;
             end < r->audits.n && end - at < ARGS_MAX && once_bytes_equal(r->audits.at[end].consumer, consumer);)
            end++;
        once__redis_do(r, "RPUSH", "a", consumer, end - at);
        for (size_t i = at; i < end; i++) once__redis_put(r, r->audits.at[i].value.data, r->audits.at[i].value.len);
    }
}

#ifdef ONCE_TEST_BUILD
static void write_clock(once_redis *r)
{
    if (!r->test_clock) return;
    once__redis_do(r, "SET", "testclock", (once_bytes){0}, 1);
    once__redis_put(r, &r->shelf.clock, sizeof r->shelf.clock);
}
#else
static void write_clock(once_redis *r) { (void)r; }
#endif

/* --- sending --- */

/* Behind a commit: the replicas that have it, and whether the server still keeps what it acknowledges. */
static void ask_promises(once_redis *r)
{
    once_redis_pipe *pipe = &r->pipe;
    if (r->url.wait) {
        once__redis_command(pipe, ONCE_REPLY_COUNT, 3);
        once__redis_text(pipe, "WAIT");
        once__redis_number(pipe, r->url.wait);
        once__redis_number(pipe, r->wait_ms);
    }
    if (r->durable) once__redis_ask_settings(pipe);
}

static int read_promises(once_redis *r, redisReply *const *replies, uint64_t commits, once_error *err)
{
    const once_bytes secret = {(const char *)&r->shelf.store.secret,
                               sizeof r->shelf.store.secret}; /* the script compares it */
    const uint64_t have = r->url.wait ? once__reply_count(*replies++) : 0;
    int rc = once__redis_check_head(r, secret, commits, have >= r->url.wait, err);
    if (rc == ONCE_OK && have < r->url.wait)
        rc = once_fail(err, ONCE_E_UNAVAILABLE, "only %llu of %u replicas of redis have the commit",
                       (unsigned long long)have, r->url.wait);
    bool durable;
    return rc == ONCE_OK && r->durable ? once__redis_read_settings(r, replies, &durable, err) : rc;
}

/* The next letters; more than are written. */
static void declare_next_letters(once_redis *r, size_t n)
{
    for (size_t i = 1; i <= n; i++) {
        char number[24], key[ONCE_REDIS_KEY];
        const size_t len = number_text((int64_t)(r->letters + i), number);
        once__redis_arg(&r->pipe, key, once__redis_key(r, "L", number, len, key));
    }
}

static void build(once_redis *r, bool whole)
{
    static const enum once_redis_part_kind args[] = {ONCE_REDIS_FIELDS,  ONCE_REDIS_NEW,      ONCE_REDIS_COMMANDS,
                                                     ONCE_REDIS_LETTERS, ONCE_REDIS_REMOVALS, ONCE_REDIS_GROUPS};
    const once_redis_part *parts = r->parts;
    const size_t n = r->values[0].n + r->values[1].n, n_letters = parts[ONCE_REDIS_LETTERS].n,
                 next = n_letters ? n_letters + LETTERS_AHEAD : 0;
    const size_t counts[] = {n,
                             r->values[0].n,
                             parts[ONCE_REDIS_FIELDS].n,
                             parts[ONCE_REDIS_NEW].n,
                             parts[ONCE_REDIS_COMMANDS].n,
                             parts[ONCE_REDIS_REMOVALS].n,
                             parts[ONCE_REDIS_DROPPED].n,
                             parts[ONCE_REDIS_GROUPS].n,
                             n_letters,
                             next,
                             r->letters + 1};
    enum { COUNTS = sizeof counts / sizeof *counts };
    size_t n_keys = 1 + n + next, n_args = 2 + COUNTS + 3 * n;
    for (size_t i = 0; i < ONCE_REDIS_PARTS; i++) {
        n_keys += parts[i].n_keys;
        n_args += parts[i].n_args;
    }
    once_redis_pipe *pipe = &r->pipe;
    once__redis_pipe_clear(pipe);
    once__redis_command(pipe, ONCE_REPLY_COMMIT, 3 + n_keys + n_args);
    once__redis_text(pipe, whole ? "EVAL" : "EVALSHA");
    once__redis_text(pipe, whole ? script : r->sha);
    once__redis_number(pipe, (int64_t)n_keys);
    once__redis_put_key(r, "head", NULL, 0);
    for (int i = 0; i < 2; i++) once__redis_raw(pipe, &r->values[i].keys);
    for (size_t i = 0; i < ONCE_REDIS_PARTS; i++) once__redis_raw(pipe, &parts[i].keys);
    declare_next_letters(r, next);
    once__redis_arg(pipe, &r->shelf.store.secret, sizeof r->shelf.store.secret);
    once__redis_number(pipe, (int64_t)strlen(r->prefix));
    for (size_t i = 0; i < COUNTS; i++) once__redis_number(pipe, (int64_t)counts[i]);
    for (int i = 0; i < 2; i++) once__redis_raw(pipe, &r->values[i].was);
    for (int i = 0; i < 2; i++) once__redis_raw(pipe, &r->values[i].now);
    for (int i = 0; i < 2; i++) once__redis_raw(pipe, &r->values[i].how);
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) once__redis_raw(pipe, &parts[args[i]].args);
    ask_promises(r);
}

/* It was read from one connection, perhaps to another node than this one is; and if keys were moving, nobody gave that
 * up before something was read. */
static int is_all_here(once_redis *r, once_error *err)
{
    const unsigned looked_at = r->looked_at;
    const int rc = once__redis_same(r->link, looked_at) && once__redis_saw_move(r->link)
                       ? once__redis_look_for_strays(r, err)
                       : ONCE_OK;
    return rc == ONCE_OK && !once__redis_same(r->link, looked_at) ? once__redis_conflict(r, err) : rc;
}

/* What was decided by what one node said is not carried to another one. Nor is it sent again when keys have been on
 * their way meanwhile: what was not there when it was read may have come since, and been moved, and the move been given
 * up. It is waited for, and then decided anew. */
static int decide(once_redis *r, char refused[24], once_error *err)
{
    r->pipe.stays = true;
    r->pipe.guesses = r->assumed;
    const int rc = once__redis_exchange(r->link, &r->pipe, refused, err);
    if (rc == ONCE_OK) return rc;
    const bool moves = strcmp(refused, "TRYAGAIN") == 0;
    if (moves && !r->assumed && !once__redis_move_ends(r)) return rc;
    return moves || strcmp(refused, "MOVED") == 0 || (r->assumed && strcmp(refused, "ASK") == 0)
               ? once__redis_conflict(r, err)
               : rc;
}

static int send(once_redis *r, once_error *err)
{
    char refused[24];
    int rc = once__redis_clustered(r->link) ? is_all_here(r, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    build(r, false);
    if (r->pipe.bytes.len > SCRIPT_MAX)
        return once_fail(
            err, ONCE_E_CONFIG,
            "a transaction of %zu MiB is more than redis takes at once; lower 'batch: {max: ...}' or 'message_max'",
            r->pipe.bytes.len >> 20);
    rc = decide(r, refused, err);
    if (rc != ONCE_OK &&
        strcmp(refused, "NOSCRIPT") == 0) { /* a server that was started anew: EVAL makes it known again */
        build(r, true);
        rc = decide(r, refused, err);
    }
    if (rc != ONCE_OK) return rc;
    const redisReply *reply = r->pipe.replies[0];
    if (once__reply_n(reply)) return once__redis_damaged_key(r, once__reply_at(reply, 0), err);
    const uint64_t answer = once__reply_count(reply);
    if (answer == 1) return once__redis_conflict(r, err);
    if (answer == 2) return once__redis_replaced(r, err);
    rc = read_promises(r, r->pipe.replies + 1, answer - 2, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < r->names.n; i++) r->names.at[i].written = true;
    return ONCE_OK;
}

/* Who answers "duplicate" relies on what somebody else wrote: with replicas to wait for, they must have that, too. */
static int wait_for_what_was_read(once_redis *r, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 4);
    once__redis_text(&r->pipe, "HINCRBY"); /* a write behind what was read, so that there is something to wait for */
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, "commits");
    once__redis_text(&r->pipe, "1");
    ask_promises(r);
    const int rc = once__redis_ask(r, err);
    return rc == ONCE_OK ? read_promises(r, r->pipe.replies + 1, once__reply_count(r->pipe.replies[0]), err) : rc;
}

static bool anything_to_write(const once_redis *r)
{
    size_t n = r->values[0].n + r->values[1].n;
    for (size_t i = 0; i < ONCE_REDIS_PARTS; i++) n += i == ONCE_REDIS_FIELDS ? 0 : r->parts[i].n;
    return n > 0;
}

int once__redis_apply(once_redis *r, once_error *err)
{
    assert(r->open);
    if (!write_entries(r) || !write_indexes(r) || !write_letters(r)) return once__redis_nomem(err);
    write_dropped_letters(r);
    write_audits(r);
    write_facts(r);
    expect_now(r);
    if (!anything_to_write(r)) return r->url.wait && r->writes && r->slots.n ? wait_for_what_was_read(r, err) : ONCE_OK;
    if (!write_lanes(r)) return once__redis_nomem(err);
    write_new_names(r);
    write_clock(r);
    if (r->has_turn) once__redis_undo(r, "DEL", "turn", (once_bytes){0}, 0);
    assert(r->writes && r->owed == 0);
    const int rc = send(r, err);
    if (rc == ONCE_OK) r->has_turn = false;
    return rc;
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

int once__redis_load_script(once_redis *r, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXT, 3);
    once__redis_text(&r->pipe, "SCRIPT");
    once__redis_text(&r->pipe, "LOAD");
    once__redis_text(&r->pipe, script);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes sha = once__reply_bytes(r->pipe.replies[0]);
    if (sha.len + 1 != sizeof r->sha) return once__redis_damaged(r, "a reply", err);
    memcpy(r->sha, sha.data, sha.len);
    return ONCE_OK;
}

/* --- whether we may --- */

/* A command that is refused in the middle of a script ends it there, and what it wrote before stays. So each is tried
 * once before the first commit, on a key that nothing else uses, and that is gone afterwards. */
static const char trial[] =
    "local k = KEYS[1]\n"
    "local commands = {'DEL k', 'HMGET k a', 'TYPE k', 'EXISTS k', 'MGET k', 'GETRANGE k 0 0', 'MSETNX k a', 'MSET k "
    "a', 'SET k a PXAT 99999999999999', 'DEL k',\n"
    "  'HSET k a 1', 'HINCRBY k a 1', 'HDEL k a', 'ZADD k 1 a', 'ZSCORE k a', 'ZINCRBY k 1 a', 'ZREM k a', 'SADD k a', "
    "'DEL k', 'RPUSH k a', 'DEL k'}\n"
    "for _, command in ipairs(commands) do\n"
    "  local words = {}\n"
    "  for word in string.gmatch(command, '%S+') do words[#words + 1] = word == 'k' and k or word end\n"
    "  local got = redis.pcall(unpack(words))\n"
    "  if type(got) == 'table' and got.err then\n"
    "    local denied = string.find(got.err, 'NOPERM') or string.find(got.err, 'permission') or string.find(got.err, "
    "'user executing the script')\n"
    "    redis.pcall('DEL', k)\n"
    "    return (denied or string.find(got.err, 'Unknown')) and words[1] or ''\n"
    "  end\n"
    "end\n"
    "return ''\n";

int once__redis_try_commands(once_redis *r, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXT, 4);
    once__redis_text(&r->pipe, "EVAL");
    once__redis_text(&r->pipe, trial);
    once__redis_text(&r->pipe, "1");
    once__redis_put_key(r, "trial", NULL, 0);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes refused = once__reply_bytes(r->pipe.replies[0]);
    if (refused.len == 0) return ONCE_OK;
    return once_fail(err, ONCE_E_DENIED,
                     "this user of redis may not use the command '%.*s' for keys that begin with '%s', and commits "
                     "need it; say 'ACL SETUSER ... ~%s* +%.*s'",
                     (int)refused.len, refused.data, r->prefix, r->prefix, (int)refused.len, refused.data);
}
