"""Processes: two on one store, signals, standard input, a file that grows, a standard error that nobody reads."""

import os
import signal
import subprocess
import time

import pytest

from harness import ONCE, Pipeline, check_sum, counts, environment, stopped, until

TABLES = "CREATE TABLE t(n INTEGER PRIMARY KEY, id, process); CREATE TABLE total(n); INSERT INTO total VALUES (0);"
CONFIG = 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)", "UPDATE total SET n = n + 1"]}\nlease: 2s\n'


def some(n, first=0):
    return [{"id": i} for i in range(first, first + n)]


def exactly_once(p, n):
    assert p.rows("SELECT count(*), count(DISTINCT id) FROM t") == [(n, n)]
    assert p.value("SELECT n FROM total") == n


# ---- two processes ----

@pytest.mark.parametrize("batch", [7, 1024])
def test_f25_f57_two_processes_on_one_file(tmp_path, batch):
    p = Pipeline(tmp_path, CONFIG + f"batch: {{max: {batch}}}\n", TABLES)
    p.write(*some(1500))
    with p.start() as one, p.start() as two:
        ended = [one.end(), two.end()]
    for e in ended:
        assert e.status == 0, e
        check_sum(e.json)
        assert e.json["received"] == 1500
    assert ended[0].json["done"] + ended[1].json["done"] == 1500
    exactly_once(p, 1500)
    counts(p.run(status=0), received=1500, duplicates=1500)


def test_f57_f25_four_processes_with_failures_and_lanes(tmp_path):
    config = 'key: "${/id}"\norder: "${/lane}"\nlease: 2s\nretry: {attempts: 1000, backoff: 1ms..20ms}\nbatch: {max: 20}\nhandler:\n  sql:\n' \
             '    - INSERT INTO t(id) VALUES (:id)\n    - UPDATE total SET n = n + 1\n' \
             '    - {do: "SELECT 1 WHERE :flaky = 1 AND (SELECT n FROM total) < 150", rows: 0, else: retry}\n'
    p = Pipeline(tmp_path, config, TABLES)
    p.write(*[{"id": i, "lane": i % 40, "flaky": 1 if i % 40 < 4 and i < 40 else 0} for i in range(400)])
    running = [p.start() for _ in range(4)]
    try:
        ended = [r.end() for r in running]
    finally:
        for r in running:
            r.__exit__()
    for e in ended:
        assert e.status == 0, e
        check_sum(e.json)
    assert sum(e.json["done"] for e in ended) == 400
    exactly_once(p, 400)
    for lane in range(40):
        mine = [i for (i,) in p.rows("SELECT id FROM t WHERE id % 40 = ? ORDER BY n", lane)]
        assert mine == sorted(mine), f"lane {lane}"


def test_f57_two_consumers_on_one_file_at_once(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES)
    q = Pipeline(tmp_path, CONFIG, consumer="other", name="q.yaml", source="{path: ./in.ndjson}")
    p.write(*some(500))
    with p.start() as one, q.start() as two:
        ended = [one.end(), two.end()]
    for e in ended:
        assert e.status == 0, e
        counts(e.json, received=500, done=500)
    assert p.rows("SELECT count(*), count(DISTINCT id) FROM t") == [(1000, 500)]


def test_f57_a_writer_of_the_user_at_the_same_time(tmp_path):
    p = Pipeline(tmp_path, CONFIG + "batch: {max: 5}\n", TABLES + "CREATE TABLE other(n);")
    p.write(*some(400))
    with p.start() as running:
        connection = p.connect()
        written = 0
        while running.process.poll() is None:
            connection.execute("INSERT INTO other VALUES (1)")
            connection.commit()
            written += 1
        connection.close()
        ended = running.end()
    assert ended.status == 0, ended
    exactly_once(p, 400)
    assert p.value("SELECT count(*) FROM other") == written


def test_f46_f57_locked_for_longer_than_patience(tmp_path):
    """Somebody holds the write lock: the run waits, and goes on when it is free."""
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.run()
    p.write(*some(20))
    connection = p.connect()
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    with p.start() as running:
        time.sleep(0.3)
        assert running.process.poll() is None
        connection.execute("ROLLBACK")
        connection.close()
        ended = running.end()
    assert ended.status == 0, ended
    exactly_once(p, 20)


# ---- signals ----

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_f59_told_to_stop_it_drains(tmp_path, number):
    p = Pipeline(tmp_path, CONFIG + "batch: {max: 3}\n", TABLES)
    p.write(*some(5000))
    with p.start() as running:
        until(p.is_running, what="it runs")
        until(lambda: p.value("SELECT n FROM total") > 0, what="the first effects")
        running.send(number)
        ended = running.end()
    assert ended.status == 0, ended
    check_sum(ended.json)
    assert ended.json["stopped"] is True
    done = ended.json["done"]
    assert 0 < done < 5000 and ended.json["acked"] == ended.json["received"] == done
    assert p.value("SELECT n FROM total") == done
    counts(p.run(status=0), received=5000, done=5000 - done, duplicates=done)
    exactly_once(p, 5000)


def test_f59_stop_while_something_waits(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nlease: 1s\nretry: {attempts: 9, backoff: 30d..30d}\nhandler: {sql: ['
                           '{do: "INSERT INTO t(id) SELECT :id FROM total WHERE n > 0", rows: 1, else: retry}]}\n', TABLES)
    p.write(*some(3))
    with p.start() as running:
        until(p.is_running, what="it runs")
        until(lambda: p.value("SELECT count(*) FROM once_entry WHERE state = 2") == 3, what="all wait")
        running.send(signal.SIGTERM)
        ended = running.end(5)
    assert ended.status == 0, ended
    counts(ended.json, received=3, waiting=3, stopped=True, acked=3)
    p.edit("UPDATE total SET n = 1; UPDATE once_entry SET due_ms = 0")
    p.write()
    counts(p.run(status=0), resumed=3, done=3, received=0)


def test_f59_second_signal_ends_it_the_hard_way(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES, source="{path: in.ndjson, follow: true}")
    with p.start(failpoint="drain_before:stop") as running:
        until(p.is_running, what="it runs")
        running.send(signal.SIGTERM)
        until(lambda: stopped(running), what="stopped while draining")
        time.sleep(1.1)  # two within a second are one
        running.send(signal.SIGTERM)
        running.send(signal.SIGCONT)
        assert running.end().status == -signal.SIGTERM


# ---- standard input ----

def test_stdin(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES, source='{path: "-"}')
    counts(p.run(status=0, stdin=b'{"id": 1}\n{"id": 2}\n\n{"id": 1}\n{"id": 3}'), received=4, done=3, duplicates=1)
    counts(p.run(status=0, stdin=b'{"id": 3}\n{"id": 4}\n'), received=2, done=1, duplicates=1)
    counts(p.run(status=0, stdin=b""), received=0)
    exactly_once(p, 4)
    assert "lost" in p.once("check", p.name).out


def test_stdin_comes_slowly(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES, source='{path: "-"}')
    with p.start(stdin=subprocess.PIPE) as running:
        for i, piece in enumerate([b'{"id"', b": 1}\n{", b'"id": 2}\n', b'{"id": 3', b"}"]):
            running.process.stdin.write(piece)
            running.process.stdin.flush()
            if i in (1, 2):  # a whole line is worked on without waiting for the end
                until(p.is_running, what="it runs")
                until(lambda: p.value("SELECT n FROM total") == i, what=f"{i} lines done")
        running.process.stdin.close()
        running.process.stdin = None
        ended = running.end()
    assert ended.status == 0, ended
    counts(ended.json, received=3, done=3)


def test_stdin_told_to_stop_while_it_waits_for_input(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES, source='{path: "-"}')
    with p.start(stdin=subprocess.PIPE) as running:
        running.process.stdin.write(b'{"id": 1}\n')
        running.process.stdin.flush()
        until(p.is_running, what="it runs")
        until(lambda: p.value("SELECT n FROM total") == 1, what="the line is done")
        running.send(signal.SIGTERM)
        assert running.process.wait(5) == 0


# ---- a file that grows ----

def test_follow(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES, source="{path: in.ndjson, follow: true}")
    p.write(*some(3))
    with p.start() as running:
        until(p.is_running, what="it runs")
        until(lambda: p.value("SELECT n FROM total") == 3, what="what was there")
        p.append(*some(4, 3))
        until(lambda: p.value("SELECT n FROM total") == 7, what="what was added")
        with open(p.source, "ab") as file:
            file.write(b'{"id": 99')
        time.sleep(0.15)
        assert p.value("SELECT n FROM total") == 7, "half a line is no line"
        with open(p.source, "ab") as file:
            file.write(b"}\n")
        until(lambda: p.value("SELECT n FROM total") == 8, what="the rest of the line")
        p.append({"id": 0})
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0, ended
    check_sum(ended.json)
    assert ended.json["done"] == 8 and ended.json["stopped"] is True
    with p.start() as running:  # nothing new: all of it is known
        until(p.is_running, what="it runs")
        time.sleep(0.3)
        running.send(signal.SIGTERM)
        counts(running.end().json, received=9, duplicates=9)
    exactly_once(p, 8)


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_f84_follow_goes_on_with_another_file(tmp_path, how):
    p = Pipeline(tmp_path, CONFIG, TABLES, source="{path: in.ndjson, follow: true}")
    p.write(*some(3))
    with p.start() as running:
        until(p.is_running, what="it runs")
        until(lambda: p.value("SELECT n FROM total") == 3, what="what was there")
        if how == "truncated":
            os.truncate(p.source, 0)
            p.append(*some(1, 50))
        else:
            os.rename(p.source, p.source + ".1")
            p.write(*some(1, 50))
        until(lambda: p.value("SELECT n FROM total") == 4, what="what is there now")
        running.send(signal.SIGTERM)
        assert running.end().status == 0


# ---- standard error that nobody reads ----

LOUD = ["--log-level", "debug"]


def with_something_to_log(folder):
    """A run that was killed: the next one has a warning to tell before it begins."""
    p = Pipeline(folder, CONFIG + "batch: {max: 4}\n", TABLES)
    p.write(*some(100), "bad")
    assert p.try_run(failpoint="commit_after:kill:3").killed
    return p


def all_done(p, ended):
    assert ended.status == 1
    check_sum(ended.json)
    assert ended.json["received"] == 101 and ended.json["dead"] == 1
    exactly_once(p, 100)


def test_warning_after_a_kill(tmp_path):
    p = with_something_to_log(tmp_path)
    ended = p.try_run(*LOUD)
    assert "unclean" in ended.err, ended
    all_done(p, ended)


def test_f100_workers_side_by_side(tmp_path):
    """One starts beside another without penalty or alarm; one ends, one is killed; the next one is told of the killed one alone."""
    def workers(state):
        return [w for w in p.once("status", "--json", p.name).json["workers"] if w["state"] == state]

    p = Pipeline(tmp_path, CONFIG, TABLES, source="{path: in.ndjson, follow: true}")
    p.write(*some(20))
    with p.start(*LOUD) as first:
        until(lambda: p.is_running() and p.value("SELECT n FROM total") == 20, what="the first is done")
        seen = workers("alive")
        assert len(seen) == 1 and seen[0]["done"] == 20 and seen[0]["holds"] == 0, seen
        assert seen[0]["who"].endswith(f":{first.process.pid}"), seen
        with p.start(*LOUD) as second:
            until(lambda: len(workers("alive")) == 2, what="the second runs")
            text = p.once("status", p.name).out
            assert text.count("  worker ") == 2 and f":{second.process.pid}, alive, since " in text, text
            first.send(signal.SIGTERM)
            ended = first.end()
            assert ended.status == 0 and "unclean" not in ended.err, ended
            assert len(workers("alive")) == 1
            second.send(signal.SIGKILL)
            assert "unclean" not in second.end().err
    assert len(workers("gone")) == 1 and not workers("alive")
    with p.start(*LOUD) as third:
        until(lambda: len(workers("alive")) == 1, what="the third runs")
        with p.start(*LOUD) as fourth:
            until(lambda: len(workers("alive")) == 2, what="the fourth runs")
            fourth.send(signal.SIGTERM)
            ended = fourth.end()
            assert ended.status == 0 and "unclean" not in ended.err, ended
        third.send(signal.SIGTERM)
        ended = third.end()
    assert ended.status == 0 and "unclean" in ended.err, ended
    assert p.once("status", "--json", p.name).json["workers"] == []


def test_f100_what_workers_hold_and_have_done(tmp_path):
    def workers():
        return p.once("status", "--json", p.name).json["workers"]

    wait = tmp_path / "wait"
    p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{exec: [sh, -c, "while test -e {wait}; do sleep 0.02; done"]}}\nlease: 60s\n',
                 source="{path: in.ndjson, follow: true}")
    p.write(*some(20))
    with p.start() as first:
        until(lambda: p.is_running() and [w["done"] for w in workers()] == [20], what="the first is done")
        before, = workers()
        assert before["holds"] == 0, before
        wait.write_text("")
        p.append(*some(1, 20))
        until(lambda: workers()[0]["holds"] == 1, what="it holds one")
        now, = workers()
        assert now["done"] == 20 and now["begun_ms"] == before["begun_ms"] and now["seen_ms"] >= before["seen_ms"], (before, now)
        with p.start() as second:
            until(lambda: len(workers()) == 2, what="the second runs")
            assert [w["holds"] for w in workers()] == [1, 0]  # by their begin
            wait.unlink()
            until(lambda: [w["done"] for w in workers()] == [21, 0], what="the last one is settled by who ran it")
            assert [w["holds"] for w in workers()] == [0, 0]
            assert workers()[0]["begun_ms"] == before["begun_ms"]
            second.send(signal.SIGTERM)
            assert second.end().status == 0
        first.send(signal.SIGTERM)
        assert first.end().status == 0


def test_f100_a_worker_is_not_late_before_its_longest_claim(tmp_path):
    handlers = "".join(f'  {name}: {{exec: ["true"], lease: {lease}}}\n' for name, lease in (("a", "40s"), ("b", "20m"), ("c", "50s")))
    p = Pipeline(tmp_path, 'key: "${/id}"\ntype: "${/type}"\nhandlers:\n' + handlers, source="{path: in.ndjson, follow: true}")
    p.write()
    with p.start() as running:
        until(p.is_running, what="it runs")
        (record,), = p.rows("SELECT value FROM once_fact WHERE name LIKE 'worker/%'")
        assert int.from_bytes(record[16:24], "big") == 20 * 60 * 1000  # the third number, see store/worker.c
        running.send(signal.SIGTERM)
        assert running.end().status == 0


def test_f68_stderr_blocked(tmp_path):
    p = with_something_to_log(tmp_path)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)  # the pipe is full before it starts
    except BlockingIOError:
        os.set_blocking(writer, True)
    with p.start(*LOUD, stderr=writer) as running:
        os.close(writer)
        ended = running.end(30)
    os.close(reader)
    all_done(p, ended)


def test_f68_stderr_reader_gone(tmp_path):
    """A broken pipe is no reason to end."""
    p = with_something_to_log(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    with p.start(*LOUD, stderr=writer) as running:
        os.close(writer)
        ended = running.end(30)
    all_done(p, ended)


def test_f68_stderr_closed(tmp_path):
    p = with_something_to_log(tmp_path)
    all_done(p, p.try_run(*LOUD, preexec_fn=lambda: os.close(2)))


def test_f68_stderr_on_a_full_disk(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    p = with_something_to_log(tmp_path)
    with open("/dev/full", "wb") as full, p.start(*LOUD, stderr=full) as running:
        all_done(p, running.end())


def test_stdout_on_a_full_disk_is_told(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write(*some(5))
    with open("/dev/full", "wb") as full, p.start(stdout=full) as running:
        ended = running.end()
    assert ended.status == 3 and "standard output" in ended.err
    exactly_once(p, 5)


@pytest.mark.parametrize("closed", [[0], [1], [0, 1, 2]])
def test_closed_standard_descriptors_do_not_become_the_store(tmp_path, closed):
    """With 0, 1 or 2 closed the next open file would get that number, and a log line could land in the database."""
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write(*some(50), "bad")

    def close():
        for number in closed:
            os.close(number)

    subprocess.run([ONCE, "run", "--log-level", "debug", p.name], cwd=tmp_path, env=environment(), preexec_fn=close, timeout=30)
    exactly_once(p, 50)
    assert p.value("PRAGMA integrity_check") == "ok"
    counts(p.run(status=1), received=51, duplicates=51)
