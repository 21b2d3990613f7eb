"""SQL effects in another database than the store's: fenced. PostgreSQL, and a second SQLite file."""

import os
import re
import signal
import time

import pytest

import postgres
from harness import Pipeline, counts, until
from pgpipeline import PostgresPipeline, Session, has_postgres, new_name, psql
from tcpproxy import Proxy

CONFIG = """
key: "${/id}"
lease: 2s
timeout: %(timeout)s
unknown: %(unknown)s
workers: %(workers)d
retry: {attempts: %(attempts)d, backoff: 1ms..5ms}
handler:
  sql:
    url: %(url)s
    do: ["INSERT INTO t(id, key, attempt) VALUES (:id, :once_idempotency_key, :once_attempt)"]
%(more)s"""
TABLES = "CREATE TABLE t(id text, key text CONSTRAINT t_key UNIQUE, attempt int)"


def config(url, unknown="hold", timeout="10s", workers=4, attempts=5, more=""):
    return CONFIG % {"url": url, "unknown": unknown, "timeout": timeout, "workers": workers, "attempts": attempts, "more": more}


def some(n):
    return [{"id": f"m{i}"} for i in range(n)]


class Elsewhere:
    """A pipeline on a sqlite store, and a PostgreSQL database for its effects."""

    def __init__(self, folder, tables=TABLES, messages=3, server=None, **how):
        self.server = server or postgres.shared()
        self.url = self.server.database(new_name()) if server else self.server.schema(new_name())
        self.folder, self.how = folder, how
        psql(self.url, tables)
        self.p = Pipeline(folder, config(self.url, **how))
        self.p.write(*some(messages))

    def through(self, proxy, **how):
        """The effects' connection, but not the store's, goes through a proxy."""
        url = re.sub(r"@/(\w+)\?host=[^&]*&?", rf"@127.0.0.1:{proxy.port}/\1?", self.url)
        self.p.configure(config(url, **{**self.how, **how}))

    def query(self, sql):
        return psql(self.url, sql).strip()

    def rows(self):
        return self.query("SELECT count(*), count(DISTINCT id) FROM t")

    def unknown_keys(self):
        return {m["key"] for m in self.p.once("list", "--unknown", "--json", self.p.name).json["messages"]}


@pytest.fixture
def other(tmp_path, request):
    if not has_postgres():
        pytest.skip("missing: libpq in the build")
    try:
        postgres.programs()
    except postgres.Missing as why:
        pytest.skip(f"missing: {why}")
    return Elsewhere(tmp_path, **getattr(request, "param", {}))


def socket_of(url):
    return os.path.join(re.search(r"host=([^&]*)", url).group(1), ".s.PGSQL.5432")


# ---- what it does ----

def test_effects_in_another_postgres_database(other):
    other.p.write(*some(200), *some(50))
    counts(other.p.run(status=0), received=250, done=200, duplicates=50, attempts=200)
    assert other.rows() == "200|200"
    assert other.query("SELECT DISTINCT length(key), attempt FROM t") == "32|1"
    assert other.query("SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename <> 't'") == "0", "nothing is ours there"
    counts(other.p.run(status=0), received=250, duplicates=250, attempts=0)


@pytest.mark.parametrize("store", ["memory", "sqlite:store.db", "postgres"])
def test_any_store_can_have_effects_in_an_sqlite_file(tmp_path, store):
    if store == "postgres":
        if not has_postgres():
            pytest.skip("missing: libpq in the build")
        store = postgres.shared().schema(new_name())
    file = Pipeline(tmp_path, tables=TABLES, store="sqlite:other.db")
    file.configure(config("sqlite:other.db"), store=store)
    file.write(*some(40), *some(10))
    counts(file.run(status=0), received=50, done=40, duplicates=10)
    assert file.rows("SELECT count(*), count(DISTINCT key) FROM t") == [(40, 40)]
    assert file.rows("SELECT name FROM sqlite_schema WHERE type = 'table'") == [("t",)], "nothing is ours there"


FAULTS = """
key: "${/id}"
type: "${/type}"
retry: {attempts: 2, backoff: 1ms..2ms}
handlers:
  plain: {sql: {url: %(url)s, do: ["INSERT INTO o(id, n) VALUES (:id, :n)"]}}
  already: {sql: {url: %(url)s, do: ["INSERT INTO o(id, n) VALUES (:id, :n)"]}, already: [o_n_key]}
  rejected: {sql: {url: %(url)s, do: ["INSERT INTO o(id, n) VALUES (:id, :n)"]}, rejected: ["23514"]}
  stale: {sql: {url: %(url)s, do: ["INSERT INTO o(id, n) VALUES (:id, :n)", {do: "UPDATE o SET n = n WHERE id = :other", rows: 1, else: stale}]}}
  late: {sql: {url: %(url)s, do: ["INSERT INTO o(id, n) VALUES (:id, :n)", "INSERT INTO line VALUES (:other)"]}, rejected: [line_head_fkey]}
"""
FAULT_TABLES = """
CREATE TABLE o(id text PRIMARY KEY, n integer UNIQUE CHECK (n < 1000)); INSERT INTO o VALUES ('there', 1);
CREATE TABLE head(id text PRIMARY KEY); CREATE TABLE line(head text REFERENCES head DEFERRABLE INITIALLY DEFERRED);
"""


@pytest.mark.parametrize("other", [{"tables": FAULT_TABLES}], indirect=True)
def test_f26_f29_what_a_fault_means_elsewhere(other):
    other.p.configure(FAULTS % {"url": other.url})
    other.p.write({"id": "a", "type": "plain", "n": 2}, {"id": "b", "type": "already", "n": 1}, {"id": "c", "type": "rejected", "n": 5000},
                  {"id": "e", "type": "stale", "n": 4, "other": "nobody"}, {"id": "f", "type": "plain", "n": 1},
                  {"id": "g", "type": "plain", "n": "secret-word"}, {"id": "h", "type": "late", "n": 5, "other": "nobody"})
    counts(other.p.run(status=1), received=7, done=1, already=1, rejected=2, stale=1, dead=2)
    assert other.query("SELECT id, n FROM o ORDER BY id") == "a|2\nthere|1", "what failed left nothing"
    reasons = [reason for _, reason in other.p.letters()]
    assert any("o_n_key" in reason for reason in reasons) and not any("secret-word" in reason for reason in reasons)


# ---- check ----

def test_check_says_which_mode_each_handler_has(tmp_path):
    p = Pipeline(tmp_path, tables="CREATE TABLE t(id)")
    Pipeline(tmp_path, tables="PRAGMA journal_mode = WAL; CREATE TABLE t(id)", store="sqlite:other.db")
    sql = 'INSERT INTO t VALUES (:id)'
    p.configure(f"""
key: "${{/id}}"
type: "${{/type}}"
handlers:
  here: {{sql: [{sql}]}}
  there: {{sql: {{url: "sqlite:other.db", do: [{sql}]}}, unknown: retry}}
  held: {{sql: {{url: "env:OTHER", do: [{sql}]}}, timeout: 3s}}
  natural: {{sql: {{url: "sqlite:other.db", do: [{sql}]}}, natural: true}}
  same: {{sql: {{url: "sqlite:./store.db", do: [{sql}]}}}}
  run: {{exec: ["true"]}}
""")
    ended = p.once("check", p.name, env={"OTHER": "sqlite:other.db"})
    assert ended.status == 0, ended
    said = ended.out.splitlines()

    def of(handler):
        return "\n".join(line for line in said if f"handler {handler}:" in line)

    assert of("here").startswith("handler here: atomic: effect and outcome commit in one transaction; operation here")
    assert ("handler there: fenced: never lost; an attempt with an unknown outcome runs again with the same idempotency key; "
            "SQL in 'sqlite:other.db', up to 4 at a time, timeout 10s,") in of("there")
    assert ("handler held: fenced: never lost; an attempt with an unknown outcome is held for 'once resolve'; "
            "SQL in 'env:OTHER', up to 4 at a time, timeout 3s,") in of("held")
    assert "handler natural: natural: nothing is remembered: every delivery runs; an attempt with an unknown outcome runs again; SQL in" in of("natural")
    assert of("run").startswith("handler run: fenced: ") and "command 'true'" in of("run")
    assert "journal_mode=wal synchronous=full" in of("there")
    assert "without 'url' the effect would be atomic" in of("same") and "warning: handler same" in of("same")
    assert all("would be atomic" not in of(handler) for handler in ("here", "there", "held", "natural", "run"))
    p.write(*({"id": i, "type": t} for i, t in enumerate(("here", "there", "held", "natural", "same"))))
    counts(p.run(status=0, env={"OTHER": "sqlite:other.db"}), received=5, done=5)
    assert p.value("SELECT count(*) FROM t") == 2


def test_check_knows_the_stores_own_postgres_database(other):
    other.p.configure(config(other.url), store=other.url)
    ended = other.p.once("check", other.p.name)
    assert ended.status == 0 and "without 'url' the effect would be atomic" in ended.out, ended
    counts(other.p.run(status=0), received=3, done=3)
    with Proxy(socket_of(other.url)) as proxy:  # by another way
        other.through(proxy)
        text = open(os.path.join(other.folder, other.p.name)).read()
        with open(os.path.join(other.folder, other.p.name), "w") as file:
            file.write(text.replace("sqlite:store.db", other.url))
        assert "without 'url' the effect would be atomic" in other.p.once("check", other.p.name).out
    database = other.server.database(new_name())
    psql(database, TABLES)
    other.p.configure(config(database), store=other.url)
    ended = other.p.once("check", other.p.name)
    assert ended.status == 0 and "would be atomic" not in ended.out, ended


def test_f67_a_missing_table_elsewhere_is_a_mistake_with_its_line(other):
    other.query("ALTER TABLE t RENAME TO away")
    for verb in ("check", "run"):
        ended = other.p.once(verb, other.p.name)
        assert ended.status == 2 and "p.yaml:13: " in ended.err and '"t" does not exist; create it in the database first' in ended.err, ended
    other.query("ALTER TABLE away RENAME TO t")
    counts(other.p.run(status=0), received=3, done=3)


def test_a_table_that_vanishes_stops_the_run_and_blames_nobody(other):
    other.query("CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM 1 FROM gone; RETURN NEW; END';"
                "CREATE TRIGGER late BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fail()")
    other.p.configure(config(other.url) + "patience: 200ms\n")
    ended = other.p.try_run()
    assert ended.status == 3 and "gone" in ended.err, ended
    other.query("CREATE TABLE gone(n int)")
    other.p.run(status=0)
    assert other.rows() == "3|3"
    assert all(entry["failures"] == 0 for i in range(3) for entry in other.p.explain(f"m{i}"))


# ---- connections that fail ----

@pytest.mark.parametrize("unknown", ["hold", "retry"])
def test_f06_the_reply_to_its_commit_is_lost(other, unknown):
    """It has happened, and we do not know: held for a person, or run again under the same key, which its unique column knows."""
    with Proxy(socket_of(other.url)) as proxy:
        other.through(proxy, unknown=unknown, workers=1, more="  already: [t_key]\n")
        proxy.lose_reply_to = b"COMMIT\0"
        if unknown == "retry":
            summary = other.p.run(status=0)
            counts(summary, received=3, done=2, already=1, repeats=1, attempts=4)
        else:
            counts(other.p.run(status=1), received=3, done=2, unknown=1, repeats=0)
            (key,) = other.unknown_keys()
            assert "COMMIT was sent" in other.p.explain(key)[0]["reason"]
            assert other.p.once("resolve", other.p.name, key, "done").status == 0
            counts(other.p.run(status=0), received=3, duplicates=3, attempts=0)
        assert proxy.lost == 1
    assert other.rows() == "3|3"


@pytest.mark.parametrize("mark", [b"BEGIN READ WRITE\0", b"\0once_u0_"], ids=["begin", "statement"])
def test_f46_cut_off_before_its_commit_it_has_not_happened(other, mark):
    with Proxy(socket_of(other.url)) as proxy:
        other.through(proxy, workers=1)
        proxy.cut_at = mark
        counts(other.p.run(status=0), received=3, done=3, repeats=0)
        assert proxy.lost == 1
    assert other.rows() == "3|3"


def test_f46_away_for_a_while_no_attempt_is_used_up(other):
    with Proxy(socket_of(other.url)) as proxy:
        other.through(proxy, attempts=1)
        other.p.write()
        text = open(os.path.join(other.folder, other.p.name)).read().replace("{path: in.ndjson}", "{path: in.ndjson, follow: true}")
        with open(os.path.join(other.folder, other.p.name), "w") as file:
            file.write(text)
        log = os.path.join(other.folder, "log")
        with open(log, "wb") as errors, other.p.start(stderr=errors) as running:
            until(other.p.is_running, what="the run")
            proxy.refuse = True
            proxy.cut_all()
            other.p.append(*some(20))
            until(lambda: "because its effects cannot be started" in open(log).read(), what="that it is noticed")
            assert other.rows() == "0|0"
            proxy.refuse = False
            until(lambda: other.rows() == "20|20", what="everything")
            running.send(signal.SIGTERM)
            ended = running.end()
    assert ended.status == 0, ended
    assert ended.json["done"] == 20 and ended.json["dead"] == 0 and ended.json["retries"] == 0, ended


CROSSING = """
CREATE TABLE a(id int PRIMARY KEY, n int); INSERT INTO a VALUES (1, 0), (2, 0); CREATE SEQUENCE tries;
CREATE FUNCTION begins() RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- the victim comes back when the other one is done: it could be faster than that one wakes up, and cross it again
    IF nextval('tries') <= 2 THEN RETURN; END IF;
    WHILE (SELECT sum(n) FROM a) = 0 LOOP PERFORM pg_sleep(0.01); END LOOP;
END $$;
CREATE FUNCTION meet() RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- until the other one is here too
    IF currval('tries') > 2 THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock_shared('a'::regclass::bigint);
    WHILE (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 'a'::regclass::oid) < 2 LOOP PERFORM pg_sleep(0.01); END LOOP;
END $$
"""


@pytest.mark.parametrize("other", [{"tables": CROSSING}], indirect=True)
def test_f48_a_deadlock_is_tried_again_where_it_is(other):
    other.p.configure(f"""
key: "${{/id}}"
retry: {{attempts: 1}}
workers: 2
handler:
  sql:
    url: {other.url}
    do: [SELECT begins(), "UPDATE a SET n = n + 1 WHERE id = :first", SELECT meet(), "UPDATE a SET n = n + 1 WHERE id = :second"]
""")
    other.p.write({"id": "x", "first": 1, "second": 2}, {"id": "y", "first": 2, "second": 1})
    counts(other.p.run(status=0), received=2, done=2, retries=0, attempts=2)
    assert other.query("SELECT n FROM a ORDER BY id") == "2\n2"
    assert other.query("SELECT last_value FROM tries") == "3", "one of them was the victim, once"


@pytest.mark.parametrize("other", [{"messages": 2, "timeout": "300ms", "workers": 1, "attempts": 2}], indirect=True)
def test_f60_a_statement_is_cancelled_at_its_timeout(other):
    other.query("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.id = ''m0'' THEN PERFORM pg_sleep(1000); END IF; RETURN NEW; END';"
                "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()")
    began = time.monotonic()
    counts(other.p.run(status=1), received=2, done=1, dead=1, retries=1, unknown=0)
    assert time.monotonic() - began < 20
    ((_, reason),) = other.p.letters()
    assert reason == "rolled back at its timeout of 300ms"
    assert other.query("SELECT id FROM t") == "m1"
    until(lambda: other.query("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND pid <> pg_backend_pid()") == "0", 5,
          what="the end of it in the server")


def test_f59_sigterm_rolls_back_what_does_not_end_within_the_drain(other):
    other.query("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1000); RETURN NEW; END';"
                "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()")
    other.p.configure(config(other.url) + "drain: 200ms\n")
    with other.p.start() as running:
        until(lambda: other.query("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND granted AND mode = 'RowExclusiveLock'") == "3",
              what="three at work")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0, ended
    counts(ended.json, received=3, waiting=3)
    other.query("DROP TRIGGER slow ON t")
    other.p.run(status=0)
    assert other.rows() == "3|3" and other.unknown_keys() == set()


def test_commits_elsewhere_are_synchronous_whatever_the_default(other):
    other.query("CREATE TABLE s(setting text)")
    other.p.configure(config(other.url.replace("options=", "options=-csynchronous_commit%3Doff%20"))
                      .replace("INSERT INTO t(id, key, attempt) VALUES (:id, :once_idempotency_key, :once_attempt)",
                               "INSERT INTO s SELECT current_setting('synchronous_commit')"))
    counts(other.p.run(status=0), received=3, done=3)
    assert other.query("SELECT DISTINCT setting FROM s") == "on"


def test_locked_rows_are_waited_for(other):
    """Nobody else's lock makes an attempt fail before the timeout."""
    here = "pid IN (SELECT pid FROM pg_locks WHERE relation = 't'::regclass AND pid <> pg_backend_pid())"
    other.query("CREATE UNIQUE INDEX ON t(id)")
    with Session(other.url, "BEGIN; INSERT INTO t(id) VALUES ('m0'), ('m1'), ('m2')") as session:
        until(lambda: other.query(f"SELECT count(DISTINCT pid) FROM pg_locks WHERE {here}") == "1", what="the lock")
        with other.p.start() as running:
            until(lambda: other.query(f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {here}") == "3", what="three that wait")
            session.end()
            ended = running.end()
    assert ended.status == 0, ended
    counts(ended.json, received=3, done=3, retries=0)


# ---- secrets ----

def test_a_password_in_a_url_is_in_no_output(tmp_path, other):
    """trust ignores the password, but it is there."""
    secret = "hush-4711"
    url = other.url.replace("postgres@", f"postgres:{secret}@")
    with open(tmp_path / "url", "w") as file:
        file.write(url + f"&sslpassword={secret}x&password={secret}\n")
    for written in (url, "file:url", '"env:OTHER"'):
        other.p.configure(config(written))
        env = {"OTHER": url}
        said = [other.p.once("check", other.p.name, env=env), other.p.try_run("--log-level", "debug", env=env)]
        other.query("ALTER TABLE t RENAME TO away")
        said.append(other.p.try_run(env=env))
        other.query("ALTER TABLE away RENAME TO t")
        assert [ended.status for ended in said] == [0, 0, 2], said
        for ended in said:
            assert secret not in ended.out + ended.err, ended
    gone = url.replace("postgres:hush", "nobody:hush").replace("host=/tmp", "host=/nowhere")
    other.p.configure(config(gone) + "patience: 1s\n")
    ended = other.p.try_run()
    assert ended.status == 3 and "p.yaml:12: " in ended.err and secret not in ended.out + ended.err, ended


# ---- at home ----

@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_what_once_knows_is_bound_in_the_stores_database_too(tmp_path, store):
    """One file serves both ways: only `url` comes or goes."""
    sql = "INSERT INTO t(id, key, attempt) VALUES (:once_key, :once_idempotency_key, :once_attempt)"
    handler = f'key: "${{/id}}"\nhandler: {{sql: ["{sql}"]}}\n'
    if store == "postgres" and not has_postgres():
        pytest.skip("missing: libpq in the build")
    p = PostgresPipeline(tmp_path, handler, TABLES) if store == "postgres" else Pipeline(tmp_path, handler, TABLES)
    p.write(*some(3))
    counts(p.run(status=0), received=3, done=3)
    assert p.rows("SELECT id, length(key) AS n, attempt FROM t ORDER BY id") == [(f"m{i}", 32, 1) for i in range(3)]
    assert p.value("SELECT count(DISTINCT key) AS n FROM t") == 3
