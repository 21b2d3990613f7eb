"""Messages that need another attempt or an operator, and lost claims, are logged as warnings."""

import json
import os
import pwd
import re
import signal
import socket
import time

import pytest

from harness import Pipeline, Running, until

SCRIPT = '#!/bin/sh\nread -r body\nid=$(echo "$body" | tr -dc 0-9)\n[ ! -f wait ] || { touch begun; sleep 1; }\necho "said $id" >&2\nexit $id\n'
HEAD = 'key: "k${/code}"\nretry: {attempts: 2, backoff: 1ms..5ms}\n'


def commands(folder, config, *codes, lease="30s"):
    path = os.path.join(folder, "effect")
    with open(path, "w") as file:
        file.write(SCRIPT)
    os.chmod(path, 0o755)
    p = Pipeline(folder, HEAD + f"lease: {lease}\n" + config)
    p.write(*[{"code": code} for code in codes])
    return p


def lines(text, event):
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def test_f99_dead_letters_and_unknowns_are_warnings(tmp_path):
    p = commands(tmp_path, "handler: {exec: [./effect]}\n", 0, 64, 65, 70, 75)
    ended = p.try_run("--log-format", "json")
    assert ended.status == 1, ended
    (unknown,) = lines(ended.err, "unknown")
    dead = {line["key"]: line for line in lines(ended.err, "dead")}
    assert sorted(dead) == ["k65", "k75"], ended.err
    for line, key, at, attempt, reason in ((dead["k65"], "k65", "in.ndjson:3", 1, "said 65"), (dead["k75"], "k75", "in.ndjson:5", 2, "said 75"),
                                           (unknown, "k70", "in.ndjson:4", 1, "said 70")):
        assert (line["level"], line["operation"], line["key"], line["at"], line["attempt"]) == ("warn", "handler", key, at, attempt), line
        assert reason in line["msg"] and line["idempotency_key"] == p.explain(key)[0]["idempotency_key"], line
    assert lines(ended.err, "retry") == []


def test_a_retry_is_told_at_info(tmp_path):
    p = commands(tmp_path, "handler: {exec: [./effect]}\n", 75)
    ended = p.try_run("--log-format", "json", "--log-level", "info")
    (retry,) = lines(ended.err, "retry")
    assert (retry["level"], retry["key"], retry["attempt"]) == ("info", "k75", 1) and "said 75" in retry["msg"], retry


def test_a_malformed_message_has_no_key_and_is_told(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: "INSERT INTO t VALUES (:id)"}\n', "CREATE TABLE t(id)")
    p.write('{"id": 1')
    ended = p.try_run("--log-format", "json")
    (dead,) = lines(ended.err, "dead")
    assert dead["at"] == "in.ndjson:1" and "key" not in dead and "malformed" in dead["msg"], dead


def test_what_is_rolled_back_is_told_once(tmp_path):
    """The batch fails as a whole and runs again with care; each dead letter is one line all the same."""
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: "INSERT INTO t VALUES (:id, :n)"}\n', "CREATE TABLE t(id, n CHECK (n > 0))")
    p.write(*[{"id": i, "n": -1 if i % 3 == 0 else 1} for i in range(30)])
    ended = p.try_run("--log-format", "json", failpoint="commit_before:error:1")
    assert sorted(int(line["key"]) for line in lines(ended.err, "dead")) == list(range(0, 30, 3)), ended.err


def test_f14_a_lost_claim_is_a_warning_and_is_counted(tmp_path):
    p = commands(tmp_path, "unknown: retry\nhandler: {exec: [./effect]}\n", 0, lease="300ms")
    (tmp_path / "wait").touch()
    with p.start("--log-format", "json") as first:
        until(lambda: os.path.exists(tmp_path / "begun"), what="the effect has begun")
        first.send(signal.SIGSTOP)
        os.remove(tmp_path / "wait")
        time.sleep(0.4)  # its lease is over
        second = p.run(status=0)
        assert second["done"] == 1 and second["fenced"] == 0, second
        first.send(signal.SIGCONT)
        ended = first.end()
    assert ended.status == 0 and ended.json["fenced"] == 1 and ended.json["done"] == 0, ended
    (fenced,) = lines(ended.err, "fenced")
    assert (fenced["level"], fenced["key"]) == ("warn", "k0"), ended.err
    assert (ended.json["attempts"], second["attempts"]) == (1, 1), "what was started counts, whatever came of it"


def test_f14_a_claim_that_was_late_and_is_settled_is_no_warning(tmp_path):
    """Others saw it as unknown, and nobody went on with it: its outcome is recorded, so nothing was fenced off."""
    p = commands(tmp_path, "handler: {exec: [./effect]}\n", 0, lease="300ms")
    (tmp_path / "wait").touch()
    with p.start("--log-format", "json") as first:
        until(lambda: os.path.exists(tmp_path / "begun"), what="the effect has begun")
        first.send(signal.SIGSTOP)
        until(lambda: p.explain("k0")[0]["state"] == "unknown", what="the end of the lease")
        second = p.try_run("--log-format", "json")
        assert second.status == 1 and [line["key"] for line in lines(second.err, "unknown")] == ["k0"], second
        time.sleep(1)  # the effect has ended by itself
        first.send(signal.SIGCONT)
        ended = first.end()
    assert ended.json["fenced"] == 0 and lines(ended.err, "fenced") == [] and ended.json["done"] == 1, ended


def test_a_run_that_waits_for_a_dead_one_says_for_whom_and_how_long(tmp_path):
    p = commands(tmp_path, "unknown: retry\nhandler: {exec: [./effect]}\n", 0, lease="3s")
    (tmp_path / "wait").touch()
    with p.start() as first:
        until(lambda: os.path.exists(tmp_path / "begun"), what="the effect has begun")
        first.send(signal.SIGKILL)
        first.process.wait()
        os.remove(tmp_path / "wait")
        ended = p.try_run("--log-format", "json")
    (waiting,) = lines(ended.err, "waiting")
    assert waiting["level"] == "warn" and f"key 'k0' of {pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}:{first.process.pid}" in waiting["msg"], waiting
    assert re.search(r"its claim ends in [123]s$", waiting["msg"]), waiting
    assert ended.status == 0 and ended.json["done"] == 1, ended


def test_an_ordinary_second_worker_is_no_warning(tmp_path):
    p = commands(tmp_path, "handler: {exec: [./effect]}\n", 0)
    (tmp_path / "wait").touch()
    with p.start() as first:
        until(lambda: os.path.exists(tmp_path / "begun"), what="the effect has begun")
        second = p.try_run("--log-format", "json", "--log-level", "info")
        assert first.end().status == 0
    assert second.status == 0 and lines(second.err, "unclean") == [], second
    assert {line["level"] for line in lines(second.err, "waiting")} <= {"info"}, second


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_f68_a_run_says_at_its_end_that_its_log_was_not_taken(tmp_path, json_too):
    """Standard error is a pipe that nobody reads."""
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {dead: "no"}\n')
    p.write(*[{"id": i} for i in range(5000)])
    with Running(["run", *json_too, p.name], tmp_path) as run:
        out = run.process.stdout.read().decode()
        run.process.wait()
        came = run.process.stderr.read().decode().splitlines()
    dead = len([line for line in came if "event=dead" in line])
    said = json.loads(out)["log_dropped"] if json_too else int(re.search(r"log_dropped +(\d+)  log lines", out).group(1))
    assert run.process.returncode == 1 and 0 < dead < 5000 and said == 5000 - dead, (out, dead)


# ---- troubles, and their ends ----

DOWN = '#!/bin/sh\nread -r body\necho >> asked\n[ -f up ] && exit 0\necho "gateway is away" >&2\nexit %d\n'


def down(folder, code, config):
    path = os.path.join(folder, "effect")
    with open(path, "w") as file:
        file.write(DOWN % code)
    os.chmod(path, 0o755)
    p = Pipeline(folder, 'key: "${/id}"\n' + config)
    p.write({"id": 1}, {"id": 2})
    return p


@pytest.mark.parametrize("code, retry", [(69, "{backoff: 1ms..5ms}"), (75, "{for: 1h, backoff: 1ms..5ms}")])
def test_f95_a_handler_that_is_down_is_told_and_that_it_works_again(tmp_path, code, retry):
    """It takes nothing, however long that lasts, and spends no budget: at warn, when it begins, now and then, and at its end."""
    p = down(tmp_path, code, f"breaker: off\nretry: {retry}\nhandler: {{exec: [./effect]}}\n")
    with p.start("--log-format", "json") as running:
        until(lambda: os.path.exists(tmp_path / "asked") and os.path.getsize(tmp_path / "asked") > 30, what="it was asked again and again")
        (tmp_path / "up").touch()
        ended = running.end()
    assert ended.status == 0 and ended.json["done"] == 2, ended
    said = lines(ended.err, "handler_down")
    assert 1 <= len(said) <= 8 and {line["level"] for line in said} == {"warn"}, ended.err
    assert "gateway is away" in said[0]["msg"] and "handler 'handler'" in said[0]["msg"], said
    (works,) = lines(ended.err, "handler_works")
    assert works["level"] == "warn" and "works again" in works["msg"], works


def test_a_handler_that_gives_one_of_many_back_is_not_down(tmp_path):
    path = os.path.join(tmp_path, "effect")
    with open(path, "w") as file:
        file.write('#!/bin/sh\nread -r body\n[ "$ONCE_KEY" = 9 ] && [ "$ONCE_ATTEMPT" = 1 ] && exit 69\nexit 0\n')
    os.chmod(path, 0o755)
    p = Pipeline(tmp_path, 'key: "${/id}"\nworkers: 1\nretry: {backoff: 1ms..5ms}\nhandler: {exec: [./effect]}\n')
    p.write(*[{"id": i} for i in range(20)])
    ended = p.try_run("--log-format", "json")
    assert ended.status == 0 and ended.json["done"] == 20 and lines(ended.err, "handler_down") == [], ended


def test_the_end_of_a_trouble_has_a_name_of_its_own(tmp_path):
    """An alert goes by the event: what is over must not fire it again."""
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: "INSERT INTO t VALUES (:id)"}\n', "CREATE TABLE t(id)")
    p.write({"id": 1})
    ended = p.try_run("--log-format", "json", failpoint="commit_before:error:1")
    assert ended.status == 0 and ended.json["done"] == 1, ended
    assert all("works again" not in line["msg"] for line in lines(ended.err, "store_failed")), ended
    (works,) = lines(ended.err, "store_works")
    assert works["level"] == "warn" and "works again" in works["msg"], works
