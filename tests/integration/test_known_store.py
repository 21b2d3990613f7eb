"""A store that is lost, emptied, moved or made anew is noticed, while running and across restarts."""

import os
import shutil

import pytest

from harness import Pipeline, counts, until
from pgpipeline import PostgresPipeline, has_postgres
from redisserver import RedisServer, has_redis

CONFIG = 'key: "${/id}"\nhandler: {sql: "INSERT INTO t VALUES (:id)"}\n'
TABLES = "CREATE TABLE t(id)"
FOLLOW = "{path: in.ndjson, follow: true}"
OTHER = 4  # the exit status


def some(n, first=0):
    return [{"id": i} for i in range(first, first + n)]


def pipeline(folder, n=10, **more):
    os.makedirs(folder, exist_ok=True)
    p = Pipeline(folder, CONFIG, TABLES, **more)
    p.write(*some(n))
    return p


def lose(p):
    for end in ("", "-wal", "-shm"):
        if os.path.exists(p.database + end):
            os.rename(p.database + end, p.database + ".lost" + end)


def refused(p, *arguments, say="there is no store here: it was lost, emptied or moved"):
    for verb in (("run", "--json"), ("check", "--json")):
        ended = p.once(*verb, *(arguments if verb[0] == "run" else ()), p.name)
        assert ended.status == OTHER and say in ended.err, ended
        assert ended.json["error"], ended


def test_f82_a_store_that_was_lost_is_not_made_anew(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    lose(p)
    refused(p)
    assert not os.path.exists(p.database), "a refusal makes nothing"
    for end in ("", "-wal", "-shm"):
        if os.path.exists(p.database + ".lost" + end):
            os.rename(p.database + ".lost" + end, p.database + end)
    counts(p.run(status=0), received=10, duplicates=10)
    lose(p)
    p.execute(TABLES)
    refused(p)  # a file with the user's tables and without ours
    counts(p.run("--new-store", status=0), received=10, done=10)
    counts(p.run(status=0), received=10, duplicates=10)  # that one is known now
    audited, = p.once("list", "--audit", "--json", p.name).json["audit"]
    assert audited["what"] == "new-store" and "instead of " in audited["note"], audited


def test_f82_another_store_is_not_taken_for_the_one_that_was_known(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    other = pipeline(tmp_path / "other")
    other.run(status=0)
    lose(p)
    shutil.copy(other.database, p.database)
    refused(p, say="this is another store, ")
    counts(p.run("--new-store", status=0), received=10, duplicates=10)


def test_f82_the_file_may_say_which_store_it_must_be(tmp_path):
    p = pipeline(tmp_path)
    found = p.once("check", "--json", p.name).json["findings"]
    id, = [f["text"].split()[1].rstrip(",") for f in found if f["text"].startswith("store_id ")]
    p.configure(CONFIG + f'store_id: "{id}"\n')
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "nothing")}
    counts(p.run(status=0, env=elsewhere), received=10, done=10)
    assert not os.path.exists(tmp_path / "nothing"), "it is said, so it need not be remembered"
    lose(p)
    for arguments in ((), ("--new-store",)):
        ended = p.once("run", *arguments, p.name, env=elsewhere)
        assert ended.status == OTHER and "'store_id' says " + id in ended.err and "take 'store_id' out" in ended.err, ended
    p.configure(CONFIG + "store_id: xyz\n")
    ended = p.once("check", p.name)
    assert ended.status == 2 and "'store_id' is 16 hex digits" in ended.err, ended


def test_f82_what_is_remembered_is_of_one_pipeline_file_and_consumer(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    second = pipeline(tmp_path / "second", 3)
    counts(second.run(status=0), received=3, done=3)
    os.symlink(tmp_path / p.name, tmp_path / "link.yaml")
    lose(p)
    ended = p.once("run", "link.yaml")
    assert ended.status == OTHER, ended


@pytest.mark.parametrize("how", ["no home", "not writable"])
def test_f82_nowhere_to_remember_it(tmp_path, how):
    """It runs, and says so."""
    p = pipeline(tmp_path)
    (tmp_path / "file").write_text("")
    env = {"XDG_STATE_HOME": "" if how == "no home" else str(tmp_path / "file"), "HOME": "" if how == "no home" else str(tmp_path)}
    ended = p.once("run", "--log-level", "info", p.name, env=env)
    assert ended.status == 0 and "put 'store_id: \"" in ended.err.replace('\\"', '"'), ended
    if how == "no home":
        found = p.once("check", "--json", p.name, env=env).json["findings"]
        assert any("no folder to remember the store in" in f["text"] for f in found), found


def test_f82_a_state_file_that_cannot_be_understood_is_refused(tmp_path):
    p = pipeline(tmp_path)
    env = {"STATE_DIRECTORY": str(tmp_path / "state") + ":/second"}
    assert p.once("run", p.name, env=env).status == 0
    kept, = os.listdir(tmp_path / "state")
    assert oct(os.stat(tmp_path / "state" / kept).st_mode & 0o777) == "0o600"
    text = (tmp_path / "state" / kept).read_text()
    assert "\nconsumer c\n" in text and "\nurl sqlite:" in text, text
    (tmp_path / "state" / kept).write_text("")
    ended = p.once("run", p.name, env=env)
    assert ended.status == 3 and "does not say which store this pipeline has met" in ended.err, ended


def test_f82_who_only_looks_is_told_that_there_is_none(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    lose(p)
    for verb in ("status", "list"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "does not exist" in ended.err, ended


# ---- Redis ----

@pytest.mark.skipif(not has_redis(), reason="missing: redis-server, or hiredis in the build")
def test_f82_a_redis_that_was_flushed_is_noticed_across_restarts(tmp_path):
    with RedisServer(tmp_path) as redis:
        p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: [sh, -c, "echo $ONCE_KEY >> ran"]}\n', store=redis.url(), source=FOLLOW)
        p.write(*some(20))

        def ran():
            return open(tmp_path / "ran").read().split() if os.path.exists(tmp_path / "ran") else []

        with p.start() as worker:
            until(lambda: len(ran()) == 20, what="the first ones")
            until(lambda: p.once("status", "--json", p.name).json["busy"] == 0, what="nothing in work")
            redis.call("FLUSHALL")
            p.append(*some(20, 20))
            ended = worker.end(60)
        assert ended.status == 3 and "not the one that was opened" in ended.err, ended
        ended = p.once("run", p.name)  # as the unit would
        assert ended.status == OTHER, ended
        assert len(ran()) == 20, "it ran again in an empty store"


# ---- PostgreSQL ----

needs_postgres = pytest.mark.skipif(not has_postgres(), reason="missing: libpq in the build")
PG_TABLES = "CREATE TABLE t(id bigint)"


def ids(p):
    return [i for i, in p.rows("SELECT id FROM t ORDER BY id")]


@needs_postgres
def test_f82_tables_made_anew_under_a_running_worker(tmp_path):
    """Somebody drops the tables, and another worker makes new ones: the first one does nothing in them."""
    p = PostgresPipeline(tmp_path, CONFIG, PG_TABLES, source=FOLLOW)
    p.write(*some(50))
    with p.start() as worker:
        until(lambda: len(ids(p)) == 50, what="the first ones")
        until(lambda: p.once("status", "--json", p.name).json["busy"] == 0, what="nothing in work")
        p.execute("ALTER SCHEMA public RENAME TO gone; CREATE SCHEMA public; ALTER TABLE gone.t SET SCHEMA public")
        other = PostgresPipeline(tmp_path / "other", CONFIG, url=p.url, server=p.server)
        other.run(status=0)  # makes them
        p.append(*some(50, 50))
        ended = worker.end(60)
    assert ended.status == 3, ended
    assert ids(p) == list(range(50)), "it worked in a store that was not its own"
    ended = p.once("run", p.name)
    assert ended.status == OTHER and "this is another store, " in ended.err, ended
    assert ids(p) == list(range(50))


def schemas(p):
    return sorted(name for name, in p.rows("SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname = 'once_meta'"))


@needs_postgres
def test_f82_a_schema_that_is_made_later_does_not_move_the_store(tmp_path):
    """search_path is "$user", public: somebody makes the first one. Not even a pipeline that remembers nothing is led astray."""
    p = PostgresPipeline(tmp_path, CONFIG, PG_TABLES)
    p.write(*some(10))
    counts(p.run(status=0), received=10, done=10)
    p.execute('CREATE SCHEMA postgres')
    counts(p.run(status=0, env={"XDG_STATE_HOME": str(tmp_path / "none")}), received=10, duplicates=10)
    assert schemas(p) == ["public"]


@needs_postgres
def test_f82_the_url_names_the_schema(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, PG_TABLES)
    p.write(*some(10))
    for name in ("its-own", "a.b", ""):
        p.configure(CONFIG, store=f"{p.url}&schema={name}")
        ended = p.once("run", p.name)
        assert ended.status == 2, ended
        assert ("there is no schema 'its-own'" if name == "its-own" else "schema=NAME has letters") in ended.err, ended
    p.execute('CREATE SCHEMA "its-own"')
    p.configure(CONFIG, store=f"{p.url}&schema=its-own&answer_timeout=7")
    counts(p.run(status=0), received=10, done=10)
    counts(p.run(status=0), received=10, duplicates=10)
    assert schemas(p) == ["its-own"] and ids(p) == list(range(10))  # the effects' tables are where they were
    p.configure(f'key: "${{/id}}"\nhandler: {{sql: {{url: "{p.url}&schema=x", do: "INSERT INTO t VALUES (:id)"}}}}\n', store=f"{p.url}&schema=its-own")
    ended = p.once("check", p.name)
    assert ended.status == 2 and "'schema=' in a URL is where a store has its tables" in ended.err, ended


@needs_postgres
def test_f82_a_schema_with_any_name(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG)
    p.execute("""CREATE SCHEMA "it's ""one"; CREATE TABLE "it's ""one".t(id bigint)""")
    p.configure(CONFIG, store=p.url + "&options=-csearch_path%3D%22it%27s%5C%20%22%22one%22")
    p.write(*some(10))
    counts(p.run(status=0), received=10, done=10)
    counts(p.run(status=0), received=10, duplicates=10)
    assert schemas(p) == ["it's \"one"]
    assert p.once("sweep", p.name).status == 0
