"""Operators: looking at a store, replaying dead letters, resolving unknowns."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from harness import ONCE, Pipeline, Running, counts, once, read_terminal, stopped, until
from fenced import Fenced
from harness import ONCE, Pipeline, counts, environment, once, read_terminal, until
from test_hardening import product

TABLE = "CREATE TABLE t(n INTEGER PRIMARY KEY, id TEXT, amount INTEGER);"
STRICT = """
key: "${/id}"
type: "${/type}"
time: "${/at}"
remember: 7d
dead_limit: off
handlers:
  pay:
    sql: [{do: "INSERT INTO t(id, amount) SELECT :id, :amount FROM gate WHERE is_open", rows: 1, else: dead}]
"""
GATE = TABLE + "CREATE TABLE gate(is_open INTEGER); INSERT INTO gate VALUES (0);"
DAY_MS = 24 * 3600 * 1000


def now_ms():
    return int(time.time() * 1000)


def pay(id, amount=1, **more):
    return {"id": id, "type": "pay", "amount": amount, "at": now_ms(), **more}


def gated(folder, *messages):
    """A pipeline whose handler fails for good until the gate is opened."""
    p = Pipeline(folder, STRICT, GATE)
    p.write(*messages)
    return p


def open_gate(p):
    p.execute("UPDATE gate SET is_open = 1")


def letters(p, *arguments):
    ended = p.once("list", "--dead", "--json", *arguments, p.name)
    assert ended.status == 0, ended
    return ended.json["messages"]


def audits(p):
    return p.once("list", "--audit", "--json", p.name).json["audit"]


def replay(p, *arguments, status=0, **more):
    ended = p.once("replay", p.name, "--json", *arguments, **more)
    assert ended.status == status, ended
    return ended.json


def verdicts(result):
    return {letter["letter"]: letter["verdict"] for letter in result["letters"]}


def effects(p):
    return sorted(p.rows("SELECT id, amount FROM t"))


def everything(folder):
    """One letter of each kind; returns the pipeline and the ids by name."""
    p = Pipeline(folder, STRICT, GATE)
    open_gate(p)
    p.write(pay("done", 1))
    counts(p.run(status=0), received=1, done=1)
    p.execute("UPDATE gate SET is_open = 0")
    p.write(pay("a"), pay("done", 2), "nonsense", {**pay("x"), "type": "other"}, pay("old", at=now_ms() - 8 * DAY_MS))
    p.run(status=1)
    names = {1: "a", 2: "conflict", 3: "malformed", 4: "no_handler", 5: "old"}
    return p, {names[int(letter["point"])]: letter["letter"] for letter in letters(p)}


# ---- status and list ----

def test_status_counts_what_is_there(tmp_path):
    p, _ = everything(tmp_path)
    ended = p.once("status", "--json", "--finished", p.name)
    assert ended.status == 1, ended
    status = ended.json
    assert (status["dead"], status["waiting"], status["busy"], status["unknown"], status["done"]) == (5, 0, 0, 0, 1)
    assert abs(status["oldest_dead_ms"] - now_ms()) < 60000 and status["oldest_waiting_ms"] is None
    text = p.once("status", p.name)
    assert text.status == 1 and re.search(r"dead +5 +dead letters; the oldest is from 20", text.out)
    assert "done" not in p.once("status", "--json", p.name).json


def test_status_of_a_clean_store_is_0(tmp_path):
    p = gated(tmp_path)
    p.run(status=0)
    assert p.once("status", p.name).status == 0


def test_status_shows_what_waits(tmp_path):
    p = gated(tmp_path, pay("a"), pay("b"))
    p.run(status=1)
    replay(p, "--all")
    status = p.once("status", "--json", p.name).json
    assert (status["waiting"], status["backlog"], status["dead"]) == (2, 2, 0)
    assert status["oldest_waiting_ms"] <= now_ms() and status["wait_ms"] == 0


def test_list_shows_bodies_only_when_asked(tmp_path):
    p, ids = everything(tmp_path)
    listed = {letter["letter"]: letter for letter in letters(p)}
    assert len(listed) == 5 and not any("body" in letter for letter in listed.values())
    assert {name: listed[id]["kind"] for name, id in ids.items()} == {
        "a": "dead", "conflict": "conflict", "malformed": "malformed", "no_handler": "malformed", "old": "too_old"}
    bodies = {letter["letter"]: letter["body"] for letter in letters(p, "--body")}
    assert bodies[ids["malformed"]] == "nonsense" and json.loads(bodies[ids["a"]])["id"] == "a"
    text = p.once("list", p.name).out
    assert '"amount"' not in text and "key 'a'" in text and "in.ndjson:1" in text
    assert "\n    nonsense\n" in text, "but what has nothing else to be known by"
    assert [listed[id].get("line") for id in ids.values()].count(None) == 4 and listed[ids["malformed"]]["line"] == "nonsense"
    assert "nonsense" in p.once("list", "--body", p.name).out


def test_list_by_state(tmp_path):
    p = gated(tmp_path, pay("a"), pay("b"))
    p.run(status=1)
    replay(p, letters(p)[0]["letter"])
    assert [m["state"] for m in p.once("list", "--json", p.name).json["messages"]] == ["waiting", "dead"]
    assert [m["key"] for m in p.once("list", "--waiting", "--json", p.name).json["messages"]] == ["a"]
    for option in ("--busy", "--unknown"):
        assert p.once("list", option, "--json", p.name).json["messages"] == []


def test_list_cannot_steer_a_terminal(tmp_path):
    p = gated(tmp_path, pay("\x1b[2Jgone\x9b2J"))
    p.run(status=1)
    shown = p.once("list", "--body", p.name).out
    assert "gone" in shown and "\x1b" not in shown and "\x9b" not in shown


# ---- replay ----

def test_replayed_letters_take_effect_once(tmp_path):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(10)])
    counts(p.run(status=1), received=10, dead=10)
    open_gate(p)
    result = replay(p, "--all")
    assert result["counts"]["run"] == 10 and not result["dry_run"] and not result["stopped"]
    assert letters(p) == [] and effects(p) == []
    counts(p.run(status=0), received=10, resumed=10, done=10, duplicates=10)
    assert effects(p) == sorted((f"p{i}", i) for i in range(10))
    counts(p.run(status=0), received=10, duplicates=10)
    assert replay(p, "--all")["letters"] == []


def test_every_verdict_and_the_dry_run_says_the_same(tmp_path):
    p, ids = everything(tmp_path)
    before = p.rows("SELECT * FROM once_letter"), p.rows("SELECT * FROM once_entry"), p.rows("SELECT * FROM once_audit")
    said = replay(p, "--all", "--dry-run", status=1)
    assert said["dry_run"]
    assert verdicts(said) == {ids["a"]: "run", ids["conflict"]: "conflict", ids["malformed"]: "still_dead", ids["no_handler"]: "no_handler",
                              ids["old"]: "too_old"}
    assert before == (p.rows("SELECT * FROM once_letter"), p.rows("SELECT * FROM once_entry"), p.rows("SELECT * FROM once_audit"))
    did = replay(p, "--all", status=1)
    assert (did["letters"], did["counts"]) == (said["letters"], said["counts"])
    assert {letter["letter"] for letter in letters(p)} == set(ids.values()) - {ids["a"]}, "what cannot run stays"


def test_dry_run_is_true_with_force_too(tmp_path):
    p, ids = everything(tmp_path)
    said = replay(p, "--all", "--dry-run", "--force", status=1)
    did = replay(p, "--all", "--force", status=1)
    assert said["letters"] == did["letters"]
    assert {name: verdicts(did)[id] for name, id in ids.items()} == {
        "a": "run", "conflict": "forced", "malformed": "still_dead", "no_handler": "no_handler", "old": "forced"}
    open_gate(p)
    p.write()
    counts(p.run(status=1), received=0, resumed=3, done=3)
    assert effects(p) == [("a", 1), ("done", 1), ("done", 2), ("old", 1)]


def test_f34_a_completed_key_is_suppressed_unless_forced_and_that_is_audited(tmp_path):
    p = gated(tmp_path, pay("a", 1))
    p.run(status=1)
    assert p.once("forget", p.name, "a").status == 0
    open_gate(p)
    counts(p.run(), received=1, done=1)  # the same message, delivered again
    assert effects(p) == [("a", 1)]
    said = replay(p, "--all", "--dry-run")
    assert list(verdicts(said).values()) == ["duplicate"]
    letter = letters(p)[0]["letter"]
    copy = p.database + ".copy"
    p.execute(f"VACUUM INTO '{copy}'")

    assert list(verdicts(replay(p, letter)).values()) == ["duplicate"]
    counts(p.run(status=0), received=1, duplicates=1)
    assert effects(p) == [("a", 1)] and letters(p) == []
    assert [(a["what"], a["note"]) for a in audits(p)][1:] == [("replay", "the same message is finished already: suppressed")]

    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(p.database + suffix):
            os.remove(p.database + suffix)
    os.rename(copy, p.database)
    assert list(verdicts(replay(p, letter, "--force")).values()) == ["forced"]
    counts(p.run(status=0), received=1, resumed=1, done=1, duplicates=1)
    assert effects(p) == [("a", 1), ("a", 1)]
    forced = audits(p)[-1]
    assert forced["what"] == "replay --force" and forced["key"] == "a" and forced["letter"] == letter
    assert re.fullmatch(r"[^@]+@.*:\d+", forced["who"]) and abs(forced["time_ms"] - now_ms()) < 60000
    assert p.explain("a")[0]["attempt"] == 2
    assert "replay --force  letter 1  key 'a'" in p.once("list", "--audit", p.name).out


def test_f34_a_conflict_runs_only_when_forced_and_then_counts(tmp_path):
    p, ids = everything(tmp_path)
    assert verdicts(replay(p, ids["conflict"], status=1)) == {ids["conflict"]: "conflict"}
    open_gate(p)
    assert verdicts(replay(p, ids["conflict"], "--force")) == {ids["conflict"]: "forced"}
    p.write()
    counts(p.run(status=1), received=0, resumed=1, done=1)
    assert effects(p) == [("done", 1), ("done", 2)]


@pytest.mark.parametrize("same", [True, False])
def test_an_old_letter_of_a_key_that_died_again_stays(tmp_path, same):
    message = pay("a", 1)
    p = gated(tmp_path, message)
    p.run(status=1)
    p.once("forget", p.name, "a")
    p.write(message if same else pay("a", 2))
    p.run(status=1)
    first, second = (letter["letter"] for letter in letters(p))
    assert verdicts(replay(p, first, status=1)) == {first: "still_dead" if same else "conflict"}
    assert verdicts(replay(p, second)) == {second: "run"}
    assert verdicts(replay(p, first, status=0 if same else 1)) == {first: "waiting" if same else "conflict"}


def test_a_letter_whose_key_was_forgotten_comes_as_new(tmp_path):
    p = gated(tmp_path, pay("a", 1))
    p.run(status=1)
    p.once("forget", p.name, "a")
    open_gate(p)
    assert verdicts(replay(p, "--all")) == {1: "run"}
    counts(p.run(status=0), received=1, resumed=1, done=1, duplicates=1)


def test_a_handler_that_came_later_gets_its_letters(tmp_path):
    p, ids = everything(tmp_path)
    p.configure(STRICT.replace("  pay:", '  other: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)"]}\n  pay:'))
    assert verdicts(replay(p, ids["no_handler"])) == {ids["no_handler"]: "run"}
    p.write()
    counts(p.run(status=1), received=0, resumed=1, done=1)
    assert ("x", 1) in effects(p)


def test_dry_run_is_true_for_letters_of_one_key(tmp_path):
    """The same messages of a type that nobody handled came again and again: each delivery has a letter."""
    p = Pipeline(tmp_path, STRICT, GATE)
    messages = [{**pay(f"x{i}", 1), "type": "other"} for i in range(1500)]
    others = [[{**message, "amount": amount} for message in messages[:50]] for amount in (2, 3)]
    p.write(*messages, *messages[:900], *others[0], *messages, *messages, *others[1])  # 5500: in two transactions
    p.run(status=1)
    p.configure(STRICT.replace("  pay:", '  other: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)"]}\n  pay:'))
    said = replay(p, "--all", "--dry-run", status=1)
    assert {name: n for name, n in said["counts"].items() if n} == {"run": 1500, "waiting": 3900, "conflict": 100}
    did = replay(p, "--all", status=1)
    assert did["letters"] == said["letters"]
    p.write()
    counts(p.run(status=1), received=0, resumed=1500, done=1500)
    assert len(effects(p)) == 1500


def test_replay_by_reason_type_and_time(tmp_path):
    p, ids = everything(tmp_path)
    assert set(verdicts(replay(p, "--dry-run", "--reason", "conflict", status=1))) == {ids["conflict"]}
    assert set(verdicts(replay(p, "--dry-run", "--type", "pay", status=1))) == {ids["a"], ids["conflict"], ids["old"]}
    assert set(verdicts(replay(p, "--dry-run", "--type", "pay", "--reason", "old", status=1))) == {ids["old"]}
    assert len(verdicts(replay(p, "--dry-run", "--since", "1h", status=1))) == 5
    assert verdicts(replay(p, "--dry-run", "--until", "1h")) == {}
    assert verdicts(replay(p, "--dry-run", "--since", "2100-01-01T00:00:00Z")) == {}
    assert len(verdicts(replay(p, "--dry-run", "--until", now_ms() + DAY_MS, status=1))) == 5


def test_replay_of_more_than_one_transaction(tmp_path):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(9000)])
    p.run(status=1)
    open_gate(p)
    assert len(replay(p, "--all", "--dry-run")["letters"]) == 9000
    assert replay(p, "--all")["counts"]["run"] == 9000
    p.write()
    counts(p.run(status=0), received=0, resumed=9000, done=9000)
    assert len(effects(p)) == 9000 and p.value("SELECT count(*) FROM once_audit") == 9000


def test_dry_run_keeps_what_it_said_in_a_temporary_file(tmp_path):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(4096)])
    p.run(status=1)
    nowhere = {"TMPDIR": str(tmp_path / "nowhere")}
    assert replay(p, "--all", "--dry-run", env=nowhere)["counts"]["run"] == 4096, "one transaction has nothing to keep"
    p.write(pay("more"))
    p.run(status=1)
    ended = p.once("replay", p.name, "--all", "--dry-run", env=nowhere)
    assert ended.status == 3 and "cannot create a temporary file in" in ended.err and "set TMPDIR" in ended.err, ended
    folder = tmp_path / "temporary"
    folder.mkdir()
    assert replay(p, "--all", "--dry-run", env={"TMPDIR": str(folder)})["counts"]["run"] == 4097
    assert list(folder.iterdir()) == [] and len(letters(p)) == 4097


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_kib(p, *arguments):
    """Measured from a small process: what the kernel calls the peak of a child begins with the size of its parent."""
    ended = subprocess.run([sys.executable, "-c", PEAK, ONCE, "replay", p.name, "--all", *arguments], cwd=p.folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended
    return int(ended.stdout)


@product  # sanitizers keep memory that was freed
def test_f35_replay_needs_no_more_memory_for_more_letters(tmp_path):
    """Both sizes fill SQLite's page cache (48 MiB), so what is left must not grow."""
    peaks = {}
    for n in (1000, 3000):
        folder = tmp_path / str(n)
        folder.mkdir()
        p = gated(folder, *[pay(f"p{i}", i, note="x" * 65536) for i in range(n)])
        p.run(status=1)
        peaks[n] = peak_kib(p, "--dry-run"), peak_kib(p)
        assert letters(p) == []
    for few, many in zip(peaks[1000], peaks[3000]):
        assert many < 1.2 * few < 1.2 * 120 * 1024, peaks


def test_replay_keeps_to_its_rate(tmp_path):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(40)])
    p.run(status=1)
    begun = time.monotonic()
    replay(p, "--all", "--rate", 40)
    assert time.monotonic() - begun >= 0.9


def test_f35_replay_that_is_told_to_stop_goes_on_later(tmp_path):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(100)])
    p.run(status=1)
    process = subprocess.Popen([ONCE, "replay", p.name, "--all", "--rate", "20", "--json"], cwd=p.folder, stdout=subprocess.PIPE)
    time.sleep(0.7)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    result = json.loads(out)
    assert process.returncode == 1 and result["stopped"] and 0 < result["counts"]["run"] < 100
    assert replay(p, "--all")["counts"]["run"] == 100 - result["counts"]["run"]
    assert p.value("SELECT count(*) FROM once_audit") == 100


@pytest.mark.parametrize("point", ["replay_before", "replay_between", "commit"])
def test_f35_killed_during_replay(tmp_path, point):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(5000)])
    p.run(status=1)
    open_gate(p)
    hit = {"replay_before": 2, "replay_between": 4500, "commit": 4097}[point]
    ended = p.once("replay", p.name, "--all", failpoint=f"{'replay_between' if point == 'commit' else point}:kill:{hit}")
    assert ended.killed, ended
    moved = p.value("SELECT count(*) FROM once_entry WHERE state = 2")
    assert moved == 4096 and p.value("SELECT count(*) FROM once_letter") == 5000 - moved, "a letter or a waiting message, never both or none"
    assert p.value("SELECT count(*) FROM once_audit") == moved
    assert replay(p, "--all")["counts"]["run"] == 5000 - moved
    p.write()
    counts(p.run(status=0), received=0, resumed=5000, done=5000)
    assert len(effects(p)) == 5000


def test_f35_what_dies_during_a_replay_is_not_replayed_by_it(tmp_path):
    """A message that dies again at once would go in circles."""
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(3)])
    p.run(status=1)
    with Running(["replay", p.name, "--all", "--json", "--rate", "8"], cwd=p.folder, failpoint="replay_before:stop:1") as replaying:  # two at a time
        until(lambda: stopped(replaying), what="the first two are found")
        p.write(pay("new"))
        p.run(status=1)
        replaying.send(signal.SIGCONT)
        ended = replaying.end()
    assert ended.status == 0 and ended.json["counts"]["run"] == 3, ended
    assert [letter["key"] for letter in letters(p)] == ["new"]


def test_replay_beside_a_run_that_goes_on(tmp_path):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(50)])
    p.configure(STRICT, source="{path: in.ndjson, follow: true}")
    with p.start() as running:
        end = time.monotonic() + 20
        while p.once("status", "--json", p.name).json.get("dead") != 50:
            assert time.monotonic() < end
            time.sleep(0.05)
        open_gate(p)
        assert replay(p, "--all")["counts"]["run"] == 50
        while len(effects(p)) < 50:
            assert time.monotonic() < end
            time.sleep(0.05)
        running.send(signal.SIGTERM)
        assert running.end().status == 0
    assert len(effects(p)) == 50


def test_replay_shows_its_way_on_a_terminal(tmp_path):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(30)])
    p.run(status=1)
    master, slave = pty.openpty()
    process = subprocess.Popen([ONCE, "replay", p.name, "--all", "--rate", "40"], cwd=p.folder, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    shown = read_terminal(master, process)
    os.close(master)
    assert shown.endswith("\r\x1b[K"), "the line is gone at the end"
    steps = re.findall(r"\r\x1b\[K(\d+) of 30 letters  (\d+)/s(?:  left: (\d+)s)?(?=\r)", shown)
    assert [int(done) for done, _, _ in steps] == [10, 20, 30], shown
    assert all(int(rate) > 0 for _, rate, _ in steps)
    assert [left != "" for _, _, left in steps] == [True, True, False], "no time is left at the end"
    assert process.stdout.read().startswith(b"30 letters, 30 removed from the dead letters")
    process.stdout.close()
    assert process.wait(10) == 0


def test_replay_is_quiet_in_a_pipe(tmp_path):
    p = gated(tmp_path, *[pay(f"p{i}", i) for i in range(30)])
    p.run(status=1)
    ended = p.once("replay", p.name, "--all", "--rate", 1000)
    assert (ended.status, ended.err) == (0, "") and ended.out.startswith("30 letters, 30 removed from the dead letters\n"), ended


def test_replay_in_words(tmp_path):
    p, ids = everything(tmp_path)
    text = p.once("replay", p.name, "--all", "--dry-run")
    assert text.status == 1
    assert f"letter {ids['a']}  key 'a' of operation 'pay'  run: goes back to work  in.ndjson:1" in text.out
    assert f"letter {ids['no_handler']}  no_handler: no handler takes its type  in.ndjson:4  (no handler for type 'other')" in text.out
    assert "5 letters in a dry run, 1 would be removed from the dead letters" in text.out


def test_replay_of_a_letter_that_is_not_there(tmp_path):
    p, ids = everything(tmp_path)
    assert verdicts(replay(p, 999, status=1)) == {999: "gone"}
    other = Pipeline(tmp_path, STRICT, consumer="other", name="other.yaml", source="{path: none.ndjson}")
    open(os.path.join(tmp_path, "none.ndjson"), "w").close()
    assert verdicts(replay(other, ids["a"], status=1)) == {ids["a"]: "gone"}, "another consumer's letter"
    assert len(letters(p)) == 5 and letters(other) == []


def test_replay_with_other_keys_is_refused(tmp_path):
    p, _ = everything(tmp_path)
    p.configure(STRICT.replace("${/id}", "${/amount}"))
    ended = p.once("replay", p.name, "--all")
    assert ended.status == 2 and "would run again" in ended.err
    assert len(letters(p)) == 5


# ---- discard, forget, resolve, sweep ----

def test_discarded_letters_are_gone_and_audited(tmp_path):
    p, ids = everything(tmp_path)
    ended = p.once("discard", p.name, ids["a"], ids["malformed"], 999, "--json")
    assert ended.status == 1
    assert [letter["discarded"] for letter in ended.json["letters"]] == [True, True, False]
    assert {letter["letter"] for letter in letters(p)} == {ids["conflict"], ids["no_handler"], ids["old"]}
    assert p.explain("a")[0]["state"] == "rejected"
    assert [(a["what"], a["letter"]) for a in audits(p)] == [("discard", ids["a"]), ("discard", ids["malformed"])]
    text = p.once("discard", p.name, ids["old"])
    assert (text.status, text.out[:len("letter 5  key 'old' of operation 'pay': discarded  in.ndjson:5  (")]) == (0, f"letter {ids['old']}  key 'old' of operation 'pay': discarded  in.ndjson:5  (")
    p.run(status=1)
    assert effects(p) == [("done", 1)], "what was given up does not run"


def test_f98_letters_of_another_consumer_are_not_there(tmp_path):
    """Two consumers in one store. What one of them does to letters never touches the other's, also by their ids."""
    p, ids = everything(tmp_path)
    other = Pipeline(tmp_path, STRICT, consumer="other", name="other.yaml")
    before = letters(p)
    ended = other.once("discard", other.name, *ids.values(), "--json")
    assert ended.status == 1 and not any(letter["discarded"] for letter in ended.json["letters"]), ended
    for argument in [ids["a"]], ["--all"]:
        other.once("replay", other.name, *argument)
    assert letters(other) == [] and letters(p) == before
    assert audits(p) == [], "and nothing was done"
    assert p.explain("a")[0]["state"] == "dead"


def test_forget_lets_the_next_one_run_and_is_audited(tmp_path):
    p = gated(tmp_path, pay("a"))
    open_gate(p)
    p.run(status=0)
    ended = p.once("forget", p.name, "a", "--json")
    assert ended.status == 0 and ended.json == {"key": "a", "forgotten": True, "was": "done"}
    counts(p.run(status=0), received=1, done=1)
    assert effects(p) == [("a", 1), ("a", 1)]
    assert p.once("forget", p.name, "a").out == "key 'a': forgotten; it was done\n"
    nothing = p.once("forget", p.name, "a")
    assert nothing.status == 1 and "nothing to forget" in nothing.out
    assert [(a["what"], a["key"], a["note"]) for a in audits(p)] == [("forget", "a", "it was done")] * 2


def test_forget_of_a_key_that_two_operations_know(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
type: "${/type}"
handlers:
  one: {sql: ["INSERT INTO t(id) VALUES (:id)"]}
  two: {sql: ["INSERT INTO t(id) VALUES (:id)"]}
""", TABLE)
    p.write({"id": "a", "type": "one"}, {"id": "a", "type": "two"})
    counts(p.run(status=0), received=2, done=2)
    ended = p.once("forget", p.name, "a")
    assert ended.status == 2 and "'one' and 'two'" in ended.err and "--operation" in ended.err
    assert p.once("forget", p.name, "a", "--operation", "two").status == 0
    counts(p.run(status=0), received=2, done=1, duplicates=1)


def unknown(p, key):
    """The entry of a waiting message becomes unknown, as a lost reply would leave it."""
    p.edit(f"UPDATE once_entry SET state = 3, due_ms = 9223372036854775807 WHERE key = CAST('{key}' AS BLOB) AND state = 2")
    assert p.explain(key)[0]["state"] == "unknown"


@pytest.mark.parametrize("outcome", ["done", "retry", "dead"])
def test_resolve(tmp_path, outcome):
    p = gated(tmp_path, pay("a"))
    p.run(status=1)
    replay(p, "--all")
    unknown(p, "a")
    open_gate(p)
    assert p.once("status", "--json", p.name).json["unknown"] == 1
    (entry,) = p.explain("a")
    ended = p.once("resolve", p.name, "a", outcome, "--json")
    assert ended.status == 0 and ended.json == {"dry_run": False, "key": "a", "idempotency_key": entry["idempotency_key"], "resolved": outcome, "tenant": "",
                                                "operation": "pay", "type": "pay", "place": "in.ndjson", "point": "1", "reason": entry["reason"]}, ended
    assert (audits(p)[-1]["what"], audits(p)[-1]["note"]) == ("resolve", f"resolved as {outcome} by an operator")
    p.write()
    if outcome == "retry":
        counts(p.run(status=0), received=0, resumed=1, done=1)
    else:
        counts(p.run(status=1 if outcome == "dead" else 0), received=0)
    assert effects(p) == ([("a", 1)] if outcome == "retry" else [])
    assert p.explain("a")[0]["state"] == ("done" if outcome == "retry" else outcome)
    assert len(letters(p)) == (1 if outcome == "dead" else 0)
    again = p.once("resolve", p.name, "a", outcome)
    assert again.status == 2 and "not unknown" in again.err


def test_resolve_without_a_body_says_what_to_do(tmp_path):
    p = gated(tmp_path, pay("a"))
    p.run(status=1)
    replay(p, "--all")
    unknown(p, "a")
    p.edit("UPDATE once_entry SET owned = 0; DELETE FROM once_body")
    ended = p.once("resolve", p.name, "a", "retry")
    assert ended.status == 2 and "forget" in ended.err
    assert p.once("resolve", p.name, "a", "done").out.startswith("key 'a' of operation 'pay': resolved as done; its idempotency key is ")


def test_sweep_drops_what_has_expired(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nremember: 1ms\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n', TABLE)
    p.write(*[{"id": i} for i in range(300)])
    p.run(status=0)
    time.sleep(0.05)
    assert p.value("SELECT count(*) FROM once_recent") > 0
    ended = p.once("sweep", p.name, "--json")
    assert ended.status == 0 and ended.json["dropped"] <= 300, "some were dropped by the run itself"
    assert [p.value(f"SELECT count(*) FROM {table}") for table in ("once_recent", "once_run", "once_bucket")] == [0, 0, 0]
    again = p.once("sweep", p.name)
    assert again.status == 0 and again.out == "0 expired records dropped\n"
    assert p.once("status", "--finished", "--json", p.name).json["done"] == 0


# ---- explain by coordinates ----

def fate(p, line):
    ended = p.once("explain", p.name, "--message", f"in.ndjson:{line}", "--json")
    assert ended.status == 0, ended
    return ended.json


def test_explain_why_a_message_was_skipped(tmp_path):
    p = Pipeline(tmp_path, STRICT, GATE)
    open_gate(p)
    first = pay("a", 1)
    p.write(first, "", first, {**first, "amount": 2}, "nonsense")
    p.run(status=1)
    p.append(pay("new"))
    assert [fate(p, line)["message"]["fate"] for line in (1, 3, 4, 5, 6)] == ["first", "duplicate", "letter", "letter", "unseen"]
    told = fate(p, 4)
    assert told["message"]["letter"] > 0 and "conflict" in told["message"]["reason"]
    assert (told["entries"][0]["state"], told["entries"][0]["point"]) == ("done", "1")
    assert fate(p, 5)["entries"] == []
    p.once("discard", p.name, told["message"]["letter"])
    assert fate(p, 4)["message"]["fate"] == "discarded"
    p.append({**first, "amount": 3})
    assert fate(p, 7)["message"]["fate"] == "conflict"
    text = p.once("explain", p.name, "--message", "in.ndjson:3").out
    assert "so this one is a duplicate" in text and "First seen" in text and "in.ndjson:1" in text


def test_explain_coordinates_that_are_none(tmp_path):
    p = gated(tmp_path, pay("a"))
    p.run(status=1)
    for coordinates, text in (("in.ndjson", "PLACE:POINT"), (":1", "PLACE:POINT"), ("in.ndjson:", "PLACE:POINT"), ("in.ndjson:9", "no message at '9'"),
                              ("other:1", "not the file")):
        ended = p.once("explain", p.name, "--message", coordinates)
        assert ended.status == 2 and text in ended.err, ended
        assert "error" in p.once("explain", p.name, "--json", "--message", coordinates).json


def test_explain_says_who_discarded_a_letter(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\ntenant: "${/who}"\nhandlers: {a: {dead: "no account"}, b: {exec: [./say_no], exit: {7: rejected}}}\ntype: "${/type}"\n')
    (tmp_path / "say_no").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "say_no").chmod(0o755)
    p.write(*[{"id": "k", "who": who, "type": type} for who in ("ann", "bob") for type in ("a", "b")])
    p.run(status=1)
    (letter,) = [letter for letter in letters(p) if letter["tenant"] == "ann" and letter["operation"] == "a"]
    assert p.once("discard", p.name, letter["letter"]).status == 0
    (audit,) = audits(p)
    by_operation = {e["operation"]: e for e in p.explain("k", "--tenant", "ann")}
    assert by_operation["a"]["discarded"] and (by_operation["a"]["discarded_ms"], by_operation["a"]["discarded_by"]) == (audit["time_ms"], audit["who"]), by_operation
    told = p.once("explain", "--tenant", "ann", p.name, "k").out
    assert f"UTC, by {audit['who']}. Further deliveries" in told and "Its dead letter was discarded 20" in told, told
    assert by_operation["b"]["state"] == "rejected" and not by_operation["b"]["discarded"] and told.count("A business rule rejected it") == 1, told
    assert not any(e.get("discarded") for e in p.explain("k", "--tenant", "bob"))


def test_times_are_taken_as_they_are_shown(tmp_path):
    p = gated(tmp_path, pay("a"))
    p.run(status=1)
    shown = re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", p.once("list", p.name).out).group(0)
    assert set(verdicts(replay(p, "--dry-run", "--since", shown))) == {1} and verdicts(replay(p, "--dry-run", "--until", shown)) == {}
    (group,) = p.once("list", "--by", "hour", "--json", p.name).json["groups"]
    assert set(verdicts(replay(p, "--dry-run", "--since", group["hour"]))) == {1}
    for wrong in (shown[:-4], shown.replace("UTC", "CET"), "2026-13-31 12:00 UTC", "2026-01-31 UTC"):
        ended = p.once("replay", "--since", wrong, p.name)
        assert ended.status == 2 and "neither a time" in ended.err, ended


def test_a_reader_that_goes_away_is_no_failure_and_a_full_disk_is(tmp_path):
    p = gated(tmp_path, *[pay(f"{i}" * 50) for i in range(2000)])
    p.run(status=1)
    for arguments, status in ((["list"], 0), (["status"], 1), (["list", "--json"], 0)):
        listing = subprocess.Popen([ONCE, *arguments, p.name], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(None, None, tmp_path))
        listing.stdout.close()
        assert (listing.stderr.read(), listing.wait()) == (b"", status), arguments
        with open("/dev/full", "w") as full:
            done = subprocess.run([ONCE, *arguments, p.name], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, env=environment(None, None, tmp_path), check=False)
        assert done.returncode == 3 and b"cannot write to standard output" in done.stderr, (arguments, done)


# ---- wrong arguments ----

@pytest.mark.parametrize("arguments, text", [
    (["status"], "missing argument"),
    (["list", "FILE", "--audit", "--dead"], "cannot be combined"),
    (["replay", "FILE"], "give letter ids"),
    (["replay", "FILE", "1", "--all"], "--all and ids exclude each other"),
    (["replay", "FILE", "one"], "'one' is not the id"),
    (["replay", "FILE", "0"], "'0' is not the id"),
    (["replay", "FILE", "--", "-1"], "'-1' is not the id"),
    (["replay", "FILE", "--all", "--rate", "fast"], "not 'fast'"),
    (["replay", "FILE", "--all", "--rate", "0"], "not '0'"),
    (["replay", "FILE", "--since", "yesterday"], "neither a time"),
    (["discard", "FILE"], "give letter ids, --all"),
    (["discard", "FILE", "x"], "not the id"),
    (["resolve", "FILE"], "missing argument"),
    (["resolve", "FILE", "a"], "the outcome must be done, retry or dead"),
    (["resolve", "FILE", "a", "maybe"], "the outcome must be done, retry or dead"),
    (["forget", "FILE"], "missing argument"),
    (["explain", "FILE"], "KEY or --message"),
    (["explain", "FILE", "a", "--message", "in.ndjson:1"], "KEY or --message"),
    (["sweep", "FILE", "more"], "unexpected argument 'more'"),
])
def test_wrong_arguments_are_refused(tmp_path, arguments, text):
    p = gated(tmp_path)
    p.run(status=0)
    ended = p.once(*[p.name if argument == "FILE" else argument for argument in arguments])
    assert ended.status == 2 and text in ended.err and ended.out == "", ended


@pytest.mark.parametrize("arguments", [["status"], ["list"], ["replay", "--all"], ["discard", "1"], ["resolve", "a", "done"], ["forget", "a"], ["sweep"]])
def test_a_store_that_is_missing_is_not_made(tmp_path, arguments):
    p = Pipeline(tmp_path, STRICT)
    verb, *rest = arguments
    ended = p.once(verb, p.name, *rest, "--json")
    assert ended.status in (2, 3) and "error" in ended.json, ended
    assert not os.path.exists(p.database)


def test_every_verb_has_help():
    for verb in ("status", "list", "replay", "discard", "resolve", "forget", "sweep"):
        ended = once("help", verb)
        assert ended.status == 0 and ended.out.startswith(f"once {verb} FILE") and "--json" in ended.out


# ---- attempts that died ----


def status_of(p):
    return p.once("status", "--json", p.name).json


def listed(p, *arguments):
    return p.once("list", "--json", *arguments, p.name).json["messages"]


def test_f99_an_attempt_that_died_is_shown_and_can_be_resolved(tmp_path):
    """Nobody comes again: what the lease ran out on is unknown for whoever looks, from that moment."""
    work = Fenced(tmp_path, n=1, unknown="hold", lease="2s")
    p = work.p
    assert p.try_run(failpoint="commit_after:kill").killed  # claimed durably, not begun
    before = status_of(p)
    if before["busy"]:  # the machine may be slow
        assert p.once("resolve", p.name, "k0", "done").status == 2
    until(lambda: status_of(p)["busy"] == 0, what="the end of the lease")
    now = status_of(p)
    assert (now["unknown"], now["waiting"]) == (1, 0)
    assert p.once("status", p.name).status == 1
    (entry,) = listed(p, "--unknown")
    assert entry["state"] == "unknown" and entry["worker"] and not listed(p, "--busy")
    assert [(a["outcome"], a["who"], a["ended_ms"]) for a in entry["attempts"]] == [("silent", entry["worker"], entry["changed_ms"])]
    told = p.once("explain", p.name, "k0").out
    assert "unknown\n" in told and "Attempt 1 ended without reporting an outcome; its lease expired" in told, told
    assert p.explain("k0")[0]["worker"] == entry["worker"]
    assert f"its attempt never reported  (attempt 1, by {entry['worker']})" in p.once("list", p.name).out
    assert entry["reason"] == p.explain("k0")[0]["reason"] == "its attempt never reported"

    assert p.once("resolve", p.name, "k0", "done").status == 0
    assert p.explain("k0")[0]["state"] == "done"
    assert [a["outcome"] for a in p.explain("k0")[0]["attempts"]] == ["silent"]
    assert status_of(p)["unknown"] == 0
    counts(p.run(status=0), received=1, duplicates=1)
    assert not work.effects()


def test_f99_an_attempt_that_died_has_one_reason_seen_by_a_run_or_not(tmp_path):
    """Unknown because its lease is over, or because a run has met it: for whoever looks it is the same kill."""
    work = Fenced(tmp_path, n=1, unknown="hold", lease="2s")
    p = work.p
    assert p.try_run(failpoint="commit_after:kill").killed
    until(lambda: status_of(p)["unknown"] == 1, what="the end of the lease")
    for look in ("nobody", "a run"):
        (entry,) = listed(p, "--unknown")
        assert entry["reason"] == "its attempt never reported" and ("worker" in entry) == (look == "nobody"), (look, entry)
        assert "its attempt never reported  (attempt 1, by " in p.once("list", "--unknown", p.name).out
        (group,) = p.once("list", "--by", "reason", "--json", p.name).json["groups"]
        assert group["count"] == 1 and group["filter"] == ["--group", "its attempt never reported"], (look, group)
        assert p.once("resolve", "--dry-run", "--json", *group["filter"], p.name, "done").json["count"] == 1
        p.run(status=1)
    assert p.once("resolve", "--json", "--reason", "never reported", p.name, "done").json["count"] == 1 and status_of(p)["unknown"] == 0


def test_f99_a_run_does_not_wait_for_what_only_the_source_can_bring(tmp_path):
    """A run to its end, beside an attempt of another message that died: it ends, and says that something is unknown."""
    work = Fenced(tmp_path, n=1, unknown="hold", lease="300ms")
    assert work.p.try_run(failpoint="commit_after:kill").killed
    work.p.write({"id": "other"})
    until(lambda: status_of(work.p)["unknown"] == 1, what="the end of the lease")
    assert work.p.once("run", "--json", work.p.name).status == 1
    assert [e[0] for e in work.effects()] == ["other"]


def test_f99_an_atomic_attempt_that_died_waits(tmp_path):
    p = Pipeline(tmp_path, STRICT + "lease: 300ms\n", GATE)
    p.write(pay("a"), pay("b"))
    open_gate(p)
    assert p.try_run(failpoint="effect_before:kill").killed  # an unclean end: the next run claims one by one
    assert p.try_run(failpoint="effect_before:kill").killed
    until(lambda: status_of(p)["busy"] == 0, what="the end of the lease")
    now = status_of(p)
    assert (now["busy"], now["waiting"], now["unknown"]) == (0, 1, 0)
    (entry,) = listed(p, "--waiting")
    assert entry["worker"]
    assert p.once("resolve", p.name, "a", "done").status == 2
    counts(p.run(status=0), received=2, done=2)
    assert effects(p) == [("a", 1), ("b", 1)]


# ---- corrected messages ----


def test_a_dead_letter_is_corrected(tmp_path):
    """Another body under the same key goes back to work; the old one is kept with the act."""
    wrong, right = pay("a", 1), pay("a", 42)
    p = gated(tmp_path, wrong, pay("b", 2))
    counts(p.run(status=1), received=2, dead=2)
    first, second = letters(p)
    open_gate(p)
    good = tmp_path / "good.json"
    good.write_text(json.dumps(right) + "\n")
    told = replay(p, str(first["letter"]), "--body", str(good), "--dry-run")
    assert verdicts(told) == {first["letter"]: "run"}
    assert len(letters(p)) == 2 and not audits(p)

    other = tmp_path / "other.json"
    other.write_text(json.dumps(pay("z", 42)))
    assert verdicts(replay(p, str(first["letter"]), "--body", str(other), status=1)) == {first["letter"]: "other_key"}
    other.write_text('{"id": "a", "type": "pay"')
    assert verdicts(replay(p, str(first["letter"]), "--body", str(other), status=1)) == {first["letter"]: "still_dead"}
    assert p.once("replay", p.name, "--all", "--body", str(good)).status == 2
    assert p.once("replay", p.name, str(first["letter"]), str(second["letter"]), "--body", str(good)).status == 2
    assert p.once("replay", p.name, str(first["letter"]), "--body", str(tmp_path / "none")).status == 2
    os.mkfifo(tmp_path / "fifo")
    for endless in (str(tmp_path / "fifo"), "/dev/zero", str(tmp_path)):
        told = p.once("replay", p.name, str(first["letter"]), "--body", endless)
        assert told.status == 2 and "not a regular file" in told.err, told
    assert len(letters(p)) == 2 and not audits(p)

    assert verdicts(replay(p, str(first["letter"]), "--body", "-", stdin=good.read_bytes())) == {first["letter"]: "run"}
    assert len(letters(p)) == 1
    (act,) = audits(p)
    assert act["what"] == "replay --body" and act["letter"] == first["letter"] and "body" not in act
    (act,) = p.once("list", "--audit", "--body", "--json", p.name).json["audit"]
    assert json.loads(act["body"])["amount"] == 1
    assert '"amount": 1' in p.once("list", "--audit", "--body", p.name).out.replace('"amount":1', '"amount": 1')
    p.write()
    p.run()
    assert effects(p) == [("a", 42)]
    # what came first is a conflict now, and the corrected one a duplicate
    p.write(wrong, right)
    counts(p.run(status=1), received=2, dead=1, conflicts=1, duplicates=1)


def test_a_letter_without_a_key_is_corrected(tmp_path):
    p = Pipeline(tmp_path, STRICT, GATE)
    open_gate(p)
    p.write('{"id": "a", "type": "pay", "amount": 7')
    counts(p.run(status=1), received=1, dead=1)
    (letter,) = letters(p)
    assert letter["kind"] == "malformed"
    body = json.dumps(pay("a", 7)).encode()
    assert verdicts(replay(p, str(letter["letter"]), "--body", "-", stdin=body)) == {letter["letter"]: "run"}
    p.write()
    counts(p.run(status=0), resumed=1, done=1)
    assert effects(p) == [("a", 7)]


# ---- conflicts ----


def test_f26_a_conflict_says_where_the_first_one_came_from(tmp_path):
    p = Pipeline(tmp_path, STRICT, GATE)
    open_gate(p)
    first = pay("a", 1)
    p.write(first, {**first, "amount": 2})
    counts(p.run(status=1), received=2, done=1, dead=1, conflicts=1)
    (letter,) = letters(p)
    reason = letter["reason"]
    assert re.fullmatch(r"conflict: the key was used before with other content: 'amount' differs; the first one came from in\.ndjson:1"
                        r" at \d{4}-\d\d-\d\dT[0-9:.]+Z, seen by \S+@\S+:\d+", reason), reason


def test_f26_a_conflict_names_the_fields_where_the_first_body_is_known(tmp_path):
    """The first one waits in the store, so its body is there."""
    config = """
key: "${/id}"
ack: after_accept
handler: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)"]}
"""
    p = Pipeline(tmp_path, config, TABLE)
    at = now_ms()
    p.write({"id": "a", "amount": 1, "old": True, "at": at}, {"id": "a", "amount": 2, "new\n": 1, "at": at})
    assert p.run(status=1)["conflicts"] == 1
    (letter,) = letters(p)
    assert "other content: 'amount', 'new?', 'old' differ; the first one came from in.ndjson:1 at " in letter["reason"], letter["reason"]


@pytest.mark.parametrize("end", ["done", "dead"])
def test_f26_a_conflict_names_the_fields_where_the_first_body_is_gone(tmp_path, end):
    p = Pipeline(tmp_path, STRICT, GATE)
    if end == "done":
        open_gate(p)
    first = pay("a", 1, currency="EUR", note="x", to={"iban": "DE1", "name": "n"})
    p.write(first)
    counts(p.run(status=0 if end == "done" else 1), received=1, **{end: 1})
    second = {**first, "amount": 2, "to": {"name": "n", "iban": "DE2"}, "amount\n": 3}
    third = {k: v for k, v in first.items() if k not in ("note", "currency")}
    p.write(second, third)
    assert p.run(status=1)["conflicts"] == 2
    reasons = [letter["reason"] for letter in letters(p) if letter["kind"] == "conflict"]
    assert ["other content: 'amount', 'to', 'amount?' differ; the first one came from in.ndjson:1 at " in r for r in reasons] == [True, False], reasons
    assert "other content: 2 fields of the first one are missing here; the first one came from in.ndjson:1 at " in reasons[1], reasons


def test_f26_a_conflict_names_the_chosen_fields(tmp_path):
    config = """
key: "${/id}"
fingerprint: [/amount, /to/iban]
handler: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)"]}
"""
    p = Pipeline(tmp_path, config, TABLE)
    first = {"id": "a", "amount": 1, "to": {"iban": "DE1"}, "note": "x"}
    p.write(first, {**first, "to": {"iban": "DE2"}, "note": "y"})
    counts(p.run(status=1), received=2, done=1, dead=1, conflicts=1)
    (letter,) = letters(p)
    assert "other content: '/to/iban' differs; the first one came from in.ndjson:1 at " in letter["reason"], letter["reason"]
