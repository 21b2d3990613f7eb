/* The Lua script of a commit: it compares, and then writes. Here is also how its keys and arguments are laid out. The
 * script has no rules about entries; those are in core/entry.c. */
#include <assert.h>
#include <string.h>

#include "store/redis/commit.h"

#include "base/banned.h"

/* The script writes everything or nothing, so nothing may stop it between two writes. Redis does not roll a script
 * back: when a command fails, what was written before stays. In Redis 7.0 these can make a command fail
 * (tests/integration/test_redis_cluster.py):
 *
 *   - While a slot moves between two nodes, each key is on one of them, and a key that does not exist counts as moved.
 *     A script whose declared keys (KEYS) are not all on this node is refused before it begins: TRYAGAIN, or ASK when
 *     none is here. Nothing has happened then. The node that gets the slot (after ASKING) checks in the same way.
 *   - A key that was not declared is noticed only when the script gets to it. So every key that the script may touch is
 *     declared. (Flags such as allow-cross-slot-keys do not change this.)
 *   - A declared key that the script itself deletes counts as moved from then on: the next command on it fails. So
 *     commands that may delete their key come last, and the error means that the key is deleted.
 *   - A key of another type, or a text where a number must be, fails in clusters and elsewhere. All types are checked
 *     before the first write. So are the keys of new dead letters: none may exist.
 *
 * KEYS, in this order
 *   head
 *   values       keys that exist, to be compared, and most of them written: small values first, then large ones
 *   fields       hashes of which fields are compared
 *   new          keys that must not exist, and are written
 *   commands     the key of each command
 *   removals     the key of each command that may delete it
 *   dropped      dead letters that are deleted
 *   groups       two keys each: the set and the hash of a group of claims that claims leave
 *   letters      two keys for each new dead letter: the index of its consumer, and the hash of uniques
 *   next         the keys of the next dead letters, LETTERS_AHEAD more than are written: other workers may commit some
 *                before this script runs
 *
 * ARGV, in this order
 *   the secret of the store, and the length of "{NAME}"
 *   counts       of values, of small values, then of fields ... next as in KEYS; the number of the first next letter
 *   values       what each must begin with now (empty: it must not exist), for all of them; then the new value of each;
 *                then how it is written: "" without expiry, a number: expires at that time (ms), "d" deleted, "-" only
 *                compared
 *   fields       for each hash: how many fields, their names, and the value that each must have (empty: no such field)
 *   new          the value of each; they do not expire
 *   commands     for each: how many arguments, the name of the command, its arguments without the key
 *   letters      for each: what makes it unique, and its value. The script gives it its number, so that numbers are in
 *                the order of commits
 *   removals     as commands
 *   groups       for each: the group, and how many claims leave it. When the last one leaves, the group is deleted
 *
 * Returns
 *   1            a conflict: something that was read has changed. Nothing is written
 *   2            the store is another one than before: its secret differs. Nothing is written
 *   {KEY}        the key has a type or a value that once does not write there. Nothing is written
 *   2 + NUMBER   everything is written; NUMBER is the number of this commit, from 1 on
 *
 * New values are written by MSETNX, which compares and writes in one command. A long list takes several calls; when one
 * of them finds a key that exists, the keys of the earlier calls are deleted again. */
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

enum { LETTERS_AHEAD = 64 }; /* so many letters may other workers write after this transaction has read the number */

/* Declares the keys of the next n dead letters. */
static void declare_next_letters(once_redis *r, size_t n)
{
    assert(n == 0 || n > LETTERS_AHEAD);
    for (size_t i = 1; i <= n; i++) {
        char number[24], key[ONCE_REDIS_KEY];
        const size_t len = once__redis_number_text((int64_t)(r->letters + i), number);
        once__redis_arg(&r->pipe, key, once__redis_key(r, "L", number, len, key));
    }
}

void once__redis_build(once_redis *r, bool whole)
{
    assert(r->writes && r->owed == 0);
    static const enum once_redis_part_kind args[] = {ONCE_REDIS_FIELDS,  ONCE_REDIS_NEW,      ONCE_REDIS_COMMANDS,
                                                     ONCE_REDIS_LETTERS, ONCE_REDIS_REMOVALS, ONCE_REDIS_GROUPS};
    const once_redis_part *parts = r->parts;
    const size_t n = r->values[0].n + r->values[1].n, n_letters = parts[ONCE_REDIS_LETTERS].n,
                 next = n_letters ? n_letters + LETTERS_AHEAD : 0;
    /* The script computes these counts from n. */
    assert(parts[ONCE_REDIS_NEW].n_keys == parts[ONCE_REDIS_NEW].n &&
           parts[ONCE_REDIS_NEW].n_args == parts[ONCE_REDIS_NEW].n);
    assert(parts[ONCE_REDIS_COMMANDS].n_keys == parts[ONCE_REDIS_COMMANDS].n);
    assert(parts[ONCE_REDIS_REMOVALS].n_keys == parts[ONCE_REDIS_REMOVALS].n);
    assert(parts[ONCE_REDIS_DROPPED].n_keys == parts[ONCE_REDIS_DROPPED].n && parts[ONCE_REDIS_DROPPED].n_args == 0);
    assert(parts[ONCE_REDIS_GROUPS].n_keys == 2 * parts[ONCE_REDIS_GROUPS].n &&
           parts[ONCE_REDIS_GROUPS].n_args == 2 * parts[ONCE_REDIS_GROUPS].n);
    assert(parts[ONCE_REDIS_LETTERS].n_keys == 2 * n_letters && parts[ONCE_REDIS_LETTERS].n_args == 2 * n_letters);
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
    once__redis_arg(pipe, &r->storage.store.secret, sizeof r->storage.store.secret);
    once__redis_number(pipe, (int64_t)strlen(r->prefix));
    for (size_t i = 0; i < COUNTS; i++) once__redis_number(pipe, (int64_t)counts[i]);
    for (int i = 0; i < 2; i++) once__redis_raw(pipe, &r->values[i].was);
    for (int i = 0; i < 2; i++) once__redis_raw(pipe, &r->values[i].now);
    for (int i = 0; i < 2; i++) once__redis_raw(pipe, &r->values[i].how);
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) once__redis_raw(pipe, &parts[args[i]].args);
}

int once__redis_load_script(once_redis *r, once_error *err)
{
    assert(!r->open);
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

/* --- the rights of our user --- */

/* A command that the server refuses in the middle of a script ends the script there, and what it wrote before stays. So
 * each command is tried once before the first commit, on the key {NAME}trial, which is deleted afterwards. */
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
    assert(!r->open);
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
                     "need it; run 'ACL SETUSER ... ~%s* +%.*s'",
                     (int)refused.len, refused.data, r->prefix, r->prefix, (int)refused.len, refused.data);
}
