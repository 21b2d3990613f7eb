"""The store's file when something is wrong with it: a clear error, nothing acked, nothing lost, and it goes on afterwards."""

import os
import shutil
import sqlite3
import tempfile

import pytest

from harness import Pipeline, counts, until

TABLES = "CREATE TABLE t(id PRIMARY KEY, v); CREATE TABLE total(n); INSERT INTO total VALUES (0);"
CONFIG = 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id, :v)", "UPDATE total SET n = n + 1"]}\nbatch: {max: 64}\n'


def pipeline(folder, n=50, size=10, **more):
    p = Pipeline(folder, CONFIG, TABLES, **more)
    p.write(*[{"id": i, "v": "x" * size} for i in range(n)])
    return p


def stops(p, status, *told, **more):
    ended = p.try_run(**more)
    assert ended.status in (status if isinstance(status, tuple) else (status,)), ended
    assert ended.err.startswith("once: "), ended
    for part in told:
        assert part in ended.err, ended
    return ended


def whole(p, n=50):
    """Everything took effect exactly once."""
    assert p.rows("SELECT count(*), count(DISTINCT id) FROM t") == [(n, n)]
    assert p.value("SELECT n FROM total") == n


# ---- damaged and foreign files ----

def test_f55_not_a_database(tmp_path):
    p = pipeline(tmp_path, store="sqlite:store.db")
    shutil.copy(p.database, tmp_path / "good")
    with open(p.database, "wb") as file:
        file.write(b"Dear diary, " * 1000)
    ended = stops(p, 3, "store.db", "p.yaml:2: ")
    assert ended.json["acked"] == 0 and ended.json["received"] == 0
    with open(p.database, "rb") as file:
        assert file.read() == b"Dear diary, " * 1000, "somebody else's file is left as it is"
    shutil.copy(tmp_path / "good", p.database)
    counts(p.run(status=0), received=50, done=50)
    whole(p)


@pytest.mark.parametrize("from_page", [1, 2, 5])
def test_f55_pages_overwritten(tmp_path, from_page):
    p = pipeline(tmp_path, n=400, size=400)
    p.run(status=0)
    p.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(p.database, tmp_path / "good")
    with open(p.database, "r+b") as file:
        file.seek(from_page * 4096)
        file.write(b"\xa5" * (os.path.getsize(p.database) - from_page * 4096))
    ended = stops(p, 3, "store.db")
    assert ended.json["acked"] == 0 and ended.json["done"] == 0, "damage is never read as 'not seen'"
    shutil.copy(tmp_path / "good", p.database)
    counts(p.run(status=0), received=400, duplicates=400)
    whole(p, 400)


@pytest.mark.parametrize("cut", [4096, 3 * 4096, 5 * 4096 + 100])
def test_f55_truncated(tmp_path, cut):
    p = pipeline(tmp_path, n=400, size=400)
    p.run(status=0)
    p.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(p.database, tmp_path / "good")
    os.truncate(p.database, cut)
    ended = stops(p, 3, "store.db")
    assert ended.json["acked"] == 0 and ended.json["done"] == 0
    shutil.copy(tmp_path / "good", p.database)
    counts(p.run(status=0), received=400, duplicates=400)


def test_f55_check_deep_names_what_is_damaged(tmp_path):
    p = pipeline(tmp_path, n=400)
    p.run(status=0)
    assert "the whole store was read and is intact" in p.once("check", "--deep", p.name).out
    p.execute("UPDATE once_fact SET value = x'00' WHERE name LIKE 'scope/%'; UPDATE once_recent SET records = zeroblob(length(records)) WHERE id = 2")
    ended = p.once("check", "--deep", p.name)
    assert ended.status == 3 and "once_recent" in ended.out, ended
    stops(p, 3, "once_recent", "damaged")
    assert p.value("SELECT n FROM total") == 400, "damage is never read as 'not seen'"


def test_f55_check_deep_reads_names(tmp_path):
    """Without the names that a record refers to nobody can say what it was."""
    p = pipeline(tmp_path)
    p.run(status=0)
    good = p.rows("SELECT id, name FROM once_name ORDER BY id")
    for change in ("UPDATE once_name SET name = CAST(name || x'78' AS BLOB) WHERE id = 1", "DELETE FROM once_name WHERE id = 1",
                   "UPDATE once_name SET id = 100 WHERE id = 1"):
        p.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(p.database, tmp_path / "good")
        p.execute(change)
        ended = p.once("check", "--deep", p.name)
        assert ended.status == 3 and "once_name" in ended.out and "damaged" in ended.err, (change, ended)
        shutil.copy(tmp_path / "good", p.database)
    assert p.rows("SELECT id, name FROM once_name ORDER BY id") == good
    assert "is intact" in p.once("check", "--deep", p.name).out


def test_f55_a_lost_dead_letter_is_noticed(tmp_path):
    """Nobody else has its body."""
    p = pipeline(tmp_path)
    p.write("not json", "not json either")
    p.run(status=1)
    letters = [letter["letter"] for letter in p.once("list", "--dead", "--json", p.name).json["messages"]]
    assert len(letters) == 2
    assert "is intact" in p.once("check", "--deep", p.name).out
    p.execute(f"DELETE FROM once_letter WHERE id = {letters[1]}")
    ended = p.once("check", "--deep", p.name)
    assert ended.status == 3 and "once_letter" in ended.out and "damaged in 1 place;" in ended.err, ended
    ended = p.once("list", "--dead", "--body", p.name)
    assert ended.status == 3 and "not json" in ended.out and "once_letter" in ended.err, "what is there is shown, and that it is not all"
    ended = p.once("replay", p.name, str(letters[1]))
    assert ended.status == 3 and "once_letter" in ended.err, ended


def test_check_deep_says_what_it_did_not_read(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: ["true"]}\n', store="memory")
    ended = p.once("check", "--deep", p.name)
    assert ended.status == 0 and "there is nothing to read" in ended.out and "whole" not in ended.out, ended


def test_f55_a_changed_secret_is_noticed(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    p.execute("UPDATE once_meta SET value = zeroblob(16) WHERE name = 'secret'")
    stops(p, 3, "once_meta", "damaged")
    assert p.value("SELECT n FROM total") == 50


def test_f55_the_secret_of_another_store_is_noticed(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    p, other = pipeline(tmp_path / "one"), pipeline(tmp_path / "two")
    p.run(status=0)
    other.run(status=0)
    p.execute(f"ATTACH '{other.database}' AS other; DELETE FROM once_meta; INSERT INTO once_meta SELECT * FROM other.once_meta")
    stops(p, 4, "this is another store")
    ended = p.try_run("--new-store")
    assert ended.status == 3 and "once_meta is that of another file" in ended.err, ended
    assert p.value("SELECT n FROM total") == 50


def test_a_users_database_gets_our_tables_beside_its_own(tmp_path):
    p = Pipeline(tmp_path, CONFIG)
    connection = sqlite3.connect(p.database)
    connection.executescript("PRAGMA application_id = 1234; PRAGMA user_version = 7; PRAGMA journal_mode = DELETE;" + TABLES)
    connection.close()
    p.write({"id": 1, "v": 1})
    counts(p.run(status=0), received=1, done=1)
    assert [p.value(f"PRAGMA {name}") for name in ("application_id", "user_version", "journal_mode")] == [1234, 7, "delete"]
    assert "WAL" in p.once("check", p.name).out


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_users_database_of_another_encoding(tmp_path, encoding):
    """Sums are over what is said, and not over how the file keeps it."""
    p = Pipeline(tmp_path, CONFIG)
    connection = sqlite3.connect(p.database)
    connection.executescript(f"PRAGMA encoding = '{encoding}';" + TABLES)
    connection.close()
    p.write({"id": "ä", "v": 1}, "not json")
    counts(p.run(status=1), received=2, done=1, dead=1)
    counts(p.run(status=1), received=2, duplicates=2)
    assert p.once("list", "--dead", p.name).status == 0 and p.once("discard", p.name, "1").status == 0
    assert "is intact" in p.once("check", "--deep", p.name).out
    assert p.value("PRAGMA encoding") == encoding and p.value("SELECT id FROM t") == "ä"


def test_a_table_of_our_name_that_is_not_ours(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES + "CREATE TABLE once_meta(a, b, c); INSERT INTO once_meta VALUES (1, 2, 3);")
    p.write({"id": 1, "v": 1})
    ended = stops(p, 3, "once_meta", "not ours")
    assert ended.json["received"] == 0 and p.rows("SELECT * FROM once_meta") == [(1, 2, 3)]


def test_f58_newer_schema_is_refused(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    version = p.value("SELECT value FROM once_meta WHERE name = 'version'")
    p.execute("UPDATE once_meta SET value = 999 WHERE name = 'version'")
    ended = stops(p, 3, "newer", "999", "upgrade")
    assert ended.json["received"] == 0
    p.execute(f"UPDATE once_meta SET value = {version} WHERE name = 'version'")
    counts(p.run(status=0), received=50, duplicates=50)


# ---- a file that goes away while it is in use ----

FOLLOW = "{path: in.ndjson, follow: true}"


def settled(p, n):
    return lambda: p.value("SELECT n FROM total") == n


@pytest.mark.parametrize("idle", [True, False])
def test_f83_deleted_while_it_runs(tmp_path, idle):
    """Noticed by the next look or commit, nothing is acked, and a copy of what was committed can take its place."""
    p = pipeline(tmp_path, source=FOLLOW)
    with p.start() as running:
        until(settled(p, 50), what="fifty messages")
        for name in ("", "-wal", "-shm"):
            os.unlink(p.database + name)
        if not idle:
            p.append(*[{"id": i, "v": 1} for i in range(50, 60)])
        ended = running.end()
    assert ended.status == 3, ended
    assert "store.db" in ended.err and "deleted" in ended.err and "stop everything" in ended.err, ended
    kept = [name for name in os.listdir(tmp_path) if "rescued" in name]
    assert len(kept) == 1 and kept[0] in ended.err, ended
    assert ended.json["acked"] in (0, 50), ended  # 0: deleted between its commit and its look at the file
    os.rename(tmp_path / kept[0], p.database)
    p.configure(CONFIG)
    n = 50 if idle else 60
    counts(p.run(status=0), received=n, duplicates=50, done=n - 50)
    whole(p, n)
    assert p.value("PRAGMA journal_mode") == "wal"


def test_f83_replaced_while_it_runs(tmp_path):
    p = pipeline(tmp_path, source=FOLLOW)
    shutil.copy(p.database, tmp_path / "new")
    with p.start() as running:
        until(settled(p, 50), what="fifty messages")
        os.rename(tmp_path / "new", p.database)
        p.append(*[{"id": i, "v": 1} for i in range(50, 60)])
        ended = running.end()
    assert ended.status == 3 and "replaced" in ended.err, ended
    assert ended.json["acked"] == 50, ended


def test_f83_an_effect_in_a_deleted_database_is_not_done(tmp_path):
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t(id PRIMARY KEY)")
    connection.close()
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: {url: "sqlite:other.db", do: ["INSERT INTO t VALUES (:id)"]}}\nworkers: 1\n', source=FOLLOW)
    p.write({"id": 1})
    with p.start() as running:
        until(lambda: os.path.exists(other) and sqlite3.connect(other).execute("SELECT count(*) FROM t").fetchone() == (1,), what="the first one")
        os.unlink(other)
        p.append({"id": 2}, {"id": 3})
        ended = running.end()
    assert ended.status == 3 and "other.db" in ended.err and "deleted" in ended.err, ended
    assert ended.json["done"] <= 1, ended
    assert not os.path.exists(other)


# ---- places ----

def test_directory_missing(tmp_path):
    p = Pipeline(tmp_path, CONFIG)
    p.configure(CONFIG, store="sqlite:no/such/store.db")
    p.write({"id": 1, "v": 1})
    ended = stops(p, 2, "no/such/store.db", "folder")
    os.makedirs(tmp_path / "no" / "such")
    p.database = str(tmp_path / "no" / "such" / "store.db")
    p.execute(TABLES)
    counts(p.run(status=0), received=1, done=1)


def test_path_is_a_folder(tmp_path):
    os.mkdir(tmp_path / "folder")
    p = Pipeline(tmp_path, CONFIG)
    p.configure(CONFIG, store="sqlite:folder")
    stops(p, 2, "folder")


def as_nobody():
    os.setgid(65534)
    os.setuid(65534)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_read_only_file(tmp_path):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        os.chmod(folder, 0o777)
        p = pipeline(folder)
        p.run(status=0)
        p.append({"id": "new", "v": 1})
        os.chmod(p.database, 0o444)
        own = {"XDG_STATE_HOME": os.path.join(folder, "state")}
        ended = stops(p, 3, "store.db", "writable", preexec_fn=as_nobody, env=own)
        assert ended.json["received"] == 0
        os.chmod(p.database, 0o666)
        for extra in ("-wal", "-shm"):
            if os.path.exists(p.database + extra):
                os.chmod(p.database + extra, 0o666)
        counts(p.run(status=0, preexec_fn=as_nobody, env=own), received=51, done=1, duplicates=50)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_unreadable_file(tmp_path):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        p = pipeline(folder)
        os.chmod(p.database, 0o600)
        stops(p, 3, "permission", preexec_fn=as_nobody, env={"XDG_STATE_HOME": os.path.join(folder, "state")})
        counts(p.run(status=0), received=50, done=50)
