"""Protections of SECURITY.md that have no other home: what messages can do to logs and terminals, and that the page is true."""

import os
import re

from harness import ROOT, Pipeline

from test_docs import names_in_tests

CONFIG = """
key: "${/id}"
type: "${/type}"
tenant: "${/tenant}"
handlers:
  a:
    sql: ["INSERT INTO t VALUES (:id, :n, :note)"]
    retry: {attempts: 2, backoff: 1ms..2ms, on: [t.note]}
"""
TABLE = "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER CHECK (n > 0), note TEXT UNIQUE);"
LINE = {"logfmt": r'time=\S+ level=info event=dead msg=".*"',
        "json": r'{"time":"[^"]*","level":"info","event":"dead","msg":".*"}'}
SECRET = "4929-1234-5678-9012"


def message(key, **more):
    return {"id": key, "type": "a", "tenant": "x", "n": 1, "note": SECRET, **more}


def hostile(p):
    """One message for every way to end as a dead letter, each with the secret in its body."""
    p.write(message("k1"), message("k2"), message("k1", n=2), message("k3", n=SECRET, note=SECRET),
            message("k4", n=-1, note=SECRET + "x"),
            '{"id": "k5", "type": "a", "note": "%s" %s' % (SECRET, SECRET), message("k6", note={"card": SECRET}, type="b"),
            {"id": "k7", "type": "a", "tenant": "x", "card": SECRET}, {"type": "a", "tenant": "x", "card": SECRET})
    return 9


def test_bodies_are_in_no_log_and_no_summary(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLE)
    n = hostile(p)
    for form in ("logfmt", "json"):
        ended = p.try_run("--log-level", "debug", "--log-format", form)
        assert ended.status == 1 and ended.json["received"] == n
        assert SECRET not in ended.out + ended.err
    assert len(p.letters()) == n - 1
    assert not [reason for _, reason in p.letters() if SECRET in reason]
    for key in ("k1", "k2", "k3", "k4"):
        told = p.once("explain", "--tenant", "x", p.name, key)
        assert told.status == 0 and SECRET not in told.out + told.err, told


def test_a_message_can_neither_forge_a_log_line_nor_steer_a_terminal(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLE)
    evil = "\x1b[2J\x07\r\ntime=2026-01-01T00:00:00Z level=error event=forged\u0085\u009b31m"
    p.write(message("k1" + evil, n=-1), message("k2", type=evil), message("k3", tenant=evil, n=-2), evil.encode().replace(b"\n", b" "))
    for form in ("logfmt", "json"):
        os.remove(p.database)
        p.execute("PRAGMA journal_mode = WAL;" + TABLE)
        ended = p.try_run("--log-level", "debug", "--log-format", form)
        assert ended.status == 1 and ended.json["dead"] == 4
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u0080-\u009f]", ended.err), repr(ended.err)
        lines = ended.err.splitlines()
        assert len(lines) == 4 and all(re.fullmatch(LINE[form], line) for line in lines), ended.err


def test_statements_take_values_and_never_text(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id, 1, :note)"]}\n', TABLE)
    notes = ["'); DROP TABLE t; --", "\\'; DELETE FROM once_entry; --", "\0'", ":id", "?1", "$x", "%s%n"]
    p.write(*[{"id": f"k{n}", "note": note} for n, note in enumerate(notes)])
    assert p.run()["done"] == len(notes)
    assert [note for (note,) in p.rows("SELECT note FROM t ORDER BY id")] == notes


def test_every_protection_names_a_test_that_exists():
    names = names_in_tests()
    with open(os.path.join(ROOT, "SECURITY.md"), encoding="utf-8") as text:
        section = text.read().partition("## Protections")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    for row in rows:
        proof = row.rsplit("|", 2)[1]
        tests = re.findall(r"`([a-z0-9_]+)`", proof)
        assert tests, row
        for test in tests:
            exists = os.path.exists(os.path.join(ROOT, "tests", "fuzz", test + ".c")) if test.startswith("fuzz_") else test in names
            assert exists, f"{test} is named by the page and is not in tests/"
