"""Values of messages that PostgreSQL does not take: whose failure that is, and that nobody reads them in reasons and logs."""

import os
import signal

import pytest

import postgres
from harness import Pipeline, until
from pgpipeline import PostgresPipeline, need_postgres, new_name, psql

need_postgres()

SECRET = "S3cr3tBody"
TABLES = """CREATE TYPE mood AS ENUM ('a'); CREATE SEQUENCE sq; CREATE TABLE u(id int);
CREATE TABLE n(a int); CREATE TABLE d(a date); CREATE TABLE e(a mood); CREATE TABLE j(a jsonb); CREATE TABLE i(a inet); CREATE TABLE g(a uuid); CREATE TABLE p(a point);
CREATE TABLE a(a int[]); CREATE TABLE t(id text);
CREATE FUNCTION built(x text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE r text; BEGIN
  EXECUTE 'SELECT ' || quote_literal(x) || CASE WHEN x = 'a' THEN '' ELSE ' FROM nothing_like_that' END INTO r; RETURN r; END $$;
CREATE FUNCTION rows_of(x text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE r text; BEGIN EXECUTE 'SELECT count(*) FROM ' || x INTO r; RETURN r; END $$;
CREATE FUNCTION looped(x text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE r record; BEGIN FOR r IN EXECUTE 'SELECT * FROM ' || x LOOP END LOOP; RETURN x; END $$;
CREATE FUNCTION returned(x text) RETURNS SETOF int LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY EXECUTE 'SELECT * FROM ' || x; END $$;
CREATE FUNCTION counted(x text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval(x); RETURN x; END $$;
CREATE FUNCTION counts(x text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('a'::text); RETURN x; END $$;
CREATE FUNCTION inserts(x text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO a VALUES (x); RETURN x; END $$;
SET check_function_bodies = off;
CREATE FUNCTION selects(x text) RETURNS text LANGUAGE sql VOLATILE AS $$ INSERT INTO a VALUES (x); SELECT x $$;
"""


def pipeline(folder, do, where, more="", tables=TABLES):
    """Atomic, or in a transaction for each message."""
    url = postgres.shared().database(new_name())
    psql(url, tables)
    head = f'key: "${{/id}}"\npatience: 200ms\nretry: {{attempts: 2, backoff: 1ms..2ms}}\nhandler:\n{more}'
    if where == "store":
        return PostgresPipeline(folder, f'{head}  sql: ["{do}"]\n', url=url), url
    folder.mkdir(exist_ok=True)
    return Pipeline(folder, f'{head}  sql: {{url: "{url}", do: ["{do}"]}}\n'), url


@pytest.mark.parametrize("where", ["store", "elsewhere"])
def test_values_with_quotes_are_in_no_reason(tmp_path, where):
    for table in "ndejigpa":
        p, url = pipeline(tmp_path / table, f"INSERT INTO {table} VALUES (:x)", where)
        values = [f'x"{SECRET}"y', SECRET, f'"{SECRET}', f'a"b {SECRET} c"d', f'a\n"{SECRET}', "z" * 290 + f'"{SECRET}' + "z" * 400 + '"']
        p.write(*({"id": i, "x": x} for i, x in enumerate(values)))
        ended = p.try_run()
        assert ended.status == 1 and ended.json["dead"] == len(values), ended
        letters = p.once("list", "--dead", "--json", p.name).json["messages"]
        assert len(letters) == len(values) and all(m["reason"] for m in letters), letters
        assert SECRET not in ended.out + ended.err + "".join(m["reason"] for m in letters), (table, ended)
        assert any("invalid input" in m["reason"] or "malformed" in m["reason"] for m in letters), letters


VALUES = {
    "tsquery": ("INSERT INTO t SELECT to_tsquery(:x::text)::text", "a", f"a {SECRET}"),
    "jsonpath": ("INSERT INTO t SELECT (:x::text)::jsonpath::text", "$.a", f"$$${SECRET}"),
    "jsonpath, no end": ("INSERT INTO t SELECT (:x::text)::jsonpath::text", "$.a", "$.a["),
    "regproc": ("INSERT INTO t SELECT (:x::text)::regproc::text", "now", SECRET),
    "regtype": ("INSERT INTO t SELECT (:x::text)::regtype::text", "int", SECRET),
    "two words": ("INSERT INTO t SELECT (:x::text)::regtype::text", "int", f"{SECRET} {SECRET}"),
    "a part of a name": ("INSERT INTO t SELECT ('no' || :x)::regproc::text", "w", SECRET),
    "a part of a type": ("INSERT INTO t SELECT (:x || '4')::regtype::text", "int", SECRET),
    "an argument": ("INSERT INTO t SELECT (:x::text)::regprocedure::text", "now()", f"now({SECRET})"),
    "an operand": ("INSERT INTO t SELECT (:x::text)::regoperator::text", "+(int,int)", f"+(int,{SECRET})"),
    "a type that breaks off": ("INSERT INTO t SELECT (:x::text)::regtype::text", "int", f"{SECRET}[\nfoo("),
    "a type like a list of values": ("INSERT INTO t SELECT (:x::text)::regtype::text", "int", f"{SECRET}[: $1 = "),
    "regoper": ("INSERT INTO t SELECT (:x::text)::regoper::text", "||/", SECRET),
    "operators": ("INSERT INTO t SELECT (:x::text)::regoper::text", "||/", "pg_catalog.!~~*"),
    "regconfig": ("INSERT INTO t SELECT (:x::text)::regconfig::text", "simple", SECRET),
    "parameter": ("INSERT INTO t SELECT nextval(:x)", "sq", SECRET),
    "schema": ("INSERT INTO t SELECT nextval(:x)", "sq", f"{SECRET}.sq"),
    "dots": ("INSERT INTO t SELECT nextval(:x)", "sq", f"a.b.c.{SECRET}"),
    "database": ("INSERT INTO t SELECT nextval(:x)", "sq", f"a.b.{SECRET}"),
    "no name": ("INSERT INTO t SELECT nextval(:x)", "sq", f"a {SECRET}"),
    "no sequence": ("INSERT INTO t SELECT nextval(:x)", "sq", "t"),
    "regclass": ("INSERT INTO t SELECT :x::regclass::text", "u", SECRET),
    "a text": ("INSERT INTO t SELECT (:x::text)::regclass::text", "u", SECRET),
    "quoted": ("INSERT INTO t SELECT (:x::text)::regclass::text", "u", f'"a""{SECRET} b".c'),
    "long": ("INSERT INTO t SELECT (:x::text)::regclass::text", "u", SECRET + "\u00e4" * 200),
    "setting": ("INSERT INTO t SELECT current_setting(:x)", "TimeZone", SECRET),
    "column": ("INSERT INTO t SELECT coalesce(pg_get_serial_sequence('u', :x), '')", "id", SECRET),
    "in a function": ("INSERT INTO t SELECT counted(:x)", "sq", SECRET),
    "built": ("INSERT INTO t SELECT rows_of(:x)", "u", SECRET),
    "built, quoted": ("INSERT INTO t SELECT rows_of(quote_ident(:x))", "u", f'{SECRET}"b c'),
    "built, literal": ("INSERT INTO t SELECT rows_of('nextval(' || quote_literal(:x) || ')')", "sq", f"{SECRET}'s"),
    "built, a call": ("INSERT INTO t SELECT rows_of('generate_series(1,' || :x || ')')", "1", f"{SECRET}(1)"),
    "built, an expression": ("INSERT INTO t SELECT rows_of('u WHERE ' || :x)", "1 = 1", f"1 = {SECRET}"),
    "a loop": ("INSERT INTO t SELECT looped(:x)", "u", SECRET),
    "a query": ("INSERT INTO t SELECT query_to_xml(:x, true, true, '')", "SELECT 1", f"SELECT * FROM {SECRET}"),
}


@pytest.mark.parametrize("where", ["store", "elsewhere"])
@pytest.mark.parametrize("do, good, bad", VALUES.values(), ids=VALUES)
def test_f92_a_value_that_reads_like_a_faulty_statement_is_the_messages_fault(tmp_path, where, do, good, bad):
    """The SQLSTATE is that of a statement that is wrong; one message must not stop all others."""
    p, url = pipeline(tmp_path / "p", do, where)
    p.write(*({"id": i, "x": bad if i == 2 else good} for i in range(5)))
    ended = p.try_run()
    assert ended.status == 1 and ended.json["done"] == 4 and ended.json["dead"] == 1, ended
    reason = p.once("list", "--dead", "--json", p.name).json["messages"][0]["reason"]
    shown = (ended.out + ended.err + reason).lower()
    assert reason and SECRET.lower() not in shown and "!~~*" not in shown, (reason, ended)
    assert psql(url, "SELECT count(*) FROM t") == "4\n"


@pytest.mark.parametrize("name", ["regclass", "built", "in a function"])
def test_f92_a_server_that_adds_all_values_to_its_errors(tmp_path, name):
    """The same when they are in the context of every error; and what went away is still nobody's fault."""
    do, good, bad = VALUES[name]
    p, url = pipeline(tmp_path / "p", do, "store")
    database = psql(url, "SELECT current_database()").strip()
    psql(url, f"ALTER DATABASE {database} SET log_parameter_max_length_on_error = -1")
    p.write({"id": 0, "x": good}, {"id": 1, "x": bad})
    ended = p.try_run()
    assert ended.status == 1 and ended.json["done"] == 1 and ended.json["dead"] == 1 and SECRET.lower() not in ended.err.lower(), ended
    psql(url, "DROP TABLE t")
    p.write({"id": 2, "x": good})
    ended = p.try_run()
    assert ended.status in (2, 3) and ended.json["dead"] == 0, ended


GONE = {
    "table": ("INSERT INTO t(id) SELECT built(:x) WHERE NOT EXISTS (SELECT FROM u)", "DROP TABLE u"),
    "table, of that name": ("INSERT INTO t SELECT id, :x FROM a", "DROP TABLE a"),
    "column": ("INSERT INTO t(id) SELECT built(:x) WHERE NOT EXISTS (SELECT FROM u)", "ALTER TABLE t DROP COLUMN id"),
    "function": ("INSERT INTO t(id) SELECT built(:x) WHERE NOT EXISTS (SELECT FROM u)", "DROP FUNCTION built(text)"),
    "sequence": ("INSERT INTO t SELECT nextval('a'), :x", "DROP SEQUENCE a"),
    "sequence, by a text": ("INSERT INTO t SELECT nextval('a'::text::regclass), :x", "DROP SEQUENCE a"),
    "reg": ("INSERT INTO t SELECT 'a'::regclass, :x", "DROP SEQUENCE a"),
    "in a function": ("INSERT INTO t SELECT inserts(:x)", "DROP TABLE a"),
    "in a function of sql": ("INSERT INTO t SELECT selects(:x)", "DROP TABLE a"),
    "in a function, by a text": ("INSERT INTO t SELECT counts(:x)", "DROP SEQUENCE a"),
    "a default": ("INSERT INTO n(a) VALUES (length(:x))", "DROP SEQUENCE gone_sq"),
}


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("where", ["store", "elsewhere"])
@pytest.mark.parametrize("do, gone", GONE.values(), ids=GONE)
def test_f92_f96_what_went_away_in_the_database_buries_nothing(tmp_path, where, when, do, gone):
    """Although every message has a value that is the name of what has gone."""
    made = "CREATE SEQUENCE a" if "SEQUENCE a" in gone else "CREATE TABLE a(id text)"
    p, url = pipeline(tmp_path / "p", do, where, tables=f"""{TABLES} DROP TABLE a; {made}; ALTER TABLE t ADD x text;
        CREATE SEQUENCE gone_sq; ALTER TABLE n ADD b int DEFAULT nextval('gone_sq'::text)""")
    more = [{"id": i, "x": "a"} for i in range(1, 6)]
    p.write({"id": 0, "x": "a"})
    if when == "before":
        assert p.try_run().json["done"] == 1
        psql(url, gone)
        p.append(*more)
        ended = p.try_run()
        assert ended.status in (2, 3), ended
    else:
        ended = gone_meanwhile(p, lambda: psql(url, gone), more)
    assert ended.json["dead"] == 0 and ended.json["done"] == (when == "meanwhile"), ended


def gone_meanwhile(p, goes, more):
    file = os.path.join(p.folder, p.name)
    with open(file) as text:
        config = text.read().replace("{path: in.ndjson}", "{path: in.ndjson, follow: true}")
    with open(file, "w") as text:
        text.write(config)
    log = p.folder / "log"
    with open(log, "wb") as stderr, p.start(stderr=stderr) as worker:
        until(lambda: p.once("explain", p.name, "0").status == 0 and "done" in p.once("explain", p.name, "0").out, what="the first message")
        goes()
        p.append(*more)
        until(lambda: "does not exist" in log.read_text() or worker.process.poll() is not None, what="what is wrong")
        worker.send(signal.SIGTERM)
        return worker.end()


DOUBT = {
    "a query of a function": ("INSERT INTO t SELECT returned(:x)", "u", SECRET),
    "built, half": ("INSERT INTO t SELECT rows_of('pg_' || :x)", "class", SECRET),
    "built, no end": ("INSERT INTO t SELECT rows_of('u WHERE ' || :x || ' LIMIT 1')", "1 = 1", f"{SECRET} ="),
    "raised": ("INSERT INTO t SELECT raised(:x)", "a", SECRET),
    "half": ("INSERT INTO t SELECT nextval('s' || :x)", "q", SECRET),
    "half, in a function": ("INSERT INTO t SELECT counted('s' || :x)", "q", SECRET),
    "trimmed": ("INSERT INTO t SELECT nextval(trim(:x, '-'))", "sq", f"{SECRET}-"),
    "replaced": ("INSERT INTO t SELECT nextval(replace(:x, '-', '_'))", "sq", f"{SECRET}-a"),
    "split": ("INSERT INTO t SELECT nextval(split_part(:x, '/', 2))", "a/sq", f"a/{SECRET}"),
    "in an object": ("INSERT INTO t SELECT nextval(:x::jsonb->>'s')", '{"s":"sq"}', f'{{"s":"{SECRET}"}}'),
}


@pytest.mark.parametrize("where", ["store", "elsewhere"])
@pytest.mark.parametrize("do, good, bad", DOUBT.values(), ids=DOUBT)
def test_what_is_in_doubt_shows_no_value(tmp_path, where, do, good, bad):
    """It may be made of a value, or be the function's own: nobody is blamed, and nothing of the server's text is said."""
    raised = "CREATE FUNCTION raised(x text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN IF x <> 'a' THEN RAISE 'no table %', x USING ERRCODE = '42P01'; END IF; RETURN x; END $$;"
    p, url = pipeline(tmp_path / "p", do, where, tables=TABLES + raised)
    p.write({"id": 0, "x": good}, {"id": 1, "x": bad})
    ended = p.try_run()
    assert ended.status == 3 and ended.json["dead"] == 0 and "(SQLSTATE 42" in ended.err and "the server's log" in ended.err, ended
    assert SECRET.lower() not in (ended.out + ended.err).lower(), ended


def made(body, language="plpgsql"):
    return f"CREATE OR REPLACE FUNCTION f(x text) RETURNS text LANGUAGE {language} AS $$ BEGIN {body} RETURN x; END $$;"


def check(body, language="plpgsql"):
    return f"CREATE OR REPLACE FUNCTION c(x text) RETURNS boolean LANGUAGE {language} VOLATILE AS $$ {body} $$;"


CALL = "INSERT INTO t SELECT f(:id::text), :x"
PLAIN = "INSERT INTO t(id, x) VALUES (:id, :x)"
LOGS = made("EXECUTE 'INSERT INTO order_log VALUES ($1)' USING x;")
DOMAIN = "CREATE DOMAIN dom AS text CHECK (c(VALUE)); ALTER TABLE t ALTER x TYPE dom;"
BROKEN = {  # what is there, the statement, what changes, a value of all messages
    "a letter of the word": (LOGS, CALL, made("EXECUTE 'insert into order_log valeus ($1)' USING x;"), "a"),
    "the begin of the word": (LOGS, CALL, made("EXECUTE 'INSERT order_log VALUES ($1)' USING x;"), "order"),
    "before the word": (LOGS, CALL, made("EXECUTE 'insert into order_log values ($1 $2)' USING x, x;"), 1),
    "a keyword": (LOGS, CALL, made("EXECUTE 'INSRT INTO order_log VALUES ($1)' USING x;"), "IN"),
    "a bracket": (LOGS, CALL, made("EXECUTE 'insert into order_log values ($1))' USING x;"), ")"),
    "a function of that name": (LOGS, CALL, made("EXECUTE 'SELECT lowr_order($1)' USING x;"), "order"),
    "a letter of a table": (LOGS, CALL, "DROP TABLE order_log", "o"),
    "a digit of a table": (made("EXECUTE 'INSERT INTO log_2026_11 VALUES ($1)' USING x;"), CALL, "DROP TABLE log_2026_11", 1),
    "a check": (check("BEGIN RETURN true; END") + DOMAIN, PLAIN, check("BEGIN RETURN to_tsquery('a b')::text <> ''; END"), "zzz"),
    "a check of sql": (check("SELECT true", "sql") + DOMAIN, PLAIN, check("SELECT to_tsquery('a b' || left(x, 0))::text <> ''", "sql"), "zzz"),
    "a sequence of a check": (check("SELECT nextval('orders_seq'::text) > 0", "sql") + DOMAIN, PLAIN, "DROP SEQUENCE orders_seq", "zzz"),
    "a part of a sequence": ("ALTER TABLE t ADD n bigint DEFAULT nextval('orders_seq'::text)", PLAIN, "DROP SEQUENCE orders_seq", "orders"),
    "the table itself": ("", PLAIN, "DROP TABLE t; CREATE MATERIALIZED VIEW t AS SELECT ''::text AS id, ''::text AS x", "t"),
}


def broken(folder, there, do, change, value):
    p, url = pipeline(folder, do, "store", tables=f"""CREATE TABLE t(id text, x text); CREATE TABLE order_log(id text); CREATE TABLE log_2026_11(id text);
        CREATE SEQUENCE orders_seq; {there}""")
    p.write({"id": "first", "x": value})
    assert p.try_run().json["done"] == 1
    psql(url, change)
    p.append(*({"id": f"m{i}", "x": value} for i in range(30)))
    return [p.try_run() for _ in range(2)]  # the second one begins with one message at a time


@pytest.mark.parametrize("there, do, change, value", BROKEN.values(), ids=BROKEN)
def test_f92_f96_a_function_that_is_wrong_buries_nothing(tmp_path, there, do, change, value):
    """A value that occurs by chance in what it says is not to blame."""
    for ended in broken(tmp_path / "p", there, do, change, value):
        assert ended.status == 3 and ended.json["dead"] == 0 and ended.json["done"] == 0, ended


EXACT = {
    "a word": (LOGS, CALL, made("EXECUTE 'insert into order_log valeus ($1)' USING x;"), "valeus"),
    "a table": (LOGS, CALL, "DROP TABLE order_log", "order_log"),
}


@pytest.mark.parametrize("there, do, change, value", EXACT.values(), ids=EXACT)
def test_f92_f96_a_function_that_is_wrong_at_just_the_value_buries_few(tmp_path, there, do, change, value):
    """It looks like what a message has put in, so ten in a row are needed to know better."""
    for ended in broken(tmp_path / "p", there, do, change, value):
        assert ended.status == 3 and ended.json["dead"] <= 10 and ended.json["done"] == 0, ended


@pytest.mark.parametrize("where", ["store", "elsewhere"])
def test_f92_f96_a_name_that_all_messages_give_and_that_has_gone_does_not_bury_all(tmp_path, where):
    """It cannot be told from a message that names nothing, but by how many do so one after the other."""
    p, url = pipeline(tmp_path / "p", "INSERT INTO t SELECT nextval(:x)", where)
    p.write({"id": 0, "x": "sq"})
    assert p.try_run().json["done"] == 1
    psql(url, "DROP SEQUENCE sq")
    p.write(*({"id": i, "x": "sq"} for i in range(100)))
    ended = p.try_run()
    assert ended.status == 3 and ended.json["dead"] < 50, ended  # ten for each connection
