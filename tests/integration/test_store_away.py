"""A store whose server is away, slow, stopped or cut off: nothing is acked, nothing is done twice, and it goes on without help.

The server is behind a proxy. A store joins by a class like OnPostgres."""

import os
import re
import signal
import time

import pytest

import postgres
from harness import counts, until
from pgpipeline import PostgresPipeline, Session, need_postgres, new_name
from tcpproxy import Proxy

FOLLOW = "{path: in.ndjson, follow: true}"


def some(n, first=0):
    return [{"id": f"m{i}"} for i in range(first, first + n)]


class OnPostgres:
    """One server for the file. Every test has a database, and its pipeline comes through a proxy."""

    HASTY = "answer_timeout=1&connect_timeout=2"
    # What a client sends in the three rounds of a batch, and what tells that a batch has begun.
    ROUNDS = {"begin": b"BEGIN", "effects": b"\0once_u0_", "commit": b"COMMIT\0"}
    BATCH = b"\0once_u0_"
    LOST = "does not answer|no longer answers|answer was lost|stopped while"

    def __init__(self):
        need_postgres()
        self.server = postgres.Server()
        self.address = os.path.join(self.server.folder, ".s.PGSQL.5432")

    def close(self):
        self.server.close()

    def pipeline(self, folder, proxy=None, config="", source="{path: in.ndjson}", statements=(), options=HASTY):
        effect = "".join(f"    - {sql}\n" for sql in ("INSERT INTO t(id) VALUES (:id)", *statements))
        p = PostgresPipeline(str(folder), tables="CREATE TABLE t(n bigint GENERATED ALWAYS AS IDENTITY, id text)", server=self.server)
        where = p.url.partition("?")[0]
        url = re.sub("@/", f"@127.0.0.1:{proxy.port}/", where) + "?" + options if proxy else p.url + "&" + options
        p.configure(f'key: "${{/id}}"\nlease: 2s\nbatch: {{max: 100}}\n{config}handler:\n  sql:\n{effect}', store=url, source=source)
        return p

    def done(self, p):
        return p.value("SELECT count(*) FROM t")

    def exactly_once(self, p, n):
        assert p.rows("SELECT count(*) AS a, count(DISTINCT id) AS b FROM t") == [(n, n)]

    def down(self):
        self.server.kill()

    def up(self):
        if self.server.process.poll() is not None:
            self.server.start()

    def processes(self):
        return [self.server.process.pid, *postgres.children_of(self.server.process.pid)]

    def signal_all(self, number):
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def freeze(self):
        """All of its processes stand still; the kernel goes on to take what is sent to them."""
        self.server.process.send_signal(signal.SIGSTOP)  # first, so that there will be no new ones
        self.signal_all(signal.SIGSTOP)

    def thaw(self):
        self.signal_all(signal.SIGCONT)

    def block(self, p):
        """Somebody holds what every effect needs."""
        session = Session(p.url, "BEGIN; LOCK TABLE t IN EXCLUSIVE MODE")
        until(lambda: self.locks(p, True), what="the table is locked")
        return session

    def locks(self, p, granted):
        return p.value(f"SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND mode LIKE '%ExclusiveLock' AND granted = {granted}")

    def lasting_mistakes(self, folder):
        """URLs that will never work, each with a word of the reason."""
        p = self.pipeline(folder)
        role = new_name()
        p.execute(f"CREATE ROLE {role} LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC")
        p.once("check", p.name)  # makes the tables
        newer = self.server.database(new_name())
        q = PostgresPipeline(os.path.join(str(folder), "newer"), 'key: "${/id}"\nhandler: {sql: ["SELECT :id::text"]}\n', url=newer, server=self.server)
        assert q.once("check", q.name).status == 0
        q.execute("UPDATE once_meta SET value = '99' WHERE name = 'version'")
        yield p.url.replace("postgres@", "nobody-of-that-name@"), "nobody-of-that-name"
        yield re.sub("/once_[^?]*", "/no_such_database", p.url), "no_such_database"
        yield p.url.replace("postgres@", f"{role}@"), "schema"
        yield newer, "newer once"
        yield p.url + "&service=no_such_service", "no_such_service"


@pytest.fixture(scope="module", params=[OnPostgres], ids=["postgres"])
def running_store(request):
    store = request.param()
    yield store
    store.close()


@pytest.fixture
def store(running_store):
    running_store.up()
    yield running_store
    if running_store.server.process.poll() is None:
        running_store.thaw()


class Noisy:
    """A run that is going on, and what it has said so far."""

    def __init__(self, p, *arguments, **more):
        self.path = os.path.join(p.folder, "stderr")
        self.file = open(self.path, "wb")
        self.running = p.start(*arguments, stderr=self.file, **more)
        self.process = self.running.process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running.__exit__()
        self.file.close()

    @property
    def said(self):
        with open(self.path) as file:
            return file.read()

    def says(self, pattern, deadline_s=20):
        return until(lambda: re.search(pattern, self.said), deadline_s, what=f"'{pattern}' on stderr")

    def stop(self, deadline_s=60):
        self.process.send_signal(signal.SIGTERM)
        return self.running.end(deadline_s)


def change(p, old, new):
    path = os.path.join(p.folder, p.name)
    with open(path) as file:
        text = file.read()
    assert old in text
    with open(path, "w") as file:
        file.write(text.replace(old, new))


# ---- away at the start ----

def test_f45_an_endless_source_waits_for_its_store(tmp_path, store):
    p = store.pipeline(tmp_path, source=FOLLOW)
    p.write(*some(50))
    store.down()
    with Noisy(p) as run:
        run.says("store_away.*\n(.*\n)*.*store_away")
        assert run.process.poll() is None
        assert "trying again" in run.said
        store.up()
        until(lambda: store.done(p) == 50, what="all of them")
        lines = run.said.count("\n")
        ended = run.stop()
    assert ended.status == 0, (ended, run.said)
    counts(ended.json, received=50, done=50, acked=50)
    assert lines <= 8, "it says that now and then only"
    store.exactly_once(p, 50)


def test_f45_a_stop_ends_the_wait_at_once(tmp_path, store):
    p = store.pipeline(tmp_path, source=FOLLOW)
    p.write(*some(5))
    store.down()
    with Noisy(p) as run:
        run.says("store_away(.*\n)+.*store_away(.*\n)+.*store_away")  # the pauses are longer by now
        begun = time.monotonic()
        ended = run.stop()
        assert time.monotonic() - begun < 3
    assert ended.status == 0 and ended.json["stopped"] and ended.json["received"] == 0 and ended.json["acked"] == 0, ended


def test_f45_a_finite_source_waits_for_a_while(tmp_path, store):
    p = store.pipeline(tmp_path, config="patience: 1s\n")
    p.write(*some(5))
    store.down()
    begun = time.monotonic()
    ended = p.try_run()
    assert 1 <= time.monotonic() - begun < 10
    assert ended.status == 3 and "patience" in ended.err and ended.json["received"] == ended.json["acked"] == 0, ended
    change(p, "patience: 1s", "patience: 1m")
    with Noisy(p) as run:
        run.says("store_away")
        store.up()
        ended = run.running.end()
    assert ended.status == 0, (ended, run.said)
    counts(ended.json, received=5, done=5, acked=5)


@pytest.mark.parametrize("source", ["{path: in.ndjson}", FOLLOW], ids=["finite", "endless"])
def test_f45_f58_what_will_not_pass_ends_at_once(tmp_path, store, source):
    for number, (url, word) in enumerate(store.lasting_mistakes(tmp_path)):
        folder = tmp_path / str(number)
        q = PostgresPipeline(str(folder), url=url, server=store.server)
        q.configure('key: "${/id}"\nhandler: {sql: ["SELECT :id::text"]}\n', store=url, source=source)
        q.write(*some(1))
        ended = q.try_run(deadline_s=15)
        assert ended.status in (2, 3) and word in ended.err and "trying again" not in ended.err, (url, ended)


def test_f45_operators_do_not_wait(tmp_path, store):
    p = store.pipeline(tmp_path)
    p.run(status=0)
    store.down()
    for verb in (["check"], ["status"], ["list", "--dead"], ["explain"], ["sweep"]):
        begun = time.monotonic()
        ended = p.once(verb[0], *verb[1:], p.name, *(["k"] if verb[0] == "explain" else []))
        assert ended.status == 3 and time.monotonic() - begun < 5, (verb, ended)


def test_f50_no_connection_left_is_waited_for(tmp_path, store):
    """Too many connections is an answer, but one that passes."""
    role = new_name()
    p = store.pipeline(tmp_path)
    p.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1; GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    mine = p.url.replace("postgres@", f"{role}@")
    p.configure('key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n', store=mine)
    p.write(*some(10))
    with Session(mine, "SELECT 1") as other:
        until(lambda: p.value(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'") == 1, what="the other")
        with Noisy(p) as run:
            run.says("store_away.*too many connections")
            other.end()
            ended = run.running.end()
    assert ended.status == 0, (ended, run.said)
    store.exactly_once(p, 10)


# ---- lost in the middle ----

def test_f46_f50_a_server_that_stands_still(tmp_path, store):
    """Its kernel takes what is sent, and nobody answers. Nothing is fetched or acked; when it moves again, all goes on."""
    p = store.pipeline(tmp_path, source="{path: in.ndjson, follow: true, cursor: true}")
    p.write(*some(200))
    with Noisy(p) as run:
        until(lambda: store.done(p) == 200, what="the first")
        store.freeze()
        p.append(*some(200, 200))
        run.says(f"store_away.*({store.LOST})")
        run.says("store_away(.*\n)+.*store_away")
        store.thaw()
        until(lambda: store.done(p) == 400, what="the others")
        ended = run.stop()
    assert ended.status == 0, (ended, run.said)
    counts(ended.json, received=400, done=400, acked=400)
    store.exactly_once(p, 400)


def test_f46_f59_a_stop_while_the_server_stands_still(tmp_path, store):
    """`drain` bounds the wait for an answer that would otherwise take as long as the server takes."""
    p = store.pipeline(tmp_path, config="drain: 500ms\n", source=FOLLOW, options="answer_timeout=600")
    p.write(*some(200))
    with Noisy(p) as run:
        until(lambda: store.done(p) == 200, what="the first")
        store.freeze()
        p.append(*some(200, 200))
        begun = time.monotonic()
        ended = run.stop(20)
        assert time.monotonic() - begun < 5
    store.thaw()
    assert ended.status == 0 and ended.json["acked"] == 200, (ended, run.said)
    change(p, ", follow: true", "")
    counts(p.run(status=0), received=400, done=200, duplicates=200)
    store.exactly_once(p, 400)


@pytest.mark.parametrize("round_trip", ["begin", "effects", "commit"])
def test_f06_f46_f76_one_reply_does_not_come(tmp_path, store, round_trip):
    """The connection stays, the server is there for others, and one answer is lost silently."""
    with Proxy(store.address) as proxy:
        p = store.pipeline(tmp_path, proxy)
        p.write(*some(500))
        proxy.after, proxy.skip = store.BATCH, 1
        proxy.hush_after = store.ROUNDS[round_trip]
        ended = p.try_run()
        assert ended.status == 0 and proxy.lost == 1 and "an answer was lost" in ended.err, ended
        counts(ended.json, received=500, done=500, acked=500)
    store.exactly_once(p, 500)


def test_f46_f50_a_network_that_swallows_everything(tmp_path, store):
    """New connections, too. It ends, and all goes on."""
    with Proxy(store.address) as proxy:
        p = store.pipeline(tmp_path, proxy, source=FOLLOW)
        p.write(*some(300))
        with Noisy(p) as run:
            until(lambda: store.done(p) == 300, what="the first")
            proxy.silent = True
            p.append(*some(300, 300))
            run.says(f"store_away.*({store.LOST})")
            assert store.done(p) == 300
            proxy.silent = False
            until(lambda: store.done(p) == 600, what="the others")
            ended = run.stop()
        assert ended.status == 0, (ended, run.said)
        counts(ended.json, received=600, done=600, acked=600)
    store.exactly_once(p, 600)


@pytest.mark.parametrize("direction", ["cut_after_sent", "cut_after_received"])
def test_f06_f46_f76_cut_anywhere(tmp_path, store, direction):
    """After so many bytes, in the middle of whatever that is."""
    with Proxy(store.address) as proxy:
        for number, at in enumerate((3, 100, 900, 7000, 20000, 33333)):
            p = store.pipeline(tmp_path / str(number), proxy)
            p.write(*some(300))
            setattr(proxy, direction, at)
            counts(p.run(status=0), received=300, done=300, acked=300)
            store.exactly_once(p, 300)
        assert proxy.lost >= 5


def test_f50_slow_is_not_dead(tmp_path, store):
    """A statement that takes longer than answer_timeout, and a lock that is waited for as long, are waited for."""
    p = store.pipeline(tmp_path, statements=["SELECT pg_sleep(2.5) WHERE :id::text = 'm1'"])
    p.write(*some(3))
    ended = p.try_run()
    assert ended.status == 0 and not re.search("store_(failed|away)", ended.err), ended
    counts(ended.json, received=3, done=3, attempts=3)
    p.append(*some(3, 3))
    with store.block(p) as other, Noisy(p) as run:
        until(lambda: store.locks(p, False), what="the lock is waited for")
        time.sleep(2.5)
        other.end()
        ended = run.running.end()
    assert ended.status == 0 and not re.search("store_(failed|away)", run.said), (ended, run.said)
    counts(ended.json, received=6, done=3, duplicates=3)
    store.exactly_once(p, 6)


def test_f50_a_slow_network(tmp_path, store):
    with Proxy(store.address) as proxy:
        proxy.delay_s = 0.01
        p = store.pipeline(tmp_path, proxy)
        p.write(*some(500))
        counts(p.run(status=0), received=500, done=500, acked=500)
    store.exactly_once(p, 500)
