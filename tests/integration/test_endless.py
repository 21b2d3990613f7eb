"""A statement without end is ended at its deadline, and readers do not wait for writers."""

import signal
import sqlite3

import pytest

from harness import Pipeline, counts, once, until

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE :endless = 1 OR i < 2)"
WRITES = f"{ENDLESS} INSERT INTO t SELECT :id, max(i) FROM n"
READS = f"{ENDLESS} SELECT max(i) FROM n"
TABLES = "CREATE TABLE t(id, n); CREATE TABLE log(id);"


def pipeline(folder, statement=WRITES, more="", before="INSERT INTO log VALUES (:id)"):
    return Pipeline(folder, f"""
key: "${{/id}}"
handler:
  sql:
    - {before}
    - "{statement}"
retry: {{attempts: 2, backoff: 1ms..2ms}}
{more}
""", TABLES)


# ---- timeout ----

@pytest.mark.parametrize("batch", [1, 1024])
@pytest.mark.parametrize("statement", [WRITES, READS], ids=["writes", "reads"])
def test_f94_a_statement_without_end_is_rolled_back_at_its_timeout(tmp_path, statement, batch):
    p = pipeline(tmp_path, statement, f"timeout: 100ms\nbatch: {{max: {batch}}}\n")
    p.write(*[{"id": i, "endless": 1 if i in (3, 5) else 0} for i in range(8)])
    counts(p.run(status=1), received=8, done=6, dead=2, retries=2)
    assert p.letters() == [(line, "rolled back at its timeout of 100ms") for line in (4, 6)], "after its own attempts, and with its reason"
    assert p.rows("SELECT id FROM log ORDER BY id") == [(i,) for i in (0, 1, 2, 4, 6, 7)], "nothing of it stays, and the others have run once"
    (entry,) = p.explain("3")
    assert entry["failures"] == 2 and [a["outcome"] for a in entry["attempts"]] == ["retry", "dead"]


def test_f94_each_handler_has_its_own_timeout(tmp_path):
    p = Pipeline(tmp_path, f"""
key: "${{/id}}"
type: "${{/type}}"
timeout: 1d
handlers:
  quick: {{sql: ["{WRITES}"], timeout: 50ms, retry: {{attempts: 1}}}}
  other: {{sql: ["INSERT INTO t VALUES (:id, 1)"]}}
""", TABLES)
    p.write({"id": 1, "type": "quick", "endless": 1}, {"id": 2, "type": "other"})
    counts(p.run(status=1), received=2, done=1, dead=1)
    assert p.letters() == [(1, "rolled back at its timeout of 50ms")]


def test_f94_the_time_is_counted_for_each_message(tmp_path):
    p = pipeline(tmp_path, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) INSERT INTO t SELECT :id, max(i) FROM n",
                 "timeout: 2s\n")
    p.write(*[{"id": i} for i in range(60)])
    counts(p.run(status=0), received=60, done=60)  # all together they may take longer


def test_f94_init_is_ended_too(tmp_path):
    p = Pipeline(tmp_path, f"""
key: "${{/id}}"
timeout: 100ms
init: |
  CREATE TABLE IF NOT EXISTS t(id, n);
  {WRITES.replace(':endless', '1').replace(':id', '1')};
handler: {{sql: ["INSERT INTO t VALUES (:id, 0)"]}}
""")
    p.write({"id": 1})
    ended = p.try_run()
    assert ended.status == 2, ended
    assert "init: a statement did not end within 'timeout'; make it shorter, or raise 'timeout'" in ended.err
    assert not p.has_table("t")


# ---- stop ----

@pytest.mark.parametrize("drain", ["0s", "200ms"])
@pytest.mark.parametrize("statement", [WRITES, READS], ids=["writes", "reads"])
def test_f94_a_stop_ends_a_statement_without_end(tmp_path, statement, drain):
    p = pipeline(tmp_path, statement, f"timeout: 1d\ndrain: {drain}\n")
    p.write({"id": 1, "endless": 0}, {"id": 2, "endless": 1}, {"id": 3, "endless": 0})
    with p.start("--log-level", "info") as running:
        until(p.is_running)
        until(lambda: is_locked(p), what="the effect")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0, ended
    summary = ended.json
    counts(summary, received=3, done=2, waiting=1)
    assert p.rows("SELECT id FROM log ORDER BY id") == [(1,), (3,)], "what could be done was done"
    (entry,) = p.explain("2")
    assert (entry["state"], entry["failures"], entry["reason"]) == ("waiting", 0, "rolled back before it had ended"), "nobody is blamed"
    p.configure(open(tmp_path / "p.yaml").read().split("\n", 3)[3].replace("1d", "50ms"))
    counts(p.run(status=1), received=3, resumed=1, duplicates=3, dead=1)


def is_locked(p):
    """For a second already, so that it is the effect, and not one of the short transactions before it."""
    connection = sqlite3.connect(p.database, timeout=1, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        return False
    except sqlite3.OperationalError:
        return True
    finally:
        connection.close()


def test_f94_a_stop_ends_init(tmp_path):
    p = Pipeline(tmp_path, f"""
key: "${{/id}}"
timeout: 1d
init: |
  CREATE TABLE IF NOT EXISTS t(id, n);
  {WRITES.replace(':endless', '1').replace(':id', '1')};
handler: {{sql: ["INSERT INTO t VALUES (:id, 0)"]}}
""", "CREATE TABLE x(x);")
    with p.start() as running:
        until(lambda: p.has_table("once_store"))
        until(lambda: is_locked(p), what="init")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert "stopped while waiting for it" in ended.err and not p.has_table("t"), ended


# ---- those who read ----

READERS = {
    "status": (["status", "p.yaml"], 1),
    "list": (["list", "--waiting", "--dead", "--unknown", "--busy", "p.yaml"], 0),
    "explain": (["explain", "p.yaml", "1"], 0),
    "check": (["check", "p.yaml"], 0),
}
INIT = "init: |\n  CREATE TABLE IF NOT EXISTS t(id, n);\n  CREATE TABLE IF NOT EXISTS log(id);\n  DELETE FROM t WHERE id = 'x';\n"


@pytest.mark.parametrize("init", ["", INIT], ids=["", "init"])
@pytest.mark.parametrize("verb", READERS)
def test_f94_readers_do_not_wait_for_the_write_lock(tmp_path, verb, init):
    arguments, status = READERS[verb]
    p = pipeline(tmp_path, "INSERT INTO t VALUES (:id, :n)", init)
    p.write({"id": 1, "n": 1}, {"id": 2})
    counts(p.run(status=1), received=2, done=1, dead=1)
    head = p.rows("SELECT * FROM once_store")
    writer = sqlite3.connect(p.database, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE once_store SET generation = generation")
    try:
        ended = once(*arguments, cwd=tmp_path)
        assert ended.status == status, ended  # who wants the lock gives up after 10 s, with status 3
    finally:
        writer.execute("ROLLBACK")
        writer.close()
    assert once(*arguments, cwd=tmp_path).status == status
    assert p.rows("SELECT * FROM once_store") == head, "not even the clock is written"


def test_f94_status_while_a_statement_runs(tmp_path):
    p = pipeline(tmp_path, WRITES, "timeout: 1d\ndrain: 0s\n")
    p.write({"id": 1, "endless": 1})
    with p.start() as running:
        until(p.is_running)
        until(lambda: is_locked(p), what="the effect")
        for verb in ("status", "list", "check"):
            ended = p.once(verb, p.name)
            assert ended.status == 0, ended
        assert is_locked(p)
        running.send(signal.SIGTERM)
        assert running.end().status == 0


def test_f94_check_still_finds_mistakes_in_init(tmp_path):
    p = pipeline(tmp_path, "INSERT INTO t VALUES (:id, 1)", "init: CREATE TABLE IF NOT EXISTS t(id, n); CREATE TABEL x(x)\n")
    for _ in range(2):
        ended = p.once("check", p.name)
        assert ended.status == 2 and 'init: near "TABEL": syntax error' in ended.err, ended


def test_f94_check_makes_what_init_would_make_when_it_is_missing(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
init: CREATE TABLE IF NOT EXISTS made(id); INSERT INTO made VALUES (1)
handler: {sql: ["INSERT INTO made VALUES (:id)"]}
""")
    assert p.once("check", p.name).status == 0
    assert p.rows("SELECT id FROM made") == [(1,)]
    assert p.once("check", p.name).status == 0
    assert p.rows("SELECT id FROM made") == [(1,)], "nothing was missing, so nothing was run"
