"""`then`, and kills: what the effect really did (a ledger that the command keeps), what was written with its outcome (rows), and what is
reported, at each step between the effect and its commit, on SQLite and PostgreSQL.

A row without its outcome, an outcome without its row, and a row too many are what must never be."""

import pytest

from crashes import at_once
from harness import counts
from test_matrix import THEN
from thenpipeline import STREAM, config, kinds, make

N = 12
STEPS = ("effect_after", "settle_after", "commit_before", "commit_after")
TWO = ("INSERT INTO charged(id, charge) VALUES (:id, :{result:/charge_id})", "INSERT INTO more VALUES (:id)")


class Work:
    def __init__(self, kind, folder, unknown):
        more = "mode: stream\nwindow: 3"
        text = config(*TWO, unknown=unknown, lease="300ms" if kind == "sqlite" else "1s", more=more).replace("workers: 4", "batch: {max: 4}")
        self.p = make(kind, folder, text, script=STREAM, tables="CREATE TABLE charged(id text, charge text); CREATE TABLE more(id text);")
        self.p.write(*[{"id": f"k{i}"} for i in range(N)])

    def check_now(self):
        """At any time: both rows of a message or none, and never twice."""
        rows = sorted(id for id, in self.p.rows("SELECT id FROM charged"))
        assert rows == sorted(id for id, in self.p.rows("SELECT id FROM more")), "by half"
        assert len(rows) == len(set(rows)), f"written twice: {rows}"
        assert set(rows) <= set(self.p.ledger()), "written, and its effect has not happened"
        return set(rows)

    def check_end(self, unknown):
        written, held, ledger = self.check_now(), self.p.unknown_keys(), self.p.ledger()
        assert not written & held, "rows without their outcome"
        assert written | held == {f"k{i}" for i in range(N)}, "an outcome without its rows"
        if unknown == "hold":
            assert set(ledger.values()) <= {1}, "held, and repeated"
        else:
            assert not held
            repeats = sum(ledger.values()) - N
            assert repeats <= self.p.once("status", "--json", self.p.name).json["repeats"] <= 3, "no more than were in flight"


def one_of(tmp_path, point, action, cases):
    def one(case):
        kind, unknown, hit = case
        work = Work(kind, str(tmp_path / f"{kind}-{unknown}"), unknown)
        ended = work.p.try_run(failpoint=f"{point}:{action}:{hit}")
        if action == "kill":
            assert ended.killed, f"{point} was not reached: {ended}"
        work.check_now()
        work.p.run()
        work.check_end(unknown)
        again = work.p.run()
        counts(again, received=N, duplicates=N - again["unknown"], unknown=again["unknown"], attempts=0)
        work.check_now()

    at_once(one, cases)


@pytest.mark.parametrize("point", THEN + STEPS)
def test_f05_between_an_effect_and_the_commit_of_what_follows(tmp_path, point):
    one_of(tmp_path, point, "kill", [(kind, unknown, hit) for kind in kinds() for unknown, hit in (("retry", 2), ("hold", 1))])


@pytest.mark.parametrize("point", THEN + ("commit_before", "commit_after", "settle_after"))
def test_f06_f76_failure_reported_at(tmp_path, point):
    """A step that fails instead: the transaction is made again, or, at a statement of `then` itself, the message is held."""
    one_of(tmp_path, point, "error", [(kind, "hold", 2) for kind in kinds()])
