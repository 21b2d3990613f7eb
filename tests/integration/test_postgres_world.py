"""PostgreSQL as it is found: what roles have as their defaults, workers with wrong clocks, kills while tables are made, TLS,
service and password files."""

import os
import signal
import socket
import subprocess

import pytest

import postgres
from crashes import Workload
from harness import check_sum, counts, until
from pgpipeline import PostgresPipeline, need_postgres, new_name

need_postgres()

TABLES = "CREATE TABLE t(n bigint GENERATED ALWAYS AS IDENTITY, id text); CREATE TABLE total(n bigint); INSERT INTO total VALUES (0)"
CONFIG = 'key: "${/id}"\nlease: 2s\nbatch: {max: 20}\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)", "UPDATE total SET n = n + 1"]}\n'


def some(n, first=0):
    return [{"id": f"m{i}"} for i in range(first, first + n)]


def exactly_once(p, n):
    assert p.rows("SELECT count(*) AS a, count(DISTINCT id) AS b FROM t") == [(n, n)]
    assert p.value("SELECT n FROM total") == n


# ---- workers whose clocks are wrong ----

SKEW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && clock == CLOCK_REALTIME) at->tv_sec += atol(getenv("SKEW_S"));
    return failed;
}
"""


@pytest.fixture(scope="module")
def skewed(tmp_path_factory):
    """The environment of a process whose wall clock is off."""
    folder = tmp_path_factory.mktemp("skew")
    (folder / "skew.c").write_text(SKEW)
    made = subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "skew.so", folder / "skew.c", "-ldl"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return lambda seconds: {"LD_PRELOAD": str(folder / "skew.so"), "SKEW_S": str(seconds),
                            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def start(p, env):
    os.environ.update(env)
    try:
        return p.start()
    finally:
        for name in env:
            if name != "ASAN_OPTIONS":
                del os.environ[name]


def test_f20_workers_skewed_by_ten_minutes(tmp_path, skewed):
    """The one who is ahead does not steal a live claim, the one who is behind does not wait ten minutes for a dead one."""
    log = tmp_path / "log"
    (tmp_path / "effect").write_text(f'#!/bin/sh\necho "$ONCE_KEY" >> {log}\n[ "$ONCE_KEY$ONCE_ATTEMPT" = dies1 ] && sleep 60\n[ "$ONCE_KEY" = lives ] && sleep 2\nexit 0\n')
    (tmp_path / "effect").chmod(0o755)
    p = PostgresPipeline(str(tmp_path), f'key: "${{/id}}"\nlease: 1s\nunknown: retry\nretry: {{attempts: 3, backoff: 1ms..2ms}}\nhandler: {{exec: ["{tmp_path}/effect"], timeout: 90s}}\n')

    def effects():
        return log.read_text().split() if log.exists() else []

    p.write({"id": "lives"})
    with start(p, skewed(-600)) as one:
        until(lambda: effects() == ["lives"], what="the effect begins")
        with start(p, skewed(600)) as two:
            ended = [one.end(), two.end()]
    assert [e.status for e in ended] == [0, 0], ended
    assert effects() == ["lives"] and sum(e.json["done"] for e in ended) == 1

    p.write({"id": "dies"})
    with start(p, skewed(600)) as one:
        until(lambda: effects() == ["lives", "dies"], what="the effect begins")
        one.send(signal.SIGKILL)
        one.process.wait()
        with start(p, skewed(-600)) as two:
            ended = two.end(30)
    assert ended.status == 0 and ended.json["done"] == 1 and effects() == ["lives", "dies", "dies"], ended


# ---- deadlocks and serialization ----

@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_f48_the_isolation_that_a_role_has_by_default(tmp_path, level):
    """Ours is READ COMMITTED whatever the default is; three processes on the same rows."""
    p = PostgresPipeline(str(tmp_path), CONFIG, TABLES)
    role = new_name()
    p.execute(f"CREATE ROLE {role} LOGIN; ALTER ROLE {role} SET default_transaction_isolation = '{level}'; GRANT ALL ON SCHEMA public TO {role};"
              f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    p.configure(CONFIG, store=p.url.replace("postgres@", f"{role}@"))
    p.write(*some(300))
    running = [p.start() for _ in range(3)]
    try:
        ended = [r.end() for r in running]
    finally:
        for r in running:
            r.__exit__()
    for e in ended:
        assert e.status == 0 and e.json["dead"] == 0, e
        check_sum(e.json)
    assert sum(e.json["done"] for e in ended) == 300
    exactly_once(p, 300)


def test_f48_serialization_failures_are_repeated(tmp_path):
    """A statement that says 40001 or 40P01 now and then; it succeeds in the end, and no message is blamed."""
    p = PostgresPipeline(str(tmp_path), CONFIG, TABLES + """;
        CREATE SEQUENCE tries;
        CREATE FUNCTION flaky() RETURNS trigger LANGUAGE plpgsql AS 'DECLARE n bigint := nextval(''tries''); BEGIN
            IF n % 30 = 0 THEN RAISE EXCEPTION ''try again'' USING ERRCODE = CASE n % 60 WHEN 0 THEN ''40001'' ELSE ''40P01'' END; END IF; RETURN NEW; END';
        CREATE TRIGGER flaky BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION flaky();
    """)
    p.write(*some(200))
    summary = p.run(status=0)
    counts(summary, received=200, done=200, acked=200)
    exactly_once(p, 200)


# ---- kills while the tables are made; other versions ----

SLOW_DDL = """
CREATE SEQUENCE public.made;
CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END';
CREATE FUNCTION public.slow() RETURNS event_trigger LANGUAGE plpgsql AS 'DECLARE n bigint := nextval(''public.made''); BEGIN
    IF n = %d THEN PERFORM pg_sleep(60); END IF;
    IF n = 17 THEN EXECUTE ''CREATE TRIGGER late BEFORE INSERT ON once_meta FOR EACH ROW EXECUTE FUNCTION public.late()''; END IF; END';
CREATE EVENT TRIGGER slow ON ddl_command_end EXECUTE FUNCTION public.slow();
"""


@pytest.mark.parametrize("at", [1, 9, 99], ids=["first_table", "some_tables", "all_tables_but_no_version"])
def test_f13_killed_while_the_tables_are_made(tmp_path, at):
    """All of them or none. The server ends the statement of somebody who is gone."""
    p = PostgresPipeline(str(tmp_path), CONFIG, TABLES)
    p.execute(SLOW_DDL % at)
    p.configure(CONFIG, store=p.url + "&options=-cclient_connection_check_interval%3D100ms")
    p.write(*some(10))
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    with p.start() as running:
        until(lambda: p.value(asleep) == 1, what="in the middle")
        running.send(signal.SIGKILL)
        running.process.wait()
    until(lambda: p.value(asleep) == 0, what="the server has given it up")
    assert p.rows("SELECT relname FROM pg_class WHERE relname LIKE 'once_%'") == []
    p.execute("DROP EVENT TRIGGER slow")
    counts(p.run(status=0), received=10, done=10)
    exactly_once(p, 10)


def test_f13_f57_five_make_the_tables_and_one_of_them_is_killed(tmp_path):
    p = PostgresPipeline(str(tmp_path), CONFIG, TABLES)
    p.execute(SLOW_DDL % 5 + "DROP FUNCTION public.late; CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    p.configure(CONFIG, store=p.url + "&options=-cclient_connection_check_interval%3D100ms")
    p.write(*some(100))
    who = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    first = p.start()
    try:
        until(lambda: p.rows(who), what="the first is in the middle")
        others = [p.start() for _ in range(4)]
        until(lambda: p.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 4, what="the others wait")
        first.send(signal.SIGKILL)
        ended = [r.end() for r in others]
    finally:
        for r in [first, *others]:
            r.__exit__()
    for e in ended:
        assert e.status == 0, e
    assert sum(e.json["done"] for e in ended) == 100
    exactly_once(p, 100)


def test_f58_a_newer_version_is_left_as_it_is(tmp_path):
    p = PostgresPipeline(str(tmp_path), CONFIG, TABLES)
    p.write(*some(5))
    p.run(status=0)
    p.execute("UPDATE once_meta SET value = '99' WHERE name = 'version'")
    tables = [name for (name,) in p.rows("SELECT tablename FROM pg_tables WHERE tablename LIKE 'once_%' ORDER BY 1")]
    state = lambda: [p.rows(f"SELECT md5(string_agg(x::text, '|' ORDER BY x::text)) AS h FROM {name} x") for name in tables]
    before = state()
    p.append(*some(5, 5))
    for verb in ("run", "check", "status", "sweep"):
        ended = p.once(verb, p.name)
        assert ended.status == 3 and "newer once" in ended.err, (verb, ended)
    assert state() == before and p.value("SELECT count(*) FROM t") == 5


@pytest.mark.parametrize("first, second", [("take_after:kill", "take_after:kill"), ("settle_after:kill:2", "commit_before:kill")])
def test_f11_killed_twice_during_recovery(tmp_path, first, second):
    work = Workload(str(tmp_path), postgres=postgres.shared())
    for point in (first, second, second):
        ended = work.p.try_run(failpoint=point)
        assert ended.killed, (point, ended)
        work.check_now()
    work.finish()
    work.check_replay()


# ---- TLS, service and password files ----

def openssl(folder, *arguments):
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_ca(folder, name):
    openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.crt")


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A server with a certificate for 'localhost', that asks for passwords over TCP."""
    folder = tmp_path_factory.mktemp("tls")
    make_ca(folder, "ca")
    make_ca(folder, "other")
    openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
    (folder / "san").write_text("subjectAltName=DNS:localhost")
    openssl(folder, "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san", "-out", "server.crt")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = postgres.Server(port=port)
    try:
        server.query("CREATE ROLE pays LOGIN PASSWORD 'hush-hush'; GRANT ALL ON SCHEMA public TO pays; GRANT CREATE ON DATABASE postgres TO pays")
        for name in ("server.crt", "server.key"):
            (folder / name).chmod(0o600)
            subprocess.run(["cp", folder / name, server.data], check=True)
            path = os.path.join(server.data, name)
            if os.geteuid() == 0:
                os.chown(path, os.stat(server.data).st_uid, os.stat(server.data).st_gid)
        with open(os.path.join(server.data, "pg_hba.conf"), "w") as file:
            file.write("local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
        server.query("ALTER SYSTEM SET ssl = on")
        server.query("SELECT pg_reload_conf()")
        yield server, port, folder
    finally:
        server.close()


def over_tls(tmp_path, tls, query):
    server = tls[0]
    schema = new_name()
    server.query(f"CREATE SCHEMA {schema} AUTHORIZATION pays")
    p = PostgresPipeline(str(tmp_path), url=f"{server.url}&options=-csearch_path%3D{schema}", server=server)
    p.configure('key: "${/id}"\nhandler: {sql: ["SELECT :id::text"]}\n', store=f"postgres://{query}options=-csearch_path%3D{schema}", source="{path: in.ndjson, follow: true}")
    p.write(*some(3))
    return p


def certain(port, folder, ca="ca"):
    return f"pays@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={folder}/{ca}.crt&"


def passwords(folder, text):
    path = os.path.join(folder, "pgpass")
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o600)
    return path


def test_tls_is_verified(tmp_path, tls):
    server, port, folder = tls
    env = {"PGPASSFILE": passwords(tmp_path, "localhost:*:*:pays:hush-hush\n")}
    until(lambda: server.query("SHOW ssl") == "on", what="TLS")
    p = over_tls(tmp_path, tls, certain(port, folder))
    checked = p.once("check", p.name, env=env)
    assert checked.status == 0, checked
    assert p.value("SELECT count(*) FROM once_meta") == 3
    for query, word in ((certain(port, folder, "other"), "certificate"),                                          # another CA
                        (certain(port, folder).replace("localhost", "127.0.0.1"), "127.0.0.1"),                   # another name
                        (certain(port, folder).replace("verify-full", "disable"), "pg_hba.conf")):                # none at all
        q = over_tls(tmp_path / new_name(), tls, query)
        ended = q.once("run", "--json", q.name, env=env, deadline_s=15)
        assert ended.status == 3 and word in ended.err and "trying again" not in ended.err, ended


def test_f45_a_wrong_password_ends_at_once(tmp_path, tls):
    _, port, folder = tls
    for text, word in (("localhost:*:*:pays:wrong\n", "password"), ("", "no password supplied")):
        env = {"PGPASSFILE": passwords(tmp_path, text)}
        p = over_tls(tmp_path / new_name(), tls, certain(port, folder))
        ended = p.once("run", "--json", p.name, env=env, deadline_s=15)
        assert ended.status == 3 and word in ended.err and "trying again" not in ended.err, ended


def test_service_and_password_files(tmp_path, tls):
    _, port, folder = tls
    (tmp_path / "services").write_text(f"[shop]\nhost=localhost\nport={port}\nuser=pays\ndbname=postgres\nsslmode=verify-full\nsslrootcert={folder}/ca.crt\n")
    env = {"PGSERVICEFILE": str(tmp_path / "services"), "PGPASSFILE": passwords(tmp_path, f"localhost:{port}:postgres:pays:hush-hush\n")}
    p = over_tls(tmp_path, tls, "?service=shop&")
    checked = p.once("check", p.name, env=env)
    assert checked.status == 0 and "role=pays" in checked.out, checked
    ended = p.once("check", p.name, env={**env, "PGSERVICEFILE": "/nowhere"})
    assert ended.status == 2 and "service" in ended.err, ended
