"""A store that is lost, emptied, moved or made anew is noticed, while running and across restarts."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import pytest

from harness import ONCE, Pipeline, counts, environment, once, until
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


def refused(p, say="there is no store here: it was lost, emptied or moved", name=None, **more):
    """By whoever works, looks or changes something: none of them takes another store for the one that is known."""
    for verb in ("run", "check", "check --deep", "status", "list", "list --dead", "list --audit", "sweep", "check --confirm-clock"):
        ended = p.once(*verb.split(), "--json", name or p.name, **more)
        assert ended.status == OTHER and say in ended.err, (verb, ended)
        assert ended.json["error"], (verb, ended)
    for verb in ("explain", "forget"):
        ended = p.once(verb, name or p.name, "1", **more)
        assert ended.status == OTHER and say in ended.err, (verb, ended)


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
        assert ended.status == OTHER and "'store_id' names store " + id in ended.err and "remove 'store_id'" in ended.err, ended
    p.configure(CONFIG + "store_id: xyz\n")
    ended = p.once("check", p.name)
    assert ended.status == 2 and "'store_id' must be 16 hex digits" in ended.err, ended


def test_f82_what_is_remembered_is_of_one_pipeline_file_and_consumer(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    second = pipeline(tmp_path / "second", 3)
    counts(second.run(status=0), received=3, done=3)
    os.symlink(tmp_path / p.name, tmp_path / "link.yaml")
    lose(p)
    ended = p.once("run", "link.yaml")
    assert ended.status == OTHER, ended


@pytest.mark.parametrize("how", ["no home", "not a folder", "not writable"])
def test_f82_nowhere_to_remember_it(tmp_path, how):
    """It runs, and says so."""
    p = pipeline(tmp_path)
    (tmp_path / "file").write_text("")
    folder = "" if how == "no home" else str(tmp_path / "file") if how == "not a folder" else "/proc/nothing"
    env = {"XDG_STATE_HOME": folder, "HOME": "" if how == "no home" else str(tmp_path)}
    ended = p.once("run", p.name, env=env)
    assert ended.status == 0 and "put 'store_id: \"" in ended.err.replace('\\"', '"'), ended
    if how == "no home":
        assert "no folder in which to remember the store" in ended.err, ended
    else:
        assert "level=warn event=store" in ended.err and f"cannot be remembered in folder '{folder}/once': " in ended.err, ended
    warned = [f["text"] for f in p.once("check", "--json", p.name, env=env).json["findings"] if f["warning"]]
    assert any("put 'store_id: \"" in text and "would silently replace it" in text for text in warned), warned


def test_f82_check_leaves_nothing_where_it_tried_to_write(tmp_path):
    p = pipeline(tmp_path)
    env = {"STATE_DIRECTORY": str(tmp_path / "state")}
    assert p.once("check", p.name, env=env).status == 0
    assert os.listdir(tmp_path / "state") == []


def kept_in(folder):
    return {name: (folder / name).read_text() for name in os.listdir(folder)}


@pytest.mark.parametrize("how", ["empty", "damaged", "too long", "a folder", "a link", "a link to another"])
def test_f82_a_state_file_that_cannot_be_understood_is_refused(tmp_path, how):
    p = pipeline(tmp_path)
    state = tmp_path / "state"
    env = {"STATE_DIRECTORY": str(state) + ":/second"}
    assert p.once("run", p.name, env=env).status == 0
    for name, text in kept_in(state).items():
        assert oct(os.stat(state / name).st_mode & 0o777) == "0o600"
        assert "\nconsumer c\n" in text and "\nurl sqlite:" in text, text
        if how in ("empty", "damaged", "too long"):
            id, = re.findall("\nstore ([0-9a-f]{16})\n", text)
            (state / name).write_text({"empty": "", "damaged": "store 12\n", "too long": f"store {id}0\n"}[how])
        elif how == "a link to another":  # whoever may write there chooses what is read
            os.rename(state / name, tmp_path / name)
            os.symlink(tmp_path / name, state / name)
        else:
            os.unlink(state / name)
            os.mkdir(state / name) if how == "a folder" else os.symlink("/dev/null", state / name)
    refused(p, "is damaged or cannot be read", env=env)
    if how == "a folder":
        return  # somebody has to look
    counts(p.run("--new-store", status=0, env=env), received=10, duplicates=10)
    assert all("\nstore " in text for text in kept_in(state).values())
    counts(p.run(status=0, env=env), received=10, duplicates=10)
    audited, = p.once("list", "--audit", "--json", p.name, env=env).json["audit"]
    assert audited["note"].endswith(" instead of an unknown one"), audited


# ---- by what it is remembered ----

def deploy(root, release, p, text=None):
    """The same pipeline file in a folder of its own, with what it reads, behind the link 'current'."""
    os.makedirs(root / release)
    (root / release / "p.yaml").write_text(text or open(os.path.join(p.folder, p.name)).read())
    if os.path.lexists(root / "current"):
        os.unlink(root / "current")
    os.symlink(release, root / "current")


@pytest.mark.parametrize("how", ["link", "configmap", "copy"])
def test_f82_a_release_does_not_forget_the_store(tmp_path, how):
    """The file has another real path with each release; the consumer and the place of the store are the same."""
    p = pipeline(tmp_path / "work")
    p.configure(CONFIG, store=f"sqlite:{p.database}", source=f"{{path: {p.source}}}")
    state = {"STATE_DIRECTORY": str(tmp_path / "state")}
    names = {"link": "current/p.yaml", "configmap": "p.yaml", "copy": "1/p.yaml"}
    deploy(tmp_path, "1", p)
    os.symlink("current/p.yaml", tmp_path / "p.yaml")
    ended = p.once("run", tmp_path / names[how], env=state)
    assert ended.status == 0, ended
    lose(p)
    p.execute(TABLES)
    deploy(tmp_path, "2", p)
    refused(p, name=tmp_path / ("2/p.yaml" if how == "copy" else names[how]), env=state)
    assert p.rows("SELECT count(*) FROM t") == [(0,)]


def test_f82_the_same_file_with_another_url_is_noticed(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    p.execute("ATTACH 'other.db' AS other; CREATE TABLE other.t(id)".replace("other.db", str(tmp_path / "other.db")))
    p.configure(CONFIG, store="sqlite:other.db")
    refused(p)
    counts(p.run("--new-store", status=0), received=10, done=10)
    p.configure(CONFIG)
    refused(p, "this is another store, ")  # the file says the other one now
    counts(p.run("--new-store", status=0), received=10, duplicates=10)


def test_f82_a_release_that_moves_a_relative_store_is_noticed(tmp_path):
    """Neither the real path of the file nor that of the store is the same, but what both are called is."""
    p = pipeline(tmp_path / "work")
    text = open(os.path.join(p.folder, p.name)).read().replace("in.ndjson", p.source) + f'init: {TABLES.replace("TABLE", "TABLE IF NOT EXISTS")}\n'
    deploy(tmp_path, "1", p, text)
    env = {"STATE_DIRECTORY": str(tmp_path / "state"), "PWD": str(tmp_path / "current")}
    ended = once("run", "p.yaml", cwd=tmp_path / "current", env=env)
    assert ended.status == 0, ended
    deploy(tmp_path, "2", p, text)
    ended = once("run", "p.yaml", cwd=tmp_path / "current", env=env)
    assert ended.status == OTHER and not os.path.exists(tmp_path / "2" / "store.db"), ended


def test_f82_one_consumer_on_two_stores(tmp_path):
    """Two files, two stores, one state folder: neither is taken for the other."""
    env = {"STATE_DIRECTORY": str(tmp_path / "state")}
    both = [pipeline(tmp_path / name) for name in ("a", "b")]
    for p in both:
        counts(p.run(status=0, env=env), received=10, done=10)
    for p in both:
        counts(p.run(status=0, env=env), received=10, duplicates=10)
    lose(both[0])
    refused(both[0], env=env)
    counts(both[1].run(status=0, env=env), received=10, duplicates=10)


def test_f82_consumers_whose_names_look_alike_are_two(tmp_path):
    """They are told apart by more than what a file's name shows of them."""
    env = {"STATE_DIRECTORY": str(tmp_path / "state")}
    p = pipeline(tmp_path)
    for consumer in ("a.b", "a-b", "a_b"):
        database = tmp_path / f"{consumer}.db"
        p.execute(f"ATTACH '{database}' AS other; CREATE TABLE other.t(id)")
        p.configure(CONFIG, consumer=consumer, store=f"sqlite:{database.name}")
        counts(p.run(status=0, env=env), received=10, done=10)
    assert len(os.listdir(tmp_path / "state")) == 6


@pytest.mark.parametrize("path", ["sqlite:./store.db", "sqlite:.//store.db", "sqlite:FOLDER/store.db", "sqlite:FOLDER/.//./store.db"])
def test_f82_the_path_of_a_store_may_be_written_in_many_ways(tmp_path, path):
    p = pipeline(tmp_path)
    p.run(status=0)
    lose(p)
    copy = (tmp_path / p.name).read_text().replace("sqlite:store.db", path.replace("FOLDER", str(tmp_path)))
    (tmp_path / "copy.yaml").write_text(copy)
    assert "sqlite:store.db" not in copy
    ended = p.once("run", "copy.yaml")
    assert ended.status == OTHER and not os.path.exists(p.database), ended


def test_f82_by_a_link_nothing_more_is_remembered(tmp_path):
    """What was kept by the real path counts, and is kept up to date; it is not made."""
    p = pipeline(tmp_path / "work")
    env = {"STATE_DIRECTORY": str(tmp_path / "state")}
    os.symlink(tmp_path / "work" / p.name, tmp_path / "work" / "link.yaml")
    assert p.once("run", "link.yaml", env=env).status == 0
    assert len(os.listdir(tmp_path / "state")) == 2
    p.run(status=0, env=env)  # by its real path, too
    assert len(os.listdir(tmp_path / "state")) == 3
    for name in os.listdir(tmp_path / "state"):
        (tmp_path / "state" / name).write_text("")  # damaged
    assert p.once("run", "--new-store", "link.yaml", env=env).status == 0
    assert all("\nstore " in text for text in kept_in(tmp_path / "state").values())


def test_f82_what_was_remembered_by_the_file_without_links_counts(tmp_path):
    """So it was before: one state file, by the real path alone."""
    p = pipeline(tmp_path / "work")
    p.run(status=0, env={"STATE_DIRECTORY": str(tmp_path / "state")})
    other = os.path.join(p.folder, "other.db")
    p.execute(f"ATTACH '{other}' AS other; CREATE TABLE other.t(id)")
    p.configure(CONFIG, store="sqlite:other.db")
    p.run(status=0, env={"STATE_DIRECTORY": str(tmp_path / "state2")})
    by_file, = set(os.listdir(tmp_path / "state")) & set(os.listdir(tmp_path / "state2"))
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "state" / by_file, tmp_path / "old")
    (tmp_path / "links").mkdir()
    os.symlink(tmp_path / "work" / p.name, tmp_path / "links" / "p.yaml")
    refused(p, "this is another store, ", name=tmp_path / "links" / "p.yaml", env={"STATE_DIRECTORY": str(tmp_path / "old")})


# ---- going on with another one ----

def test_f82_check_takes_the_store_that_is_there_and_consumes_nothing(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    other = pipeline(tmp_path / "other")
    other.run(status=0)
    lose(p)
    shutil.copy(other.database, p.database)
    p.append(*some(5, 10))
    refused(p, "this is another store, ")
    ended = p.once("check", "--new-store", "--json", p.name)
    assert ended.status == 0 and ended.json["ok"], ended
    assert p.value("SELECT count(*) FROM t") == 10
    audited, = p.once("list", "--audit", "--json", p.name).json["audit"]
    assert audited["what"] == "new-store" and "instead of " in audited["note"], audited
    counts(p.run(status=0), received=15, duplicates=10, done=5)


def test_f82_check_lets_the_next_run_make_one(tmp_path):
    """Nothing is made by whoever allows it, who may be root."""
    p = pipeline(tmp_path)
    p.run(status=0)
    lose(p)
    ended = p.once("check", "--new-store", p.name)
    assert ended.status == 0 and "none was created" in ended.out and not os.path.exists(p.database), ended
    p.execute(TABLES)
    counts(p.run(status=0), received=10, done=10)
    audited, = p.once("list", "--audit", "--json", p.name).json["audit"]
    assert audited["what"] == "new-store" and "instead of " in audited["note"], audited
    lose(p)
    refused(p)  # it was allowed once


@pytest.mark.parametrize("damaged", [False, True])
def test_f82_another_store_is_allowed_once_also_when_the_old_one_comes_back(tmp_path, damaged):
    p = pipeline(tmp_path)
    env = {"STATE_DIRECTORY": str(tmp_path / "state")}
    p.run(status=0, env=env)
    if damaged:
        for name in os.listdir(tmp_path / "state"):
            (tmp_path / "state" / name).write_text("store 12\n")
    lose(p)
    assert p.once("check", "--new-store", p.name, env=env).status == 0
    assert all(" or another\n" in text for text in kept_in(tmp_path / "state").values())
    for end in ("", "-wal", "-shm"):
        if os.path.exists(p.database + ".lost" + end):
            os.rename(p.database + ".lost" + end, p.database + end)
    counts(p.run(status=0, env=env), received=10, duplicates=10)
    lose(p)
    p.execute(TABLES)
    refused(p, env=env)


def test_f82_store_id_is_not_overruled_by_check(tmp_path):
    p = pipeline(tmp_path)
    p.configure(CONFIG + 'store_id: "0123456789abcdef"\n')
    ended = p.once("check", "--new-store", p.name)
    assert ended.status == 2 and "has 'store_id'; change it there" in ended.err, ended


def command_in(ended):
    return ended.err.strip().rpartition("to go on with what is here: " if "is damaged" in ended.err else "to go on without it: ")[2]


def test_f82_the_refusal_of_a_unit_names_its_state_and_what_to_say(tmp_path):
    """The command, said in a shell elsewhere, which has a state folder of its own."""
    with tempfile.TemporaryDirectory(prefix="u", dir="/tmp") as short:
        folder = pathlib.Path(short)
        p = pipeline(folder / "it's")
        env = {"STATE_DIRECTORY": str(folder / "state")}
        assert p.once("run", p.name, env=env).status == 0
        lose(p)
        ended = p.once("run", p.name, env=env)
        assert ended.status == OTHER and any(f"'{folder}/state/{name}' names store " in ended.err for name in os.listdir(folder / "state")), ended
        command = command_in(ended)
        assert f"STATE_DIRECTORY={folder}/state once check --new-store " in command, command
        shell = {"XDG_STATE_HOME": str(tmp_path / "shell"), "PATH": os.path.dirname(ONCE) + ":" + os.environ["PATH"]}
        said = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment(extra=shell), capture_output=True, text=True)
        assert said.returncode == 0, (command, said)
        assert p.once("check", p.name, env=env).status == 2, "its table is gone with the file"
        p.execute(TABLES)
        counts(p.run(status=0, env=env), received=10, done=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="missing: root")
def test_f82_what_root_allows_the_unit_can_read(tmp_path):
    p = pipeline(tmp_path)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 65534, 65534)
    env = {"STATE_DIRECTORY": str(state)}
    p.run(status=0, env=env)
    lose(p)
    assert p.once("check", "--new-store", p.name, env=env).status == 0
    assert {os.stat(state / name).st_uid for name in os.listdir(state)} == {65534}


def test_f82_check_says_that_it_made_a_store(tmp_path):
    p = pipeline(tmp_path)
    said = "there was no store here, so an empty one was created"
    assert said in p.once("check", p.name).out
    assert said not in p.once("check", p.name).out


def test_f82_tables_of_ours_that_were_emptied_are_no_strangers(tmp_path):
    p = pipeline(tmp_path)
    p.run(status=0)
    p.execute("DELETE FROM once_meta")
    refused(p, "were emptied: once_meta has no row")
    assert p.once("run", "--new-store", p.name).status == OTHER  # what is in the other tables was of somebody


@pytest.mark.parametrize("what", [b"", b"no database of anybody, and rather long" * 100])
def test_f82_another_file_where_the_store_was(tmp_path, what):
    p = pipeline(tmp_path)
    p.run(status=0)
    lose(p)
    with open(p.database, "wb") as file:
        file.write(what)
    refused(p)


# ---- Redis ----

@pytest.mark.skipif(not has_redis(), reason="missing: redis-server, or hiredis in the build")
def test_f82_a_redis_that_was_flushed_is_noticed_by_who_remembers_nothing(tmp_path):
    with RedisServer(tmp_path) as redis:
        p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: [sh, -c, "echo $ONCE_KEY >> ran"]}\n', store=redis.url(), source=FOLLOW)
        p.write(*some(5))
        with p.start(env={"XDG_STATE_HOME": "", "HOME": ""}) as worker:
            until(lambda: os.path.exists(tmp_path / "ran") and (tmp_path / "ran").read_text().count("\n") == 5, what="the first ones")
            redis.call("FLUSHALL")
            p.append(*some(5, 5))
            ended = worker.end(60)
        assert ended.status == OTHER and "there is no store here" in ended.err and "this run used store " in ended.err, ended


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
        assert ended.status == OTHER and "there is no store here" in ended.err and "once check --new-store" in ended.err, ended
        refused(p)  # the unit, and those who look
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
    assert ended.status == OTHER and "this is another store, " in ended.err, ended
    assert ids(p) == list(range(50)), "it worked in a store that was not its own"
    refused(p, "this is another store, ")
    assert ids(p) == list(range(50))


@needs_postgres
@pytest.mark.parametrize("running", [False, True])
def test_f82_tables_that_were_truncated(tmp_path, running):
    """Tables without a row are those of a script that nobody has used yet, but not where a store is known."""
    p = PostgresPipeline(tmp_path, CONFIG, PG_TABLES, source=FOLLOW)
    p.write(*some(20))
    with p.start() as worker:
        until(lambda: len(ids(p)) == 20, what="the first ones")
        until(lambda: p.once("status", "--json", p.name).json["busy"] == 0, what="nothing in work")
        if not running:
            worker.send(signal.SIGTERM)
            worker.end(60)
        tables = [name for name, in p.rows("SELECT relname FROM pg_class WHERE relname LIKE 'once%' AND relkind = 'r'")]
        p.execute("TRUNCATE " + ", ".join(tables))
        p.append(*some(20, 20))
        if running:
            ended = worker.end(60)
            assert ended.status == OTHER and "emptied" in ended.err, ended
    refused(p, "emptied")
    assert ids(p) == list(range(20))
    if running:  # it may have left a name
        p.execute("DROP VIEW once_status; DROP TABLE " + ", ".join(tables))
        refused(p)
    assert p.once("check", "--new-store", p.name).status == 0
    p.configure(CONFIG, store=p.url, source="{path: in.ndjson}")
    counts(p.run(status=0), received=40, done=40)


@needs_postgres
def test_f82_a_store_without_its_head_is_no_strangers(tmp_path):
    """Another schema would be a second store. And a unit does not start for ever."""
    p = PostgresPipeline(tmp_path, CONFIG, PG_TABLES)
    p.write(*some(10))
    p.run(status=0)
    p.execute("TRUNCATE once_meta")
    for env in ({}, {"XDG_STATE_HOME": str(tmp_path / "nothing")}):
        refused(p, "were emptied: once_meta has no row", env=env)
    tables = [name for name, in p.rows("SELECT relname FROM pg_class WHERE relname LIKE 'once%' AND relkind = 'r'")]
    p.execute("DROP VIEW once_status; DROP TABLE " + ", ".join(tables))
    refused(p)
    assert p.once("check", "--new-store", p.name).status == 0
    counts(p.run(status=0), received=10, done=10)


@needs_postgres
def test_f82_stores_in_two_schemas_are_two(tmp_path):
    env = {"STATE_DIRECTORY": str(tmp_path / "state")}
    first = PostgresPipeline(tmp_path / "a", CONFIG, PG_TABLES + "; CREATE SCHEMA a; CREATE SCHEMA b")
    both = [first, PostgresPipeline(tmp_path / "b", CONFIG, url=first.url, server=first.server)]
    for p, schema in zip(both, "ab"):
        p.configure(CONFIG, store=f"{first.url}&schema={schema}")
        p.write(*some(10))
        counts(p.run(status=0, env=env), received=10, done=10)


@needs_postgres
def test_f82_the_url_is_known_without_its_password(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, PG_TABLES)
    p.write(*some(10))
    p.run(status=0)
    p.execute("ALTER SCHEMA public RENAME TO gone; CREATE SCHEMA public; ALTER TABLE gone.t SET SCHEMA public")
    copy = tmp_path / "copy.yaml"
    copy.write_text((tmp_path / p.name).read_text().replace(p.url, p.url + "&password=x&application_name=y"))
    refused(p, name="copy.yaml")
    copy.write_text((tmp_path / p.name).read_text().replace("postgres@", "postgres:x@"))
    refused(p, name="copy.yaml")
    assert ids(p) == list(range(10))


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
def test_f82_a_schema_that_was_dropped_is_a_store_that_was_lost(tmp_path):
    """Whoever is told to make the schema anew must be told what was in it."""
    for how, name in (("named", "look1"), ("search_path", "look2")):
        (tmp_path / how).mkdir()
        p = PostgresPipeline(tmp_path / how, CONFIG, PG_TABLES)
        p.execute(f"CREATE SCHEMA {name}")
        url = f"{p.url}&schema={name}" if how == "named" else f"{p.url}&options=-csearch_path%3D{name}%2Cpublic"
        p.configure(CONFIG, store=url)
        p.write(*some(10))
        p.run(status=0)
        p.execute(f"DROP SCHEMA {name} CASCADE")
        refused(p, f"there is no schema '{name}'" if how == "named" else "no once tables")
        assert "every message would be new here" in p.once("status", p.name).err
        assert p.once("check", "--new-store", p.name).status == 0
        if how == "named":
            ended = p.once("run", p.name)
            assert ended.status == 2 and f"CREATE SCHEMA {name}" in ended.err, ended
        p.execute(f"CREATE SCHEMA {name}")
        counts(p.run(status=0), received=10, done=10)


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
