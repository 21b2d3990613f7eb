"""After a SIGKILL: the next run, or one beside, goes on at once where it is certain that the dead one is gone with all that it had begun.
Otherwise it waits for the lease, and logs for whom and how long.

Leases are of ten minutes, longer than any test may take: nothing here passes by waiting for one."""

import contextlib
import json
import os
import pwd
import re
import signal
import socket
import sqlite3
import time

import pytest

import postgres
from harness import Pipeline, counts, stopped, until
from pgpipeline import has_postgres, new_name, psql
from redisserver import RedisServer, has_redis
from terminal import Terminal

TABLES = "CREATE TABLE log(id text, attempt int); CREATE TABLE t(key text PRIMARY KEY, id text)"
ELSEWHERE = """
key: "${/id}"
lease: 10m
timeout: 5m
unknown: %(unknown)s
workers: 1
retry: {attempts: %(attempts)d, backoff: 1ms..5ms}
handler:
  sql:
    url: %(url)s
    do:
      - INSERT INTO log VALUES (:id, :once_attempt)
      - INSERT INTO t(key, id) VALUES (:once_idempotency_key, :id) ON CONFLICT DO NOTHING
"""
COMMAND = """
key: "${/id}"
lease: 10m
timeout: 5m
unknown: retry
handler: {exec: [./effect]}
"""
LOUD = ("--log-format", "json", "--log-level", "info")


@pytest.fixture
def store_url(request, tmp_path):
    """The URL of an empty store of the kind that the test asks for."""
    with contextlib.ExitStack() as stack:
        if request.param == "postgres":
            if not has_postgres():
                pytest.skip("missing: libpq in the build")
            yield postgres.shared().schema(new_name())
        elif request.param == "redis":
            if not has_redis():
                pytest.skip("missing: redis-server, or hiredis in the build")
            yield stack.enter_context(RedisServer(tmp_path)).url()
        else:
            yield "sqlite:store.db"


every_store = pytest.mark.parametrize("store_url", ["sqlite", "postgres", "redis"], indirect=True)


def lines(text, event):
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def who(process):
    return f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}:{process.pid}"


class Elsewhere:
    """Messages whose effects are in another SQLite file, which a test may lock: an effect that has begun waits then."""

    def __init__(self, folder, store="sqlite:store.db", unknown="retry", n=3, attempts=5, url="sqlite:other.db"):
        self.other = Pipeline(folder, store="sqlite:other.db")
        if url == "sqlite:other.db":
            self.other.execute("PRAGMA journal_mode = WAL;" + TABLES)
        self.p = Pipeline(folder, ELSEWHERE % {"unknown": unknown, "attempts": attempts, "url": url}, store=store)
        self.p.write(*[{"id": f"k{i}"} for i in range(n)])

    def effects(self):
        return self.other.rows("SELECT id, attempt FROM log ORDER BY id, attempt")

    @contextlib.contextmanager
    def locked(self):
        connection = sqlite3.connect(self.other.database, timeout=30, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.close()

    def claimed(self):
        ended = self.p.once("list", "--busy", "--json", self.p.name)
        return ended.json["messages"] if ended.status == 0 else []

    def workers(self, state):
        return [w for w in self.p.once("status", "--json", self.p.name).json["workers"] if w["state"] == state]


# ---- taken over ----

@every_store
@pytest.mark.parametrize("unknown", ["retry", "hold"])
@pytest.mark.parametrize("point", ["effect_between", "effect_after"])
def test_f99_the_next_run_takes_over_at_once(tmp_path, store_url, unknown, point):
    """Killed in the middle of its effect, or between its COMMIT and ours."""
    work = Elsewhere(tmp_path, store_url, unknown)
    with work.p.start(failpoint=f"{point}:kill") as first:
        ended = first.end()
        assert ended.killed, ended
    happened = [("k0", 1)] if point == "effect_after" else []
    assert work.effects() == happened
    (gone,) = work.workers("gone")
    assert gone["who"] == who(first.process) and gone["holds"] == 1, "what it holds is known by its claims"
    begun = time.monotonic()
    ended = work.p.try_run(*LOUD)
    assert time.monotonic() - begun < 55
    (taken,) = lines(ended.err, "taken_over")
    assert taken["level"] == "warn" and taken["msg"].startswith(f"{who(first.process)} is gone"), taken
    assert "its claims of 1 message " in taken["msg"] and not lines(ended.err, "waiting"), ended
    if unknown == "retry":
        assert ended.status == 0, ended
        counts(ended.json, received=3, done=3, repeats=1)
        assert work.effects() == happened + [("k0", 2), ("k1", 1), ("k2", 1)], "the attempt counts"
    else:
        assert ended.status == 1, ended
        counts(ended.json, received=3, done=2, unknown=1)
        assert work.effects() == happened + [("k1", 1), ("k2", 1)], "held, and not run"
        assert [m["key"] for m in work.p.once("list", "--unknown", "--json", work.p.name).json["messages"]] == ["k0"]
    assert work.p.once("status", "--json", work.p.name).json["workers"] == []


@every_store
def test_f99_one_beside_takes_over_from_one_that_is_killed(tmp_path, store_url):
    """The second one was told that the first has it, and waits; then the first is killed."""
    work = Elsewhere(tmp_path, store_url, n=1)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(tmp_path / "log", "wb"))
        with work.locked():
            first = stack.enter_context(work.p.start())
            until(lambda: work.claimed(), what="the first has claimed it")
            second = stack.enter_context(work.p.start(*LOUD, stderr=log))
            (waiting,) = until(lambda: lines((tmp_path / "log").read_text(), "waiting"), what="the second waits")
            first.send(signal.SIGKILL)  # and nobody collects it
        ended = second.end()
    said = (tmp_path / "log").read_text()
    assert waiting["level"] == "info" and ended.status == 0 and ended.json["repeats"] == 1, said
    (taken,) = lines(said, "taken_over")
    assert taken["msg"].startswith(f"{who(first.process)} is gone"), taken
    assert work.effects() == [("k0", 2)]


def test_f99_attempts_that_are_taken_over_are_counted(tmp_path):
    """Each one dies in its effect: the budget ends that."""
    work = Elsewhere(tmp_path, n=1, attempts=3)
    for attempt in range(3):
        assert work.p.try_run(failpoint="effect_between:kill").killed, attempt
    ended = work.p.try_run()
    assert ended.status == 1 and ended.json["dead"] == 1, ended
    assert work.effects() == []


@every_store
def test_f99_what_was_taken_from_the_store_is_taken_over(tmp_path, store_url):
    """It was received by one, and taken by another one, whose it is then."""
    work = Elsewhere(tmp_path, store_url, n=1)
    with open(tmp_path / work.p.name, "a") as file:
        file.write("ack: after_accept\n")
    assert work.p.try_run(failpoint="commit_after:kill").killed, "accepted"
    with work.p.start(failpoint="effect_between:kill") as second:
        assert second.end().killed
    assert [(w["who"], w["holds"]) for w in work.workers("gone")] == [(who(second.process), 1)]
    ended = work.p.try_run(*LOUD)
    assert ended.status == 0 and ended.json["repeats"] == 1, ended
    (taken,) = lines(ended.err, "taken_over")
    assert taken["msg"].startswith(f"{who(second.process)} is gone"), taken
    assert work.effects() == [("k0", 2)]


def test_f99_a_commit_on_its_way_is_for_its_key_to_tell(tmp_path):
    """COMMIT was sent when its worker was killed, and takes its time on the server. The one that takes over meets the row that is not yet
    there for others, waits for it, and changes nothing."""
    if not has_postgres():
        pytest.skip("missing: libpq in the build")
    url = postgres.shared().schema(new_name())
    psql(url, """CREATE TABLE log(id text, attempt int); CREATE TABLE t(key text PRIMARY KEY, id text);
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()""")
    work = Elsewhere(tmp_path, n=1, url=url)
    committing = "SELECT count(*) FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active' AND wait_event = 'PgSleep'"
    with work.p.start() as first:
        until(lambda: psql(url, committing) != "0\n", what="COMMIT is on its way")
        first.send(signal.SIGKILL)
        first.process.wait()
        assert psql(url, "SELECT count(*) FROM t") == "0\n"
        ended = work.p.try_run(*LOUD)
    assert ended.status == 0 and len(lines(ended.err, "taken_over")) == 1, ended
    counts(ended.json, received=1, done=1, repeats=1)
    assert psql(url, "SELECT count(*), min(id) FROM t") == "1|k0\n"


# ---- not taken over ----

@every_store
def test_f99_commands_may_live_on_so_their_lease_is_waited_for(tmp_path, store_url):
    """What a command has started outlives the worker: it is still at work when the next run comes."""
    (tmp_path / "effect").write_text('#!/bin/sh\nread -r body\necho "$ONCE_ATTEMPT" >> begun\nsetsid sleep 100 </dev/null >/dev/null 2>&1 &\necho $! > child\nwait\n')
    os.chmod(tmp_path / "effect", 0o755)
    p = Pipeline(tmp_path, COMMAND, store=store_url)
    p.write({"id": "k0"})
    with p.start() as first:
        until(lambda: os.path.exists(tmp_path / "child") and (tmp_path / "child").read_text(), what="the command runs")
        first.send(signal.SIGKILL)
        first.process.wait()
    child = int((tmp_path / "child").read_text())
    try:
        os.kill(child, 0)
        with open(tmp_path / "log", "wb") as log, p.start(*LOUD, stderr=log) as second:
            (waiting,) = until(lambda: lines((tmp_path / "log").read_text(), "waiting"), what="it says that it waits")
            time.sleep(2)
            assert second.process.poll() is None and (tmp_path / "begun").read_text() == "1\n"
            second.send(signal.SIGTERM)
            second.process.wait(30)
        assert waiting["level"] == "warn" and f"key 'k0' of {who(first.process)}, which is gone, but its commands may still run" in waiting["msg"]
        assert "its claim ends in 9m" in waiting["msg"] and not lines((tmp_path / "log").read_text(), "taken_over")
    finally:
        os.kill(child, signal.SIGKILL)


@every_store
def test_f99_one_that_is_stopped_is_not_taken_over(tmp_path, store_url):
    work = Elsewhere(tmp_path, store_url, n=1)
    with work.p.start() as first:
        with work.locked():
            until(lambda: work.claimed(), what="it is claimed")
            first.send(signal.SIGSTOP)
            until(lambda: stopped(first), what="it has stopped")
        with open(tmp_path / "log", "wb") as log, work.p.start(*LOUD, stderr=log) as second:
            (waiting,) = until(lambda: lines((tmp_path / "log").read_text(), "waiting"), what="it says that it waits")
            time.sleep(2)
            assert second.process.poll() is None and work.effects() == []
            first.send(signal.SIGCONT)
            assert first.end().status == 0
            ended = second.end()
    said = (tmp_path / "log").read_text()
    assert ended.status == 0 and ended.json["done"] == 0, ended
    assert waiting["level"] == "info" and f"{who(first.process)}, which is alive" in waiting["msg"], "an ordinary second worker is no warning"
    assert not lines(said, "taken_over") and not lines(said, "unclean")
    assert work.effects() == [("k0", 1)]


def other_machine(p):
    p.edit("UPDATE once_fact SET value = CAST(substr(value, 1, 40) || x'0102030405060708' || substr(value, 49) AS BLOB) WHERE name LIKE 'worker/%'")


def older_program(p):
    p.edit("UPDATE once_fact SET value = substr(value, 1, length(value) - 2) WHERE name LIKE 'worker/%'")


def no_record(p):
    p.edit("DELETE FROM once_fact WHERE name LIKE 'worker/%'")


@pytest.mark.parametrize("change, state", [(other_machine, "which is alive"), (older_program, "which is gone, but its commands"), (no_record, "which has ended or is gone")],
                         ids=["another_machine", "a_record_from_before", "no_record"])
def test_f99_where_it_is_not_certain_the_lease_is_waited_for(tmp_path, change, state):
    work = Elsewhere(tmp_path, n=1)
    with work.p.start(failpoint="effect_between:kill") as first:
        assert first.end().killed
    change(work.p)
    with open(tmp_path / "log", "wb") as log, work.p.start(*LOUD, stderr=log) as second:
        (waiting,) = until(lambda: lines((tmp_path / "log").read_text(), "waiting"), what="it says that it waits")
        time.sleep(1.5)
        assert second.process.poll() is None and work.effects() == []
        second.send(signal.SIGTERM)
        second.end()
    assert state in waiting["msg"] and who(first.process) in waiting["msg"], waiting
    assert not lines((tmp_path / "log").read_text(), "taken_over")


# ---- shown ----

@pytest.mark.parametrize("unknown, says", [("retry", "its worker is gone: the next run goes on with it at once"),
                                           ("hold", "its worker is gone: with the next run it is unknown at once")])
def test_f99_who_looks_is_told_what_the_next_run_does(tmp_path, unknown, says):
    work = Elsewhere(tmp_path, unknown=unknown, n=1)
    assert work.p.try_run(failpoint="effect_between:kill").killed
    (busy,) = work.claimed()
    assert busy["reason"] == says, busy
    (entry,) = work.p.explain("k0")
    assert entry["state"] == "claimed" and entry["reason"] == says, entry
    assert f"Reason: {says}." in work.p.once("explain", work.p.name, "k0").out
    assert says in work.p.once("list", work.p.name).out
    ended = work.p.try_run()
    assert ended.json["done" if unknown == "retry" else "unknown"] == 1, ended


def killed_command(folder):
    (folder / "effect").write_text("#!/bin/sh\nread -r body\ntouch begun\nsleep 100\n")
    os.chmod(folder / "effect", 0o755)
    p = Pipeline(folder, COMMAND)
    p.write({"id": "k0"})
    with p.start() as first:
        until(lambda: os.path.exists(folder / "begun"), what="the command runs")
        first.send(signal.SIGKILL)
        first.process.wait()
    return p, first.process


def test_f99_who_looks_is_told_that_the_lease_of_commands_is_waited_for(tmp_path):
    p, _ = killed_command(tmp_path)
    (busy,) = p.once("list", "--busy", "--json", p.name).json["messages"]
    assert busy["reason"] == "its worker is gone, but its commands may still run: the lease is waited for", busy
    assert p.explain("k0")[0]["reason"] == busy["reason"]


def on_terminal(p, level, wanted):
    """What a run writes to its terminal until it has shown that."""
    with Terminal(p, "--log-level", level) as terminal:
        terminal.see(re.escape(wanted))
    return terminal.seen


def test_f99_the_live_line_says_for_whom_and_how_long(tmp_path):
    p, first = killed_command(tmp_path)
    on_terminal(p, "error", f"waits 9m58s for {who(first)}, which is gone")


def test_what_is_logged_stands_above_the_live_line(tmp_path):
    """Each line begins where a line begins: the live one is cleared before."""
    p, _ = killed_command(tmp_path)
    seen = "  \n" + on_terminal(p, "info", "waits 9m58s for ")
    logged = re.findall(r"(.{3})time=2", seen, re.DOTALL)
    assert len(logged) >= 2 and all(before == "\033[K" or before.endswith("\n") for before in logged), logged
    assert "event=waiting" in seen and "\033[K" in logged, "it was written while the live line was there"
