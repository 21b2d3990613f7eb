"""Kills with a story: twice in a row, at random, by a poison message, of a worker that holds an entry, of a zombie."""

import random
import signal
import time

import pytest

from crashes import Workload, at_once
from harness import Pipeline, check_sum, counts, stopped, until


def killed(work, failpoint):
    ended = work.p.try_run(failpoint=failpoint)
    assert ended.killed, f"{failpoint} was not reached: {ended}"
    work.check_now()


# ---- one kill, and exactly what the next run must find ----

PAY = "CREATE TABLE t(n INTEGER PRIMARY KEY, id);"
INSERT = 'key: "${/id}"\nlease: 300ms\nretry: {attempts: %d, backoff: 1ms..2ms}\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n'


def pipeline(folder, n=10, batch=4, attempts=100):
    p = Pipeline(folder, INSERT % attempts + f"batch: {{max: {batch}}}\n", PAY)
    p.write(*[{"id": i} for i in range(n)])
    return p


def once_each(p, n):
    assert [i for (i,) in p.rows("SELECT id FROM t ORDER BY id")] == list(range(n))


def kill_at(p, point, hit=1):
    ended = p.try_run(failpoint=f"{point}:kill:{hit}")
    assert ended.killed, ended
    return p.value("SELECT count(*) FROM t")


def test_f01_after_receive_before_claim(tmp_path):
    p = pipeline(tmp_path)
    assert kill_at(p, "fetch_after") == 0
    counts(p.run(status=0), received=10, done=10, attempts=10)
    once_each(p, 10)


@pytest.mark.parametrize("point", ["claim_after", "effect_before"])
def test_f02_after_claim_before_the_effect(tmp_path, point):
    p = pipeline(tmp_path)
    assert kill_at(p, point) == 0
    # After an unclean end the first message is claimed durably before it runs; that claim is an orphan now.
    assert kill_at(p, point, 2 if point == "claim_after" else 1) == 0
    (orphan,) = p.once("list", "--busy", "--json", p.name).json["messages"]
    assert orphan["attempt"] == 1 and orphan["due_ms"] < time.time() * 1000 + 2000, "f16: it has an end"
    summary = p.run(status=0)
    once_each(p, 10)
    assert summary["done"] == 10
    assert [(e["state"], e["attempt"]) for e in p.explain("0")] == [("done", 2)], "retaken with attempt + 1"


@pytest.mark.parametrize("hit", [1, 3])
def test_f03_in_the_middle_of_an_effect(tmp_path, hit):
    work = Workload(str(tmp_path))
    killed(work, f"effect_between:kill:{hit}")
    work.finish()


@pytest.mark.parametrize("point", ["effect_after", "settle_before", "settle_after", "commit_before"])
def test_f05_effect_done_before_it_is_committed(tmp_path, point):
    p = pipeline(tmp_path)
    assert kill_at(p, point) == 0
    counts(p.run(status=0), received=10, done=10)
    once_each(p, 10)


@pytest.mark.parametrize("point, hit, committed", [("commit_after", 1, 4), ("ack_before", 1, 4), ("commit_after", 2, 8)])
def test_f07_settled_before_ack(tmp_path, point, hit, committed):
    p = pipeline(tmp_path)
    kept = kill_at(p, point, hit)
    assert kept >= committed
    counts(p.run(status=0), received=10, done=10 - kept, duplicates=kept)
    once_each(p, 10)


@pytest.mark.parametrize("hit", [2, 6, 9])
def test_f09_between_items_of_a_batch(tmp_path, hit):
    p = pipeline(tmp_path)
    kept = kill_at(p, "effect_before", hit)
    assert kept == (hit - 1) // 4 * 4, "whole batches stay, the open one is gone"
    counts(p.run(status=0), received=10, done=10 - kept, duplicates=kept)
    once_each(p, 10)


def test_f32_failures_survive_kills(tmp_path):
    """Every run is killed right after it has recorded a failure; the budget is spent all the same."""
    p = Pipeline(tmp_path, 'key: "${/id}"\nlease: 300ms\nretry: {attempts: 4, backoff: 1ms..2ms}\nhandler: {sql: [{do: "INSERT INTO t(id) '
                           'SELECT :id WHERE :id = 2", rows: 1, else: retry}]}\n', PAY)
    p.write({"id": 1})
    failures = []
    while len(failures) < 20:
        ended = p.try_run(failpoint="commit_after:kill:1")
        if not ended.killed:
            break
        failures += [f for (f,) in p.rows("SELECT failures FROM once_entry")]
    assert failures == sorted(failures) and failures[0] == 1, failures
    assert p.rows("SELECT attempt FROM once_letter") == [(4,)]
    assert p.run(status=1)["attempts"] == 0


@pytest.mark.parametrize("backoff", ["1ms..2ms", "300ms..300ms"])
@pytest.mark.parametrize("hit", [1, 2])
def test_f06_f76_the_reply_to_commit_is_lost(tmp_path, hit, backoff):
    """Committed, but told that it failed: the store is asked again, and each message is counted for what happened to it."""
    p = Pipeline(tmp_path, 'key: "${/id}"\nlease: 300ms\nretry: {attempts: 2, backoff: %s}\nbatch: {max: 5}\nhandler: {sql: ["INSERT INTO t(id) VALUES '
                           '(:id)", {do: "SELECT 1 WHERE :id = 3", rows: 0, else: retry}, {do: "SELECT 1 WHERE :id = 4", rows: 0, else: stale}]}\n' % backoff, PAY)
    p.write(*[{"id": i} for i in range(6)], {"id": 1}, "bad", {"id": 1, "other": 1})
    counts(p.run(status=1, failpoint=f"commit_after:error:{hit}"), received=9, done=4, stale=1, duplicates=1, dead=3, conflicts=1, acked=9)
    assert p.rows("SELECT id FROM t ORDER BY id") == [(0,), (1,), (2,), (5,)]
    assert [line for line, _ in p.letters()] == [4, 8, 9]
    counts(p.run(status=1), received=9, duplicates=9)


# ---- several kills ----

@pytest.mark.parametrize("first, second", [("commit_after:kill:2", "open_after:kill"), ("take_after:kill", "take_after:kill"), ("effect_between:kill:3", "claim_after:kill"),
                                           ("claim_after:kill:4", "accept_after:kill"),
                                           ("settle_after:kill:2", "commit_before:kill"),
                                           ("bury_after:kill", "bury_before:kill")])
def test_f11_killed_twice_during_recovery(tmp_path, first, second):
    work = Workload(str(tmp_path))
    killed(work, first)
    killed(work, second)
    killed(work, second)
    work.finish()
    work.check_replay()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_f11_killed_at_random_moments(tmp_path, seed):
    """SIGKILL from outside, at moments that no failpoint marks."""
    rng = random.Random(seed)
    work = Workload(str(tmp_path), n=1200, batch=16, seed=seed)
    kills = 0
    while kills < 15:
        with work.p.start() as running:
            try:
                running.process.wait(rng.uniform(0.002, 0.08))
                break  # it came to its end first
            except Exception:
                running.send(signal.SIGKILL)
                running.process.wait()
                kills += 1
        if kills % 5 == 0:
            work.check_now()
    assert kills == 15, f"seed {seed}: only {kills} kills"
    work.finish()
    work.check_replay()


def test_f11_f57_one_of_two_processes_is_killed_again_and_again(tmp_path):
    rng = random.Random(7)
    work = Workload(str(tmp_path), n=600, batch=8)
    with work.p.start() as survivor:
        while survivor.process.poll() is None:
            with work.p.start() as victim:
                try:
                    victim.process.wait(rng.uniform(0.005, 0.06))
                except Exception:
                    victim.send(signal.SIGKILL)
                    victim.process.wait()
        ended = survivor.end()
    assert ended.status == 1, ended
    check_sum(ended.json)
    work.finish()
    work.check_replay()


# ---- poison ----

POISON = """
key: "${/id}"
type: "${/type}"
lease: 200ms
retry: {attempts: %d, backoff: 1ms..2ms}
batch: {max: 4}
handlers:
  good: {sql: ["INSERT INTO t(id) VALUES (:id)"]}
  poison: {sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT 1"]}
"""


@pytest.mark.parametrize("attempts", [1, 3])
def test_f80_a_message_that_kills_us_every_time(tmp_path, attempts):
    """Only the poison has a second statement, so the failpoint between two statements is its doing."""
    p = Pipeline(tmp_path, POISON % attempts, PAY)
    p.write(*[{"type": "poison" if i == 6 else "good", "id": i} for i in range(12)])
    kills = 0
    while True:
        ended = p.try_run(failpoint="effect_between:kill")
        if not ended.killed:
            break
        kills += 1
        assert kills <= attempts + 2, "not bounded"
    assert ended.status == 1, ended
    assert [i for (i,) in p.rows("SELECT id FROM t ORDER BY id")] == [i for i in range(12) if i != 6], "all others are done, once"
    ((line, reason),) = p.letters()
    assert line == 7 and "without reporting an outcome" in reason
    counts(p.run(status=1), received=12, duplicates=12, attempts=0)


@pytest.mark.parametrize("bad", [0, 7])
def test_f80_a_poison_in_the_inbox_kills_no_neighbours(tmp_path, bad):
    """All wait in the store when one of them kills us: they are taken one by one from then on, and only it is blamed."""
    p = Pipeline(tmp_path, (POISON % 3).replace("batch: {max: 4}", "batch: {max: 100}\nack: after_accept"), PAY)
    p.write(*[{"type": "poison" if i == bad else "good", "id": i} for i in range(13)])
    assert p.try_run(failpoint="take_before:kill:2").killed, "accepted and not begun"
    assert p.rows("SELECT count(*) FROM t") == [(0,)]
    p.write()
    kills = 0
    while p.try_run(failpoint="effect_between:kill").killed:
        kills += 1
        assert kills <= 4, "not bounded"
    assert [i for (i,) in p.rows("SELECT id FROM t ORDER BY id")] == [i for i in range(13) if i != bad]
    assert [line for line, _ in p.letters()] == [bad + 1]
    for i in range(13):
        (entry,) = p.explain(str(i))
        assert i == bad or (entry["state"], entry["failures"]) == ("done", 0), entry


def test_f80_two_poisons_and_the_innocent_are_not_blamed(tmp_path):
    p = Pipeline(tmp_path, POISON % 3, PAY)
    bad = (0, 9)
    p.write(*[{"type": "poison" if i in bad else "good", "id": i} for i in range(20)])
    kills = 0
    while p.try_run(failpoint="effect_between:kill").killed:
        kills += 1
        assert kills <= 2 * 5, "not bounded"
    assert [line for line, _ in p.letters()] == [i + 1 for i in bad]
    assert [i for (i,) in p.rows("SELECT id FROM t ORDER BY id")] == [i for i in range(20) if i not in bad]


# ---- workers that hold something ----

WAITS = """
key: "${/id}"
lease: %s
retry: {attempts: 1000, backoff: 1ms..2ms}
handler: {sql: [{do: "INSERT INTO t(id) SELECT :id FROM gate", rows: 1, else: retry}]}
"""


def waiting(folder, lease="300ms"):
    """One message that waits in the store; its source is empty from now on, so only the store can bring it."""
    p = Pipeline(folder, WAITS % lease, PAY + "CREATE TABLE gate(n);")
    p.write({"id": 1})
    with p.start() as running:
        until(p.is_running, what="it runs")
        until(lambda: p.rows("SELECT 1 FROM once_entry WHERE failures > 0"), what="a failure")
        running.send(signal.SIGTERM)
        assert running.end().status == 0
    p.write()
    p.execute("INSERT INTO gate VALUES (1)")
    return p


def test_f73_a_worker_dies_holding_an_entry_it_took(tmp_path):
    p = waiting(tmp_path)
    (before,) = p.explain("1")
    assert p.try_run(failpoint="take_after:kill").killed
    assert p.rows("SELECT state FROM once_entry") == [(1,)], "an orphan"
    began = time.monotonic()
    counts(p.run(status=0), received=0, resumed=1, done=1)
    assert time.monotonic() - began < 5
    (after,) = p.explain("1")
    assert after["attempt"] == before["attempt"] + 2 and after["failures"] == before["failures"] + 1, "taken again; the silent one is counted"
    assert p.rows("SELECT id FROM t") == [(1,)]


def test_f73_f24_two_take_over_one_orphan(tmp_path):
    p = waiting(tmp_path)
    assert p.try_run(failpoint="take_after:kill").killed
    with p.start() as one, p.start() as two:
        ended = [one.end(), two.end()]
    assert [e.status for e in ended] == [0, 0]
    assert sum(e.json["done"] for e in ended) == 1
    assert p.rows("SELECT id FROM t") == [(1,)]


def test_f14_a_zombie_wakes_after_its_lease(tmp_path):
    """Stopped with an entry in its hands, while another takes over and ends it: the zombie's effect is fenced off."""
    p = waiting(tmp_path)
    with p.start(failpoint="take_after:stop") as zombie:
        until(lambda: stopped(zombie), what="stopped")
        counts(p.run(status=0), received=0, resumed=1, done=1)
        zombie.send(signal.SIGCONT)
        ended = zombie.end()
    assert ended.status == 0, ended
    counts(ended.json, received=0)
    assert p.rows("SELECT id FROM t") == [(1,)]


def test_f25_a_taken_entry_is_not_handed_out_twice(tmp_path):
    """The other process waits for the lease, although the holder does not move."""
    p = waiting(tmp_path, lease="20s")
    with p.start(failpoint="take_after:stop") as holder:
        until(lambda: stopped(holder), what="stopped")
        with p.start() as other:
            time.sleep(0.4)
            assert p.rows("SELECT id FROM t") == [] and other.process.poll() is None
            holder.send(signal.SIGCONT)
            ended = holder.end(), other.end()
    assert [e.status for e in ended] == [0, 0], ended
    counts(ended[0].json, received=0, resumed=1, done=1)
    counts(ended[1].json, received=0)
    assert p.rows("SELECT id FROM t") == [(1,)]


def test_f76_reply_to_take_lost(tmp_path):
    """Asked again, the store hands out the same entry: no lease to wait for, nothing counted as a failure."""
    p = waiting(tmp_path, lease="1h")
    (before,) = p.explain("1")
    counts(p.run(status=0, failpoint="take_after:error"), received=0, resumed=1, done=1)
    (after,) = p.explain("1")
    assert (after["attempt"], after["failures"]) == (before["attempt"] + 1, before["failures"])


def test_f77_put_back_at_shutdown_without_blame(tmp_path):
    """Told to stop with a taken entry in its hands, before the effect began."""
    p = waiting(tmp_path)
    (before,) = p.explain("1")
    with p.start(failpoint="take_after:stop") as running:
        until(lambda: stopped(running), what="stopped")
        running.send(signal.SIGTERM)
        running.send(signal.SIGCONT)
        ended = running.end()
    assert ended.status == 0 and ended.json["stopped"] is True, ended
    (after,) = p.explain("1")
    assert after["failures"] == before["failures"]
    if after["state"] == "waiting":  # otherwise the effect was faster than the signal
        counts(ended.json, received=0, resumed=1, waiting=1)
        assert after["reason"] == "put back at shutdown"
        counts(p.run(status=0), received=0, resumed=1, done=1)
    assert p.rows("SELECT id FROM t") == [(1,)]


def test_f16_every_orphan_has_an_end(tmp_path):
    """Wherever it was killed, whatever is claimed ends within the lease, so the next run ends soon after it."""
    def one(point):
        work = Workload(str(tmp_path / point))
        for _ in range(2):
            killed(work, f"{point}:kill")
        began = time.monotonic()
        work.finish()
        assert time.monotonic() - began < 10

    at_once(one, ("claim_after", "take_after", "effect_after", "settle_after", "accept_after"))
