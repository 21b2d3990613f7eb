"""PostgreSQL as a database administrator runs it: roles with few rights, standbys, read-only defaults, whose session it is, and a view."""

import contextlib
import datetime
import os
import re
import signal

import pytest

import pgbouncer
import postgres
import pq
from harness import Pipeline, counts, once, until
from pgpipeline import PostgresPipeline, need_postgres, new_name, psql
from pgreplica import Replica
from tcpproxy import Proxy

need_postgres()

CONFIG = 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n'


def some(n, prefix="m"):
    return [{"id": f"{prefix}{i}"} for i in range(n)]


class Owned:
    """A database whose owner made the tables, and a role that has none of the rights."""

    def __init__(self, folder, config=CONFIG):
        self.direct = postgres.shared().database(new_name())
        self.role = new_name()
        psql(self.direct, f"CREATE TABLE t(id text); CREATE ROLE {self.role} LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC;"
                          f"GRANT USAGE ON SCHEMA public TO {self.role}")
        self.p = PostgresPipeline(folder, config, url=self.direct)
        self.url = self.direct.replace("postgres@", f"{self.role}@")
        self.config = config

    def as_role(self):
        self.p.configure(self.config, store=self.url)

    def grant(self, said):
        """Does what it was told to."""
        for statement in said.split("let the owner run: ")[1].splitlines()[0].split("; "):
            assert statement.startswith("GRANT "), statement
            psql(self.direct, statement)


def test_check_says_what_to_grant(tmp_path):
    o = Owned(tmp_path)
    o.as_role()
    for verb in ("check", "run"):
        ended = o.p.once(verb, o.p.name)
        assert ended.status == 3 and f"GRANT USAGE, CREATE ON SCHEMA public TO {o.role}" in ended.err, ended
    o.p.configure(CONFIG, store=o.direct)
    assert o.p.once("check", o.p.name).status == 0
    o.as_role()
    ended = o.p.once("check", o.p.name)
    assert ended.status == 3 and "once_entry" in ended.err and "once_meta" in ended.err, ended
    o.grant(ended.err)
    ended = o.p.once("check", o.p.name)
    assert ended.status == 3 and f"GRANT INSERT ON public.t TO {o.role}" in ended.err, ended
    ended = o.p.try_run()
    assert ended.status == 3 and f"GRANT INSERT ON public.t TO {o.role}" in ended.err and ended.json["received"] == 0, ended
    o.grant(ended.err)
    assert o.p.once("check", o.p.name).status == 0
    o.p.write(*some(5))
    counts(o.p.run(status=0), received=5, done=5)
    psql(o.direct, f"REVOKE UPDATE ON once_lane FROM {o.role}")
    ended = o.p.once("check", o.p.name)
    assert ended.status == 3 and "ON public.once_lane TO" in ended.err and "once_entry" not in ended.err, "what can be opened is looked at, too"


@pytest.mark.parametrize("statement, missing", [
    ("UPDATE t SET id = :id WHERE id = :id", "GRANT SELECT, UPDATE ON public.t"),
    ("WITH x AS (DELETE FROM t WHERE id = :id RETURNING id) SELECT * FROM x", "GRANT DELETE, SELECT ON public.t"),
    ("INSERT INTO public.t(id) VALUES (:id)", "GRANT INSERT ON public.t"),
])
def test_rights_of_effects_elsewhere(tmp_path, statement, missing):
    o = Owned(tmp_path / "there")
    folder = tmp_path / "here"
    folder.mkdir()
    p = Pipeline(folder, f'key: "${{/id}}"\nhandler: {{sql: {{url: "{o.url}", do: ["{statement}"]}}}}\n')
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status == 3 and "p.yaml:" in ended.err and missing in ended.err, ended
    o.grant(ended.err)
    assert p.once("check", p.name).status == 0


def test_statements_that_cannot_be_explained_are_prepared_all_the_same(tmp_path):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["CALL note(:id)", "SELECT :id::text", "/* x */ INSERT INTO t(id) SELECT :id", "NOTIFY x"]}\n',
                         "CREATE TABLE t(id text); CREATE PROCEDURE note(x text) LANGUAGE sql AS 'INSERT INTO t VALUES (x)'")
    p.write(*some(3))
    counts(p.run(status=0), received=3, done=3)
    assert p.value("SELECT count(*) FROM t") == 6


def test_check_finds_a_standby(tmp_path):
    primary = postgres.Server(wal_level="replica", max_wal_senders="10")
    replica = None
    try:
        direct = primary.database("shop")
        psql(direct, "CREATE TABLE t(id text)")
        p = PostgresPipeline(tmp_path / "p", CONFIG, url=direct, server=primary)
        assert p.once("check", p.name).status == 0
        replica = Replica(primary)
        replica.catch_up()
        there = direct.replace(primary.folder, replica.folder)
        p.configure(CONFIG, store=there)
        ended = p.once("check", p.name)
        assert ended.status == 3 and "hot standby" in ended.err and "target_session_attrs=read-write" in ended.err, ended
        (tmp_path / "q").mkdir()
        q = Pipeline(tmp_path / "q", f'key: "${{/id}}"\nhandler: {{sql: {{url: "{there}", do: ["INSERT INTO t(id) VALUES (:id)"]}}}}\n')
        ended = q.once("check", q.name)
        assert "warning: handler" in ended.out and "hot standby" in ended.out, ended
    finally:
        if replica:
            replica.close()
        primary.close()


def test_a_standby_is_waited_for_and_named(tmp_path):
    """A failover may be under way. Without tables there, too."""
    primary = postgres.Server(wal_level="replica", max_wal_senders="10")
    replica = None
    try:
        with_tables, without = primary.database("shop"), primary.database("empty")
        for url in (with_tables, without):
            psql(url, "CREATE TABLE t(id text)")
        p = PostgresPipeline(tmp_path, CONFIG, url=with_tables, server=primary)
        assert p.once("check", p.name).status == 0
        replica = Replica(primary)
        replica.catch_up()
        for n, url in enumerate((with_tables, without)):
            there = url.replace(primary.folder, replica.folder)
            p.configure(CONFIG, consumer=f"c{n}", store=there, source="{path: in.ndjson, follow: true}")
            ended = p.once("check", p.name)
            assert ended.status == 3 and "hot standby" in ended.err and "target_session_attrs=read-write" in ended.err, ended
            with p.start() as running:
                said = running.hear("trying again")
                assert "hot standby" in said and "failover" in said and "target_session_attrs=read-write" in said, said
                running.send(signal.SIGTERM)
                ended = running.end()
            assert ended.status == 0 and ended.json["stopped"], ended
    finally:
        if replica:
            replica.close()
        primary.close()


@pytest.mark.parametrize("table, right", [("once_fact", "GRANT SELECT, INSERT, UPDATE, DELETE ON"), ("t", "GRANT INSERT ON")])
def test_a_right_that_is_revoked_is_named_by_a_run_too(tmp_path, table, right):
    """The sentence of `once check`, at the start and while it runs; then it goes on by itself."""
    o = Owned(tmp_path)
    assert o.p.once("check", o.p.name).status == 0
    psql(o.direct, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {o.role}")
    o.p.configure(CONFIG, store=o.url, source="{path: in.ndjson, follow: true}")
    revoke, wanted = f"REVOKE ALL ON {table} FROM {o.role}", [right, table, f"TO {o.role}"]
    with o.p.start() as running:
        o.p.write(*some(1))
        until(lambda: psql(o.direct, "SELECT count(*) FROM t") == "1\n", what="the first one")
        psql(o.direct, revoke)
        o.p.append(*some(1, "n"))
        told = "; trying again" if table != "t" else "; its messages wait"  # of a handler alone: it is paused
        said = running.hear(told)
        line = next(line for line in said.splitlines() if told in line)
        assert all(word in line for word in wanted), said
        o.grant(line.partition(told)[0])
        until(lambda: psql(o.direct, "SELECT count(*) FROM t") == "2\n", what="the second one")
        running.send(signal.SIGTERM)
        assert running.end().status == 0
    psql(o.direct, revoke)
    for verb in ("check", "run"):
        ended = o.p.once(verb, o.p.name)
        assert ended.status == 3 and all(word in ended.err for word in wanted), ended


def test_a_right_that_is_revoked_elsewhere_is_named_by_a_run_too(tmp_path):
    """The same for the database of `sql: {url: ...}`, whose store is a file; no message is blamed."""
    o = Owned(tmp_path / "owned")
    psql(o.direct, f"GRANT INSERT ON t TO {o.role}")
    p = Pipeline(tmp_path, f'key: "${{/id}}"\nretry: {{attempts: 1}}\nhandler: {{sql: {{url: "{o.url}", do: ["INSERT INTO t(id) VALUES (:id)"]}}}}\n',
                 source="{path: in.ndjson, follow: true}")
    p.write(*some(1))
    with p.start() as running:
        until(lambda: psql(o.direct, "SELECT count(*) FROM t") == "1\n", what="the first one")
        psql(o.direct, f"REVOKE INSERT ON t FROM {o.role}")
        p.append(*some(1, "n"))
        line = next(line for line in running.hear("event=paused").splitlines() if "event=paused" in line)
        assert f"GRANT INSERT ON public.t TO {o.role}" in line and "p.yaml:6" in line, line
        o.grant(line.partition("; its messages wait")[0])
        until(lambda: psql(o.direct, "SELECT count(*) FROM t") == "2\n", what="the second one")
        running.hear("event=resumed")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0 and ended.json["done"] == 2 and ended.json["dead"] == 0, ended


def test_check_says_where_the_store_is(tmp_path):
    """And not where statements look first."""
    direct = postgres.shared().database(new_name())
    role = new_name()
    psql(direct, f"CREATE ROLE {role} LOGIN; CREATE SCHEMA {role} AUTHORIZATION {role}; GRANT ALL ON SCHEMA public TO {role}")
    url = direct.replace("postgres@", f"{role}@")
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: ["true"]}\n', url=direct)
    for store, said in ((url + "&schema=public", f"schema=public current_schema={role} "), (f"{url}&schema={role}", f"schema={role} role")):
        p.configure('key: "${/id}"\nhandler: {exec: ["true"]}\n', store=store)
        ended = p.once("check", p.name)
        assert ended.status == 0 and said in ended.out, ended


def test_f82_tables_that_are_gone_are_waited_for(tmp_path):
    """As while a dump is restored over them: nothing is acked, it is said what is missing, and it goes on when they are back."""
    direct = postgres.shared().database(new_name())
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: [sh, -c, "echo $ONCE_KEY >> effects"]}\n', url=direct,
                         source="{path: in.ndjson, follow: true}")
    with p.start() as running:
        until(p.is_running, what="a run")
        psql(direct, "ALTER SCHEMA public RENAME TO elsewhere; CREATE SCHEMA public")
        psql(direct, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'once:c' AND datname = current_database()")
        p.append({"id": "a"})
        said = running.hear("the store's tables are gone")
        assert "trying again" in said and "nothing is fetched or acknowledged" in said and "restore them" in said, said
        assert not (tmp_path / "effects").exists()
        psql(direct, "DROP SCHEMA public; ALTER SCHEMA elsewhere RENAME TO public")
        until(lambda: (tmp_path / "effects").exists(), what="the effect")
        running.hear("works again")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0 and ended.json["done"] == ended.json["acked"] == 1, ended


@pytest.mark.parametrize("setting", ["default_transaction_read_only = on", "default_transaction_isolation = serializable"])
def test_defaults_of_the_role_are_not_fatal(tmp_path, setting):
    direct = postgres.shared().database(new_name())
    name = direct.partition("@/")[2].partition("?")[0]
    psql(direct, "CREATE TABLE t(id text)")
    psql(direct, f'ALTER DATABASE "{name}" SET {setting}')
    p = PostgresPipeline(tmp_path, CONFIG, url=direct)
    assert p.once("check", p.name).status == 0
    p.write(*some(200))
    counts(p.run(status=0), received=200, done=200)
    counts(p.run(status=0), received=200, duplicates=200)
    (tmp_path / "q").mkdir()
    q = Pipeline(tmp_path / "q", f'key: "${{/id}}"\nhandler: {{sql: {{url: "{direct}", do: ["INSERT INTO t(id) VALUES (:id)"]}}}}\n')
    q.write(*some(20, "q"))
    counts(q.run(status=0), received=20, done=20)
    assert p.once("sweep", p.name).status == 0
    assert psql(direct, "SELECT count(*) FROM t") == "220\n"


@pytest.mark.parametrize("more, name", [("", "once:shop.pay"), ("&application_name=mine", "mine")])
def test_the_session_says_whose_it_is(tmp_path, more, name):
    direct = postgres.shared().database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    p = PostgresPipeline(tmp_path, CONFIG, url=direct + more, source="{path: in.ndjson, follow: true}", consumer="shop.pay")
    p.write(*some(1))
    with p.start() as running:
        until(lambda: psql(direct, "SELECT count(*) FROM t") == "1\n", what="the first")
        shown = psql(direct, "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                             " AND application_name <> ''")
        running.send(signal.SIGTERM)
        running.end()
    assert shown == name + "\n"


VIEWED = """
key: "${/id}"
type: "${/type}"
lease: 1m
handlers:
  ok: {exec: ["true"]}
  later: {exec: [sh, -c, "exit 75"], retry: {attempts: 9, backoff: 30d..30d}}
  dies: {exec: [sh, -c, "kill -9 $$"]}
  dead: {exec: [sh, -c, "exit 65"]}
  slow: {exec: [sleep, "600"], timeout: 10m}
drain: 0s
"""


def test_a_dba_can_select_what_is_not_finished(tmp_path):
    p = PostgresPipeline(tmp_path, VIEWED, source="{path: in.ndjson, follow: true}", consumer="pay")
    watcher = new_name()
    p.write({"id": "a", "type": "ok"}, {"id": "b", "type": "later"}, {"id": "c", "type": "later"}, {"id": "d", "type": "dies"},
            {"id": "e", "type": "dead"}, {"id": "f", "type": "slow"})
    with p.start():
        expected = [("pay", "claimed", 1), ("pay", "dead", 1), ("pay", "unknown", 1), ("pay", "waiting", 2)]
        until(lambda: p.has_table("once_status") and p.rows("SELECT consumer, state, count FROM once_status ORDER BY state") == expected, what="all of them")
        status = p.once("status", "--json", p.name).json
        assert (status["waiting"], status["unknown"], status["dead"]) == (2, 1, 1), status
    p.execute(f"CREATE ROLE {watcher} LOGIN; GRANT SELECT ON once_status TO {watcher}")
    rows = pq.once(p.url.replace("postgres@", f"{watcher}@"), "SELECT state, now() - oldest BETWEEN interval '0' AND interval '5 minutes' FROM once_status")
    assert sorted(rows) == [("claimed", "t"), ("dead", "t"), ("unknown", "t"), ("waiting", "t")]
    p.execute("UPDATE once_live SET due_ms = 0 WHERE state = 1")
    assert p.rows("SELECT state, count FROM once_status WHERE state = 'unknown'") == [("unknown", 2)], "the claim has ended without reporting an outcome"


def test_f58_a_store_of_before_gets_the_view(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, "CREATE TABLE t(id text)")
    assert p.once("check", p.name).status == 0
    p.execute("DROP VIEW once_status")
    p.write(*some(2))
    counts(p.run(status=0), received=2, done=2)
    assert p.rows("SELECT * FROM once_status") == []
    p.execute("DROP VIEW once_status; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    role = new_name()
    p.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    p.configure(CONFIG, store=p.url.replace("postgres@", f"{role}@"))
    counts(p.run(status=0), received=2, duplicates=2)
    assert not p.has_table("once_status"), "who may not make it goes on without"


# ---- where the tables are ----

@pytest.mark.parametrize("schema", ["own2", "a_schema_whose_name_is_nearly_as_long_as_postgresql_allows_it"])
def test_advice_can_be_followed_word_for_word(tmp_path, schema):
    """By an owner whose search path does not have the schema of the store."""
    o = Owned(tmp_path)
    psql(o.direct, f"GRANT INSERT ON t TO {o.role}")
    o.p.configure(CONFIG, store=f"{o.url}&schema={schema}")
    said = o.p.once("check", o.p.name)
    assert said.status == 2 and f"there is no schema '{schema}'" in said.err and f"CREATE SCHEMA {schema} " in said.err, said
    psql(o.direct, f"CREATE SCHEMA {schema}")
    said = o.p.once("check", o.p.name)
    assert said.status == 3 and f"let its owner run: GRANT USAGE, CREATE ON SCHEMA {schema} TO {o.role}" in said.err, said
    o.p.configure(CONFIG, store=f"{o.direct}&schema={schema}")
    assert o.p.once("check", o.p.name).status == 0
    o.p.configure(CONFIG, store=f"{o.url}&schema={schema}")
    for rights in (f"GRANT USAGE ON SCHEMA {schema} TO {o.role}", "GRANT SELECT, INSERT, UPDATE, DELETE ON "):
        for verb in ("check", "run", "status"):
            said = o.p.once(verb, o.p.name)
            assert said.status == 3 and rights in said.err, said
        psql(o.direct, said.err.split("owner run: ")[1].splitlines()[0])
    o.p.write(*some(5))
    counts(o.p.run(status=0), received=5, done=5)


@pytest.mark.parametrize("query, said", [
    ("schema=pg_temp", "'pg_temp' belongs to the server"), ("schema=information_schema", "'information_schema' belongs to the server"),
    ("schema=pg_catalog", "'pg_catalog' belongs to the server"), ("options=-csearch_path%3Dpg_temp", "search_path names no schema"),
    ("options=-csearch_path%3Dinformation_schema", "'information_schema' belongs to the server")])
def test_a_store_is_not_made_in_a_schema_of_the_server(tmp_path, query, said):
    p = PostgresPipeline(tmp_path, CONFIG, "CREATE TABLE t(id text)")
    p.configure(CONFIG, store=f"{p.url}&{query}")
    for verb in ("check", "run", "status"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and said in ended.err, ended
    assert p.rows("SELECT relname FROM pg_class WHERE relname LIKE 'once\\_%'") == []


def test_f47_tables_that_a_crash_would_empty_are_refused(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, "CREATE TABLE t(id text)")
    p.write(*some(5))
    counts(p.run(status=0), received=5, done=5)
    p.execute("ALTER TABLE once_entry SET UNLOGGED")
    for verb in ("check", "run", "status"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "once_entry" in ended.err and "ALTER TABLE public.once_entry SET LOGGED" in ended.err, ended
    p.execute(ended.err.split("owner run: ")[1].split(";")[0])
    counts(p.run(status=0), received=5, duplicates=5)


def printed():
    return once("schema", "postgres://").out


@pytest.mark.parametrize("script", [printed, lambda: printed()[:printed().index("INSERT INTO once_meta")]], ids=["of now", "of before"])
def test_tables_that_the_owner_made_from_the_printed_script_are_used(tmp_path, script):
    o = Owned(tmp_path)
    psql(o.direct, f"CREATE SCHEMA own; SET search_path = own; {script()}; GRANT USAGE ON SCHEMA own TO {o.role};"
                   f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA own TO {o.role}; GRANT INSERT ON public.t TO {o.role}")
    o.p.configure(CONFIG, store=f"{o.url}&schema=own")
    ended = o.p.once("status", o.p.name)
    assert ended.status == 2 and "have not been used yet" in ended.err, ended
    assert o.p.once("check", o.p.name).status == 0
    o.p.write(*some(5))
    counts(o.p.run(status=0), received=5, done=5)
    counts(o.p.run(status=0), received=5, duplicates=5)
    assert psql(o.direct, "SELECT name FROM own.once_meta ORDER BY name") == "format\nsecret\nversion\n"


def test_f82_a_store_that_lost_its_secret_does_not_get_another(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, "CREATE TABLE t(id text)")
    p.write(*some(5))
    counts(p.run(status=0), received=5, done=5)
    p.execute("CREATE TABLE kept AS SELECT * FROM once_meta; DELETE FROM once_meta WHERE name = 'secret'")
    ended = p.try_run()
    assert ended.status == 3 and "secret of the store is missing" in ended.err, ended
    p.execute("DELETE FROM once_meta")
    ended = p.try_run()
    assert ended.status == 4 and "were emptied" in ended.err, ended
    assert p.value("SELECT count(*) FROM once_meta") == 0
    p.execute("INSERT INTO once_meta SELECT * FROM kept")
    counts(p.run(status=0), received=5, duplicates=5)


# ---- what changes under a worker ----

@pytest.mark.parametrize("change, said", [
    ("UPDATE once_meta SET value = decode(repeat('ab', 16), 'hex') WHERE name = 'secret'", "another store"),
    ("DELETE FROM once_meta WHERE name = 'secret'", "the secret of the store is missing"),
    ("DELETE FROM once_meta WHERE name = 'format'", "not ours"),
    ("UPDATE once_meta SET value = '77' WHERE name = 'version'", "newer once"),
    ("DELETE FROM once_meta WHERE name = 'version'", "no version in once_meta"),
])
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooler"])
def test_f82_the_identity_is_compared_with_each_batch(tmp_path, change, said, pooled):
    direct = postgres.shared().database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(pgbouncer.Pooler(postgres.shared(), "transaction")).url(direct) if pooled else direct
        except postgres.Missing as why:
            pytest.skip(f"missing: {why}")
        p = PostgresPipeline(tmp_path, CONFIG, url=url, source="{path: in.ndjson, follow: true}")
        p.write(*some(5))
        with p.start() as worker:
            until(lambda: psql(direct, "SELECT count(*) FROM t") == "5\n")
            psql(direct, change)
            p.append(*some(5, "n"))
            ended = worker.end()
        assert ended.status in (3, 4) and said in ended.err, ended
        assert psql(direct, "SELECT count(*), (SELECT count(*) FROM once_entry) FROM t") == "5|5\n"


@pytest.mark.parametrize("where", ["store", "at commit", "elsewhere"])
def test_f78_our_marker_text_in_a_message_is_that_messages_failure(tmp_path, where):
    """The text by which we know that a transaction was changed, in an error that the message has made: it is that message's failure."""
    direct = postgres.shared().database(new_name())
    psql(direct, """CREATE TABLE t(id text, n int, raw text); CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM NEW.raw::int; RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()""")
    do = "INSERT INTO t VALUES (:id, 0, :n::text)" if where == "at commit" else "INSERT INTO t VALUES (:id, :n::text::int, '1')"
    if where == "elsewhere":
        p = Pipeline(tmp_path, f'key: "${{/id}}"\npatience: 1s\nhandler: {{sql: {{url: "{direct}", do: ["{do}"]}}}}\n')
    else:
        p = PostgresPipeline(tmp_path, f'key: "${{/id}}"\npatience: 1s\nhandler: {{sql: ["{do}"]}}\n', url=direct)
    p.write({"id": "a", "n": "1"}, {"id": "b", "n": "once(role was a and is b)once"}, {"id": "c", "n": "2"})
    counts(p.run(status=1), received=3, done=2, dead=1)
    assert psql(direct, "SELECT id FROM t ORDER BY id") == "a\nc\n"


CHANGES = {
    "role": ("SET ROLE {role}", "role was postgres and is {role}"),
    "path": ("SET search_path = pg_catalog, public", "search_path was "),
    "local": ("SET LOCAL search_path = public", "search_path was "),
    "sync": ("SET synchronous_commit = off", "synchronous_commit was on and is off"),
    "encoding": ("SET client_encoding = LATIN1", "client_encoding was UTF8 and is LATIN1"),
    "replica": ("SET LOCAL session_replication_role = replica", "session_replication_role was origin and is replica"),
    "times": ("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'", "and is Asia/Tokyo"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("where", ["store", "cursor", "pooler", "elsewhere", "careful"])
def test_f78_a_function_that_changes_what_its_transaction_is(tmp_path, change, where):
    """It says so behind the back of whoever looks at the words of statements. Nothing of its batch is committed."""
    direct = postgres.shared().database(new_name())
    role = new_name()
    sql, said = (text.format(role=role) for text in CHANGES[change])
    psql(direct, f"CREATE TABLE t(id text UNIQUE); CREATE ROLE {role}; GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON t TO {role};"
                 f"CREATE FUNCTION pay(n text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN IF n = 'm3' THEN {sql}; END IF; RETURN n; END $$")
    do = "INSERT INTO public.t VALUES (public.pay(:id))"
    with contextlib.ExitStack() as stack:
        url = direct
        if where == "pooler":
            try:
                url = stack.enter_context(pgbouncer.Pooler(postgres.shared(), "transaction", default_pool_size=1)).url(direct)
            except postgres.Missing as why:
                pytest.skip(f"missing: {why}")
        more = ' already: [t_id_key]\n' if where == "careful" else ""
        if where == "elsewhere":
            p = Pipeline(tmp_path, f'key: "${{/id}}"\npatience: 1s\nhandler:\n  sql: {{url: "{url}", do: ["{do}"]}}\n', consumer="payer")
        else:
            source = "{path: in.ndjson, cursor: true}" if where == "cursor" else "{path: in.ndjson}"
            p = PostgresPipeline(tmp_path, f'key: "${{/id}}"\npatience: 1s\nhandler:\n  sql: ["{do}"]\n {more}', url=url, consumer="payer", source=source)
        if where == "careful":
            psql(direct, "INSERT INTO t VALUES ('m1')")
        p.write(*some(6))
        ended = p.try_run()
        assert ended.status == 3 and said in ended.err and "effects of consumer 'payer'" in ended.err, ended
        if where == "elsewhere":  # a transaction for each message
            assert psql(direct, "SELECT count(*) FROM t WHERE id = 'm3'") == "0\n"
        else:
            assert psql(direct, "SELECT count(*) FROM t") == ("1\n" if where == "careful" else "0\n")
        psql(direct, "CREATE OR REPLACE FUNCTION pay(n text) RETURNS text LANGUAGE sql SET search_path = pg_catalog SET synchronous_commit = off"
                     " SET TimeZone = 'Asia/Tokyo' AS 'SELECT n'")
        assert p.run(status=0)["store_dead"] == 0
        assert psql(direct, "SELECT count(*), count(DISTINCT id) FROM t") == "6|6\n"


@pytest.mark.parametrize("asks", ["newest time", "letter"])
def test_f78_who_changed_the_role_is_told_by_whatever_is_asked_next(tmp_path, asks):
    """What the store asks in the same transaction behind the effects has none of its rights any more, and is not what is wrong."""
    direct = postgres.shared().database(new_name())
    role = new_name()
    psql(direct, f"CREATE TABLE t(id text); CREATE ROLE {role}; GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON t TO {role};"
                 f"CREATE FUNCTION pay(n text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN IF n = 'm3' THEN SET ROLE {role}; END IF; RETURN n; END $$")
    more = 'remember: 7d\ntime: "${/at}"\n' if asks == "newest time" else ""
    p = PostgresPipeline(tmp_path, f'key: "${{/id}}"\npatience: 1s\n{more}handler: {{sql: ["INSERT INTO t VALUES (pay(:id))"]}}\n', url=direct, consumer="payer")
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    p.write(*[{"id": f"m{i}", "at": now} for i in range(6)], *([{"no": "key"}] if asks == "letter" else []))
    ended = p.try_run()
    assert ended.status == 3 and f"role was postgres and is {role}" in ended.err and "permission denied" not in ended.err, ended
    assert psql(direct, "SELECT count(*), (SELECT count(*) FROM once_entry) FROM t") == "0|0\n"


HIDES = {
    "table": "CREATE TEMP TABLE t(id text)",
    "dropped at commit": "CREATE TEMP TABLE t(id text) ON COMMIT DROP",
    "view": "CREATE TEMP VIEW t AS SELECT * FROM other",
}


@pytest.mark.parametrize("hides", HIDES)
@pytest.mark.parametrize("where", ["store", "elsewhere", "pooler"])
def test_f78_a_temporary_table_does_not_hide_one_of_the_database(tmp_path, hides, where):
    """A function makes it: the messages behind it would write there, be done, and be gone with the session. Nothing of its batch is committed."""
    direct = postgres.shared().database(new_name())
    psql(direct, f"CREATE TABLE t(id text); CREATE TABLE other(id text); CREATE FUNCTION pay(n text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN IF n = 'm3' THEN {HIDES[hides]}; END IF; RETURN n; END $$")
    with contextlib.ExitStack() as stack:
        url = direct
        if where == "pooler":
            try:
                url = stack.enter_context(pgbouncer.Pooler(postgres.shared(), "transaction", default_pool_size=1)).url(direct)
            except postgres.Missing as why:
                pytest.skip(f"missing: {why}")
        do = '["SELECT pay(:id)", "INSERT INTO t(id) VALUES (:id)"]'
        if where == "elsewhere":
            p = Pipeline(tmp_path, f'key: "${{/id}}"\npatience: 1s\nhandler:\n  sql: {{url: "{url}", do: {do}}}\n', consumer="payer")
        else:
            p = PostgresPipeline(tmp_path, f'key: "${{/id}}"\npatience: 1s\nhandler:\n  sql: {do}\n', url=url, consumer="payer")
        p.write(*some(6))
        ended = p.try_run()
        if where == "pooler":  # there the names of the database come first
            assert ended.status == 0, ended
        else:
            assert ended.status == 3 and "effects of consumer 'payer'" in ended.err and "a temporary table hides another one: t; nothing was committed" in ended.err, ended
            which = " WHERE id = 'm3'" if where == "elsewhere" else ""  # there a transaction is one message's
            assert psql(direct, "SELECT count(*) FROM t" + which) == "0\n"
            psql(direct, "CREATE OR REPLACE FUNCTION pay(n text) RETURNS text LANGUAGE sql AS 'SELECT n'")
            assert p.run(status=0)["store_dead"] == 0
        assert psql(direct, "SELECT count(*), count(DISTINCT id) FROM t") == "6|6\n"


def test_f78_a_temporary_table_that_hides_nothing_is_the_functions_own(tmp_path):
    direct = postgres.shared().database(new_name())
    psql(direct, """CREATE TABLE t(id text); CREATE FUNCTION pay(n text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
        CREATE TEMP TABLE IF NOT EXISTS scratch(id text); CREATE TEMP TABLE t(id text); INSERT INTO scratch VALUES (n); DROP TABLE pg_temp.t; RETURN n; END $$""")
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nbatch: {max: 3}\nhandler: {sql: ["INSERT INTO t SELECT pay(:id)"]}\n', url=direct)
    p.write(*some(9))
    counts(p.run(status=0), received=9, done=9)
    assert psql(direct, "SELECT count(*) FROM t") == "9\n"


@pytest.mark.parametrize("ends", [b"COMMIT", b"COMMIT AND CHAIN", b"ROLLBACK"])
@pytest.mark.parametrize("where", ["store", "careful", "elsewhere"])
def test_f78_a_transaction_that_was_ended_in_the_middle_is_not_known(tmp_path, where, ends):
    """Whatever has done that, without our seeing it: what it left may be there, so its messages are unknown and do not run again."""
    direct = postgres.shared().database(new_name())
    psql(direct, "CREATE TABLE t(id text UNIQUE)")
    mark = b"SELECT 1234567890"
    do = f'["INSERT INTO t VALUES (:id)", "{mark.decode()}"]'
    config = f'key: "${{/id}}"\npatience: 1s\nhandler:\n  sql: {do}\n  already: [t_id_key]\n'
    if where == "careful":  # with savepoints
        psql(direct, "INSERT INTO t VALUES ('m0')")
    with Proxy(os.path.join(re.search(r"host=([^&]*)", direct).group(1), ".s.PGSQL.5432")) as proxy:
        proxied = re.sub(r"host=[^&]*", f"host=127.0.0.1&port={proxy.port}&sslmode=disable&gssencmode=disable", direct)
        if where == "elsewhere":
            p = Pipeline(tmp_path, f'key: "${{/id}}"\npatience: 1s\nhandler:\n  sql: {{url: "{proxied}", do: {do}}}\n')
        else:
            p = PostgresPipeline(tmp_path, config, url=direct)
            p.configure(config, store=proxied)
        p.write(*some(3))
        proxy.replacing = {mark: ends.ljust(len(mark))}
        ended = p.try_run()
        assert ended.status == 3 and "not known what of it was committed" in ended.err and "nothing was committed" not in ended.err, ended
        left = psql(direct, "SELECT id FROM t ORDER BY id")
        proxy.replacing = {}
        again = p.try_run()
        begun = {m["key"] for which in ("--unknown", "--dead") for m in p.once("list", which, "--json", p.name).json["messages"]}
        assert begun and again.status == 1 and again.json["done"] + again.json["already"] + len(begun) == 3, (ended, again)
        assert where != "store" or len(begun) == 3, "all of a batch share a transaction"
        assert set(left.split()) - {"m0"} <= begun, (left, begun)
