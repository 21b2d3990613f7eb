"""Rotation of a followed file, half-written lines, and starts in between: with ${coordinates} as the key each line runs once."""

import os
import random
import shutil
import signal

import pytest

from harness import Pipeline, counts, stopped, until
from hosts import on_host  # noqa: F401 (a fixture)
from pgpipeline import PostgresPipeline, need_postgres

CONFIG = """
key: "${coordinates}"
batch: {max: 7}
handler: {sql: "INSERT INTO t(id) VALUES (:id)"}
"""


def pipeline(folder, source="{path: in.ndjson, cursor: true, follow: true}", config=CONFIG):
    return Pipeline(folder, tables="CREATE TABLE t(id INTEGER);", config=config, source=source)


def ids(p):
    return [i for (i,) in p.rows("SELECT id FROM t ORDER BY id")]


def line(i):
    return b'{"id": %d}\n' % i


class Writer:
    def __init__(self, p):
        self.p, self.next, self.rotated = p, 1, 0

    def write(self, n, path=None):
        with open(path or self.p.source, "ab") as file:
            for _ in range(n):
                file.write(line(self.next))
                self.next += 1

    def half(self, path):
        """The first half of a line, and what completes it."""
        text = line(self.next)
        self.next += 1
        with open(path, "ab") as file:
            file.write(text[:4])
        return text[4:]

    def name(self):
        self.rotated += 1
        return f"{self.p.source}.{self.rotated}"

    def rename(self, late):
        old, rest = self.name(), self.half(self.p.source) if late else b""
        os.rename(self.p.source, old)
        if late:
            self.write(3)
            with open(old, "ab") as file:
                file.write(rest)
            self.write(2, old)
        else:
            self.write(5)

    def copytruncate(self, more):
        shutil.copy(self.p.source, self.name())
        os.truncate(self.p.source, 0)
        self.write(more)

    def replace(self):
        """Written anew as a whole, with more at the end."""
        new = self.p.source + "~"
        shutil.copy(self.p.source, new)
        self.write(4, new)
        os.rename(new, self.p.source)


@pytest.mark.parametrize("seed", range(4))
def test_f84_logs_that_are_rotated_and_readers_that_are_killed(tmp_path, seed):
    rng = random.Random(seed)
    p = pipeline(tmp_path)
    w = Writer(p)
    running = p.start()
    try:
        for _ in range(10):
            w.write(1)
            until(lambda: len(ids(p)) == w.next - 1, what=f"{w.next - 1} messages")
            w.write(rng.randrange(200))
            if rng.randrange(4) == 0:
                running.send(signal.SIGKILL)
                running.end()
                running = None
            act = rng.randrange(5)
            if act == 0:
                w.rename(late=False)
            elif act == 1:
                w.rename(late=True)
            elif act == 2:
                w.copytruncate(rng.randrange(3))
            elif act == 3:
                w.copytruncate(400)  # longer than what was there
            else:
                w.replace()
            if running and rng.randrange(3) == 0:
                running.send(signal.SIGKILL)
                running.end()
                running = None
            running = running or p.start()
            until(lambda: len(ids(p)) >= w.next - 1, what=f"{w.next - 1} messages")
        until(p.is_running)
        running.send(signal.SIGTERM)
        ended = running.end()
        assert ended.status == 0, ended
    finally:
        if running:
            with running:
                pass
    assert ids(p) == list(range(1, w.next))


def test_f84_coordinates_after_a_rotation(tmp_path):
    p = pipeline(tmp_path)
    w = Writer(p)
    with p.start() as running:
        w.write(2)
        until(lambda: len(ids(p)) == 2)
        w.rename(late=False)
        until(lambda: len(ids(p)) == 7)
        running.send(signal.SIGTERM)
        assert running.end().status == 0
    assert p.explain("in.ndjson:1")[0]["point"] == "1"
    assert p.explain("in.ndjson/2:1")[0]["place"] == "in.ndjson/2"
    for place, told in (("in.ndjson/2:5", "first"), ("in.ndjson:2", "first")):
        ended = p.once("explain", p.name, "--json", "--message", place)
        assert ended.status == 0 and f'"{told}"' in ended.out, ended
    ended = p.once("explain", p.name, "--message", "in.ndjson/3:1")
    assert ended.status == 2 and "has no message" in ended.err, ended


def test_f84_without_a_cursor_the_files_keep_their_numbers(tmp_path):
    p = pipeline(tmp_path, "{path: in.ndjson}")
    p.write({"id": 1}, {"id": 2})
    counts(p.run(status=0), received=2, done=2)
    os.rename(p.source, p.source + ".1")
    p.write({"id": 3}, {"id": 4}, {"id": 5})
    counts(p.run(status=0), received=3, done=3)
    counts(p.run(status=0), received=3, duplicates=3)
    p.append({"id": 6})
    counts(p.run(status=0), received=4, duplicates=3, done=1)
    assert ids(p) == [1, 2, 3, 4, 5, 6]
    assert p.explain("in.ndjson/2:4")[0]["state"] == "done"


@pytest.mark.parametrize("cursor", ["true", "false"])
def test_f84_a_last_line_without_newline_runs_once(tmp_path, cursor):
    p = pipeline(tmp_path, "{path: in.ndjson, cursor: %s}" % cursor)
    with open(p.source, "wb") as file:
        file.write(b'{"id": 1}\n{"id": 2}')
    counts(p.run(status=0), received=2, done=2)
    p.run(status=0)
    with open(p.source, "ab") as file:
        file.write(b'\n{"id": 3}\n{"id": 4}')
    p.run(status=0)
    with open(p.source, "ab") as file:
        file.write(b"\n")
    p.run(status=0)
    assert ids(p) == [1, 2, 3, 4]
    assert p.explain("in.ndjson:3")[0]["state"] == "done"


def test_f84_a_half_written_last_line_is_not_skipped(tmp_path):
    p = pipeline(tmp_path, "{path: in.ndjson, cursor: true}", CONFIG.replace("${coordinates}", "${/id}"))
    with open(p.source, "wb") as file:
        file.write(b'{"id": 1}\n{"id": 2')
    counts(p.run(status=1), received=2, done=1, dead=1)
    with open(p.source, "ab") as file:
        file.write(b'2}\n{"id": 3}\n')
    counts(p.run(status=1), received=2, done=2)
    assert ids(p) == [1, 3, 22]
    counts(p.run(status=1), received=0)


def test_f84_an_oversized_first_line_leaves_the_cursor_usable(tmp_path):
    p = pipeline(tmp_path, "{path: in.ndjson, cursor: true}")
    with open(p.source, "wb") as file:
        file.write(b'{"id": 1, "v": "' + b"x" * (70 << 20) + b'"}\n')
    counts(p.run(status=1), received=1, dead=1)
    counts(p.run(status=1), received=0)
    p.append({"id": 2})
    counts(p.run(status=1), received=1, done=1)
    assert ids(p) == [2] and p.explain("in.ndjson:2")[0]["state"] == "done"


@pytest.mark.parametrize("fingerprint", ["", "fingerprint: none\n"])
def test_f84_the_next_pod_counts_files_on(tmp_path, on_host, fingerprint):  # noqa: F811
    p = pipeline(tmp_path, "{path: in.ndjson}", CONFIG + fingerprint)
    p.write({"id": 1})
    counts(p.run(status=0, env=on_host("pod-1")), received=1, done=1)
    os.rename(p.source, p.source + ".1")
    p.write({"id": 2})
    counts(p.run(status=0, env=on_host("pod-2")), received=1, done=1)
    counts(p.run(status=0, env=on_host("pod-1")), received=1, duplicates=1)
    assert ids(p) == [1, 2] and p.explain("in.ndjson/2:1")[0]["state"] == "done"


def rotate(p, number, message):
    os.rename(p.source, f"{p.source}.{number}")
    p.write(message)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_f84_rotated_before_the_first_commit(tmp_path, follow, times):
    p = pipeline(tmp_path, "{path: in.ndjson, cursor: true%s}" % (", follow: true" if follow else ""))
    p.write({"id": 1})
    assert p.try_run(failpoint="open_after:kill").killed
    for i in range(times):
        rotate(p, i + 1, {"id": i + 2})
    read_all(p, follow, times + 1)
    for i in range(times + 1):
        place = f"in.ndjson/{i + 1}:1" if i else "in.ndjson:1"
        assert p.explain(place)[0]["state"] == "done"


def read_all(p, follow, n):
    """To the end: all of 1...n are there, each once."""
    if follow:
        with p.start() as running:
            until(lambda: len(ids(p)) >= n, what=f"{n} messages")
            until(p.is_running)
            running.send(signal.SIGTERM)
            ended = running.end()
            assert ended.status == 0, ended
    else:
        p.run(status=0)
        counts(p.run(status=0), received=0)
    assert ids(p) == list(range(1, n + 1))


@pytest.mark.parametrize("names", [("in.ndjson.2", "in.ndjson.1"), ("in.ndjson-20260101", "in.ndjson-20260102"), ("in-7.ndjson", "in-8.ndjson")])
def test_f84_two_rotations_between_two_commits(tmp_path, names):
    p = pipeline(tmp_path)
    p.write({"id": 1})
    with p.start() as running:
        until(lambda: ids(p) == [1])
        running.send(signal.SIGKILL)
        running.end()
    p.append({"id": 2})
    for i, name in enumerate(names):
        os.rename(p.source, tmp_path / name)
        p.write({"id": i + 3})
    (tmp_path / "in.ndjson.db").write_text('{"id": 100}\n')  # not by rotation
    read_all(p, True, 4)


def test_f84_two_rotations_while_nobody_looks(tmp_path):
    p = pipeline(tmp_path)
    p.write({"id": 1})
    with p.start("--log-level", "info") as running:
        until(lambda: ids(p) == [1])
        running.send(signal.SIGSTOP)
        until(lambda: stopped(running))
        rotate(p, 1, {"id": 2})
        rotate(p, 2, {"id": 3})
        running.send(signal.SIGCONT)
        until(lambda: len(ids(p)) >= 3)
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0 and "the one before was read up to line 1," in ended.err, ended
    assert ids(p) == [1, 2, 3]
    read_all(p, True, 3)


def test_f84_two_times_truncated_between_two_runs(tmp_path):
    p = pipeline(tmp_path, "{path: in.ndjson, cursor: true}")
    w = Writer(p)
    w.write(5)
    p.run(status=0)
    w.write(3)
    w.copytruncate(4)
    w.copytruncate(6)
    read_all(p, False, 18)


def test_f84_more_files_than_are_read_at_once(tmp_path):
    p = pipeline(tmp_path, "{path: in.ndjson, cursor: true}")
    p.write({"id": 1})
    p.run(status=0)
    for i in range(40):
        rotate(p, i + 1, {"id": i + 2})
    for _ in range(4):
        p.run(status=0)
    assert ids(p) == list(range(1, 42))


def test_f84_a_compressed_file_in_between_is_said(tmp_path):
    p = pipeline(tmp_path, "{path: in.ndjson, cursor: true}")
    p.write({"id": 1})
    p.run(status=0)
    rotate(p, 2, {"id": 2})
    rotate(p, 1, {"id": 3})
    os.rename(p.source + ".1", p.source + ".1.gz")
    ended = p.try_run()
    assert ended.status == 0 and "'in.ndjson.1.gz' may have had the path in between" in ended.err, ended
    assert ids(p) == [1, 3]


def test_f84_check_warns_where_a_start_would_not_find_a_rotated_file(tmp_path):
    p = pipeline(tmp_path, "{path: in.ndjson, follow: true}")
    ended = p.once("check", p.name)
    assert ended.status == 0 and "'follow' without 'cursor'" in ended.out, ended
    p.configure(CONFIG)
    assert "'follow' without 'cursor'" not in p.once("check", p.name).out


def test_f84_check_warns_of_coordinates_in_a_store_of_many_machines(tmp_path):
    need_postgres()
    p = PostgresPipeline(tmp_path, CONFIG, "CREATE TABLE t(id bigint);")
    ended = p.once("check", p.name)
    assert ended.status == 0 and "${coordinates} are the path as it is written and the line" in ended.out, ended
    p = pipeline(tmp_path)
    assert "machines" not in p.once("check", p.name).out
