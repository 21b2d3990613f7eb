"""Keys of a Redis store that somebody removed or changed by hand: each is noticed and named by `once check --deep`, and mended by `--repair` where
the entries themselves tell how it was. Beside workers nothing is found that is not there."""

import os
import re
import signal

import pytest

from fenced import Fenced
from harness import Pipeline, until
from rediscluster import Cluster
from redisserver import RedisServer, needs_redis

pytestmark = needs_redis

SCRIPT = """#!/bin/sh
read -r body
echo "$ONCE_KEY" >> effects
case $ONCE_KEY in
dead) exit 65;;
again|v2) [ -f open ] || exit 75;;
held) kill -9 $$;;
busy|lane-busy) touch "begun-$ONCE_KEY"; while [ ! -f open ]; do sleep 0.05; done;;
esac
"""
CONFIG = """key: "${/id}"
order: "${/lane}"
version: "${/v}"
lease: 10m
timeout: 5m
workers: 6
unknown: hold
retry: {attempts: 50, backoff: 30d..30d}
handler: {exec: [./effect]}
"""
MESSAGES = [{"id": key, "lane": key, "v": 1} for key in ("done", "dead", "again", "held", "busy")] + \
           [{"id": f"v{i}", "lane": "L", "v": i} for i in (1, 2, 3, 4)] + \
           [{"id": "lane-busy", "lane": "M", "v": 1}]


class Store:
    """One that has something of everything, and is as it was before each damage."""

    def __init__(self, folder):
        self.server = RedisServer(folder)
        with open(os.path.join(folder, "effect"), "w") as file:
            file.write(SCRIPT)
        os.chmod(os.path.join(folder, "effect"), 0o755)
        self.p = Pipeline(str(folder), CONFIG, store=self.server.url())
        self.p.write(*MESSAGES)
        with self.p.start() as running:
            until(lambda: all(os.path.exists(os.path.join(folder, f"begun-{key}")) for key in ("busy", "lane-busy")), what="they work")
            until(lambda: (self.status()["waiting"], self.status()["unknown"], self.status()["dead"]) == (4, 1, 1), what="the others are settled")
            running.process.kill()
            running.end()
        open(os.path.join(folder, "open"), "w").close()
        self.saved = {key: (self.call("DUMP", key), self.ends(key)) for key in self.call("KEYS", "{once}*")}

    def call(self, *words):
        return self.server.call(*words)

    def ends(self, key):
        """When it ends, by the server's clock; 0: never."""
        (seconds, microseconds), left = self.call("TIME"), self.call("PTTL", key)
        return int(seconds) * 1000 + int(microseconds) // 1000 + left if left >= 0 else 0

    def status(self):
        ended = self.p.once("status", "--json", self.p.name)
        return ended.json if ended.status in (0, 1) else {"waiting": 0, "unknown": 0, "dead": 0}

    def restore(self):
        self.call("FLUSHALL")
        for key, (value, left) in self.saved.items():
            self.call("RESTORE", key, left, value, "ABSTTL")

    def keys(self, kind):
        return sorted(key for key in self.call("KEYS", "{once}*") if key[6:].startswith(kind))

    def key(self, kind):
        key, = self.keys(kind)
        return key

    def entry(self, of):
        """The key of the entry of a message."""
        values = {key: self.call("GET", key) for key in self.keys(b"e")}
        text = bytes([len(of)]) + of.encode()
        return min(key for key, value in values.items() if (value[:1] == b"F" if of == "done" else value[:1] == b"O" and text in value))

    def lane(self, of):
        """The set of a lane, by one that stands in it."""
        id = self.entry(of)[7:]
        key, = [key for key in self.keys(b"o") if any(member.endswith(id) for member in self.call("ZRANGE", key, 0, -1))]
        return key

    def deep(self):
        ended = self.p.once("check", "--deep", "--json", self.p.name)
        return ended, [f["text"] for f in ended.json["findings"] if f["topic"] == "damage"]

    def repair(self):
        ended = self.p.once("check", "--repair", self.p.name)
        assert ended.status == 0, ended
        mended = re.search(r"(\d+) entries, lanes or letters were repaired", ended.out)
        return int(mended.group(1)) if mended else 0

    def put(self, key, at, byte):
        value = bytearray(self.call("GET", key))
        value[at] ^= byte
        self.call("SET", key, bytes(value), "KEEPTTL")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    with store.server:
        yield store


@pytest.fixture
def store(whole):
    whole.restore()
    return whole


def group_of(s):
    return s.call("ZRANGE", s.key(b"cc"), 0, 0)[0]


def unique_of(s):
    return s.call("HKEYS", s.key(b"U"))[0]


ELSEWHERE = b"{once}e" + b"x" * 16


def other_place(s, of):
    """The place of an entry in its lane, with a byte that nobody reads changed."""
    member = max(m for m in s.call("ZRANGE", s.lane(of), 0, -1) if m.endswith(s.entry(of)[7:]))
    return member, member[:9] + b"\xfe" + member[10:]


def swap(s, one, two):
    values = [s.call("GET", key) for key in (one, two)]
    s.call("MSET", one, values[1], two, values[0])


def empty_lane(s):
    return min(key for key in s.keys(b"l") if s.ends(key))


DAMAGES = {
    # what happens, what is said, whether it is mended
    "index": (lambda s: s.call("ZREM", "{once}iWc", s.entry("again")[7:]), "(key 'again') is not in the index of its state", True),
    "whole index": (lambda s: s.call("DEL", "{once}iWc"), "(key 'again') is not in the index of its state", True),
    "unknowns": (lambda s: s.call("DEL", "{once}iuc"), "(key 'held') is not in the index of its state", True),
    "dead ones": (lambda s: s.call("DEL", "{once}ixc"), "(key 'dead') is not in the index of its state", True),
    "due time": (lambda s: s.call("ZADD", "{once}iWc", 5, s.entry("again")[7:]), "(key 'again') is in the index of its state under another time", True),
    "other index": (lambda s: s.call("ZADD", "{once}iuc", 7, s.entry("again")[7:]), 'iuc" names the entry "{once}e', True),
    "finished in an index": (lambda s: s.call("ZADD", "{once}iWc", 7, s.entry("done")[7:]), "which belongs elsewhere", True),
    "nothing in an index": (lambda s: s.call("ZADD", "{once}iWc", 7, b"x" * 16), "which is gone", False),
    "odd member": (lambda s: s.call("ZADD", "{once}iWc", 7, b"x"), 'iWc" has a value that cannot be read', False),
    "groups": (lambda s: s.call("DEL", "{once}cc"), "(key 'busy') is claimed, and in no group of claims", True),
    "claims of a group": (lambda s: s.call("DEL", "{once}gc"), "(key 'busy') is claimed, and in no group of claims", True),
    "count of a group": (lambda s: s.call("ZADD", "{once}cc", 9, group_of(s)), "another number of claims than there are", True),
    "group of nobody": (lambda s: s.call("HSET", "{once}gc", b"g" * 16, b"i" * 16), "has a group of claims without a count", True),
    "order": (lambda s: s.call("DEL", s.lane("v3")), "(key 'v3') has lost its place in its lane", True),
    "one place": (lambda s: s.call("ZREM", s.lane("v3"), s.call("ZRANGE", s.lane("v3"), 1, 1)[0]), "(key 'v3') has lost its place in its lane", True),
    "order of one at work": (lambda s: s.call("DEL", s.lane("lane-busy")), "(key 'lane-busy') has lost its place in its lane", True),
    "lane": (lambda s: s.call("DEL", s.lane("v3").replace(b"}o", b"}l")), "(key 'v3') is in a lane that has no record", True),
    "both of a lane": (lambda s: s.call("DEL", s.lane("v3"), s.lane("v3").replace(b"}o", b"}l")), "(key 'v3') is in a lane that has no record", True),
    "who is at work": (lambda s: s.call("SET", s.lane("lane-busy").replace(b"}o", b"}l"), s.call("GET", s.lane("lane-busy").replace(b"}o", b"}l"))[:-16]),
                       "(key 'lane-busy') is claimed or unknown, and its lane does not name it", True),
    "finished at work": (lambda s: s.call("APPEND", s.lane("v3").replace(b"}o", b"}l"), s.entry("done")[7:]), "which is not running there", True),
    "twice at work": (lambda s: s.call("APPEND", s.lane("lane-busy").replace(b"}o", b"}l"), s.entry("lane-busy")[7:]), "twice: it would never be free", True),
    "nobody at work": (lambda s: s.call("APPEND", s.lane("v3").replace(b"}o", b"}l"), b"x" * 16), "is occupied by the entry", False),
    "finished in a lane": (lambda s: s.call("ZADD", s.lane("v3"), 0, s.call("ZRANGE", s.lane("v3"), 0, 0)[0][:-16] + s.entry("done")[7:]), "which is not in that lane", True),
    "nothing in a lane": (lambda s: s.call("ZADD", s.lane("v3"), 0, s.call("ZRANGE", s.lane("v3"), 0, 0)[0][:-16] + b"x" * 16), "which is gone", False),
    "odd place": (lambda s: s.call("ZADD", s.lane("v3"), 0, b"x"), "has a value that cannot be read", False),
    "another place": (lambda s: s.call("ZADD", s.lane("v3"), 0, other_place(s, "v3")[1]), "that once does not write like this", True),
    "only another place": (lambda s: (s.call("ZADD", s.lane("v3"), 0, other_place(s, "v3")[1]), s.call("ZREM", s.lane("v3"), other_place(s, "v3")[0])), "that once does not write like this", True),
    "score of a place": (lambda s: s.call("ZADD", s.lane("v3"), 9, other_place(s, "v2")[0]), "that once does not write like this", True),
    "copied entry": (lambda s: s.call("COPY", s.entry("again"), ELSEWHERE), "(key 'again') stands under another id than that of its key", False),
    "renamed entry": (lambda s: s.call("RENAME", s.entry("again"), ELSEWHERE), "(key 'again') stands under another id than that of its key", False),
    "swapped entries": (lambda s: swap(s, s.entry("again"), s.entry("v2")), "(key 'v2') stands under another id than that of its key", False),
    "entry": (lambda s: s.call("DEL", s.entry("again")), "which is gone", False),
    "cut entry": (lambda s: s.call("SET", s.entry("again"), s.call("GET", s.entry("again"))[:-3]), "has a value that cannot be read", False),
    "empty entry": (lambda s: s.call("SET", s.entry("again"), ""), "is empty", False),
    "cut lane": (lambda s: s.call("SET", s.lane("v3").replace(b"}o", b"}l"), b"N12"), "has a value that cannot be read", False),
    "entry that ends": (lambda s: s.call("PEXPIRE", s.entry("again"), 100000), "has another time to live than its value says", True),
    "finished without end": (lambda s: s.call("PERSIST", s.entry("done")), "has another time to live than its value says", True),
    "finished that ends early": (lambda s: s.call("PEXPIRE", s.entry("done"), 100000), "has another time to live than its value says", True),
    "lane that ends": (lambda s: s.call("EXPIRE", s.lane("v3").replace(b"}o", b"}l"), 500), "has another time to live than its lane", True),
    "empty lane that ends early": (lambda s: s.call("EXPIRE", empty_lane(s), 500), "has another time to live than its lane", True),
    "order that ends": (lambda s: s.call("EXPIRE", s.lane("v3"), 500), "has a time to live, and once never sets one there", True),
    "names": (lambda s: s.call("DEL", "{once}n"), "refers to a name that is missing, or is another one", True),
    "names and ends": (lambda s: (s.call("DEL", "{once}n"), s.call("PERSIST", s.entry("done"))), "has another time to live than its value says", True),
    "letter": (lambda s: s.call("DEL", "{once}L1"), 'dc" names the letter 1, which is gone', False),
    "all of a letter": (lambda s: s.call("DEL", "{once}L1", "{once}dc", "{once}U"), "(key 'dead') is dead, and its dead letter is gone", False),
    "cut letter": (lambda s: s.call("SET", "{once}L1", s.call("GET", "{once}L1")[:-3]), 'L1" has a value that cannot be read', False),
    "list of letters": (lambda s: s.call("DEL", "{once}dc"), "is a dead letter that is missing in the list of its consumer", True),
    "uniques": (lambda s: s.call("DEL", "{once}U"), "is a dead letter whose next delivery would not be recognised", True),
    "unique of nothing": (lambda s: s.call("HSET", "{once}U", b"u" * 16, 99), "names the letter 99, which is gone or another", True),
    "unique of another": (lambda s: s.call("HSET", "{once}U", unique_of(s), 7), "is a dead letter whose next delivery would not be recognised", True),
    "unique without number": (lambda s: s.call("HSET", "{once}U", unique_of(s), "abc"), "is a dead letter whose next delivery would not be recognised", True),
    "copied letter": (lambda s: s.call("COPY", "{once}L1", "{once}L2"), "the letter 1 counts as the same one: replay or discard that one", False),
    "letter of another consumer": (lambda s: s.call("ZADD", "{once}dother", 1, 1), 'dother" names the letter 1, which is of another consumer', True),
    "commits": (lambda s: s.call("HDEL", "{once}head", "commits"), "has lost its field 'commits'", True),
    "secret": (lambda s: s.call("HDEL", "{once}head", "secret"), "has lost its field 'secret', or has another one", True),
    "another secret": (lambda s: s.call("HSET", "{once}head", "secret", "x" * 16), "has lost its field 'secret', or has another one", True),
    "letter of nothing": (lambda s: s.call("ZADD", "{once}dc", 99, 99), "names the letter 99, which is gone", False),
    "last letter": (lambda s: s.call("HDEL", "{once}head", "letters"), "has a lower number of the last letter than there is", True),
    "audit": (lambda s: s.call("RPUSH", "{once}ac", "x"), 'ac" has a value that cannot be read', False),
    "type": (lambda s: (s.call("DEL", "{once}iWc"), s.call("SET", "{once}iWc", "x")), "iWc\" is of the type 'string'", None),
    "index of nothing": (lambda s: s.call("ZADD", b"{once}i\0", 1, "x"), 'i\\x00" is no key of once', False),
    "nothing at all": (lambda s: s.call("SET", b"{once}\0", "x"), '\\x00" is no key of once', False),
    "letter with zeros": (lambda s: s.call("COPY", "{once}L1", "{once}L001"), 'L001" is no key of once', False),
    "stranger": (lambda s: s.call("SET", "{once}zz", "x"), 'zz" is no key of once', False),
}


def test_f55_a_store_that_is_whole(store):
    ended, found = store.deep()
    assert ended.status == 0 and not found and "every key was read" in ended.out, ended
    assert store.repair() == 0


@pytest.mark.parametrize("what", DAMAGES)
def test_f55_each_damage_is_named_and_mended(store, what):
    damage, said, mended = DAMAGES[what]
    damage(store)
    ended, found = store.deep()
    assert ended.status == 3 and any(said in text for text in found), (found, ended)
    assert all(("'once check --repair' repairs that" in text) == bool(mended) for text in found if said in text), found
    if mended is None:
        ended = store.p.once("check", "--repair", store.p.name)
        assert ended.status == 3 and "is not what once writes there" in ended.err, ended
        return
    n = store.repair()
    ended, found = store.deep()
    if not mended:
        assert ended.status == 3 and any(said in text for text in found), (found, ended)
        return
    assert n > 0 and ended.status == 0 and not found, (n, found, ended)
    audits = store.call("LRANGE", "{once}ac", 0, -1)
    assert any(b"repair" in audit and b"entries, lanes or letters" in audit for audit in audits), audits
    assert store.repair() == 0


@pytest.mark.parametrize("what", ["copied entry", "renamed entry", "swapped entries"])
def test_f55_a_repair_leaves_what_stands_under_another_id(store, what):
    """Mended, its message would run a second time, or out of its order."""
    DAMAGES[what][0](store)
    lists = {key: store.call("ZRANGE", key, 0, -1) for kind in (b"i", b"o") for key in store.keys(kind)}
    store.repair()
    assert {key: store.call("ZRANGE", key, 0, -1) for key in lists} == lists


LASTS = ["L1", "dc", "U", "head", "n", "iWc", "iuc", "ixc", "cc", "gc", "f"]


def test_f55_what_never_ends_has_no_time_to_live(store):
    for key in LASTS:
        assert store.call("EXPIRE", "{once}" + key, 500) == 1, key
    ended, found = store.deep()
    assert ended.status == 3, ended
    said = {re.match(r'"\{once\}(\w+)" has a time to live, and once never sets one there.*--repair', text).group(1) for text in found}
    assert said == set(LASTS), found
    assert store.repair() == len(LASTS)
    assert [store.call("PTTL", "{once}" + key) for key in LASTS] == [-1] * len(LASTS)
    assert store.deep()[0].status == 0


def test_f55_the_right_that_a_repair_needs_is_named_before_anything_is_written(store):
    store.call("ACL", "SETUSER", "mends", "reset", "on", "nopass", "~{once}*", "+@all", "-persist")
    p = Pipeline(store.p.folder, CONFIG, store=store.server.url(user="mends@"), name="mends.yaml")
    store.call("EXPIRE", "{once}dc", 500)
    store.call("ZREM", "{once}iWc", store.entry("again")[7:])
    p.once("check", "--repair", p.name)
    commits = store.call("HGET", "{once}head", "commits")
    ended = p.once("check", "--repair", p.name)
    assert ended.status == 3 and "'PERSIST'" in ended.err and "docs/redis.md" in ended.err, ended
    assert store.call("HGET", "{once}head", "commits") == commits and store.call("PTTL", "{once}dc") > 0
    assert store.repair() == 1 and store.deep()[0].status == 0


def test_f55_one_repair_is_enough_for_a_renamed_letter(store):
    store.call("RENAME", "{once}L1", "{once}L9")
    store.repair()
    assert store.deep()[1] == ['"{once}dc" names the letter 1, which is gone']
    assert store.call("HVALS", "{once}U") == [b"9"]


def test_f55_what_is_said_of_a_letter_that_is_there_twice_holds(store):
    store.call("COPY", "{once}L1", "{once}L2")
    store.repair()
    ended = store.p.once("discard", store.p.name, "1")
    assert ended.status == 0, ended
    assert store.repair() == 1 and store.call("HVALS", "{once}U") == [b"2"]
    ended, found = store.deep()
    assert ended.status == 0 and not found, (found, ended)


def test_f55_the_repair_named_for_a_non_numeric_last_letter_works(store):
    store.call("HSET", "{once}head", "letters", "abc")
    ended, found = store.deep()
    said = re.search(r"has no number of the last letter in its field 'letters': stop all workers, and run '(.*)'$", found[0])
    assert ended.status == 3 and len(found) == 1 and said, (found, ended)
    assert store.p.once("check", "--repair", store.p.name).status == 3
    store.call(*said.group(1).split())
    assert store.deep()[0].status == 0 and store.repair() == 0


def test_f55_more_than_are_told_are_at_least_so_many(store):
    store.call("ZADD", "{once}dc", *[n for i in range(25) for n in (100 + i, 100 + i)])
    ended, found = store.deep()
    assert len(found) == 20 and "the store is damaged in at least 20 places" in ended.err, ended


def test_f55_what_is_said_of_a_renamed_entry_holds(store):
    entry = store.entry("again")
    store.call("RENAME", entry, ELSEWHERE)
    text, = [text for text in store.deep()[1] if "stands under another id" in text]
    named = re.search(r'if there is no "((?:[^"\\]|\\.)*)", rename', text).group(1)
    assert named.encode("latin-1").decode("unicode_escape").encode("latin-1") == entry
    store.call("RENAME", ELSEWHERE, entry)
    assert store.deep()[0].status == 0


def orders(store):
    return {key: store.call("ZRANGE", key, 0, -1) for key in store.keys(b"o")}


@pytest.mark.parametrize("what", ["another place", "only another place", "score of a place", "order", "one place", "both of a lane", "order of one at work"])
def test_f55_a_repair_brings_back_the_order_of_a_lane(store, what):
    before = orders(store)
    DAMAGES[what][0](store)
    assert orders(store) != before
    store.repair()
    assert orders(store) == before


LANE = """key: "${/id}"
order: "${/lane}"
version: "${/v}"
retry: {attempts: 1000, backoff: 50ms..60ms}
handler: {exec: [./effect]}
"""
LANE_SCRIPT = """#!/bin/sh
read -r body
[ "$ONCE_KEY" != v2 ] || [ -f open ] || exit 75
echo "$ONCE_KEY" >> ran
"""
IN_LANE = [{"id": f"v{i}", "lane": "L", "v": i} for i in (1, 2, 3, 4)]
BRINGS = {"nothing": [], "the same": IN_LANE, "one of them": IN_LANE[2:3], "a new one": [{"id": "v5", "lane": "L", "v": 5}]}


@pytest.mark.parametrize("lost", ["all", "the first"])
@pytest.mark.parametrize("brings", BRINGS)
def test_f55_a_lane_that_lost_its_order_is_noticed(tmp_path, brings, lost):
    """v1 has settled, v2 waits for its next try, v3 and v4 are parked behind it. Without their places they would pass each other, or wait for
    ever: nothing of the lane runs. Mended, they run in their order."""
    with RedisServer(tmp_path) as server:
        work = Fenced(tmp_path, store=server.url(), config=LANE, script=LANE_SCRIPT)
        p = work.p
        p.write(*IN_LANE)

        def ran():
            return open(tmp_path / "ran").read().split() if (tmp_path / "ran").exists() else []

        with p.start() as running:
            until(lambda: server.count("{once}e*") == 4 and p.once("status", "--json", p.name).json["waiting"] == 3, what="three that wait")
            running.send(signal.SIGTERM)
            running.end()
        assert ran() == ["v1"]
        order, = server.call("KEYS", "{once}o*")
        members = server.call("ZRANGE", order, 0, -1)
        server.call("ZREM", order, *(members if lost == "all" else members[:1]))
        (tmp_path / "open").touch()
        p.write(*BRINGS[brings])
        with p.start() as running:
            ended = running.end(60)
        assert ended.status == 3 and "once check --repair" in ended.err and re.search(r'"\{once\}o', ended.err), ended
        assert ran() == ["v1"], "nobody passes"
        assert p.once("check", "--repair", p.name).status == 0
        p.run(status=0)
        assert ran() == ["v1", "v2", "v3", "v4"] + (["v5"] if brings == "a new one" else [])


@pytest.mark.parametrize("brings", ["v5", "v3"])
def test_f55_nobody_passes_those_whose_order_is_lost(store, brings):
    """Those that wait are not due for long, so nobody but the new one looks at the lane."""
    p = store.p
    store.call("DEL", store.lane("v3"))
    effects = os.path.join(p.folder, "effects")
    before = open(effects).read()
    p.write({"id": brings, "lane": "L", "v": int(brings[1:])})
    ended = p.try_run()
    assert ended.status == 3 and "is gone, and the lane has entries" in ended.err and "once check --repair" in ended.err, ended
    assert open(effects).read() == before


def test_f55_a_right_that_is_missing_is_named(store):
    p = Pipeline(store.p.folder, CONFIG, store=store.server.url(user="looks@"), name="looks.yaml")
    store.call("ACL", "SETUSER", "looks", "reset", "on", "nopass", "~{once}*", "+@all", "-scan")
    ended = p.once("check", "--deep", p.name)
    assert ended.status == 3 and "'SCAN'" in ended.err and "docs/redis.md" in ended.err, ended


def test_f55_nothing_is_found_beside_workers(tmp_path):
    """Lanes, retries, dead letters and claims come and go by the hundred while all of it is read, again and again."""
    script = "#!/bin/sh\nread -r body\ncase $ONCE_KEY-$ONCE_ATTEMPT in *7-[12]) exit 75;; *9-*) exit 65;; esac\n"
    config = 'key: "${/id}"\norder: "${/lane}"\nlease: 30s\nworkers: 6\nretry: {attempts: 9, backoff: 1ms..5ms}\nbatch: {max: 20}\nhandler: {exec: [./effect]}\n'
    with RedisServer(tmp_path) as server:
        work = Fenced(tmp_path, store=server.url(), config=config, script=script)
        work.p.write(*[{"id": f"{i % 12}-{i}", "lane": i % 12} for i in range(600)])
        with work.p.start() as one, work.p.start() as two:
            until(lambda: server.count("{once}e*") > 10, what="entries")
            looks = 0
            while one.process.poll() is None or looks < 3:
                ended = work.p.once("check", "--deep", "--json", work.p.name)
                assert ended.status == 0, ended
                looks += 1
            assert one.end().status == 1 and two.end().status in (0, 1)
        ended = work.p.once("check", "--deep", "--json", work.p.name)
        assert ended.status == 0 and looks >= 3, ended


def test_f90_a_store_that_is_being_moved_is_not_read(tmp_path):
    with Cluster(tmp_path) as cluster:
        p = Pipeline(str(tmp_path), 'key: "${/id}"\nhandler: {exec: ["true"]}\n', store=cluster.url())
        p.write(*[{"id": i} for i in range(50)])
        p.run(status=0)
        assert p.once("check", "--deep", p.name).status == 0
        source, target = cluster.owner(), cluster.others()[0]
        cluster.begin_move(source, target)
        cluster.move_some(source, target)
        ended = p.once("check", "--deep", p.name)
        assert ended.status == 3 and "cannot be read at the moment" in ended.err and "is being moved" in ended.err and "gone" not in ended.out, ended
        ended = p.once("check", "--repair", p.name)
        assert ended.status == 3 and "moved" in ended.err, ended
