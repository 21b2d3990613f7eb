"""Row 52: no space. Nothing is acked for which there was none, no message is blamed, and it goes on when there is some again.

A limit of the size of files (RLIMIT_FSIZE, as 'ulimit -f' sets it) is a full disk that needs no rights, and that a test can take away from
a process that runs. Where a file system may be mounted, the same is done with one of a few hundred kilobytes."""

import os
import re
import resource
import select
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time

import pytest

import postgres
import pq
from fenced import CONFIG as CONFIG_OF_COMMANDS
from fenced import Fenced
from harness import Pipeline, counts, until
from pgpipeline import PostgresPipeline, need_postgres, new_name

TABLES = "CREATE TABLE t(id PRIMARY KEY, v); CREATE TABLE total(n); INSERT INTO total VALUES (0);"
DO = '["INSERT INTO t VALUES (:id, :v)", "UPDATE total SET n = n + 1"]'
RETRY = "retry: {attempts: 1}\nbatch: {max: 8}\n"  # whoever is blamed is dead
CONFIG = f'key: "${{/id}}"\nhandler: {{sql: {DO}}}\n' + RETRY
FOLLOW = "{path: in.ndjson, follow: true}"
CURSOR = "{path: in.ndjson, cursor: true}"
N = 60


def some(n=N, size=3000):
    return [{"id": i, "v": "x" * size} for i in range(n)]


def limited(bytes_):
    """Only the soft limit, which can be raised again. SIGXFSZ is left as it is: by default it kills."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, resource.RLIM_INFINITY))


def unlimited(running):
    resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def heard(running, word, deadline_s=60):
    """Reads until it has said that; False: it has ended without."""
    end, said = time.monotonic() + deadline_s, b""
    while word.encode() not in said:
        ready, _, _ = select.select([running.process.stderr], [], [], max(0, end - time.monotonic()))
        assert ready, f"it did not say {word} in {deadline_s} s, but {said}"
        part = os.read(running.process.stderr.fileno(), 65536)
        if not part:
            return said, False
        said += part
    return said, True


def whole(p, n=N, table="t"):
    assert p.rows(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(n, n)], "each once"
    assert p.value("SELECT n FROM total") == n


def goes_on(p, kib, unlimit=unlimited, **more):
    """One run that meets the limit, and goes on. False: it was never met."""
    with p.start(preexec_fn=limited(kib << 10), **more) as running:
        said, met = heard(running, "no space left")
        if met:
            seen = p.rows("SELECT count(*) FROM t")[0][0]
            assert p.value("SELECT n FROM total") == seen
            unlimit(running)
        ended = running.end()
    said = said.decode() + ended.err
    assert ended.status == 0, (kib, ended, said)
    if met:
        assert "nothing is fetched or acked" in said and "works again" in said, said
        assert "event=store_full" in said and "event=store_failed" not in said, said  # in the middle of a run, too
        assert "acknowledged" not in said, said
    counts(ended.json, received=N, done=N, acked=N)
    whole(p)
    return met


@pytest.mark.parametrize("source", ["{path: in.ndjson}", CURSOR])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_f52_no_space_at_every_write(tmp_path, journal, source):
    """From the first page of the store's tables on, in steps that are no multiple of a page."""
    met, last = 0, 0
    for kib in range(14 if journal == "wal" else 9, 2000, 37 if source == CURSOR else 23):
        folder = tmp_path / str(kib)
        os.makedirs(folder)
        p = Pipeline(folder, CONFIG, source=source)
        p.execute(f"PRAGMA journal_mode = {journal};" + TABLES)
        p.write(*some())
        if not goes_on(p, kib):
            last = kib
            break
        met += 1
    assert met >= 5 and last, f"{met} limits were met, and from {last} KiB on none"


def test_f52_the_first_start_waits_for_space(tmp_path):
    """There is not even space for the tables, which are made in a file of the user's."""
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write(*some())
    size = os.path.getsize(p.database)
    with p.start(preexec_fn=limited(size)) as running:
        said, met = heard(running, "no space left")
        assert met, said
        unlimited(running)
        ended = running.end()
    assert ended.status == 0 and "works again" in ended.err, ended
    counts(ended.json, received=N, done=N)
    whole(p)


def test_f52_a_full_disk_ends_a_finite_run_after_its_patience(tmp_path):
    """And what it says of what was acked is true."""
    p = Pipeline(tmp_path, CONFIG + "patience: 300ms\n", TABLES)
    p.write(*some(600))
    ended = p.try_run(preexec_fn=limited(400 << 10))
    kept = p.value("SELECT count(*) FROM t")
    assert ended.status == 3 and kept == p.value("SELECT n FROM total") and 0 < kept < 600, ended
    told = re.search(r"gave up: run again when there is space, or raise 'patience' \(300ms\); (\d+) messages are acked; (\d+) were read but not acked and will be delivered again", ended.err)
    assert told, ended
    assert int(told.group(1)) == ended.json["acked"] == ended.json["done"] == kept, (ended, kept)
    assert int(told.group(2)) > 0 and "ulimit" in ended.err, ended
    counts(p.run(status=0), received=600, done=600 - kept, duplicates=kept)
    whole(p, 600)


@pytest.mark.parametrize("source", ["{path: in.ndjson}", FOLLOW])
def test_f52_f59_a_stop_while_there_is_no_space_exits_well(tmp_path, source):
    p = Pipeline(tmp_path, CONFIG, TABLES, source=source)
    p.write(*some(600))
    with p.start(preexec_fn=limited(400 << 10)) as running:
        said, met = heard(running, "no space left")
        assert met, said
        running.send(signal.SIGTERM)
        ended = running.end()
    kept = p.value("SELECT count(*) FROM t")
    assert ended.status == 0 and ended.json["stopped"] and "nothing was lost" in ended.err, ended
    assert ended.json["acked"] == kept == p.value("SELECT n FROM total") < 600, ended
    p.configure(CONFIG)
    counts(p.run(status=0), received=600, done=600 - kept, duplicates=kept)
    whole(p, 600)


def test_f52_letters_and_waiting_messages_for_which_there_is_no_space(tmp_path):
    """Bodies that the store has to own: dead letters, retries, what is parked in a lane."""
    config = ('key: "${/id}"\norder: "${/lane}"\nretry: {attempts: 2, backoff: 1ms..2ms}\nbatch: {max: 8}\n'
              'handler: {sql: ["INSERT INTO t VALUES (:id, CASE WHEN :ok THEN :v END)", "UPDATE total SET n = n + 1"]}\n')
    tables = TABLES.replace("v);", "v NOT NULL);")
    messages = [{"id": i, "v": "x" * 3000, "ok": i % 5 != 4, "lane": f"l{i % 7}"} for i in range(N)]
    met = 0
    for kib in (60, 90, 130, 190, 260, 330):
        folder = tmp_path / str(kib)
        os.makedirs(folder)
        p = Pipeline(folder, config, tables)
        p.write(*messages)
        with p.start(preexec_fn=limited(kib << 10)) as running:
            said, hit = heard(running, "no space left")
            if hit:
                unlimited(running)
            ended = running.end()
        met += hit
        assert ended.status == 1, ended
        counts(ended.json, received=N, done=N - 12, dead=12, acked=N)
        whole(p, N - 12)
        assert [line for line, _ in p.letters()] == [i + 1 for i in range(N) if i % 5 == 4]
    assert met >= 3


def test_f52_no_space_in_another_database(tmp_path):
    """A transaction for which there is none has not happened, wherever it was refused: nothing is unknown, and nobody is blamed."""
    met = 0
    for kib in range(9, 400, 45):  # each that is met takes a second: the first probe of a paused handler
        folder = tmp_path / str(kib)
        os.makedirs(folder)
        with sqlite3.connect(folder / "other.db") as other:
            other.executescript("PRAGMA journal_mode = WAL;" + TABLES)
        p = Pipeline(folder, f'key: "${{/id}}"\nworkers: 1\nhandler: {{sql: {{url: "sqlite:other.db", do: {DO}}}}}\n' + RETRY)
        p.once("check", p.name)  # the store is there; it needs less than the other file
        p.write(*some(20, 20000))
        with p.start(preexec_fn=limited(kib << 10)) as running:
            said, hit = heard(running, "no space left")
            if hit:
                unlimited(running)
            ended = running.end()
        assert ended.status == 0, (kib, ended, said)
        counts(ended.json, received=20, done=20, acked=20)
        with sqlite3.connect(folder / "other.db") as other:
            assert other.execute("SELECT count(*), (SELECT n FROM total) FROM t").fetchall() == [(20, 20)]
        met += hit and b"other.db" in said + ended.err.encode()
        if not hit:
            break
    assert met >= 4


def test_f52_commands_wait_for_their_store_to_have_space(tmp_path):
    """Effects outside: an outcome for which there is no space is kept until there is; each happens once."""
    for kib in (50, 75, 100, 140):
        work = Fenced(tmp_path / str(kib), n=40, lease="30s")
        with work.p.start(preexec_fn=limited(kib << 10)) as running:
            said, met = heard(running, "no space left")
            if met:
                unlimited(running)
            ended = running.end()
        assert ended.status == 0, (kib, ended)
        counts(ended.json, received=40, done=40)
        assert set(work.per_key().values()) == {1}, kib


# Has its effect, and waits to be told to end.
LATER = """#!/bin/sh
read -r body
echo "$ONCE_KEY $ONCE_ATTEMPT $ONCE_MAYBE_DONE" >> effects
while [ ! -f go ]; do sleep 0.02; done
"""


@pytest.mark.parametrize("stop", [False, True], ids=["patience", "stop"])
def test_f52_effects_whose_outcome_had_no_space_are_told(tmp_path, stop):
    """They have happened, and the store could not be told so before it was given up."""
    config = CONFIG_OF_COMMANDS.replace("timeout: 5s", "timeout: 60s") + "drain: 300ms\npatience: " + ("10m\n" if stop else "300ms\n")
    work = Fenced(tmp_path, n=3, unknown="hold", workers=2, lease="4s", script=LATER, config=config)
    p = work.p
    with p.start() as running:
        until(lambda: len(work.effects()) == 2, what="two effects")
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        (tmp_path / "go").touch()
        said, met = heard(running, "no space left")
        assert met, said
        if stop:
            running.send(signal.SIGTERM)
        ended = running.end()
    said = said.decode() + ended.err
    assert "the outcome of 2 started effects could not be recorded" in said, said
    assert ended.status == (1 if stop else 3) and ended.json["store_unknown"] == 2, (ended, said)
    assert stop or "0 messages are acked; 3 were read but not acked and will be delivered again;" in said, said
    ended = p.try_run()
    assert ended.status == 1 and ended.json["done"] == 1 and ended.json["store_unknown"] == 2, ended
    assert work.unknown_keys() == {"k0", "k1"} and set(work.per_key().values()) == {1}


# ---- operators ----

def verbs(p, letter):
    return {
        "replay": ("replay", p.name, letter), "discard": ("discard", p.name, letter), "sweep": ("sweep", p.name), "check": ("check", p.name),
        "deep": ("check", "--deep", p.name), "list": ("list", "--dead", p.name), "status": ("status", p.name), "explain": ("explain", p.name, "1"),
        "forget": ("forget", p.name, "2"),
    }


def with_letters(folder, **more):
    p = Pipeline(folder, 'key: "${/id}"\nretry: {attempts: 1}\nhandler: {sql: ["INSERT INTO t VALUES (:id, :v)"]}\n', "CREATE TABLE t(id, v NOT NULL)", **more)
    p.write({"id": 1, "v": None}, {"id": 2, "v": "x"}, {"id": 3, "v": None})
    p.run(status=1)
    return p


def same_letters(p):
    assert [line for line, _ in p.letters()] == [1, 3]
    assert [state["state"] for key in ("1", "2", "3") for state in p.explain(key)] == ["dead", "done", "dead"]


def test_f52_verbs_without_space_lose_nothing(tmp_path):
    """Each says what is wrong, or needs no space; and works when there is some."""
    p = with_letters(tmp_path)
    letter = p.value("SELECT min(id) FROM once_letter")
    refused = []
    for name, arguments in verbs(p, letter).items():
        ended = p.once(*arguments, preexec_fn=limited(4096))
        assert ended.status == 0 or (ended.status == 3 and "no space left" in ended.err and "store.db" in ended.err), (name, ended)
        assert "acknowledged" not in ended.err, ended
        refused += [name] if ended.status else []
        same_letters(p)
    assert {"replay", "discard", "forget"} <= set(refused), refused
    assert p.once("replay", p.name, letter).status == 0
    assert p.once("discard", p.name, p.value("SELECT max(id) FROM once_letter")).status == 0
    assert p.run()["dead"] == 1


# ---- a small file system ----

class Small:
    """A file system that is full at so many KiB, in the test's folder."""

    def __init__(self, folder, kib):
        self.path = os.path.join(folder, "small")
        os.makedirs(self.path)
        made = os.getuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", self.path], stderr=subprocess.DEVNULL).returncode == 0
        if not made:
            pytest.skip("not allowed here: to mount a small file system; the limit of a file's size is tested instead")

    def resize(self, kib):
        subprocess.run(["mount", "-o", f"remount,size={kib}k", self.path], check=True)

    def fill(self):
        with open(os.path.join(self.path, "ballast"), "ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    pass

    def empty(self):
        os.remove(os.path.join(self.path, "ballast"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.path], check=False)


def test_f52_a_small_disk_goes_on_when_it_has_grown(tmp_path):
    met = 0
    for kib in range(112, 1400, 68):
        folder = tmp_path / str(kib)
        os.makedirs(folder)
        with Small(folder, kib) as small:
            p = Pipeline(folder, CONFIG, TABLES, store="sqlite:small/store.db")
            p.write(*some())
            with p.start() as running:
                said, hit = heard(running, "no space left")
                if hit:
                    small.resize(65536)
                ended = running.end()
            assert ended.status == 0, (kib, ended, said)
            counts(ended.json, received=N, done=N, acked=N)
            whole(p)
        met += hit
        if not hit:
            break
    assert met >= 4


def test_f52_verbs_on_a_full_disk_lose_nothing(tmp_path):
    with Small(tmp_path, 2048) as small:
        p = with_letters(tmp_path, store="sqlite:small/store.db")
        letter = p.value("SELECT min(id) FROM once_letter")
        refused = []
        for name, arguments in verbs(p, letter).items():
            small.fill()
            ended = p.once(*arguments)
            small.empty()
            assert ended.status == 0 or (ended.status == 3 and "no space left" in ended.err and "store.db" in ended.err), (name, ended)
            refused += [name] if ended.status else []
            same_letters(p)
        assert {"replay", "discard", "forget"} <= set(refused), refused
        assert p.once("discard", p.name, letter).status == 0


def test_f52_a_disk_that_is_full_again_and_again(tmp_path):
    """A daemon whose disk somebody else fills."""
    with Small(tmp_path, 8192) as small:
        p = Pipeline(tmp_path, CONFIG, TABLES, store="sqlite:small/store.db", source=FOLLOW)
        p.write(*some(20))
        with p.start() as running:
            until(lambda: p.value("SELECT count(*) FROM t") == 20, what="the first twenty")
            for round in (1, 2, 3):
                small.fill()
                p.append(*[{"id": f"{round}.{i}", "v": "y" * 30000} for i in range(20)])
                said, met = heard(running, "no space left")
                assert met, said
                small.empty()
                said, fine = heard(running, "works again")
                assert fine, said
                until(lambda: p.value("SELECT count(*) FROM t") == 20 + 20 * round, what="the next twenty")
            running.send(signal.SIGTERM)
            ended = running.end()
        assert ended.status == 0 and ended.json["acked"] == ended.json["done"] == 80, ended
        whole(p, 80)


# ---- PostgreSQL's own disk ----

@pytest.mark.parametrize("elsewhere", [False, True], ids=["the store's database", "another database"])
def test_f52_the_disk_of_postgres_is_full(tmp_path, elsewhere):
    """53100: the server's trouble, and not the message's. The table is on a disk of its own, the store is not."""
    need_postgres()
    with tempfile.TemporaryDirectory(prefix="once-space-", dir="/tmp") as place:
        os.chmod(place, 0o755)
        with Small(place, 512) as small:
            shutil.chown(small.path, "postgres", "postgres")
            server = postgres.Server()
            try:
                server.query(f"CREATE TABLESPACE small LOCATION '{small.path}'")
                do = '["INSERT INTO t(id, v) VALUES (:id, :v)"]'
                tables = "CREATE TABLE t(id int PRIMARY KEY, v text) TABLESPACE small; ALTER TABLE t ALTER v SET STORAGE EXTERNAL"
                if elsewhere:
                    url = server.database(new_name())
                    pq.once(url, tables)
                    p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{sql: {{url: "{url}", do: {do}}}}}\n' + RETRY)
                else:
                    p = PostgresPipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{sql: {do}}}\n' + RETRY, tables, server=server)
                    url = p.url
                p.write(*some(200, 6000))
                with p.start() as running:
                    said, met = heard(running, "No space left on device")
                    assert met, said
                    assert 0 < int(pq.once(url, "SELECT count(*) FROM t")[0][0]) < 200
                    small.resize(65536)
                    ended = running.end()
                works = "event=resumed" if elsewhere else "works again"  # the handler was paused, or the store was full
                assert ended.status == 0 and works in said.decode() + ended.err, (said, ended)
                counts(ended.json, received=200, done=200, acked=200)
                assert pq.once(url, "SELECT count(*), count(DISTINCT id) FROM t") == [("200", "200")]
            finally:
                server.close()
