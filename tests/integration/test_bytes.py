"""`body: bytes`: bodies of any bytes, from a file to each effect, through every store, and shown to people and programs."""

import base64
import hashlib
import json
import os
import sqlite3
import stat
import sys

import pytest

import pq
from anystore import Any, store  # noqa: F401
from harness import Pipeline, counts
from pgpipeline import PostgresPipeline, need_postgres

BYTES = "{path: in.ndjson}, body: bytes"
# Everything but a newline: NUL, no UTF-8, an empty line, white space, quotes, what looks like SQL or an escape, and JSON.
ODD = [b"\0", b"\0\0\xff", b"\xff\xfe\x80", b"", b" \t\r", b"'; DROP TABLE t; --", b"\\x4142", b'{"a": 1}', b'{"a":1}', b"{", "ü😀".encode(),
       bytes(b for b in range(256) if b != 10)]
HASHED = {hashlib.sha256(body).hexdigest()[:32]: body for body in ODD}


def script(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def pipeline(folder, config, **more):
    p = Pipeline(folder, config, source=BYTES, **more)
    p.write(*ODD)
    return p


# ---- effects ----

SQL = 'key: "${hash}"\nhandler: {sql: ["INSERT INTO t VALUES (:once_key, :once_body)"]}\n'


def test_sqlite_keeps_them_as_blobs(tmp_path):
    p = pipeline(tmp_path, SQL, tables="CREATE TABLE t(k TEXT PRIMARY KEY, body BLOB);")
    p.append(*ODD)
    counts(p.run(status=0), received=2 * len(ODD), done=len(ODD), duplicates=len(ODD))
    assert dict(p.rows("SELECT k, body FROM t")) == HASHED
    assert p.value("SELECT count(*) FROM t WHERE typeof(body) = 'blob'") == len(ODD)
    counts(p.run(status=0), received=2 * len(ODD), duplicates=2 * len(ODD))


def test_postgres_keeps_them_as_bytea(tmp_path):
    need_postgres()
    p = PostgresPipeline(tmp_path, SQL, tables="CREATE TABLE t(k text PRIMARY KEY, body bytea);", source=BYTES)
    p.write(*ODD)
    counts(p.run(status=0), received=len(ODD), done=len(ODD))
    found = {k: bytes.fromhex(body) for k, body in pq.once(p.url, "SELECT k, encode(body, 'hex') FROM t")}
    assert found == HASHED


def test_postgres_refuses_bytes_where_it_expects_something_else(tmp_path):
    need_postgres()
    p = PostgresPipeline(tmp_path, "patience: 100ms\n" + SQL, tables="CREATE TABLE t(k text PRIMARY KEY, body integer);", source=BYTES)
    p.write(b"1234")
    ended = p.try_run()
    assert ended.status == 3 and "p.yaml:6: a body of bytes (:once_body) stands where the database expects another type" in ended.err, ended
    counts(ended.json, received=1, waiting=1, paused=1)  # no body can pass
    p.write(b"text", b"\xff")
    pq.once(p.url, "ALTER TABLE t ALTER COLUMN body TYPE text")
    counts(p.run(status=1), received=2, resumed=1, done=2, dead=1)  # the second one is a body that is no text
    assert sorted(pq.once(p.url, "SELECT body FROM t")) == [("1234",), ("text",)]


@pytest.mark.parametrize("kind", ["text", "json", "jsonb", "bytea"])
def test_a_json_body_is_bound_as_it_came(tmp_path, kind):
    need_postgres()
    config = 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:once_body)"]}\n'
    p = PostgresPipeline(tmp_path, config, tables=f"CREATE TABLE t(body {kind});")
    body = r'{"id": 1,  "text": "a\nb\\c \u00fc", "n": 1.50}'
    p.write(body)
    counts(p.run(status=0), received=1, done=1)
    (found,), = pq.once(p.url, "SELECT convert_from(body, 'UTF8') FROM t" if kind == "bytea" else "SELECT body FROM t")
    assert found == body if kind != "jsonb" else json.loads(found) == json.loads(body)


def test_a_json_body_is_text_in_sqlite(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:once_body, typeof(:once_body))"]}\n',
                 "CREATE TABLE t(body, kind);")
    p.write('{"id": 1,  "x": "\\u00fc"}')
    counts(p.run(status=0), received=1, done=1)
    assert p.rows("SELECT * FROM t") == [('{"id": 1,  "x": "\\u00fc"}', "text")]


def test_a_command_reads_them_from_standard_input(tmp_path):
    script(tmp_path, "effect", '#!/bin/sh\ncat > "out.$ONCE_KEY" && echo "$ONCE_TOMBSTONE" >> tombstones\n')
    p = pipeline(tmp_path, 'key: "${hash}"\nhandler: {exec: [./effect]}\n')
    counts(p.run(status=0), received=len(ODD), done=len(ODD))
    found = {name[4:]: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name.startswith("out.")}
    assert found == HASHED
    assert set((tmp_path / "tombstones").read_text().split()) == {"0"}


STREAM = """
import base64, json, sys
for line in sys.stdin.buffer:
    m = json.loads(line)
    assert "body" not in m
    open("out." + m["key"], "wb").write(base64.b64decode(m["body_base64"], validate=True))
    print(json.dumps({"id": m["id"], "outcome": "done"}), flush=True)
"""


def test_a_kept_process_gets_base64(tmp_path):
    script(tmp_path, "handler.py", STREAM)
    p = pipeline(tmp_path, f'key: "${{hash}}"\nhandler: {{exec: [{sys.executable}, handler.py], mode: stream}}\n')
    counts(p.run(status=0), received=len(ODD), done=len(ODD))
    found = {name[4:]: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name.startswith("out.")}
    assert found == HASHED


def test_the_largest_and_one_byte_more(tmp_path):
    p = Pipeline(tmp_path, "message_max: 1MiB\n" + SQL, "CREATE TABLE t(k TEXT PRIMARY KEY, body BLOB);", source=BYTES)
    whole = bytes(i % 251 + 11 & 255 for i in range(1 << 20)).replace(b"\n", b"\0")
    p.write(whole, whole + b"x")
    counts(p.run(status=1), received=2, done=1, dead=1)
    assert p.rows("SELECT body FROM t") == [(whole,)]


def test_a_key_is_used_again_with_other_bytes(tmp_path):
    """Of bytes that happen to be JSON, white space counts: it is another message."""
    config = 'key: "${coordinates}"\nhandler: {sql: ["INSERT INTO t VALUES (:once_key, :once_body)"]}\n'
    p = Pipeline(tmp_path, config, "CREATE TABLE t(k TEXT PRIMARY KEY, body BLOB);", source=BYTES)
    p.write(b'{"a":1}')
    counts(p.run(status=0), received=1, done=1)
    p.write(b'{"a": 1}')
    counts(p.run(status=1), received=1, dead=1, conflicts=1)
    (_, reason), = p.letters()
    assert reason.startswith("conflict: the key was used before with other content; the first one came from in.ndjson:1 at "), reason


# ---- stores, and what is shown ----

RETRIED = 'key: "${hash}"\nbreaker: off\nretry: {attempts: 2, backoff: 1ms..2ms}\nhandler: {exec: [./effect]}\n'


def test_every_store_keeps_them_through_retries_letters_and_replay(tmp_path, store):  # noqa: F811
    script(tmp_path, "effect", '#!/bin/sh\ncat > "in.$ONCE_KEY.$ONCE_ATTEMPT"; test -e good || exit 75\n')
    p = Any(tmp_path, store, "")
    p.configure(RETRIED, source=BYTES)
    p.write(*ODD)
    counts(p.run(status=1), received=len(ODD), dead=len(ODD))
    shown = {m["key"]: m for m in p.dead("--body")}
    assert {k: base64.b64decode(m["body_base64"]) for k, m in shown.items()} == HASHED
    assert not any("body" in m or "line" in m for m in shown.values())
    (tmp_path / "good").touch()
    assert p.ask("replay", "--all")["counts"]["run"] == len(ODD)
    p.run(status=0)
    for attempt in (1, 2, 3):
        assert {k: (tmp_path / f"in.{k}.{attempt}").read_bytes() for k in HASHED} == HASHED


def dead(folder, *bodies, key="${hash}"):
    p = Pipeline(folder, f'key: "{key}"\nhandler: {{dead: no}}\n', source=BYTES)
    p.write(*bodies)
    p.run(status=1)
    return p


def test_people_see_escaped_text(tmp_path):
    p = dead(tmp_path, b"\x1b[2J\\x41\xff\0 \xc3\xbc")
    plain = p.once("list", p.name).out
    assert "2J" not in plain, "bodies are shown on request"
    assert p.once("list", "--body", p.name).out.splitlines()[1] == "    \\x1b[2J\\\\x41\\xff\\x00 ü"
    explained = p.once("explain", p.name, "--message", "in.ndjson:1").out
    assert "2J" not in explained and "dead letter" in explained


def test_a_malformed_json_body_that_is_no_text_is_shown_exactly(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {dead: no}\n')
    p.write(b'{"id": "\xff"}', b'{"id": "\xc3\xbc"')
    p.run(status=1)
    first, second = p.once("list", "--json", "--body", p.name).json["messages"]
    assert base64.b64decode(first["body_base64"]) == b'{"id": "\xff"}' and "body" not in first
    assert second["body"] == '{"id": "ü"' and "body_base64" not in second


CAT = '%shandler: {exec: [sh, -c, "cat > got"]}\n'


def test_a_new_body_is_taken_byte_for_byte(tmp_path):
    """The line end of a file belongs to the bytes."""
    p = dead(tmp_path, b"", key="${coordinates}")
    p.configure(CAT % 'key: "${coordinates}"\n', source=BYTES)
    letter, = p.once("list", "--json", p.name).json["messages"]
    (tmp_path / "new").write_bytes(b"new\0\xff\n")
    assert p.once("replay", p.name, str(letter["letter"]), "--body", "new").status == 0
    p.write()
    p.run(status=0)
    assert (tmp_path / "got").read_bytes() == b"new\0\xff\n"


def test_a_new_body_has_another_hash(tmp_path):
    p = dead(tmp_path, b"old\xff")
    p.configure(CAT % 'key: "${hash}"\n', source=BYTES)
    letter, = p.once("list", "--json", p.name).json["messages"]
    (tmp_path / "new").write_bytes(b"new")
    ended = p.once("replay", "--json", p.name, str(letter["letter"]), "--body", "new")
    assert ended.json["letters"][0]["verdict"] == "other_key"


def test_the_audit_shows_the_bytes_that_were_replaced(tmp_path):
    p = dead(tmp_path, b"old\xff", key="${coordinates}")
    p.configure(CAT % 'key: "${coordinates}"\n', source=BYTES)
    letter, = p.once("list", "--json", p.name).json["messages"]
    (tmp_path / "new").write_bytes(b"new")
    assert p.once("replay", p.name, str(letter["letter"]), "--body", "new").status == 0
    record, = p.once("list", "--audit", "--body", "--json", p.name).json["audit"]
    assert base64.b64decode(record["body_base64"]) == b"old\xff" and "body" not in record
    assert "    replaced: old\\xff\n" in p.once("list", "--audit", "--body", p.name).out


# ---- the pipeline file ----

def test_check_names_what_cannot_be(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["SELECT :id"]}\n', source=BYTES)
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status == 2
        assert "p.yaml:4: 'key' names the field '/id', and with 'body: bytes' a body has no fields; use ${header:NAME}" in ended.err
        assert "p.yaml:5: 'sql' names the field '/id'" in ended.err


def test_a_changed_body_needs_a_word(tmp_path):
    p = pipeline(tmp_path, SQL, tables="CREATE TABLE t(k TEXT PRIMARY KEY, body BLOB);")
    p.run(status=0)
    p.configure(SQL)
    ended = p.try_run()
    assert ended.status == 2 and '"body":"bytes"' in ended.err and "--confirm-scope-change" in ended.err, ended


def test_check_says_what_bodies_are(tmp_path):
    p = pipeline(tmp_path, SQL, tables="CREATE TABLE t(k TEXT PRIMARY KEY, body BLOB);")
    assert "bodies are bytes" in p.once("check", p.name).out
    p.configure('key: "${/id}"\nhandler: {dead: no}\n')
    assert "bodies are bytes" not in p.once("check", p.name).out


def test_f26_what_a_natural_message_failed_with_is_compared_later(tmp_path):
    """It runs without a claim, so its fingerprint is computed when it has failed; the next delivery is compared with it."""
    other = tmp_path / "other.db"
    sqlite3.connect(other).executescript("CREATE TABLE t(body BLOB CHECK (length(body) > 3));").close()
    p = Pipeline(tmp_path, f'key: "${{coordinates}}"\nhandler: {{natural: true, unknown: retry, sql: {{url: "sqlite:{other}", '
                           'do: ["INSERT INTO t VALUES (:once_body)"]}}\n', source=BYTES)
    p.write(b"\xff\x01", b"long enough")
    counts(p.run(status=1), received=2, done=1, dead=1)
    counts(p.run(status=1), received=2, done=1, duplicates=1)
    p.write(b"\xff\x02", b"long enough")
    counts(p.run(status=1), received=2, done=1, dead=1, conflicts=1)
    assert [letter["kind"] for letter in p.once("list", "--dead", "--json", p.name).json["messages"]] == ["dead", "conflict"]
