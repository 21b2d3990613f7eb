"""A PostgreSQL store that is restored from a backup while a worker runs, and one that a restore damaged before it was noticed."""

import re
import signal
import subprocess

import pytest

import pgbouncer
import postgres
from harness import counts, until
from pgpipeline import PostgresPipeline, need_postgres, new_name, psql

need_postgres()

CONFIG = 'key: "${/id}"\nlease: 2s\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n'
FOLLOW = "{path: in.ndjson, follow: true}"


def some(n, prefix):
    return [{"id": f"{prefix}{i}"} for i in range(n)]


def name_of(url):
    return re.search(r"@/(\w+)", url).group(1)


def dump(url):
    made = subprocess.run(["pg_dump", "--clean", "--if-exists", "-t", "once_*", url], capture_output=True, text=True, check=True)
    return made.stdout


def load(url, text):
    """All at once; whoever works there waits. A worker in the middle of a batch has locked some tables and wants others, as we do: when that is
    a deadlock, the server chooses who may go on, and nothing of the other's transaction has happened."""
    for _ in range(50):
        ran = subprocess.run(["psql", "-XAtq1", "-v", "ON_ERROR_STOP=1", url.replace("postgres://", "postgresql://", 1)], input=text, text=True,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if ran.returncode == 0:
            return
        assert "deadlock detected" in ran.stderr, ran.stderr
    assert False, "a deadlock each time"


def under_it(server, url, backup):
    load(url, backup)


def in_another_database(server, url, backup):
    """The name stands for a copy of what there was; connections to the old one end."""
    name, copy = name_of(url), new_name()
    server.query(f'CREATE DATABASE "{copy}" TEMPLATE template0')
    load(url.replace(f"/{name}?", f"/{copy}?"), "CREATE TABLE t(id text);" + backup)
    server.query(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    server.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    until(lambda: server.query(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'") == "0", what="the end of all connections")
    server.query(f'ALTER DATABASE "{name}" RENAME TO "{name}_old"')
    server.query(f'ALTER DATABASE "{copy}" RENAME TO "{name}"')


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooler"])
@pytest.mark.parametrize("restore", [under_it, in_another_database])
def test_f82_a_restored_store_gets_no_number_that_it_does_not_have(tmp_path, restore, pooled):
    """The worker had learned numbers of names after the backup was made. What it wrote with them could not be read again."""
    server = postgres.shared()
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    p = PostgresPipeline(tmp_path, CONFIG, url=direct)
    p.write(*some(20, "a"))
    counts(p.run(status=0), received=20, done=20)
    backup = dump(direct)
    pooler = pgbouncer.Pooler(server, "transaction") if pooled else None
    try:
        p.configure(CONFIG, source=FOLLOW, store=pooler.url(direct) if pooled else direct)
        p.append(*some(20, "b"))
        with p.start() as running:
            until(lambda: psql(direct, "SELECT count(*) FROM t WHERE id LIKE 'b%'") == "20\n", what="the second twenty")
            restore(server, direct, backup)
            p.append(*some(20, "c"))
            until(lambda: running.process.poll() is not None or psql(direct, "SELECT count(*) FROM t WHERE id LIKE 'c%'") == "20\n",
                  what="the third twenty, or the end")
            running.send(signal.SIGTERM)
            running.end()
        p.configure(CONFIG, store=direct)
        p.try_run()
        assert psql(direct, "SELECT count(*), count(DISTINCT id) FROM t WHERE id LIKE 'c%'") == "20|20\n"
        said = p.once("check", "--repair", p.name)
        assert said.status == 0 and "nothing had to be repaired" in said.out, said
        assert all(p.explain(f"c{i}")[0]["state"] == "done" for i in range(20))
    finally:
        if pooler:
            pooler.close()


# And what an entry cannot show any more.
DAMAGES = {
    "gone": ("DELETE FROM once_name WHERE get_byte(name, 0) IN (82, 87)", ["who"]),
    "scope gone": ("DELETE FROM once_name WHERE get_byte(name, 0) = 83", []),  # explain shows the scope that it was asked for
    "place gone": ("DELETE FROM once_name WHERE get_byte(name, 0) = 80", ["place"]),
    "another kind": ("UPDATE once_name SET name = 'Rxxxxxxxx' WHERE get_byte(name, 0) = 80", ["place"]),
}


def shown(entry):
    return {part: entry[part] for part in ("consumer", "operation", "place", "who")}


@pytest.mark.parametrize("damage", DAMAGES)
def test_f82_a_store_that_lost_its_names_is_repaired(tmp_path, damage):
    p = PostgresPipeline(tmp_path, CONFIG, "CREATE TABLE t(id text)")
    p.write(*some(1500, "a"))
    counts(p.run(status=0), received=1500, done=1500)
    sql, lost = DAMAGES[damage]
    whole = shown(p.explain("a7")[0])
    p.execute(sql)
    ended = p.try_run()
    assert ended.status == 3 and "once check --repair" in ended.err, ended
    said = p.once("check", "--repair", p.name)
    assert said.status == 0 and "1500 entries, lanes or letters were repaired" in said.out, said
    counts(p.run(status=0), received=1500, duplicates=1500, attempts=0)
    assert p.value("SELECT count(*) FROM t") == 1500
    (entry,) = p.explain("a7")
    assert entry["state"] == "done" and entry["attempt"] == 1
    left = shown(entry)
    assert left == {**whole, **{part: "(lost)" for part in lost}}, (whole, left)
    notes = p.rows("SELECT encode(what, 'escape') AS what, encode(note, 'escape') AS note FROM once_audit")
    assert {what for what, _ in notes} == {"repair"} and sum(int(note.split()[0]) for _, note in notes) == 1500, notes
    said = p.once("check", "--repair", p.name)
    assert said.status == 0 and "nothing had to be repaired" in said.out, said
    assert p.value("SELECT count(*) FROM once_audit") == len(notes)


def test_a_store_that_cannot_be_torn_so_says_so(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, "CREATE TABLE t(id text)")
    p.configure('key: "${/id}"\nhandler: {dead: nothing}\n', store="sqlite:s.db")
    assert p.once("check", p.name).status == 0
    ended = p.once("check", "--repair", p.name)
    assert ended.status == 2 and "sqlite" in ended.err, ended


def test_f82_another_store_behind_a_new_connection_is_not_written(tmp_path):
    """Its keys are made with another secret: everything would be new there."""
    server = postgres.shared()
    p = PostgresPipeline(tmp_path, CONFIG, "CREATE TABLE t(id text)", source=FOLLOW)
    p.write(*some(20, "a"))
    with p.start() as running:
        until(lambda: p.has_table("once_entry") and p.value("SELECT count(*) FROM t") == 20, what="the first ones")
        p.execute("UPDATE once_meta SET value = sha256(value) WHERE name = 'secret'; UPDATE once_meta SET value = substr(value, 1, 16) WHERE name = 'secret'")
        server.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name_of(p.url)}' AND application_name = 'once:c'")
        p.append(*some(5, "b"))
        ended = running.end()
    assert ended.status == 4 and "this is another store, " in ended.err, ended
    assert p.value("SELECT count(*) FROM t") == 20
