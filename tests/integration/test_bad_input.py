"""Bad input: each bad line is a dead letter with its line number and a reason, and the rest goes on."""

import json

import pytest

from harness import Pipeline, counts

TABLE = "CREATE TABLE t(id, v);"
CONFIG = 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id, :{/v?})"]}\n'
GOOD = {"id": "good", "v": 1}


def pipeline(folder, config=CONFIG):
    return Pipeline(folder, config, TABLE)


def deep(levels, inside=b"1"):
    return b'{"id": "deep", "v": ' + b"[" * levels + inside + b"]" * levels + b"}"


@pytest.mark.parametrize("line, told", [
    (b"{", "malformed JSON"), (b"nonsense", "malformed JSON"), (b'{"id": 1,}', "malformed JSON"),
    (b'{"id": 1} x', "malformed JSON"),
    (b'{"id": 1}{"id": 2}', "malformed JSON"), (b"{'id': 1}", "malformed JSON"), (b'{"id": 01}', "malformed JSON"),
    (b'{"id": NaN}', "malformed JSON"),
    (b'{"id": "a\tb"}', "malformed JSON"), (b'{"id": "\\x"}', "malformed JSON"), (b'{"id": "\\ud800"}', "malformed JSON"),
    (b'{"id": 1, "v": "\xff"}', "malformed JSON"), (b'{"id": 1, "v": "\xc0\x80"}', "malformed JSON"),
    (b'{"id": 1, "v": "\xed\xa0\x80"}', "malformed JSON"),
    (b'{"id": 1, "v": "a\x00b"}', "malformed JSON"), (b'{"id": 1}\x00', "malformed JSON"), (b"\x00", "malformed JSON"),
    (b'{"id": 1, "id": 2}', "malformed JSON"), (b'{"id": 1, "v": {"a": 1, "\\u0061": 2}}', "malformed JSON"),
    (b"\xef\xbb\xbf{\"id\": 1}", "malformed JSON"), (b'{"v": 1}', "/id"), (b'{"id": ""}', "the key is empty"),
    (b'{"id": {}}', "/id"), (b'{"id": [1]}', "/id"),
    (b'{"id": null}', "/id"), (b"[1, 2]", "/id"), (b'"text"', "/id"), (b"null", "/id"), (b"7", "/id"),
    pytest.param(b'{"id": 1, "v": "' + b"x" * (10 << 20) + b'"}', "message_max", id="10 MB"), pytest.param(deep(10000), "malformed JSON", id="deep"),
    pytest.param(deep(10000, b""), "malformed JSON", id="deep, empty"), pytest.param(b"[" * 100000, "malformed JSON", id="deep, open"),
])
def test_f63_f65_one_bad_line(tmp_path, line, told):
    p = pipeline(tmp_path)
    p.write({"id": "before"}, line, {"id": "after"})
    counts(p.run(status=1), received=3, done=2, dead=1, store_dead=1)
    assert p.rows("SELECT id FROM t") == [("before",), ("after",)]
    ((number, reason),) = p.letters()
    assert number == 2 and told in reason, reason
    assert p.bodies() == [line[:1 << 20]]  # message_max of it
    counts(p.run(status=1), received=3, duplicates=3)
    assert len(p.letters()) == 1


def test_unknown_type(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\ntype: "${/type}"\nhandlers:\n  a: {sql: ["INSERT INTO t VALUES (:id, 1)"]}\n', TABLE)
    p.write({"id": 1, "type": "a"}, {"id": 1, "type": "b"}, {"id": 3}, {"id": 4, "type": ""}, {"id": 5, "type": "A"}, {"id": 6, "type": {"a": 1}})
    counts(p.run(status=1), received=6, done=1, dead=5)
    assert [line for line, _ in p.letters()] == [2, 3, 4, 5, 6]
    assert "'b'" in dict(p.letters())[2]


def test_dead_handler_catches_other_types_by_key(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\ntype: "${/type}"\nhandlers:\n  a: {sql: ["INSERT INTO t VALUES (:id, 1)"]}\n  "*": {dead: not for us}\n', TABLE)
    p.write({"id": 1, "type": "a"}, {"id": 1, "type": "b"}, {"id": 1, "type": "b"}, {"id": 1, "type": "c"})
    summary = p.run(status=1)
    counts(summary, received=4, done=1, dead=2, duplicates=1, conflicts=1)
    assert dict(p.letters())[2] == "not for us"


def test_same_bad_line_twice_is_two_letters(tmp_path):
    """Two lines are two messages; the same line read again is not."""
    p = pipeline(tmp_path)
    p.write("{bad", "{bad")
    counts(p.run(status=1), received=2, dead=2)
    counts(p.run(status=1), received=2, duplicates=2)
    assert [line for line, _ in p.letters()] == [1, 2]


def test_all_kinds_together_in_small_batches(tmp_path):
    p = pipeline(tmp_path, CONFIG + "batch: {max: 3}\n")
    lines = []
    for i in range(60):
        lines += [{"id": i}, b"{broken", {"id": i}, {"v": i}][: 1 + i % 4]
    p.write(*lines)
    bad = [n + 1 for n, line in enumerate(lines) if isinstance(line, bytes) or "id" not in line]
    twice = sum(1 for i in range(60) if i % 4 >= 2)
    counts(p.run(status=1), received=len(lines), done=60, dead=len(bad), duplicates=twice)
    assert [line for line, _ in p.letters()] == bad


def test_blank_lines_are_skipped_and_counted_as_lines(tmp_path):
    p = pipeline(tmp_path)
    p.write(b"", {"id": 1}, b"   ", b"\t", b"\r", {"id": 2}, b"{bad", b"")
    counts(p.run(status=1), received=3, done=2, dead=1)
    assert [line for line, _ in p.letters()] == [7]


def test_last_line_without_newline(tmp_path):
    p = pipeline(tmp_path)
    p.write(b'{"id": 1}\n{"id": 2}', end=b"")
    counts(p.run(status=0), received=2, done=2)
    with open(p.source, "ab") as file:
        file.write(b'\n{"id": 3}')
    counts(p.run(status=0), received=3, done=1, duplicates=2)


def test_crlf(tmp_path):
    p = pipeline(tmp_path)
    p.write({"id": 1, "v": "a"}, b"", {"id": 2, "v": "b"}, {"id": 1, "v": "a"}, end=b"\r\n")
    counts(p.run(status=0), received=3, done=2, duplicates=1)
    assert p.rows("SELECT v FROM t ORDER BY id") == [("a",), ("b",)]


def test_f65_message_max_to_the_byte(tmp_path):
    body = json.dumps({"id": 1, "v": "x" * 100})
    p = pipeline(tmp_path, CONFIG + f"message_max: {len(body)}B\n")
    p.write(body, body.replace('"id": 1', '"id": 2').replace("xx", "xxx", 1), body.replace('"id": 1', '"id": 3'))
    counts(p.run(status=1), received=3, done=2, dead=1)
    assert [line for line, _ in p.letters()] == [2]


def test_large_messages_within_the_limit(tmp_path):
    p = pipeline(tmp_path, CONFIG + "message_max: 8MiB\n")
    p.write(*[{"id": i, "v": chr(97 + i) * (3 << 20)} for i in range(4)])
    counts(p.run(status=0), received=4, done=4)
    assert p.rows("SELECT id, length(v) FROM t ORDER BY id") == [(i, 3 << 20) for i in range(4)]


def test_deep_but_fair_nesting(tmp_path):
    p = pipeline(tmp_path)
    p.write(deep(100))
    counts(p.run(status=0), received=1, done=1)


def test_many_lines_across_read_chunks(tmp_path):
    p = pipeline(tmp_path)
    lines = [{"id": i, "v": "x" * (i % 977)} for i in range(3000)]
    p.write(*lines)
    counts(p.run(status=0), received=3000, done=3000)
    assert p.value("SELECT sum(length(v)) FROM t") == sum(i % 977 for i in range(3000))
