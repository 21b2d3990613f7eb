"""once explain: who saw a message first, how each attempt ended, and what became of it, over several processes."""

import os
import pwd
import re
import signal
import socket
import sys

import pytest

from harness import Pipeline, Running, counts, once, until

HEAD = 'key: "${/id}"\nretry: {attempts: 4, backoff: 30d..30d}\n'
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC"


def pipeline(folder, script, more="", head=HEAD):
    """A command that is a Python script; what it does may depend on the file `world`."""
    p = Pipeline(folder, "", "")
    with open(os.path.join(folder, "handler.py"), "w", encoding="utf-8") as file:
        file.write(script)
    p.configure(head + f'handler:\n  exec: [{sys.executable}, -I, handler.py]\n' + more)
    assert once("check", p.name, cwd=folder).status == 0  # makes the store
    return p


def world(p, text):
    with open(os.path.join(p.folder, "world"), "w", encoding="utf-8") as file:
        file.write(text)


def who_is(running):
    return f"{pwd.getpwuid(os.geteuid()).pw_name[:32]}@{socket.gethostname()[:54]}:{running.process.pid}"


def explain(p, key):
    text = p.once("explain", p.name, key)
    told = p.once("explain", "--json", p.name, key)
    assert text.status == 0 and told.status == 0, (text, told)
    assert text.err == told.err == ""
    (entry,) = told.json["entries"]
    lines = re.sub(TIME, "TIME", text.out).splitlines()
    if entry["state"] != "absent":  # as test_idempotency_key.py knows it; here it would only be noise
        lines.remove(f"  Its idempotency key is {entry['idempotency_key']}.")
    return lines, entry


def run(p, status=None):
    """One process to its end, and who it was."""
    with Running(["run", p.name], p.folder) as running:
        who = who_is(running)
        ended = running.end()
    assert status is None or ended.status == status, ended
    return who


def run_until(p, sql):
    """One process until the store says so, then asked to end; and who it was."""
    with Running(["run", p.name], p.folder) as running:
        who = who_is(running)
        until(lambda: p.rows(sql) == [(1,)], what=sql)
        running.send(signal.SIGTERM)
        running.end()
    return who


FAILS = """
import sys
word = open("world").read()
if word == "later":
    print("greylisted", file=sys.stderr)
    sys.exit(75)
if word == "never":
    print("no such account\\x1b[31m", file=sys.stderr)
    sys.exit(65)
"""


def due_now(p):
    p.edit("UPDATE once_entry SET due_ms = 0 WHERE state = 2")


def test_attempts_of_several_processes(tmp_path):
    p = pipeline(tmp_path, FAILS)
    p.write({"id": "a"})
    world(p, "later")
    first = run_until(p, "SELECT count(*) FROM once_entry WHERE state = 2 AND attempt = 1")
    lines, entry = explain(p, "a")
    assert lines == [
        "key 'a' of consumer 'c', operation 'handler': waiting",
        "  The store owns its message and will hand it to a worker again. Further deliveries are duplicates.",
        f"  First seen TIME at in.ndjson:1, by {first}.",
        "  Attempt 1 ended TIME as retry: exit status 75: greylisted.",
        "  1 failure is counted.",
        "  It does not run before TIME.",
        "  It is kept until it has finished.",
    ]
    assert entry["who"] == first and [a["outcome"] for a in entry["attempts"]] == ["retry"]

    due_now(p)
    world(p, "good")
    second = run(p, 0)
    assert second != first
    lines, entry = explain(p, "a")
    assert lines == [
        "key 'a' of consumer 'c', operation 'handler': done",
        "  Its effect happened. Further deliveries are duplicates and are suppressed.",
        f"  First seen TIME at in.ndjson:1, by {first}.",
        "  Attempt 1 ended TIME as retry: exit status 75: greylisted.",
        f"  Attempt 2, by {second}, ended TIME as done.",
        "  1 failure is counted.",
        "  It is forgotten after TIME.",
    ]
    assert entry["who"] == first
    attempts = entry["attempts"]
    assert [(a["attempt"], a["outcome"], a["who"], a["reason"]) for a in attempts] == [
        (1, "retry", first, "exit status 75: greylisted"), (2, "done", second, "")]
    assert entry["seen_ms"] <= attempts[0]["ended_ms"] <= attempts[1]["ended_ms"] == entry["changed_ms"]


def test_a_message_that_only_its_source_has(tmp_path):
    """As a program leaves it that calls once_handle: the store does not claim that it will give it out."""
    p = pipeline(tmp_path, FAILS)
    p.write({"id": "a"})
    world(p, "later")
    first = run_until(p, "SELECT count(*) FROM once_entry WHERE state = 2 AND attempt = 1")
    p.edit("DELETE FROM once_body; UPDATE once_entry SET owned = 0, expires_ms = changed_ms + remember_ms")
    lines, entry = explain(p, "a")
    assert lines == [
        "key 'a' of consumer 'c', operation 'handler': waiting",
        "  Only its source has its message; it may run when the source delivers it again.",
        f"  First seen TIME at in.ndjson:1, by {first}.",
        "  Attempt 1 ended TIME as retry: exit status 75: greylisted.",
        "  1 failure is counted.",
        "  It does not run before TIME.",
        "  It is forgotten after TIME, unless it is delivered before.",
    ]
    assert entry["has_body"] is False and entry["expires_ms"] > entry["changed_ms"]
    assert "waits for its source to deliver it again" in p.once("list", p.name).out
    p.edit("UPDATE once_entry SET expires_ms = 1")
    assert explain(p, "a")[1]["state"] == "absent"
    assert p.once("status", "--json", p.name).json["waiting"] == 0
    assert p.once("sweep", "--json", p.name).json["dropped"] == 1
    assert p.value("SELECT count(*) FROM once_entry") == 0


def test_a_first_attempt_that_succeeds(tmp_path):
    p = pipeline(tmp_path, FAILS)
    p.write({"id": "a"})
    world(p, "good")
    who = run(p, 0)
    lines, entry = explain(p, "a")
    assert lines[2:] == [f"  First seen TIME at in.ndjson:1, by {who}.", "  Attempt 1 ended TIME as done.", "  It is forgotten after TIME."]
    assert entry["attempts"] == [{"attempt": 1, "ended_ms": entry["changed_ms"], "outcome": "done", "who": who, "reason": ""}]
    assert "worker" not in entry


def test_dead_and_replayed(tmp_path):
    p = pipeline(tmp_path, FAILS)
    p.write({"id": "a"})
    world(p, "later")
    first = run_until(p, "SELECT count(*) FROM once_entry WHERE state = 2 AND attempt = 1")
    due_now(p)
    world(p, "never")
    second = run(p, 1)
    lines, _ = explain(p, "a")
    assert lines[1:] == [
        "  It became a dead letter. Further deliveries are suppressed.",
        f"  First seen TIME at in.ndjson:1, by {first}.",
        "  Attempt 1 ended TIME as retry: exit status 75: greylisted.",
        f"  Attempt 2, by {second}, ended TIME as dead: exit status 65: no such account?[31m.",
        "  2 failures are counted.",
        "  Dead letter 1 has this key: dead.",
        "  It is kept until an operator replays or discards its letter.",
    ]
    (letter,) = p.once("list", "--dead", "--json", p.name).json["messages"]
    assert [(a["attempt"], a["outcome"], a["who"]) for a in letter["attempts"]] == [(1, "retry", first), (2, "dead", second)]
    assert p.once("replay", "--all", p.name).status == 0
    world(p, "good")
    third = run(p, 0)
    _, entry = explain(p, "a")
    assert [(a["attempt"], a["outcome"], a["who"]) for a in entry["attempts"]] == [
        (1, "retry", first), (2, "dead", second), (3, "done", third)]
    assert entry["who"] == first


def test_killed_without_a_word(tmp_path):
    p = pipeline(tmp_path, 'open("began", "w").close()\nimport time\nif open("world").read() == "hang": time.sleep(60)\n', "  unknown: retry\n",
                 HEAD.replace("30d..30d", "1ms..2ms") + "lease: 1s\n")
    p.write({"id": "a"})
    world(p, "hang")
    with Running(["run", p.name], p.folder) as running:
        first = who_is(running)
        until(lambda: os.path.exists(os.path.join(p.folder, "began")))
        lines, entry = explain(p, "a")
        assert lines[1:4] == ["  A worker is processing it. Further deliveries do not run.",
                              f"  First seen TIME at in.ndjson:1, by {first}.", f"  Attempt 1 began TIME, by {first}."]
        assert entry["worker"] == first and entry["attempts"] == []
        running.send(signal.SIGKILL)
        running.end()
    world(p, "good")
    second = run(p, 0)
    lines, entry = explain(p, "a")
    assert lines[3:5] == ["  Attempt 1 ended without reporting an outcome; it was noticed TIME.", f"  Attempt 2, by {second}, ended TIME as done."]
    assert [(a["outcome"], a["who"]) for a in entry["attempts"]] == [("silent", first), ("done", second)]


def test_older_attempts_are_dropped_and_that_is_said(tmp_path):
    p = pipeline(tmp_path, FAILS, head='key: "${/id}"\nretry: {attempts: 14, backoff: 1ms..1ms}\n')
    p.write({"id": "a"})
    world(p, "later")
    run(p, 1)
    lines, entry = explain(p, "a")
    assert lines[3] == "  The outcomes of attempts 1 to 4 are not kept."
    assert [a["attempt"] for a in entry["attempts"]] == list(range(5, 15))
    assert [a["outcome"] for a in entry["attempts"]] == ["retry"] * 9 + ["dead"]
    assert entry["attempt"] == 14


def test_resolved_by_a_person(tmp_path):
    p = pipeline(tmp_path, "import os\nos.kill(os.getpid(), 9)\n")
    p.write({"id": "a"})
    run(p, 1)
    assert p.once("resolve", p.name, "a", "done").status == 0
    lines, _ = explain(p, "a")
    assert lines[3:6] == ["  Attempt 1 ended TIME as unknown: ended by signal 9.", "  It last changed TIME.", "  Reason: resolved as done by an operator."]


@pytest.mark.parametrize("mode", ["text", "json"])
def test_bodies_are_not_told(tmp_path, mode):
    p = pipeline(tmp_path, FAILS)
    p.write({"id": "a", "card": "4111-1111"})
    world(p, "never")
    counts(p.run(status=1), received=1, dead=1)
    for verb in (["explain", p.name, "a"], ["list", p.name]):
        told = once(*verb, *(["--json"] if mode == "json" else []), cwd=p.folder)
        assert told.status == 0 and "4111" not in told.out + told.err


def test_f63_f99_a_long_key_is_found_by_the_name_that_is_shown(tmp_path):
    p = pipeline(str(tmp_path), "import sys; sys.exit(70)\n")
    key = "k" * 1200
    p.write({"id": key})
    run(p, 1)
    shown = p.once("list", "--unknown", "--json", p.name).json["messages"][0]["key"]
    assert shown.startswith("sha256:") and len(shown) == 71
    by_name, whole = explain(p, shown)[1], explain(p, key)[1]
    assert by_name["state"] == whole["state"] == "unknown"
    assert by_name["idempotency_key"] == whole["idempotency_key"]
    told = p.once("explain", p.name, "--message", "in.ndjson:1")
    assert "absent" not in told.out and "unknown" in told.out, told
    assert p.once("resolve", p.name, shown, "done").status == 0
    assert explain(p, key)[1]["state"] == "done"


def test_a_letter_without_an_entry_is_found_by_its_key(tmp_path):
    p = pipeline(str(tmp_path), "", head='key: "${/id}"\norder: "${/lane}"\nversion: {from: "${/v}", first: 1}\n')
    p.write({"id": "a0", "lane": "x", "v": 0})
    run(p, 1)
    lines, entry = explain(p, "a0")
    assert entry["state"] == "absent"
    assert any(line.startswith("  However, dead letter 1 has this key: ") for line in lines), lines
    assert len(explain(p, "a1")[0]) == 2  # nothing knows that one


@pytest.mark.parametrize("retry, told", [("{for: 1h}", "attempts for 1h"), ("{attempts: 3, for: 1h}", "3 attempts within 1h"),
                                         ("{attempts: 3}", "3 attempts")])
def test_check_tells_the_budget_of_retries(tmp_path, retry, told):
    p = pipeline(str(tmp_path), "", head='key: "${/id}"\nremember: 10m\nretry: ' + retry + "\n")
    checked = p.once("check", p.name)
    assert checked.status == 0 and f", {told}\n" in checked.out, checked
    assert ("is shorter than all retries may take" in checked.out) == (retry == "{for: 1h}"), checked


def test_what_cannot_be_done_without_a_body_is_not_offered(tmp_path):
    p = pipeline(str(tmp_path), "import os, signal; os.kill(os.getppid(), signal.SIGKILL)\n", more="  lease: 300ms\n")
    p.write({"id": "k"})
    with Running(["run", p.name], p.folder) as running:
        running.process.wait()
    until(lambda: explain(p, "k")[1]["state"] == "unknown", what="the lease to be over")
    lines = explain(p, "k")[0]
    assert any("after its source has delivered its message again" in line for line in lines), lines


def test_the_result_that_duplicates_get_is_shown(tmp_path):
    p = Pipeline(tmp_path, config='key: "${/id}"\nhandler: {exec: [sh, -c, "read b; printf \'receipt %0*d\\n\' \\"$1\\" 42", sh, "${/width}"]}\n')
    p.write({"id": "a", "width": 4}, {"id": "b", "width": 300})
    p.run(status=0)
    assert "Its result is 'receipt 0042'.\n" in p.once("explain", p.name, "a").out
    assert "000'...; --json prints all of it.\n" in p.once("explain", p.name, "b").out
    assert p.explain("b")[0]["result"].endswith("42\n")
