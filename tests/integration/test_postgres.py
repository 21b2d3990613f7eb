"""PostgreSQL: SQL effects in the store's own database, faults by SQLSTATE, the schema, roles, many processes, servers that die."""

import os
import re
import signal
import threading
import time

import pytest

import postgres
from harness import check_sum, counts, once, stopped, until
from pgpipeline import PostgresPipeline, Session, need_postgres, psql
from tcpproxy import Proxy

need_postgres()

TABLES = """
CREATE TABLE t(n bigint GENERATED ALWAYS AS IDENTITY, id text, amount numeric);
CREATE TABLE total(n bigint);
INSERT INTO total VALUES (0);
"""
CONFIG = 'key: "${/id}"\nlease: 2s\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)", "UPDATE total SET n = n + 1"]}\n'


def some(n, first=0):
    return [{"id": f"m{i}"} for i in range(first, first + n)]


def exactly_once(p, n):
    assert p.rows("SELECT count(*) AS a, count(DISTINCT id) AS b FROM t") == [(n, n)]
    assert p.value("SELECT n FROM total") == n


def reasons(p):
    return [reason for _, reason in p.letters()]


# ---- effects ----

def test_f07_once_and_duplicates(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.write(*some(3000), *some(1000), *some(500, 2800))
    counts(p.run(status=0), received=4500, done=3300, duplicates=1200)
    exactly_once(p, 3300)
    counts(p.run(status=0), received=4500, duplicates=4500, attempts=0)
    exactly_once(p, 3300)
    (entry,) = p.explain("m17")
    assert entry["state"] == "done" and entry["attempt"] == 1


def test_entries_are_written_once(tmp_path):
    """A settled entry was inserted as such: no row of once_entry was updated or deleted."""
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.write(*some(2000))
    p.run(status=0)
    p.execute("SELECT pg_stat_force_next_flush()")
    seen = until(lambda: [row for row in p.rows("SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'once_entry'")
                          if row[0] >= 2000], what="the statistics")
    assert seen == [(2000, 0, 0)]


def test_values_arrive_as_they_are(tmp_path):
    p = PostgresPipeline(tmp_path, """
key: "${/id}"
handler: {sql: ["INSERT INTO v(id, whole, part, yes, nothing, words, deep) VALUES (:id, :whole, :part, :yes, :nothing, :words, :deep)"]}
""", "CREATE TABLE v(id text, whole bigint, part numeric, yes boolean, nothing integer, words text, deep jsonb)")
    p.write({"id": "a", "whole": 9223372036854775807, "part": 0.1, "yes": True, "nothing": None, "words": "q'\\\" é\n\t$1 %s", "deep": {"x": [1, "2"]}},
            {"id": "b", "whole": -5, "part": 12345678.25, "yes": False, "nothing": None, "words": "", "deep": []})
    counts(p.run(status=0), received=2, done=2)
    assert p.rows("SELECT whole, part::text AS p, yes, nothing, words, deep FROM v ORDER BY id") == [
        (9223372036854775807, "0.1", True, None, "q'\\\" é\n\t$1 %s", {"x": [1, "2"]}), (-5, "12345678.25", False, None, "", [])]


FAULTS = """
key: "${/id}"
type: "${/type}"
retry: {attempts: 2, backoff: 1ms..2ms}
handlers:
  plain: {sql: ["INSERT INTO o(id, n) VALUES (:id, :n)"]}
  already: {sql: ["INSERT INTO o(id, n) VALUES (:id, :n)"], already: [o_n_key]}
  rejected: {sql: ["INSERT INTO o(id, n) VALUES (:id, :n)"], rejected: ["23514"]}
  raised: {sql: ["INSERT INTO o(id, n) VALUES (:id, :n)", "SELECT refuse()"], rejected: [P0001]}
  stale: {sql: ["INSERT INTO o(id, n) VALUES (:id, :n)", {do: "UPDATE o SET n = n WHERE id = :other", rows: 1, else: stale}]}
"""
FAULT_TABLES = """
CREATE TABLE o(id text PRIMARY KEY, n integer UNIQUE CHECK (n < 1000), later text);
CREATE FUNCTION refuse() RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no thanks''; END';
INSERT INTO o VALUES ('there', 1, NULL);
"""


def test_f26_f29_what_a_fault_means(tmp_path):
    p = PostgresPipeline(tmp_path, FAULTS, FAULT_TABLES)
    p.write({"id": "a", "type": "plain", "n": 2}, {"id": "b", "type": "already", "n": 1}, {"id": "c", "type": "rejected", "n": 5000},
            {"id": "d", "type": "raised", "n": 3}, {"id": "e", "type": "stale", "n": 4, "other": "nobody"}, {"id": "f", "type": "plain", "n": 1},
            {"id": "g", "type": "plain", "n": "secret-word"}, {"id": "h", "type": "plain", "n": 99999999999}, {"id": "i\u0000", "type": "plain", "n": 6},
            {"id": "j", "type": "plain", "n": 7})
    counts(p.run(status=1), received=10, done=2, already=1, rejected=2, stale=1, dead=4)
    assert p.rows("SELECT id, n FROM o ORDER BY id") == [("a", 2), ("j", 7), ("there", 1)], "what failed left nothing"
    found = reasons(p)
    assert any("o_n_key" in reason for reason in found) and any("NUL" in reason for reason in found)
    assert not any("secret-word" in reason or "99999999999" in reason for reason in found), found


def test_a_failing_message_does_not_take_its_batch_with_it(tmp_path):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)", "UPDATE total SET n = n + 1"]}\n', TABLES)
    p.write(*[{"id": f"m{i}", "amount": "x" if i % 100 == 50 else i} for i in range(2000)])
    counts(p.run(status=1), received=2000, done=1980, dead=20)
    exactly_once(p, 1980)


def test_f03_a_deferred_constraint_is_its_messages_own(tmp_path):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO line(id, head) VALUES (:id, :head)"]}\n',
                         "CREATE TABLE head(id int PRIMARY KEY); INSERT INTO head VALUES (1);"
                         "CREATE TABLE line(id text, head int REFERENCES head DEFERRABLE INITIALLY DEFERRED)")
    p.write(*[{"id": f"m{i}", "head": 2 if i == 7 else 1} for i in range(20)])
    counts(p.run(status=1), received=20, done=19, dead=1)
    assert p.value("SELECT count(*) FROM line") == 19
    assert "line_head_fkey" in reasons(p)[0]


def test_f03_a_deferred_trigger_is_asked_by_commit(tmp_path):
    """The commit that shares the round trip of the effects says so first; a careful pass finds the message."""
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)", "UPDATE total SET n = n + 1"],'
                         ' rejected: [P0001]}\n', TABLES + """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.amount = 7 THEN RAISE EXCEPTION ''no thanks''; END IF; RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()""")
    p.write(*[{"id": f"m{i}", "amount": i} for i in range(20)])
    counts(p.run(status=0), received=20, done=19, rejected=1)
    exactly_once(p, 19)


LATE = """
    CREATE SEQUENCE asked;
    CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN %s RETURN NULL; END$$;
    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()"""
COUNTED = ('key: "${/id}"\nretry: {attempts: 2, backoff: 1ms..2ms}\nhandler: {sql: [{do: "INSERT INTO t(id, amount) VALUES (:id, :amount)", rows: 1}, '
           '"UPDATE total SET n = n + 1"]}\n')


@pytest.mark.parametrize("raises", ["RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';", "RAISE EXCEPTION 'busy' USING ERRCODE = '55P03';",
                                    "PERFORM pg_terminate_backend(pg_backend_pid());"], ids=["deadlock", "lock", "hung_up"])
def test_f48_what_passes_in_a_deferred_trigger_is_no_death(tmp_path, raises):
    """It is asked before the commit, in both passes; what it meets there is nobody's fault, or may pass."""
    p = PostgresPipeline(tmp_path, COUNTED, TABLES + LATE % f"IF nextval('asked') IN (2, 23) THEN {raises} END IF;")
    p.write(*[{"id": f"m{i}", "amount": i if i else "x"} for i in range(21)])  # the first one fails, so there is a careful pass
    ended = p.try_run()
    assert ended.status == 1, ended
    counts(ended.json, received=21, done=20, dead=1)
    exactly_once(p, 20)


def test_f48_a_message_that_always_collides_at_the_end_fails_alone(tmp_path):
    p = PostgresPipeline(tmp_path, COUNTED, TABLES + LATE % "IF NEW.amount = 7 THEN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF;")
    p.write(*[{"id": f"m{i}", "amount": i} for i in range(20)])
    summary = p.run(status=1)
    counts(summary, received=20, done=19, dead=1)
    assert summary["retries"] == 1, "its budget was tried"
    exactly_once(p, 19)


def test_a_table_that_is_missing_in_a_deferred_trigger_stops_the_run(tmp_path):
    p = PostgresPipeline(tmp_path, COUNTED + "patience: 100ms\n", TABLES + LATE % "INSERT INTO journal VALUES (NEW.id);")
    p.write(*[{"id": f"m{i}", "amount": i} for i in range(20)])
    ended = p.try_run()
    assert ended.status == 3 and "journal" in ended.err and p.value("SELECT count(*) FROM t") == 0, ended
    p.execute("CREATE TABLE journal(id text)")
    assert p.run(status=0)["done"] == 20
    exactly_once(p, 20)


def test_f89_a_division_by_zero_in_a_commit_is_its_messages_own(tmp_path):
    """The store divides by zero itself, to notice that it was set back."""
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)", "UPDATE total SET n = n + 1"]}\n', TABLES + """
        CREATE FUNCTION divide() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM 1 / (NEW.amount - 7); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION divide()""")
    p.write(*[{"id": f"m{i}", "amount": i} for i in range(20)])
    counts(p.run(status=1), received=20, done=19, dead=1)
    assert "division by zero" in reasons(p)[0]
    exactly_once(p, 19)


def test_f89_a_record_that_cannot_be_written_is_not_one_that_went_back(tmp_path):
    """A failure of that very statement that passes: the batch is tried again."""
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)", "UPDATE total SET n = n + 1"]}\nbatch: {max: 5}\n',
                         TABLES + "CREATE SEQUENCE renewals")
    p.write({"id": "first", "amount": 1})
    p.run()
    p.sql.rows("""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN IF nextval(''renewals'') = 2 THEN RAISE EXCEPTION ''not now'' USING ERRCODE = ''40001''; END IF; RETURN NEW; END';
        CREATE TRIGGER refuses BEFORE UPDATE ON once_fact FOR EACH ROW WHEN (substr(NEW.name, 1, 7) = 'worker/') EXECUTE FUNCTION refuse()""")
    p.write(*[{"id": f"m{i}", "amount": i} for i in range(50)])
    counts(p.run(), received=50, done=50)
    assert p.value("SELECT last_value FROM renewals") > 5, "it was refused once, and went on"
    exactly_once(p, 51)


def test_f91_a_row_of_ours_that_somebody_else_made_is_no_failure_of_a_message(tmp_path):
    """What fails in a commit is the message's fault only where it is the COMMIT itself that says so."""
    p = PostgresPipeline(tmp_path, """
key: "${/id}"
retry: {attempts: 2, backoff: 1ms..1ms, on: [P0001]}
handler: {sql: ["INSERT INTO t(id) VALUES (:id)", "UPDATE total SET n = n + 1", "SELECT fail() WHERE :once_attempt < 2"]}
""", TABLES + "CREATE SEQUENCE writes; CREATE FUNCTION fail() RETURNS int LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$passing$$; END'")
    p.run(status=0)  # makes the store
    p.execute("""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF nextval('writes') = 1 THEN RAISE EXCEPTION 'there already' USING ERRCODE = '23505'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuses BEFORE UPDATE ON once_entry FOR EACH ROW EXECUTE FUNCTION refuse()""")
    p.write({"id": "a"})
    summary = p.run(status=0)
    counts(summary, received=1, done=1, retries=1)
    assert p.value("SELECT last_value FROM writes") > 1, "its outcome was refused once, and written then"
    exactly_once(p, 1)


UNIQUE = 'key: "${/id}"\nhandler: {sql: ["UPDATE total SET n = n + 1", "INSERT INTO t(id, amount) VALUES (:id, :amount)"]%s}\n'


@pytest.mark.parametrize("listed, status, outcome", [("", 1, "dead"), (", already: [one_amount]", 0, "already")], ids=["dead", "already"])
@pytest.mark.parametrize("failing", [0, 500, 999])
def test_f10_one_of_a_thousand_fails_under_the_commit(tmp_path, failing, listed, status, outcome):
    """Effects and COMMIT were sent together. The commit cannot have happened, and the other 999 are done once."""
    p = PostgresPipeline(tmp_path, UNIQUE % listed, TABLES + "CREATE UNIQUE INDEX one_amount ON t(amount); INSERT INTO t(id, amount) VALUES ('there', -1)")
    p.write(*[{"id": f"m{i}", "amount": -1 if i == failing else i} for i in range(1000)])
    ended = p.try_run()
    told = [line for line in ended.err.splitlines() if " event=dead " not in line]
    assert ended.status == status and not told, "a failing message is not a failing store"
    counts(ended.json, received=1000, done=999, attempts=1000, **{outcome: 1})
    assert p.value("SELECT n FROM total") == 999 and p.value("SELECT count(*) FROM t") == 1000
    assert p.rows(f"SELECT id FROM t WHERE id = 'm{failing}'") == []
    counts(p.run(status=status), received=1000, duplicates=1000, attempts=0)


def test_f10_lanes_and_equal_keys_of_a_batch_with_failures_among_them(tmp_path):
    """Followers are claimed behind effects whose answers nobody has waited for."""
    p = PostgresPipeline(tmp_path, 'order: "${/lane}"\n' + UNIQUE % "", TABLES + "CREATE UNIQUE INDEX one_amount ON t(amount)")
    messages = [{"id": f"m{i}", "lane": i % 7, "amount": 5 if i in (5, 100, 401) else i} for i in range(600)]
    p.write(*messages, *messages[:50])
    counts(p.run(status=1), received=650, done=598, dead=2, duplicates=50)
    exactly_once(p, 598)
    ids = [int(i[1:]) for (i,) in p.rows("SELECT id FROM t ORDER BY n")]
    for lane in range(7):
        mine = [i for i in ids if i % 7 == lane]
        assert mine == sorted(mine), f"lane {lane}"


@pytest.mark.parametrize("condition", ["", ", rows: 1"], ids=["presumed", "waited for"])
def test_a_large_batch_with_large_answers_does_not_stand_still(tmp_path, condition):
    """Ten megabytes in each direction in one round trip: neither side may wait for the other to read."""
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO b(id, body) VALUES (:id, :body) RETURNING body || body",'
                         ' {do: "SELECT body, body FROM b WHERE id = :id"%s}]}\n' % condition, "CREATE TABLE b(id text PRIMARY KEY, body text)")
    p.write(*[{"id": f"m{i}", "body": chr(97 + i % 26) * 10000} for i in range(1024)])
    counts(p.run(status=0), received=1024, done=1024)
    assert p.rows("SELECT count(*) AS n, sum(length(body)) AS bytes FROM b") == [(1024, 10240000)]


@pytest.mark.parametrize("sql, word", [
    ("COMMIT", "COMMIT"), ("/* x */ rollback", "rollback"), ("SET search_path = x", "SET"), ("ABORT", "ABORT"), ("PREPARE TRANSACTION 'x'", "PREPARE"),
    ("DELETE FROM once_entry", "once_entry"), ('DELETE FROM "once_meta"', "once_meta"), ("INSERT INTO t(id) VALUES (:id); COMMIT", "more than one"),
    ("COPY t TO STDOUT", "COPY"), ("VACUUM", "VACUUM"),
    ("CREATE TEMP TABLE IF NOT EXISTS t(id text)", "temporary"), ("create /* x */ local temporary table t(id text)", "temporary"),
    ("CREATE OR REPLACE TEMP VIEW t AS SELECT 1", "temporary"), ("CREATE TABLE pg_temp.t(id text)", "temporary"), ('CREATE TABLE "pg_temp".t(id text)', "temporary"),
])
def test_f78_statements_that_control_the_session_are_refused(tmp_path, sql, word):
    p = PostgresPipeline(tmp_path, f"key: \"${{/id}}\"\nhandler:\n  sql:\n    - {sql!r}\n".replace("'x'", "''x''"), TABLES)
    ended = p.once("check", p.name)
    assert ended.status == 2 and word.lower() in ended.err.lower(), ended


def test_a_table_of_the_name_temp_is_the_users(tmp_path):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO temp(temporary) SELECT temp FROM (SELECT :id::text AS temp) local"]}\n',
                         "CREATE TABLE temp(temporary text)")
    p.write({"id": "a"})
    counts(p.run(status=0), received=1, done=1)
    assert p.rows("SELECT temporary FROM temp") == [("a",)]


def test_f78_parameters_in_strings_and_comments_are_none(tmp_path):
    """Ours and the server's reading of a statement are compared before the first message: it was an abort at the first one."""
    p = PostgresPipeline(tmp_path, "key: \"${/id}\"\nhandler:\n  sql:\n    - INSERT INTO notes VALUES (:id, E'it\\'s :v o\\'clock')\n", "CREATE TABLE notes(id text, what text)")
    p.write({"id": "1"})
    counts(p.run(status=0), received=1, done=1)
    assert p.rows("SELECT id, what FROM notes") == [("1", "it's :v o'clock")]
    p.configure("key: \"${/id}\"\nhandler:\n  sql:\n    - INSERT INTO notes VALUES (:id, '') /* a /* nested */ :v */\n")
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "the database finds 1 parameter in the statement, and once finds 2" in ended.err, ended


def test_a_script_that_would_commit_is_refused(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG + "init: \"CREATE TABLE x(n int); COMMIT; DROP TABLE total\"\n", TABLES)
    ended = p.once("check", p.name)
    assert ended.status == 2 and "commit" in ended.err.lower(), ended
    assert not p.has_table("x") and p.has_table("total")


def test_a_missing_table_is_said_by_check_and_stops_a_run(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG + "patience: 100ms\n")
    ended = p.once("check", p.name)
    assert ended.status == 2 and "p.yaml:6" in ended.err and '"t"' in ended.err, ended
    p.execute(TABLES + "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM 1 FROM gone; RETURN NEW; END';"
                       "CREATE TRIGGER late BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fail()")
    p.write(*some(10))
    ended = p.try_run()
    assert ended.status == 3 and "gone" in ended.err, ended
    p.execute("CREATE TABLE gone(n int)")
    assert p.run(status=0)["done"] == 10


def test_commits_are_synchronous_whatever_the_default(tmp_path):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO s SELECT :id, current_setting(\'synchronous_commit\')"]}\n',
                         "CREATE TABLE s(id text, setting text)")
    p.execute(f"ALTER DATABASE {p.value('SELECT current_database()')} SET synchronous_commit = off")
    p.write({"id": "a"}, {"id": "b"})
    counts(p.run(status=0), received=2, done=2)
    assert p.rows("SELECT DISTINCT setting FROM s") == [("on",)]


# ---- schema and roles ----

def test_f47_check_says_what_a_failover_can_lose(tmp_path):
    server = postgres.Server()
    try:
        p = PostgresPipeline(tmp_path, CONFIG, TABLES, server=server)
        said = p.once("check", p.name)
        assert said.status == 0 and "a failover to one loses what it had not received" in said.out, said
        server.query("ALTER SYSTEM SET synchronous_standby_names = 'other'")
        server.query("SELECT pg_reload_conf()")
        until(lambda: server.query("SHOW synchronous_standby_names") == "other", what="the setting")
        said = p.once("check", p.name)
        assert said.status == 0 and "loses nothing that was acknowledged" in said.out, said
    finally:
        server.close()


def test_the_printed_schema_is_the_one_that_is_made(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.run(status=0)
    p.execute("CREATE SCHEMA printed; SET search_path = printed; " + once("schema", "postgres://").out)
    for sql in ("SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns WHERE table_schema = '%s' "
                "AND table_name LIKE 'once_%%' ORDER BY table_name, ordinal_position",
                "SELECT replace(indexdef, '%s.', '') AS i FROM pg_indexes WHERE schemaname = '%s' AND tablename LIKE 'once_%%' ORDER BY indexname"):
        made, printed = (p.rows(sql.replace("%%", "%").replace("%s", schema)) for schema in ("public", "printed"))
        assert made == printed and len(made) > 10


def test_f13_a_newer_schema_and_a_foreign_table_are_refused(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.run(status=0)
    p.execute("UPDATE once_meta SET value = '99' WHERE name = 'version'")
    ended = p.try_run()
    assert ended.status == 3 and "newer once" in ended.err, ended
    p = PostgresPipeline(tmp_path / "b", CONFIG, TABLES + "CREATE TABLE once_meta(name text, value text, more int)")
    ended = p.try_run()
    assert ended.status == 3 and "not ours" in ended.err, ended


def test_a_role_that_owns_nothing_but_its_schema(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG)
    role = f"worker_{os.getpid()}"
    p.execute(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA app AUTHORIZATION {role}; REVOKE ALL ON SCHEMA public FROM PUBLIC;"
              f"REVOKE ALL ON DATABASE {p.value('SELECT current_database()')} FROM PUBLIC;"
              f"GRANT CONNECT ON DATABASE {p.value('SELECT current_database()')} TO {role}")
    try:
        mine = p.url.replace("postgres@", f"{role}@") + "&options=-csearch_path%3Dapp"
        p.configure(CONFIG, store=mine)
        psql(mine, TABLES)
        p.write(*some(50))
        counts(p.run(status=0), received=50, done=50)
        assert p.rows("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'once_%'") == [("app",)]
        p.configure(CONFIG, store=p.url.replace("postgres@", f"{role}@"))
        ended = p.try_run()
        assert ended.status in (2, 3) and "schema" in ended.err, ended
    finally:
        p.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_secrets_are_not_shown(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.configure(CONFIG, store=p.url.replace("postgres@", "postgres:hush-hush@"))
    ended = p.once("check", p.name)
    assert ended.status == 0 and "hush" not in ended.out + ended.err, ended
    p.configure(CONFIG + "patience: 0s\n", store="postgres://somebody:hush-hush@127.0.0.1:1/nowhere")
    ended = p.try_run()
    assert ended.status == 3 and "hush" not in ended.out + ended.err, ended


# ---- many processes ----

def together(p, n, **more):
    running = [p.start(**more) for _ in range(n)]
    try:
        ended = [r.end() for r in running]
    finally:
        for r in running:
            r.__exit__()
    for e in ended:
        assert e.status == 0, e
        check_sum(e.json)
    return [e.json for e in ended]


def test_f25_five_consumers_on_one_key(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.write(*[{"id": "same"}] * 200)
    summaries = together(p, 5)
    assert sum(s["done"] for s in summaries) == 1 and sum(s["duplicates"] for s in summaries) == 999
    exactly_once(p, 1)


@pytest.mark.parametrize("batch", [7, 1024])
def test_f25_f57_eight_consumers_of_the_same_messages(tmp_path, batch):
    """The schema is made by one of them, too."""
    n = 1000 if batch == 7 else 10000
    p = PostgresPipeline(tmp_path, CONFIG + f"batch: {{max: {batch}}}\n", TABLES)
    p.write(*some(n))
    summaries = together(p, 8)
    assert sum(s["done"] for s in summaries) == n
    assert all(s["received"] == n for s in summaries)
    exactly_once(p, n)


def test_f57_the_inbox_is_worked_on_by_all(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG + "ack: after_accept\nbatch: {max: 50}\n", TABLES)
    p.write(*some(2000))
    summaries = together(p, 4)
    assert sum(s["done"] for s in summaries) == 2000
    exactly_once(p, 2000)
    assert p.value("SELECT count(*) FROM once_live") == 0 and p.value("SELECT count(*) FROM once_body") == 0


def test_f57_lanes_keep_their_order_over_processes(tmp_path):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\norder: "${/lane}"\nlease: 2s\nretry: {attempts: 1000, backoff: 1ms..20ms}\nbatch: {max: 20}\nhandler:\n'
                         '  sql:\n    - INSERT INTO t(id) VALUES (:id)\n    - UPDATE total SET n = n + 1\n'
                         '    - {do: "SELECT 1 WHERE :flaky = 1 AND (SELECT n FROM total) < 150", rows: 0, else: retry}\n', TABLES)
    p.write(*[{"id": str(i), "lane": i % 40, "flaky": 1 if i % 40 < 4 and i < 40 else 0} for i in range(400)])
    assert sum(s["done"] for s in together(p, 4)) == 400
    exactly_once(p, 400)
    ids = [int(i) for (i,) in p.rows("SELECT id FROM t ORDER BY n")]
    for lane in range(40):
        mine = [i for i in ids if i % 40 == lane]
        assert mine == sorted(mine), f"lane {lane}"


# ---- servers and networks that fail ----

def behind_proxy(p, proxy, config=CONFIG):
    p.configure(config, store=re.sub(r"@/", f"@127.0.0.1:{proxy.port}/", p.url.partition("?")[0]))


RUNS_AN_EFFECT = b"\0once_u0_"  # the statement's name in a Bind message
READY = b"Z\0\0\0\5I"           # the server has ended the transaction, and waits


def socket_of(url):
    return os.path.join(re.search(r"host=([^&]*)", url).group(1), ".s.PGSQL.5432")


def test_a_commit_does_not_wait_for_the_effects(tmp_path):
    """No answer comes back between the first effect of a batch and its COMMIT; a client that waited for one would starve."""
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.write(*some(600))
    with Proxy(socket_of(p.url)) as proxy:
        behind_proxy(p, proxy)
        proxy.hold_from, proxy.hold_until = RUNS_AN_EFFECT, b"COMMIT\0"
        counts(p.run(status=0), received=600, done=600)
        assert proxy.held and not proxy.starved
    exactly_once(p, 600)


def test_f06_the_reply_to_a_commit_behind_a_failed_effect_is_lost(tmp_path):
    """That commit was a rollback, but nobody knows."""
    p = PostgresPipeline(tmp_path, UNIQUE % "", TABLES + "CREATE UNIQUE INDEX one_amount ON t(amount)")
    p.write(*[{"id": f"m{i}", "amount": 3 if i == 700 else i} for i in range(1000)])
    with Proxy(socket_of(p.url)) as proxy:
        behind_proxy(p, proxy, UNIQUE % "")
        proxy.after, proxy.reply_ends = RUNS_AN_EFFECT, READY
        proxy.lose_reply_to = b"COMMIT\0"
        counts(p.run(status=1), received=1000, done=999, dead=1)
        assert proxy.lost == 1
    exactly_once(p, 999)


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_f06_the_reply_to_commit_is_lost(tmp_path, skip):
    """What had been committed is found by its token: no effect twice, and the counts are as if nothing had happened."""
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.write(*some(3000))
    with Proxy(socket_of(p.url)) as proxy:
        behind_proxy(p, proxy)
        proxy.after, proxy.skip = RUNS_AN_EFFECT, skip
        proxy.reply_ends = READY
        proxy.lose_reply_to = b"COMMIT\0"
        counts(p.run(status=0), received=3000, done=3000)
        assert proxy.lost == 1
    exactly_once(p, 3000)


def test_f06_the_reply_to_commit_is_lost_and_dead_letters_are_told(tmp_path):
    """Those of its effects, and those that have no key: each once."""
    config = 'key: "${/id}"\nhandler: {sql: [{do: "INSERT INTO t(id, amount) SELECT :id, :amount::int WHERE :amount::int >= 10", rows: 1, else: dead}]}\n'
    p = PostgresPipeline(tmp_path, config, TABLES)
    p.write(*[{"id": f"m{i}", "amount": i} for i in range(50)], *[{"amount": 100 + i} for i in range(5)])
    with Proxy(socket_of(p.url)) as proxy:
        behind_proxy(p, proxy, config)
        proxy.after, proxy.reply_ends = RUNS_AN_EFFECT, READY
        proxy.lose_reply_to = b"COMMIT\0"
        ended = p.try_run()
        assert ended.status == 1, ended
        counts(ended.json, received=55, done=40, dead=15)
        assert proxy.lost == 1
    at = re.findall(r"event=dead at=\S*in.ndjson:(\d+) ", ended.err)
    assert sorted(map(int, at)) == [*range(1, 11), *range(51, 56)], ended.err
    assert p.rows("SELECT count(*) AS a, count(DISTINCT id) AS b FROM t") == [(40, 40)]


@pytest.mark.parametrize("mark", [b"COMMIT\0", b"BEGIN", RUNS_AN_EFFECT], ids=["commit", "begin", "effect"])
def test_f46_cut_off_before(tmp_path, mark):
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.write(*some(3000))
    with Proxy(socket_of(p.url)) as proxy:
        behind_proxy(p, proxy)
        proxy.after, proxy.skip = RUNS_AN_EFFECT, 1
        proxy.cut_at = mark
        counts(p.run(status=0), received=3000, done=3000)
        assert proxy.lost == 1
    exactly_once(p, 3000)


def test_f46_the_server_is_killed_and_comes_back(tmp_path):
    server = postgres.Server()
    try:
        p = PostgresPipeline(str(tmp_path), CONFIG + "batch: {max: 50}\n", TABLES, server=server)
        p.write(*some(20000))
        with p.start() as one, p.start() as two:
            for _ in range(3):
                seen = p.value("SELECT n FROM total")
                until(lambda: p.value("SELECT n FROM total") > seen or one.process.poll() is not None, what="some work")
                server.kill()
                time.sleep(0.2)  # long enough that both notice
                server.start()
            ended = [one.end(), two.end()]
        for e in ended:
            assert e.status == 0, e
            check_sum(e.json)
            assert e.json["received"] == 20000
        exactly_once(p, 20000)
        assert sum(e.json["done"] for e in ended) == 20000
    finally:
        server.close()


def test_f46_while_the_server_is_away_nothing_is_acknowledged(tmp_path):
    server = postgres.Server()
    try:
        p = PostgresPipeline(str(tmp_path), CONFIG, TABLES, server=server, source="{path: in.ndjson, follow: true, cursor: true}")
        p.write(*some(100))
        with p.start() as running:
            until(lambda: p.value("SELECT n FROM total") == 100, what="the first hundred")
            server.kill()
            p.append(*some(100, 100))
            time.sleep(0.5)
            assert running.process.poll() is None
            server.start()
            until(lambda: p.value("SELECT n FROM total") == 200, what="the second hundred")
            running.send(signal.SIGTERM)
            ended = running.end()
        assert ended.status == 0, ended
        counts(ended.json, received=200, done=200, acked=200)
        exactly_once(p, 200)
    finally:
        server.close()


@pytest.mark.parametrize("point", ["effect_after", "commit_before"])
def test_f14_a_worker_that_is_stopped_in_its_transaction_does_not_hold_its_keys(tmp_path, point):
    """The server gives the transaction up; what the worker did is gone, and it finds that out when it wakes."""
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.configure(CONFIG, store=p.url + "&options=-cidle_in_transaction_session_timeout%3D500ms")
    p.write(*some(300))
    with p.start(failpoint=f"{point}:stop") as zombie:
        until(lambda: stopped(zombie), what="stopped")
        counts(p.run(status=0), received=300, done=300)
        exactly_once(p, 300)
        zombie.send(signal.SIGCONT)
        ended = zombie.end()
    assert ended.status == 0, ended
    counts(ended.json, received=300, duplicates=300)
    exactly_once(p, 300)


def test_a_stopped_worker_is_given_up_by_default(tmp_path):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO s SELECT :id, current_setting(\'idle_in_transaction_session_timeout\')"]}\n',
                         "CREATE TABLE s(id text, setting text)")
    p.write({"id": "a"})
    p.run(status=0)
    assert p.rows("SELECT DISTINCT setting FROM s") == [("30s",)]


def test_a_table_that_changes_under_a_run(tmp_path):
    """A prepared statement whose result has another type now is prepared anew."""
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT * FROM total"]}\n', TABLES,
                         source="{path: in.ndjson, follow: true}")
    p.write(*some(5))
    with p.start() as running:
        until(lambda: p.value("SELECT count(*) FROM t") == 5, what="the first five")
        p.execute("ALTER TABLE total ADD COLUMN more text")
        p.append(*some(5, 5))
        until(lambda: p.value("SELECT count(*) FROM t") == 10, what="the next five")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0, ended
    counts(ended.json, received=10, done=10)


def test_f48_deadlocks_are_repeated(tmp_path):
    """Effects of two processes lock the same rows in opposite order; a gate holds them until each has one of the two."""
    tables = TABLES + """
        CREATE TABLE rows(id int PRIMARY KEY, n int);
        INSERT INTO rows VALUES (1, 0), (2, 0);
        CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock_shared(48); RETURN NULL; END';
        CREATE TRIGGER gate AFTER UPDATE ON rows FOR EACH ROW EXECUTE FUNCTION gate();
    """
    config = 'key: "${/id}"\nlease: 5s\nbatch: {max: 10}\nhandler:\n  sql:\n    - INSERT INTO t(id) VALUES (:id)\n' \
             '    - UPDATE rows SET n = n + 1 WHERE id = :one\n    - UPDATE rows SET n = n + 1 WHERE id = :two\n'
    p = PostgresPipeline(tmp_path, config, tables)
    p.execute(f"ALTER DATABASE {p.value('SELECT current_database()')} SET lock_timeout = '60s'")  # without it they would not wait for so long
    p.write(*[{"id": f"p{i}", "one": 1, "two": 2} for i in range(200)])
    q = PostgresPipeline(tmp_path / "q", config, url=p.url)
    q.write(*[{"id": f"q{i}", "one": 2, "two": 1} for i in range(200)])

    def at_the_gate(granted):
        return p.value("SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database()"
                       f" AND l.locktype = 'advisory' AND l.objid = 48 AND l.granted = {granted}")

    with Session(p.url, "SELECT pg_advisory_lock(48)") as gate:
        until(lambda: at_the_gate(True) == 1, what="the gate is closed")
        with p.start() as one, q.start() as two:
            until(lambda: at_the_gate(False) == 2, what="both wait")
            gate.end()
            ended = [one.end(), two.end()]
    for e in ended:
        assert e.status == 0, e
        counts(e.json, received=200, done=200)
    assert p.value("SELECT count(*) FROM t") == 400
    assert p.rows("SELECT n FROM rows ORDER BY id") == [(400,), (400,)]
    until(lambda: p.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") > 0, what="a deadlock")


@pytest.mark.parametrize("poison", ["SELECT pg_sleep(30) WHERE :bad = 1", "SELECT gone() WHERE :bad = 1"], ids=["too_slow", "rolled_back"])
def test_f31_f48_a_message_that_is_rolled_back_each_time_spends_its_own_attempts(tmp_path, poison):
    """A timeout of statements, or a function that says it was a deadlock: it passes for others, so it is tried again, but not for ever."""
    p = PostgresPipeline(tmp_path, "", TABLES + "CREATE FUNCTION gone() RETURNS int LANGUAGE plpgsql AS"
                         " 'BEGIN RAISE EXCEPTION ''again'' USING ERRCODE = ''40P01''; END';")
    p.configure(f'key: "${{/id}}"\nretry: {{attempts: 2, backoff: 1ms..10ms}}\nhandler:\n  sql:\n    - INSERT INTO t(id) VALUES (:id)\n'
                f'    - UPDATE total SET n = n + 1\n    - {poison}\n', store=p.url + "&options=-cstatement_timeout%3D500ms")
    p.write(*[{"id": f"m{i}", "bad": int(i == 7)} for i in range(20)])
    summary = p.run(status=1)
    counts(summary, received=20, done=19, dead=1)
    exactly_once(p, 19)
    assert [line for line, _ in p.letters()] == [8]


def test_operators_on_postgres(tmp_path):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nretry: {attempts: 1}\nhandler: {sql: ["INSERT INTO t(id, amount) VALUES (:id, :amount)"]}\n', TABLES)
    p.write({"id": "a", "amount": 1}, {"id": "b", "amount": "x"}, {"id": "c", "amount": "y"}, "not json")
    counts(p.run(status=1), received=4, done=1, dead=3)
    status = p.once("status", "--json", p.name)
    assert status.status == 1 and status.json["dead"] == 3, status
    listed = p.once("list", "--dead", "--json", p.name)
    assert listed.status in (0, 1) and listed.out.count('"letter"') == 3, listed
    p.execute("ALTER TABLE t ALTER amount TYPE text")
    replayed = p.once("replay", "--all", "--json", p.name)
    assert replayed.status in (0, 1), replayed
    summary = p.run(status=1)
    assert summary["done"] == 2 and summary["resumed"] == 2
    assert p.value("SELECT count(*) FROM t") == 3
    forgotten = p.once("forget", p.name, "a")
    assert forgotten.status == 0, forgotten
    counts(p.run(status=1), received=4, done=1, duplicates=3)
    swept = p.once("sweep", "--json", p.name)
    assert swept.status == 0, swept


def test_two_connections_do_not_deadlock_on_batches_in_any_order(tmp_path):
    """Keys are locked in sorted order, so the order of the input does not matter."""
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n', TABLES)
    p.write(*some(5000))
    q = PostgresPipeline(tmp_path / "q", 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n', url=p.url)
    q.write(*reversed(some(5000)))
    ends = []
    threads = [threading.Thread(target=lambda each=each: ends.append(each.run(status=0))) for each in (p, q)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(e["done"] for e in ends) == 5000
    assert p.value("SELECT count(*) FROM t") == 5000
    assert p.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


def test_discard_removes_many_letters_in_few_round_trips(tmp_path):
    """By how often the server says that it is ready, so that it does not depend on how fast anything is. Letters with entries, those without, and one
    that is named twice."""
    config = 'key: "${/id}"\ndead_limit: off\nhandler: {sql: ["INSERT INTO t VALUES (:id)"]}\n'
    p = PostgresPipeline(tmp_path, config, "CREATE TABLE t(id int)")
    p.write(*({"id": f"k{i}"} for i in range(600)), *("{bad %d" % i for i in range(300)))
    counts(p.run(status=1), received=900, dead=900)
    ready = 0

    def rewriting():
        def count(data):
            nonlocal ready
            ready += data.count(b"Z\0\0\0\5")
            return data
        return count
    ids = [letter["letter"] for letter in p.once("list", "--dead", "--json", p.name).json["messages"]]
    with Proxy(socket_of(p.url)) as proxy:
        proxy.rewriting = rewriting
        behind_proxy(p, proxy, config)
        ended = p.once("discard", "--json", p.name, ids[0], ids[700], ids[0], ids[1])
        assert ended.status == 1 and [letter["discarded"] for letter in ended.json["letters"]] == [True, True, False, True], ended
        ready = 0
        ended = p.once("discard", "--json", "--all", p.name)
        assert ended.status == 0 and ended.json["count"] == 897, ended
        assert ready < 80, ready
    assert p.rows("SELECT count(*) AS n FROM once_letter") == [(0,)]
    p.write(*({"id": f"k{i}"} for i in range(600)), *("{bad %d" % i for i in range(300)))
    counts(p.run(status=0), received=900, duplicates=900)
    assert p.rows("SELECT count(*) AS n FROM once_audit") == [(900,)]
