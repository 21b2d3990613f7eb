"""Work of every fate on a Redis store, with exact expectations of what becomes of it.

The servers are anything that says who has the store (owner()), its name and its url()."""

import collections
import os

from fenced import Fenced
from harness import until
from fleet import SOAK_S

# Says what the message asks for, and writes down each effect: key, attempt, maybe. A paced load lets only some of the messages through.
HANDLER = """#!/usr/bin/python3
import json, os, sys, time

def may(key):
    try:
        with open("upto") as upto:
            return int(key[1:]) < int(upto.read())
    except FileNotFoundError:
        return True

effects = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for line in sys.stdin:
    m = json.loads(line)
    while not may(m["key"]):
        time.sleep(0.01)
    os.write(effects, f"{m['key']} {m['attempt']} {int(m['maybe_done'])}\\n".encode())
    say = m["body"]["say"]
    outcome = "retry" if say == "later" and m["attempt"] == 1 else "dead" if say == "never" and not os.path.exists("cured") else "done"
    print(json.dumps({"id": m["id"], "outcome": outcome, "reason": say}), flush=True)
"""

CONFIG = """
key: "${/id}"
order: "${/lane}"
ack: %(ack)s
lease: %(lease)s
unknown: hold
retry: {attempts: 5, backoff: 1ms..20ms}
batch: {max: 40}
patience: 2m
handler: {exec: [./effect], mode: stream, window: 8}
"""


class Load:
    """Messages of every fate, and exact expectations of what becomes of them. `paced`: the first ones, until more are allowed, so that
    there is work left however fast it goes."""

    def __init__(self, folder, servers, n, ack="after_effect", more="", node=None, lease="60s", paced=False):
        self.servers, self.n, self.upto = servers, n, 0 if paced else None
        self.work = Fenced(folder, script=HANDLER, config=CONFIG.replace("%(ack)s", ack), lease=lease, store=servers.url(more, node))
        self.p = self.work.p
        say = {3: "never", 5: "later"}
        self.messages = [{"id": f"k{i}", "lane": f"l{i if i % 4 else 0}", "say": say.get(i % 10, "now")} for i in range(n)]
        self.bad = ["{bad %d" % i for i in range(n // 20)]
        self.p.write(*self.messages, *self.bad)

    def allow(self, more):
        """So many messages more; None: all."""
        if self.upto is None:
            return
        path = os.path.join(self.work.folder, "upto")
        if more is None:
            os.remove(path)
            return
        self.upto += more
        assert self.upto < self.n, "there is work left"
        with open(path + ".new", "w") as file:
            file.write(str(self.upto))
        os.replace(path + ".new", path)

    def effects(self):
        return len(self.work.effects())

    def expected(self):
        return {m["id"]: 2 if m["say"] == "later" else 1 for m in self.messages}

    def check(self):
        """Each effect so often as its answers say, each letter once, and nothing left in between."""
        assert self.work.per_key() == collections.Counter(self.expected())
        status = self.p.once("status", "--json", self.p.name).json
        assert (status["waiting"], status["busy"], status["unknown"], status["repeats"]) == (0, 0, 0, 0), status
        never = {m["id"] for m in self.messages if m["say"] == "never"}
        listed = self.p.once("list", "--dead", "--json", self.p.name).json["messages"]
        assert len(listed) == len(never) + len(self.bad)
        assert {m["key"] for m in listed if m.get("key")} == never
        whole(self.servers.owner(), self.servers.name, letters=len(listed), dead=len(never))

    def replay(self):
        """All letters with a message of their own, which work now."""
        never = [m["id"] for m in self.messages if m["say"] == "never"]
        open(os.path.join(self.work.folder, "cured"), "w").close()
        replayed = self.p.once("replay", "--all", "--json", self.p.name).json["counts"]
        assert replayed["run"] == len(never), replayed
        self.p.run()
        assert self.work.per_key() == collections.Counter(self.expected()) + collections.Counter(never)
        whole(self.servers.owner(), self.servers.name, letters=len(self.bad), dead=0)


def whole(node, name, letters, dead):
    """No commit left a half of itself: what refers to something finds it, and what is referred to is referred to."""
    key = b"{%s}" % name.encode()
    keys = node.call("KEYS", key + b"*")
    kinds = collections.defaultdict(list)
    for k in keys:
        kinds[k[len(key):len(key) + 1]].append(k)
    values = {k[len(key) + 1:]: node.call("GET", k) for k in kinds[b"e"]}
    states = collections.Counter(v[9] & 0x0f for v in values.values() if v[:1] == b"O")
    dead_state = 4
    indexed = {k[len(key) + 1:len(key) + 2]: node.call("ZRANGE", k, 0, -1) for k in kinds[b"i"]}
    assert set(indexed) <= {b"x"}, indexed
    assert sum(states.values()) == dead == len(indexed.get(b"x", [])), (states, indexed)
    for member in indexed.get(b"x", []):
        assert values[member][9] & 0x0f == dead_state or dead == 0
    assert not kinds[b"c"] and not kinds[b"g"] and not kinds[b"o"], "claims or lanes that nobody is in"
    numbers = [number for k in kinds[b"d"] for number in node.call("ZRANGE", k, 0, -1)]
    assert len(numbers) == letters
    assert sorted(key + b"L" + number for number in numbers) == sorted(kinds[b"L"])
    uniques = node.call("HGETALL", key + b"U")
    assert sorted(uniques[1::2]) == sorted(numbers)
    assert int(node.call("HGET", key + b"head", "letters") or 0) >= max(map(int, numbers), default=0)


class Runs:
    """Three at once; none of them may end before there is nothing left to do."""

    def __init__(self, load):
        self.load = load

    def __enter__(self):
        self.load.allow(0)
        self.running = [self.load.p.start() for _ in range(3)]
        return self

    def __exit__(self, *_):
        for r in self.running:
            r.__exit__()

    def over(self):
        return all(r.process.poll() is not None for r in self.running)

    def after(self, more):
        """So many effects from now on, or the end."""
        seen = self.load.effects()
        self.load.allow(more + 50)
        until(lambda: self.load.effects() >= seen + more or self.over(), deadline_s=60, what="effects")

    def end(self):
        self.load.allow(None)
        ended = [r.end(deadline_s=60 + 4 * SOAK_S) for r in self.running]
        for e in ended:
            assert e.status == 1, e
        return ended
