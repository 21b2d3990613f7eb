"""Effects in another database, and kills: what is in its tables against what is reported.

`log` takes every effect that really happened; in `t` the idempotency key is unique, so that a repeat changes nothing there."""

import collections
import os
import random
import signal

import pytest

import postgres
from crashes import at_once
from harness import Pipeline, counts
from pgpipeline import has_postgres, new_name, psql

TABLES = "CREATE TABLE log(id text); CREATE TABLE t(key text PRIMARY KEY, id text)"
CONFIG = """
key: "${/id}"
lease: 300ms
unknown: %(unknown)s
workers: %(workers)d
retry: {attempts: 50, backoff: 1ms..5ms}
batch: {max: 4}
handler:
  sql:
    url: %(url)s
    do:
      - INSERT INTO log VALUES (:id)
      - INSERT INTO t(key, id) VALUES (:once_idempotency_key, :id) ON CONFLICT DO NOTHING
"""
POINTS = {"claim_after": "f02", "commit_after": "f02_f05", "effect_before": "f02", "effect_between": "f03", "effect_after": "f04",
          "settle_after": "f05", "ack_before": "f07"}


class Work:
    def __init__(self, folder, database, unknown, workers, n=12):
        os.makedirs(folder, exist_ok=True)
        self.n, self.unknown = n, unknown
        self.other = Pipeline(folder, store="sqlite:other.db")
        self.url = postgres.shared().schema(new_name()) if database == "postgres" else None
        if self.url:
            psql(self.url, TABLES)
        else:
            self.other.execute("PRAGMA journal_mode = WAL;" + TABLES)
        self.p = Pipeline(folder, CONFIG % {"url": self.url or "sqlite:other.db", "unknown": unknown, "workers": workers})
        self.p.write(*[{"id": f"k{i}"} for i in range(n)])

    def ids(self, table):
        if self.url:
            return collections.Counter(psql(self.url, f"SELECT id FROM {table}").split())
        return collections.Counter(id for (id,) in self.other.rows(f"SELECT id FROM {table}"))

    def unknown_keys(self):
        return {m["key"] for m in self.p.once("list", "--unknown", "--json", self.p.name).json["messages"]}

    def check_end(self, lost):
        """Nothing lost, and no more repeats than `lost`, the attempts that ended without reporting an outcome."""
        everything = {f"k{i}" for i in range(self.n)}
        effects = self.ids("log")
        real = sum(effects.values()) - len(effects)
        reported = self.p.once("status", "--json", self.p.name).json["repeats"]
        assert set(self.ids("t").values()) == {1}, "the key keeps repeats out"
        if self.unknown == "retry":
            assert set(self.ids("t")) == set(effects) == everything, "an effect is missing"
            assert real <= reported <= lost
        else:
            held = self.unknown_keys()
            assert real == reported == 0 and len(held) <= lost
            assert set(effects) | held == everything, "neither done nor held"


def databases():
    return ["sqlite", "postgres"] if has_postgres() else ["sqlite"]


@pytest.mark.parametrize("unknown", ["retry", "hold"])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{POINTS[point]}_{point}")
def test_killed_at(tmp_path, point, unknown):
    def one(case):
        database, hit, workers = case
        work = Work(str(tmp_path / f"{database}-{hit}"), database, unknown, workers)
        ended = work.p.try_run(failpoint=f"{point}:kill:{hit}")
        assert ended.killed, f"{point} was not reached: {ended}"
        assert not work.ids("log") or max(work.ids("log").values()) == 1, "nothing ran twice before the kill"
        assert work.p.run()["received"] == work.n
        work.check_end(lost=workers)
        again = work.p.run()
        counts(again, received=work.n, duplicates=work.n - again["unknown"], unknown=again["unknown"], attempts=0)

    at_once(one, list(zip(databases(), (2, 1), (3, 1))))


def test_f04_f05_killed_between_its_commit_and_ours(tmp_path):
    """It has happened, nobody says so. Held: shown, and a person decides. `retry` instead: again, under the same key."""
    def one(database):
        work = Work(str(tmp_path / database), database, "hold", 1, n=3)
        assert work.p.try_run(failpoint="effect_after:kill").killed
        assert work.ids("log") == {"k0": 1} and work.ids("t") == {"k0": 1}, "committed there"
        work.p.run(status=1)
        assert work.unknown_keys() == {"k0"} and work.ids("log")["k0"] == 1, "held, and not run"
        assert work.p.once("resolve", work.p.name, "k0", "retry").status == 0
        counts(work.p.run(status=0), received=3, duplicates=3, resumed=1, done=1, repeats=1)
        assert work.ids("log") == {"k0": 2, "k1": 1, "k2": 1} and work.ids("t") == {"k0": 1, "k1": 1, "k2": 1}, "the same key: one row"

    at_once(one, databases())


@pytest.mark.parametrize("unknown", ["retry", "hold"])
def test_f11_killed_again_and_again_at_random(tmp_path, unknown):
    """SIGKILL at moments that no failpoint marks."""
    def one(database):
        rng, workers, kills = random.Random(7), 3, 0
        work = Work(str(tmp_path / database), database, unknown, workers, n=60)
        while kills < 6:
            with work.p.start() as running:
                try:
                    running.process.wait(rng.uniform(0.02, 0.15))
                    break
                except Exception:
                    running.send(signal.SIGKILL)
                    running.process.wait()
                    kills += 1
        work.p.run()
        work.check_end(lost=workers * kills)

    at_once(one, databases())
