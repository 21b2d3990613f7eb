"""Commands as effects that record what they did: each real effect is a line in a file, appended by the command itself.

So what really happened is counted without the product, and compared with what it says."""

import collections
import os

from harness import Pipeline

# Appends "KEY ATTEMPT" in one write; the answer is what the message says. The result is the attempt.
SCRIPT = """#!/bin/sh
read -r body
echo "$ONCE_KEY $ONCE_ATTEMPT $ONCE_MAYBE_DONE" >> effects
printf %s "$ONCE_ATTEMPT"
[ ! -f slow ] || sleep "$(cat slow)"
"""

# The same as a kept process.
STREAM = """#!/usr/bin/python3
import json, os, sys
effects = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for line in sys.stdin:
    m = json.loads(line)
    os.write(effects, f"{m['key']} {m['attempt']} {int(m['maybe_done'])}\\n".encode())
    print(json.dumps({"id": m["id"], "outcome": "done", "result": str(m["attempt"])}), flush=True)
"""

CONFIG = """
key: "${/id}"
lease: %(lease)s
timeout: 5s
unknown: %(unknown)s
workers: %(workers)d
retry: {attempts: %(attempts)d, backoff: 1ms..5ms}
batch: {max: %(batch)d}
handler: {exec: [./effect]}
"""


STREAM_CONFIG = CONFIG.replace("exec: [./effect]", "exec: [./effect], mode: stream, window: %(workers)d").replace("workers: %(workers)d\n", "")


class Fenced:
    def __init__(self, folder, n=12, unknown="retry", workers=1, lease=None, attempts=50, batch=4, script=SCRIPT, config=CONFIG,
                 store="sqlite:store.db"):
        os.makedirs(folder, exist_ok=True)
        lease = lease or ("300ms" if store.startswith("sqlite:") else "1s")  # the shortest that a server may have
        self.folder, self.n, self.unknown = str(folder), n, unknown
        path = os.path.join(folder, "effect")
        with open(path, "w") as file:
            file.write(script)
        os.chmod(path, 0o755)
        self.p = Pipeline(folder, config % {"lease": lease, "unknown": unknown, "workers": workers, "attempts": attempts, "batch": batch},
                          store=store)
        self.p.write(*[{"id": f"k{i}"} for i in range(n)])

    # ---- what really happened ----

    def effects(self):
        """(key, attempt, maybe_done) of each effect, in their order."""
        path = os.path.join(self.folder, "effects")
        if not os.path.exists(path):
            return []
        with open(path) as file:
            found = [line.split() for line in file]
        return [(key, int(attempt), int(maybe)) for key, attempt, maybe in found]

    def per_key(self):
        return collections.Counter(key for key, _, _ in self.effects())

    def real_repeats(self):
        return sum(n - 1 for n in self.per_key().values())

    # ---- what the product says ----

    def reported_repeats(self):
        ended = self.p.once("status", "--json", self.p.name)
        assert ended.status in (0, 1), ended
        return ended.json["repeats"]

    def unknown_keys(self):
        ended = self.p.once("list", "--unknown", "--json", self.p.name)
        assert ended.status in (0, 1), ended
        return {message["key"] for message in ended.json["messages"]}

    # ---- what must be true ----

    def check_end(self, lost, unknown_allowed=True):
        """At the end: nothing lost; repeats bounded by `lost`, the attempts that ended without reporting an outcome."""
        per_key = self.per_key()
        real = self.real_repeats()
        if self.unknown == "retry":
            assert set(per_key) == {f"k{i}" for i in range(self.n)}, "an effect is missing"
            reported = self.reported_repeats()
            assert real <= reported <= lost, f"{real} real repeats, {reported} reported, {lost} attempts ended without reporting an outcome"
            return
        assert real == 0, f"held, and repeated: {per_key}"
        unknown = self.unknown_keys()
        assert len(unknown) <= lost
        assert set(per_key) | unknown == {f"k{i}" for i in range(self.n)}, "neither done nor held"
        assert self.reported_repeats() == 0
