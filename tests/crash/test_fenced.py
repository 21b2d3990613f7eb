"""Effects outside of the store, and kills: what really happened (a file that the commands write) against what is reported.

Of a kill -9 with w effects in flight, w attempts end without reporting an outcome. With `unknown: hold` none of them is repeated; with
`unknown: retry` each may be, and each is counted."""

import glob
import os
import random
import signal
import sqlite3
import time

import pytest

from crashes import at_once
from fenced import CONFIG, SCRIPT, STREAM, STREAM_CONFIG, Fenced
from harness import check_sum, counts, stopped, until

POINTS = {
    "fetch_after": "f01", "claim_after": "f02", "commit_before": "f02", "commit_after": "f02_f05", "effect_before": "f02",
    "effect_after": "f04", "settle_before": "f05", "settle_after": "f05", "ack_before": "f07", "ack_after": "f08",
}


def killed_then_finished(folder, point, hit, unknown, workers, **how):
    work = Fenced(folder, unknown=unknown, workers=workers, **how)
    ended = work.p.try_run(failpoint=f"{point}:kill:{hit}")
    assert ended.killed, f"{point} was not reached: {ended}"
    before = work.per_key()
    assert all(n == 1 for n in before.values()), "nothing ran twice before the kill"
    summary = work.p.run()
    work.check_end(lost=workers)
    assert summary["received"] == work.n
    again = work.p.run()
    counts(again, received=work.n, duplicates=work.n - again["unknown"], unknown=again["unknown"], attempts=0)
    return work, summary


@pytest.mark.parametrize("unknown", ["retry", "hold"])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{POINTS[point]}_{point}")
def test_killed_at(tmp_path, point, unknown):
    def one(case):
        hit, workers = case
        killed_then_finished(str(tmp_path / f"{hit}-{workers}"), point, hit, unknown, workers)

    at_once(one, [(1, 1), (2, 1), (2, 4)])


@pytest.mark.parametrize("unknown", ["retry", "hold"])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{POINTS[point]}_{point}")
def test_killed_with_a_kept_process_at(tmp_path, point, unknown):
    """Three messages are ahead in the pipe of one process."""
    killed_then_finished(str(tmp_path), point, 2, unknown, 3, script=STREAM, config=STREAM_CONFIG)


def inbox(folder, **more):
    return Fenced(folder, config="ack: after_accept\n" + CONFIG.lstrip("\n"), **more)


@pytest.mark.parametrize("unknown", ["retry", "hold"])
@pytest.mark.parametrize("point", ["accept_before", "accept_after", "take_before", "take_after", "effect_after", "settle_after", "commit_after"],
                         ids=lambda point: f"f73_{point}")
def test_killed_with_an_inbox_at(tmp_path, point, unknown):
    """Acked when the store had them: from there on only the store can bring them back."""
    work = inbox(str(tmp_path), unknown=unknown, workers=2)
    ended = work.p.try_run(failpoint=f"{point}:kill:2")
    assert ended.killed, f"{point} was not reached: {ended}"
    work.p.run()
    work.check_end(lost=2)
    work.p.write()  # the source has nothing any more
    summary = work.p.run()
    counts(summary, received=0)


@pytest.mark.parametrize("point", ["replay_before", "replay_between", "take_after", "effect_after", "commit_after"])
def test_f34_f35_killed_around_the_replay_of_dead_letters(tmp_path, point):
    """Dead for a passing reason, repaired, replayed: whatever is killed, each runs once more and no more."""
    work = Fenced(str(tmp_path), n=6, attempts=1, script=SCRIPT + "[ -f repaired ] || { rm -f effects; exit 75; }\n")
    counts(work.p.run(status=1), received=6, dead=6)
    open(os.path.join(tmp_path, "repaired"), "w").close()
    work.p.write()
    replay = ("replay", work.p.name, "--all", "--json")
    if point.startswith("replay"):
        assert work.p.once(*replay, failpoint=f"{point}:kill").killed
        left = work.p.value("SELECT count(*) FROM once_letter")
        ended = work.p.once(*replay)
        assert ended.json["counts"]["run"] == left
        work.p.run(status=0)
        work.check_end(lost=0)
    else:
        assert work.p.once(*replay).json["counts"]["run"] == 6
        config = os.path.join(tmp_path, work.p.name)
        text = open(config).read().replace("attempts: 1,", "attempts: 9,")
        with open(config, "w") as file:
            file.write(text)
        assert work.p.try_run(failpoint=f"{point}:kill").killed
        work.p.run(status=0)
        work.check_end(lost=1)


def test_f02_f04_after_claim_nobody_knows_whether_the_effect_began(tmp_path):
    """Held: it is shown, with its reason, and `resolve` decides."""
    work = Fenced(tmp_path, n=3, unknown="hold")
    assert work.p.try_run(failpoint="effect_after:kill").killed
    assert work.per_key() == {"k0": 1}
    time.sleep(0.35)  # past the lease: before it, the delivery would count as one of a busy key
    counts(work.p.run(status=1), received=3, done=2, unknown=1)
    assert work.unknown_keys() == {"k0"} and work.per_key()["k0"] == 1
    assert work.p.once("resolve", work.p.name, "k0", "done").status == 0
    counts(work.p.run(status=0), received=3, duplicates=3, attempts=0)
    assert work.real_repeats() == 0


def test_f04_resolved_with_retry_runs_once_more_and_is_counted(tmp_path):
    work = Fenced(tmp_path, n=3, unknown="hold")
    assert work.p.try_run(failpoint="effect_after:kill").killed
    work.p.run(status=1)
    assert work.p.once("resolve", work.p.name, "k0", "retry").status == 0
    summary = work.p.run(status=0)
    counts(summary, received=3, duplicates=3, resumed=1, done=1, repeats=1)
    assert [(attempt, maybe) for key, attempt, maybe in work.effects() if key == "k0"] == [(1, 0), (2, 1)], "a higher attempt, and it is told"
    assert work.reported_repeats() == 1


@pytest.mark.parametrize("unknown", ["retry", "hold"])
def test_f11_killed_again_and_again_at_random(tmp_path, unknown):
    """SIGKILL at moments that no failpoint marks, with several effects in flight."""
    def one(seed):
        rng = random.Random(seed)
        workers, kills = 3, 0
        work = Fenced(str(tmp_path / str(seed)), n=120, unknown=unknown, workers=workers, lease="200ms", batch=8, attempts=1000)
        while kills < 12:
            with work.p.start() as running:
                try:
                    running.process.wait(rng.uniform(0.005, 0.15))
                    break
                except Exception:
                    running.send(signal.SIGKILL)
                    running.process.wait()
                    kills += 1
        work.p.run()
        work.check_end(lost=workers * kills)

    at_once(one, [1, 2])


def test_f80_a_command_that_kills_itself_every_time(tmp_path):
    work = Fenced(tmp_path, n=4, attempts=3, workers=2, script=SCRIPT + '[ "$ONCE_KEY" != k1 ] || kill -9 $$\n')
    summary = work.p.run(status=1)
    counts(summary, received=4, done=3, dead=1, repeats=2)
    assert work.per_key() == {"k0": 1, "k1": 3, "k2": 1, "k3": 1}, "bounded, and the innocent are not blamed"
    ((line, reason),) = work.p.letters()
    assert line == 2 and "signal 9" in reason
    counts(work.p.run(status=1), received=4, duplicates=4, attempts=0)


def test_f80_a_command_that_kills_our_process_every_time(tmp_path):
    work = Fenced(tmp_path, n=6, attempts=3, lease="200ms", script=SCRIPT + '[ "$ONCE_KEY" != k1 ] || kill -9 $PPID\n')
    kills = 0
    while work.p.try_run().killed:
        kills += 1
        assert kills <= 3, "not bounded"
    assert kills == 3
    assert work.per_key()["k1"] == 3 and work.real_repeats() == 2
    ((line, reason),) = work.p.letters()
    assert line == 2 and "without reporting an outcome" in reason


# ---- told to stop ----

def test_f59_sigterm_waits_for_what_is_in_flight(tmp_path):
    work = Fenced(tmp_path, n=8, workers=2, unknown="hold", lease="10s", script=SCRIPT.replace("printf", "sleep 0.5; printf"))
    with work.p.start() as running:
        until(lambda: len(work.effects()) == 2, what="two effects in flight")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0 and ended.json["stopped"], ended
    counts(ended.json, received=2, done=2)
    assert len(work.effects()) == 2, "nothing new was started"
    counts(work.p.run(status=0), received=8, done=6, duplicates=2)
    assert work.real_repeats() == 0


def test_f59_sigterm_kills_what_does_not_end_within_the_drain(tmp_path):
    work = Fenced(tmp_path, n=3, workers=2, unknown="hold", script=SCRIPT + "sleep 1000\n")
    with open(os.path.join(tmp_path, work.p.name), "a") as file:
        file.write("drain: 300ms\n")
    with work.p.start() as running:
        until(lambda: len(work.effects()) == 2, what="two effects in flight")
        began = time.monotonic()
        running.send(signal.SIGTERM)
        ended = running.end()
    assert time.monotonic() - began < 4
    assert ended.status == 1, ended
    counts(ended.json, received=2, unknown=2)


def test_f59_sigterm_then_sigkill(tmp_path):
    work = Fenced(tmp_path, n=6, workers=2, lease="200ms", script=SCRIPT.replace("printf", "sleep 0.4; printf"))
    with work.p.start() as running:
        until(lambda: len(work.effects()) == 2, what="two effects in flight")
        running.send(signal.SIGTERM)
        time.sleep(0.05)
        running.send(signal.SIGKILL)
        running.process.wait()
    work.p.run(status=0)
    work.check_end(lost=2)


def test_f77_the_drain_spends_no_budget(tmp_path):
    """Put back unbegun: the same attempt's failures as before."""
    work = Fenced(tmp_path, n=2, workers=1, attempts=2, unknown="hold")
    with work.p.start(failpoint="commit_after:stop") as running:  # claimed durably, not begun
        until(lambda: stopped(running), what="stopped")
        running.send(signal.SIGTERM)
        running.send(signal.SIGCONT)
        ended = running.end()
    check_sum(ended.json)
    assert ended.status == 0 and ended.json["unknown"] == 0 and ended.json["dead"] == 0, ended
    summary = work.p.run(status=0)
    assert summary["done"] + summary["duplicates"] >= 2 and work.real_repeats() == 0
    assert sorted(work.per_key().values()) == [1, 1]


# ---- zombies ----

ZOMBIES, STOPS = 8, 25


def stop_outside_of_a_transaction(work, running):
    """One that stops inside of one holds the lock of the file, and nobody can take over from it."""
    for _ in range(1000):
        running.send(signal.SIGSTOP)
        until(lambda: running.process.poll() is not None or stopped(running), what="stopped")
        lock = sqlite3.connect(work.p.database, timeout=0, isolation_level=None)
        try:
            lock.execute("BEGIN IMMEDIATE")
            lock.execute("ROLLBACK")
            return
        except sqlite3.OperationalError:
            running.send(signal.SIGCONT)
            time.sleep(0.002)
        finally:
            lock.close()
    raise AssertionError("always in a transaction")


def runs_an_effect(work):
    """A command of this pipeline, whoever started it."""
    for path in glob.glob("/proc/[0-9]*"):
        try:
            with open(f"{path}/cmdline", "rb") as file:
                if b"./effect" in file.read() and os.path.samefile(f"{path}/cwd", work.folder):
                    return True
        except OSError:  # ended meanwhile
            pass
    return False


def test_f14_two_hundred_zombies(tmp_path):
    """Stopped past its lease with an effect in flight, while another takes over: what the zombie says later is fenced off.
    The result of an entry is the attempt that wrote it, so a stale settle shows as a result below the entry's attempt."""
    script = SCRIPT.replace("printf", '[ -f quick ] || sleep 0.0$((ONCE_ATTEMPT == 1 ? 5 : 0)); printf')
    all_repeated = []

    def one(seed):
        stops = 0
        work = Fenced(str(tmp_path / str(seed)), n=STOPS * 8, unknown="retry", lease="200ms", batch=2, attempts=1000, script=script)
        done = 0
        with work.p.start() as zombie:
            while stops < STOPS and zombie.process.poll() is None:
                until(lambda: len(work.effects()) > done or zombie.process.poll() is not None, what="an effect")
                stop_outside_of_a_transaction(work, zombie)
                time.sleep(0.13)  # past the lease
                until(lambda: not runs_an_effect(work), what="what it had started has written its line")
                done = len(work.effects())
                with work.p.start() as other:
                    until(lambda: len(work.effects()) > done or other.process.poll() is not None, what="another takes over")
                    zombie.send(signal.SIGCONT)
                    other.send(signal.SIGTERM)
                    ended = other.end()
                done = len(work.effects())
                assert ended.status == 0, ended
                stops += 1
            if zombie.process.poll() is None:
                zombie.send(signal.SIGTERM)
            ended = zombie.end()
        assert ended.status == 0, ended
        assert stops == STOPS, f"only {stops} stops"
        open(os.path.join(work.folder, "quick"), "w").close()
        work.p.run(status=0)
        assert work.real_repeats() <= work.reported_repeats() <= 2 * stops, "repeats are counted"
        repeated = [key for key, n in work.per_key().items() if n > 1]
        assert set(work.per_key()) == {f"k{i}" for i in range(work.n)}
        all_repeated.extend(repeated)
        for key in repeated:
            (entry,) = work.p.explain(key)
            assert entry["state"] == "done" and entry["result"] == str(entry["attempt"]), f"a stale settle: {entry}"

    at_once(one, range(ZOMBIES))
    assert all_repeated, "nobody was stopped with an effect in flight"


def test_f15_leases_cannot_be_kept(tmp_path):
    """The store is locked by somebody for longer than the lease: the effect is ended before the lease is, not after."""
    work = Fenced(tmp_path, n=1, unknown="hold", lease="1s", script=SCRIPT + "sleep 30\n")
    with work.p.start() as running:
        until(lambda: work.effects(), what="the effect")
        began = time.monotonic()
        lock = work.p.connect()
        lock.execute("BEGIN IMMEDIATE")
        until(lambda: not children_of(running.process.pid), what="the command is killed", deadline_s=5)
        took = time.monotonic() - began
        lock.rollback()
        lock.close()
        ended = running.end()
    assert 0.2 < took < 1.0, f"killed after {took:.2f} s of a lease of 1 s"
    counts(ended.json, received=1, unknown=1)
    assert len(work.effects()) == 1


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        mine = file.read().split()
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += file.read().split()
    return mine or found
