"""PostgreSQL behind PgBouncer: sessions that are shared with others, handed over between transactions, or kept."""

import os
import re
import signal
import threading
import time

import pytest

import pgbouncer
import postgres
import pq
from harness import Pipeline, Running, counts, until
from pgpipeline import PostgresPipeline, Session, need_postgres, new_name, psql
from tcpproxy import Proxy

need_postgres()

NAMES = ("left_one", "right_one")
CONFIG = 'key: "${/id}"\nlease: 5s\nbatch: {max: 20}\nhandler: {sql: ["INSERT INTO %s(id) VALUES (:id)"]}\n'
SAID = "the connection goes through a pooler"


def some(n, prefix="m"):
    return [{"id": f"{prefix}{i}"} for i in range(n)]


@pytest.fixture(scope="module")
def server():
    return postgres.shared()


@pytest.fixture(params=["transaction", "session"])
def mode(request):
    return request.param


def pool(server, mode, **settings):
    try:
        return pgbouncer.Pooler(server, mode, **settings)
    except postgres.Missing as why:
        pytest.skip(f"missing: {why}")


def together(*pipelines):
    """Runs them at the same time; what each printed."""
    ended = [None] * len(pipelines)

    def work(i):
        ended[i] = pipelines[i].try_run()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(pipelines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def has_its_own(url, name, n):
    """All of the messages that begin as its name does, each once, and no other."""
    assert psql(url, f"SELECT count(*), count(DISTINCT id), min(left(id, 1)), max(left(id, 1)) FROM {name}") == f"{n}|{n}|{name[0]}|{name[0]}\n"


def both(tmp_path, url, n, config=CONFIG):
    found = [PostgresPipeline(tmp_path / name, config % name, consumer=name, url=url) for name in NAMES]
    for p, name in zip(found, NAMES):
        p.write(*some(n, name[0]))
    return found


def aside(folder, config, consumer):
    """A store of its own, beside the database."""
    folder.mkdir()
    return Pipeline(folder, config, consumer=consumer)


def left_in(pooler, database):
    """What the sessions of the pool keep of us."""
    connection = pq.Connection(pooler.url(database))
    return connection.rows("SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
                           " WHERE locktype = 'advisory' AND datname = current_database()),"
                           " (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding'))")


@pytest.mark.parametrize("size", [1, 2])
def test_f88_two_pipelines_of_one_pool_write_into_their_own_tables(tmp_path, server, size):
    """The statements of both had the same names; each ran whichever had come first on that session."""
    direct = server.database(new_name())
    psql(direct, "".join(f"CREATE TABLE {name}(id text);" for name in NAMES))
    with pool(server, "transaction", default_pool_size=size) as pooler:
        for ended in together(*both(tmp_path, pooler.url(direct), 3000)):
            assert ended.status == 0, ended
            counts(ended.json, received=3000, done=3000)
        assert left_in(pooler, direct) == [("0", "0", "0")]
    for name in NAMES:
        has_its_own(direct, name, 3000)


def test_f88_effects_elsewhere_through_one_pool(tmp_path, server):
    direct = server.database(new_name())
    psql(direct, "".join(f"CREATE TABLE {name}(id text, key text UNIQUE);" for name in NAMES))
    with pool(server, "transaction", default_pool_size=2) as pooler:
        pipelines = []
        for name in NAMES:
            p = aside(tmp_path / name, f"""
key: "${{/id}}"
lease: 5s
handler: {{sql: {{url: "{pooler.url(direct)}", do: ["INSERT INTO {name}(id, key) VALUES (:id, :once_idempotency_key)"]}}}}
""", consumer=name)
            p.write(*some(400, name[0]))
            pipelines.append(p)
        for ended in together(*pipelines):
            assert ended.status == 0, ended
            counts(ended.json, received=400, done=400)
        assert SAID in pipelines[0].once("check", pipelines[0].name).out
        assert left_in(pooler, direct) == [("0", "0", "0")]
    for name in NAMES:
        has_its_own(direct, name, 400)


def test_f88_check_says_that_there_is_a_pooler(tmp_path, server, mode):
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    p = PostgresPipeline(tmp_path, CONFIG % "t", url=direct)
    assert SAID not in p.once("check", p.name).out
    with pool(server, mode) as pooler:
        p.configure(CONFIG % "t", store=pooler.url(direct))
        ended = p.once("check", p.name)
        assert ended.status == 0 and SAID in ended.out, ended
        p.write(*some(300))
        counts(p.run(status=0), received=300, done=300)
        counts(p.run(status=0), received=300, duplicates=300)
    assert psql(direct, "SELECT count(*), count(DISTINCT id) FROM t") == "300|300\n"


def test_f88_a_pooler_without_transactions_is_refused_by_name(tmp_path, server):
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    with pool(server, "statement") as pooler:
        p = PostgresPipeline(tmp_path, CONFIG % "t", url=pooler.url(direct))
        for verb in ("check", "run"):
            ended = p.once(verb, p.name)
            assert ended.status == 2 and "pool_mode = statement" in ended.err, ended


def test_f88_options_that_the_pooler_refuses_are_named(tmp_path, server):
    with pool(server, "transaction", ignore_startup_parameters="extra_float_digits") as pooler:
        p = PostgresPipeline(tmp_path, CONFIG % "t", url=pooler.url(server.schema(new_name())))
        ended = p.once("check", p.name)
        assert ended.status == 2 and "ignore_startup_parameters" in ended.err, ended


def test_f88_the_schema_of_the_url_counts_whatever_the_session_has(tmp_path, server, mode):
    """A pooler does not tell the server what `options` say, and somebody has left another search path in every session."""
    names = [new_name(), new_name()]
    direct = [server.schema(name) for name in names]
    for url in direct:
        psql(url, "CREATE TABLE t(id text)")
    with pool(server, mode, default_pool_size=2, connect_query="SET search_path = nowhere") as pooler:
        pipelines = [PostgresPipeline(tmp_path / name[0], CONFIG % "t", consumer="c", url=url) for name, url in zip(NAMES, direct)]
        for p, name, url in zip(pipelines, NAMES, direct):
            p.configure(CONFIG % "t", store=pooler.url(url))
            p.write(*some(500, name[0]))
        if mode == "session":  # two sessions for all: one after the other
            ended = [p.try_run() for p in pipelines]
        else:
            ended = together(*pipelines)
        for one in ended:
            assert one.status == 0, one
            counts(one.json, received=500, done=500)
    for url, name, letter in zip(direct, names, "lr"):
        assert psql(url, "SELECT count(*), count(DISTINCT id), min(left(id, 1)), max(left(id, 1)) FROM t") == f"500|500|{letter}|{letter}\n"
        assert psql(server.url, f"SELECT count(*) FROM {name}.once_entry") == "500\n"


def test_f88_a_search_path_that_somebody_left_is_not_ours(tmp_path, server, mode):
    """The URL says nothing of a schema, so it is the one that a new session would have; a table of the same name is in the other one."""
    direct = server.database(new_name())
    psql(direct, "CREATE SCHEMA trap; CREATE TABLE t(id text); CREATE TABLE trap.t(id text)")
    with pool(server, mode, default_pool_size=2, connect_query="SET search_path = trap") as pooler:
        p = PostgresPipeline(tmp_path, CONFIG % "t", url=direct)
        p.configure(CONFIG % "t", store=pooler.url(direct))
        p.write(*some(20))
        counts(p.run(status=0), received=20, done=20)
        beside = aside(tmp_path / "aside", f'key: "${{/id}}"\nhandler: {{sql: {{url: "{pooler.url(direct)}", do: ["INSERT INTO t(id) VALUES (:id)"]}}}}\n', "c")
        beside.write(*some(20, "aside"))
        counts(beside.run(status=0), received=20, done=20)
    assert psql(direct, "SELECT (SELECT count(*) FROM public.t), (SELECT count(*) FROM trap.t)") == "40|0\n"
    assert psql(direct, "SELECT schemaname FROM pg_tables WHERE tablename = 'once_entry'") == "public\n"


# What whoever had the session before may have left in it.
LEFT_SET = "SET synchronous_commit = off; SET lock_timeout = 3000; SET statement_timeout = 3600000;" \
           " SET idle_in_transaction_session_timeout = 3600000; SET client_connection_check_interval = 3600000"


def test_f88_settings_of_the_url_hold_in_each_transaction(tmp_path, server):
    """And without any those that a new session would have, whatever this one was told before."""
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE s(id text, lock text, statement text, idle text, gone text, sync text)")
    config = """key: "${/id}"
handler: {sql: ["INSERT INTO s SELECT :id, current_setting('lock_timeout'), current_setting('statement_timeout'),
  current_setting('idle_in_transaction_session_timeout'), current_setting('client_connection_check_interval'), current_setting('synchronous_commit')"]}
"""
    with pool(server, "transaction", default_pool_size=1, connect_query=LEFT_SET) as pooler:
        p = PostgresPipeline(tmp_path, config, url=pooler.url(direct) + "&options=-c%20lock_timeout%3D7s%20--idle-in-transaction-session-timeout%3D2min")
        p.write(*some(3))
        counts(p.run(status=0), received=3, done=3)
        assert psql(direct, "SELECT DISTINCT lock, statement, idle, gone, sync FROM s") == "7s|0|2min|5s|on\n"
        p.configure(config, store=pooler.url(direct))
        p.write(*some(3, "n"))
        counts(p.run(status=0), received=3, done=3)
        assert psql(direct, "SELECT DISTINCT lock::interval BETWEEN '20ms' AND '40ms', statement, idle, gone, sync FROM s WHERE id LIKE 'n%'") == "t|0|30s|5s|on\n"


def key_data(pid):
    """A pooler that passes on a process id of the server as if the session behind it were the client's. It is said once, at the beginning;
    whatever looks like it later is somebody's data."""
    def of_a_connection():
        said = False

        def rewrite(data):
            nonlocal said
            if said:
                return data
            data, said = re.subn(rb"K\x00\x00\x00\x0c....", lambda found: found.group()[:5] + pid.to_bytes(4, "big"), data, count=1, flags=re.DOTALL)
            return data
        return rewrite
    return of_a_connection


@pytest.mark.parametrize("elsewhere", [False, True], ids=["store", "elsewhere"])
def test_f88_a_pooler_that_looks_like_a_server_is_found_out(tmp_path, server, elsewhere):
    """The process is the right one, always. That statements are there already tells, and later that they are not, in another session."""
    direct = server.database(new_name())
    psql(direct, "".join(f"CREATE TABLE {name}(id text);" for name in NAMES))
    with pool(server, "transaction", default_pool_size=1) as pooler, \
            Proxy(os.path.join(pooler.folder, f".s.PGSQL.{pgbouncer.PORT}")) as proxy:
        proxy.rewriting = key_data(int(pq.once(pooler.url(direct), "SELECT pg_backend_pid()")[0][0]))
        url = re.sub(r"@/(\w+)\?.*", rf"@127.0.0.1:{proxy.port}/\1", direct)
        if elsewhere:
            pipelines = [aside(tmp_path / name, f'key: "${{/id}}"\nhandler: {{sql: {{url: "{url}", do: ["INSERT INTO {name}(id) VALUES (:id)"]}}}}\n',
                                  consumer=name) for name in NAMES]
            for p, name in zip(pipelines, NAMES):
                p.write(*some(300, name[0]))
        else:
            pipelines = both(tmp_path, url, 300)
        for ended in together(*pipelines):
            assert ended.status == 0, ended
            counts(ended.json, received=300, done=300)
        psql(server.url, f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{direct_name(direct)}'")
        for p, name in zip(pipelines, NAMES):
            p.append(*some(100, name[0] + "x"))
        for ended in together(*pipelines):
            assert ended.status == 0, ended
        for name in NAMES:
            has_its_own(direct, name, 400)


def test_f88_what_a_stranger_prepared_under_our_name_does_not_run(tmp_path, server):
    """A session without a pooler that was prepared by somebody else: the names are those that were used before."""
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE t(id text); CREATE TABLE wrong(id text)")
    with pool(server, "transaction", default_pool_size=1) as pooler:
        stranger = pq.Connection(pooler.url(direct))
        for name in [f"u{i}" for i in range(4)] + [f"once_s{i}" for i in range(60)]:
            stranger.rows(f"PREPARE {name}(text) AS INSERT INTO wrong VALUES ($1)")
        p = PostgresPipeline(tmp_path, CONFIG % "t", url=pooler.url(direct))
        p.write(*some(50))
        counts(p.run(status=0), received=50, done=50)
    assert psql(direct, "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM wrong)") == "50|0\n"


def test_f88_sweeping_without_a_lock_of_the_session(tmp_path, server):
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    with pool(server, "transaction", default_pool_size=2) as pooler:
        p = PostgresPipeline(tmp_path, "remember: 1s\n" + CONFIG.replace("5s", "100ms") % "t", url=pooler.url(direct))
        p.write(*some(3000))
        counts(p.run(status=0), received=3000, done=3000)
        time.sleep(1.1)
        sweepers = [Running(["sweep", p.name], p.folder) for _ in range(2)]
        assert [sweeper.end().status for sweeper in sweepers] == [0, 0]
        assert psql(direct, "SELECT count(*) FROM once_entry") == "0\n"
        assert left_in(pooler, direct) == [("0", "0", "0")]


def test_f88_whoever_waits_for_a_lock_behind_a_pooler_is_not_taken_for_lost(tmp_path, server):
    """The session that works for us is asked about, although it is another one each time."""
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    with pool(server, "transaction", default_pool_size=4) as pooler:
        p = PostgresPipeline(tmp_path, CONFIG % "t", url=pooler.url(direct) + "&answer_timeout=1")
        p.write({"id": "first"})
        counts(p.run(status=0), received=1, done=1)
        p.write({"id": "second"})
        with Session(direct, "BEGIN; LOCK TABLE once_entry IN EXCLUSIVE MODE"):
            until(lambda: psql(direct, "SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock' AND relation = 'once_entry'::regclass AND granted") != "0\n",
                  what="the lock")
            running = p.start()
            until(lambda: psql(direct, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == "1\n", what="somebody who waits")
            pid = psql(direct, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
            time.sleep(4)
            assert psql(direct, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == pid, "it waits as it did"
        ended = running.end()
        assert ended.status == 0 and "store_failed" not in ended.err and "store_away" not in ended.err, ended
    assert psql(direct, "SELECT count(*) FROM t") == "2\n"


def test_f88_sessions_and_the_pooler_die_under_a_run(tmp_path, server):
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    with pool(server, "transaction", default_pool_size=2) as pooler:
        p = PostgresPipeline(tmp_path, CONFIG % "t", url=pooler.url(direct), source="{path: in.ndjson, follow: true}")
        p.write(*some(200))
        with p.start() as running:
            for n in range(1, 4):
                until(lambda: int(psql(direct, "SELECT count(*) FROM t")) == 200 * n, what="all that were written")
                if n == 2:
                    pooler.stop()
                    pooler.start()
                else:
                    psql(server.url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'once%' AND datname = '{direct_name(direct)}'")
                p.append(*some(200, f"x{n}_"))
            until(lambda: int(psql(direct, "SELECT count(*) FROM t")) == 800, what="all of it")
            running.send(signal.SIGTERM)
            ended = running.end()
        assert ended.status == 0, ended
    assert psql(direct, "SELECT count(*), count(DISTINCT id) FROM t") == "800|800\n"


def direct_name(url):
    return re.search(r"@/(\w+)", url).group(1)


# ---- temporary tables that strangers leave in a session ----

LEFT = "CREATE TEMP TABLE pay(id text); CREATE TEMP TABLE once_meta(x int); CREATE TEMP TABLE once_live(x int); CREATE TEMP TABLE once_fact(x int);" \
       "CREATE TEMP TABLE pg_class(x int); CREATE TEMP TABLE pg_namespace(x int); CREATE TEMP TABLE pg_constraint(x int); CREATE DOMAIN pg_temp.uuid AS text"


def leave(pooler, direct, sql=LEFT):
    """A stranger says it in the only session of the pool, and is gone."""
    connection = pq.Connection(pooler.url(direct))
    connection.rows(sql)
    connection.close()


def paying(tmp_path, url, elsewhere, query=""):
    """Pays twenty times into the table `pay`, as the search path finds it."""
    do = "INSERT INTO pay VALUES (:id)"
    if elsewhere:
        p = aside(tmp_path / "p", f'key: "${{/id}}"\nhandler: {{sql: {{url: "{url}", do: ["{do}"]}}}}\n', "c")
    else:
        p = PostgresPipeline(tmp_path / "p", f'key: "${{/id}}"\nhandler: {{sql: ["{do}"]}}\n', url=url)
        p.configure(f'key: "${{/id}}"\nhandler: {{sql: ["{do}"]}}\n', store=url + query)
    p.write(*some(20))
    return p


@pytest.mark.parametrize("where", ["store", "schema", "path", "elsewhere"])
def test_f88_a_strangers_temporary_table_swallows_nothing(tmp_path, server, where):
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE pay(id text)")
    query = {"schema": "&schema=public", "path": "&options=-csearch_path%3Dpg_temp,nowhere,public"}.get(where, "")
    with pool(server, "transaction", default_pool_size=1) as pooler:
        leave(pooler, direct)
        p = paying(tmp_path, pooler.url(direct), where == "elsewhere", query)
        ended = p.once("check", p.name)
        assert ended.status == 0, ended
        counts(p.run(status=0), received=20, done=20)
        assert psql(direct, "SELECT count(*), count(DISTINCT id) FROM public.pay") == "20|20\n"
        counts(p.run(status=0), received=20, duplicates=20)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_f88_a_table_that_is_only_there_as_a_strangers_temporary_one_is_missing(tmp_path, server, elsewhere):
    direct = server.database(new_name())
    with pool(server, "transaction", default_pool_size=1) as pooler:
        leave(pooler, direct)
        p = paying(tmp_path, pooler.url(direct), elsewhere)
        for verb in ("check", "run"):
            ended = p.once(verb, p.name)
            assert ended.status == 2 and "'pay'" in ended.err and "temporary table" in ended.err, ended
        psql(direct, "CREATE TABLE public.pay(id text)")
        counts(p.run(status=0), received=20, done=20)


def test_f88_a_temporary_table_that_comes_under_a_run_swallows_nothing(tmp_path, server):
    """The table is dropped, too, so that nothing but the temporary one has its name."""
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE pay(id text)")
    with pool(server, "transaction", default_pool_size=1) as pooler:
        p = paying(tmp_path, pooler.url(direct), False)
        p.configure('key: "${/id}"\nhandler: {sql: ["INSERT INTO pay VALUES (:id)"]}\n', store=pooler.url(direct), source="{path: in.ndjson, follow: true}")
        log = tmp_path / "log"
        with open(log, "wb") as file, p.start(stderr=file) as worker:
            until(lambda: psql(direct, "SELECT count(*) FROM public.pay") == "20\n")
            leave(pooler, direct, "DROP TABLE public.pay; CREATE TEMP TABLE pay(id text)")
            p.append(*some(20, "n"))
            until(lambda: "temporary table" in log.read_text())
            psql(direct, "CREATE TABLE public.pay(id text)")
            until(lambda: psql(direct, "SELECT count(*) FROM public.pay") == "20\n")
            worker.send(signal.SIGTERM)
            ended = worker.end()
        assert ended.status == 0, ended
        counts(ended.json, received=40, done=40)
        assert pq.once(pooler.url(direct), "SELECT count(*) FROM pg_temp.pay") == [("0",)]


def test_f88_init_makes_no_temporary_tables(tmp_path, server):
    direct = server.database(new_name())
    with pool(server, "transaction", default_pool_size=1) as pooler:
        leave(pooler, direct)
        config = 'key: "${/id}"\ninit: CREATE TABLE IF NOT EXISTS pay(id text)\nhandler: {sql: ["INSERT INTO pay VALUES (:id)"]}\n'
        p = PostgresPipeline(tmp_path, config, url=direct)
        p.configure(config, store=pooler.url(direct))
        p.write(*some(20))
        counts(p.run(status=0), received=20, done=20)
        assert psql(direct, "SELECT count(*) FROM public.pay") == "20\n"
        p.configure(config.replace("pay", "nowhere"), store=pooler.url(direct) + "&schema=public&options=-csearch_path%3Dabsent")
        ended = p.try_run()
        assert ended.status == 3 and "pg_catalog" in ended.err, ended
