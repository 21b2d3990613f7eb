"""cursor: true. The place in the file is kept in the store, with the messages before it."""

import os
import socket
import subprocess

import pytest

from harness import Pipeline, counts, until

CONFIG = """
key: "${/id}"
batch: {max: 5}
lease: 300ms
handler: {sql: "INSERT INTO t(id) VALUES (:id)"}
"""


def pipeline(folder, more=""):
    return Pipeline(folder, tables="CREATE TABLE t(id INTEGER);", config=CONFIG, source="{path: in.ndjson, cursor: true%s}" % more)


def lines(first, last):
    return [{"id": i} for i in range(first, last + 1)]


def append(p, *messages, end="\n"):
    with open(os.path.join(p.folder, "in.ndjson"), "a", encoding="utf-8") as file:
        for message in messages:
            file.write(str(message).replace("'", '"') + end)


def ids(p):
    return [i for (i,) in p.rows("SELECT id FROM t ORDER BY id")]


def test_goes_on_where_it_had_got_to(tmp_path):
    p = pipeline(tmp_path)
    p.write(*lines(1, 12))
    counts(p.run(status=0), received=12, done=12)
    counts(p.run(status=0), received=0)
    append(p, *lines(13, 20))
    counts(p.run(status=0), received=8, done=8)
    assert ids(p) == list(range(1, 21))


def test_blank_lines_long_lines_and_a_last_line_without_newline(tmp_path):
    p = pipeline(tmp_path)
    with open(os.path.join(p.folder, "in.ndjson"), "w", encoding="utf-8") as file:
        file.write('{"id": 1}\n\n  \n{"id": 2, "x": "' + "y" * 500000 + '"}\n{"id": 3}')
    counts(p.run(status=0), received=3, done=3)
    assert p.explain("3")[0]["point"] == "5"
    with open(os.path.join(p.folder, "in.ndjson"), "a", encoding="utf-8") as file:
        file.write('\n{"id": 4}\n')
    summary = p.run(status=0)
    counts(summary, received=1, done=1)
    assert ids(p) == [1, 2, 3, 4]


@pytest.mark.parametrize("point", ["commit_before", "commit_after", "effect_before", "settle_after", "ack_before", "fetch_after"])
def test_f09_killed_at_any_point_nothing_is_skipped(tmp_path, point):
    p = pipeline(tmp_path)
    p.write(*lines(1, 40))
    for hit in (3, 2, 1, 4):
        p.try_run(failpoint=f"{point}:kill:{hit}")
    p.run(status=0)
    assert ids(p) == list(range(1, 41))
    counts(p.run(status=0), received=0)


def test_f84_another_file_is_read_from_its_beginning(tmp_path):
    p = pipeline(tmp_path)
    p.write(*lines(1, 10))
    p.run(status=0)
    p.write(*lines(101, 120))
    ended = p.try_run()
    assert ended.status == 0 and "source_lost" in ended.err, ended
    counts(ended.json, received=20, done=20)
    assert p.explain("101")[0]["place"] == "in.ndjson/2"
    p.write(*lines(1, 3))
    counts(p.run(status=0), received=3, duplicates=3)
    counts(p.run(status=0), received=0)
    assert ids(p) == list(range(1, 11)) + list(range(101, 121))


def test_f57_one_process_holds_it_and_the_other_says_who(tmp_path):
    p = pipeline(tmp_path, ", follow: true")
    p.write(*lines(1, 10))
    with p.start() as holder:
        until(lambda: len(ids(p)) == 10, what="ten messages")
        other = p.try_run()
        assert other.status == 3 and f"process {holder.process.pid} on " in other.err, other
        append(p, *lines(11, 15))
        until(lambda: len(ids(p)) == 15, what="fifteen messages")
        holder.send(15)
        assert holder.end().status == 0
    with p.start() as again:
        append(p, *lines(16, 17))
        until(lambda: len(ids(p)) == 17, what="seventeen messages")
        again.send(15)
        counts(again.end().json, received=2, done=2)


def test_f57_a_holder_that_has_not_said_who_it_is(tmp_path):
    """The name is written after the cursor is taken: until then there is none, or that of one that has ended."""
    p = pipeline(tmp_path, ", follow: true")
    p.write(*lines(1, 3))
    with p.start() as holder:
        until(lambda: len(ids(p)) == 3, what="three messages")
        ended = subprocess.Popen(["true"])
        ended.wait()
        p.edit(f"UPDATE once_fact SET value = CAST('process {ended.pid} on {socket.gethostname()}' AS BLOB) WHERE name LIKE 'holder/%'")
        assert "its cursor is held by another process; stop that one" in p.try_run().err, "who has ended does not hold it"
        p.edit("DELETE FROM once_fact WHERE name LIKE 'holder/%'")
        other = p.try_run()
        assert other.status == 3 and "its cursor is held by another process; stop that one" in other.err, other
        holder.send(15)
        assert holder.end().status == 0


def test_standard_input_has_none(tmp_path):
    p = Pipeline(tmp_path, tables="CREATE TABLE t(id INTEGER);", config=CONFIG, source='{path: "-", cursor: true}')
    ended = p.try_run()
    assert ended.status == 2 and "'cursor' is for files" in ended.err, ended
