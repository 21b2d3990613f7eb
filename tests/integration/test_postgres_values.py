"""Values of messages that PostgreSQL does not take: whose failure that is, and that nobody reads them in reasons and logs."""

import pytest

import postgres
from harness import Pipeline
from pgpipeline import PostgresPipeline, need_postgres, new_name, psql

need_postgres()

SECRET = "S3cr3tBody"
TABLES = """CREATE TYPE mood AS ENUM ('a'); CREATE SEQUENCE sq; CREATE TABLE u(id int);
CREATE TABLE n(a int); CREATE TABLE d(a date); CREATE TABLE e(a mood); CREATE TABLE j(a jsonb); CREATE TABLE i(a inet); CREATE TABLE g(a uuid); CREATE TABLE p(a point);
CREATE TABLE a(a int[]); CREATE TABLE t(id text);
CREATE FUNCTION built(x text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE r text; BEGIN
  EXECUTE 'SELECT ' || quote_literal(x) || CASE WHEN x = 'a' THEN '' ELSE ' FROM nothing_like_that' END INTO r; RETURN r; END $$;
"""


def pipeline(folder, do, where, more="", tables=TABLES):
    """Atomic, or in a transaction for each message."""
    url = postgres.shared().database(new_name())
    psql(url, tables)
    head = f'key: "${{/id}}"\npatience: 1s\nretry: {{attempts: 2, backoff: 1ms..2ms}}\nhandler:\n{more}'
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


@pytest.mark.parametrize("where", ["store", "elsewhere"])
@pytest.mark.parametrize("do, good, bad", [
    ("INSERT INTO t SELECT to_tsquery(:x::text)::text", "a", f"a {SECRET}"),
    ("INSERT INTO t SELECT (:x::text)::jsonpath::text", "$.a", f"$$${SECRET}"),
    ("INSERT INTO t SELECT (:x::text)::regproc::text", "now", SECRET),
    ("INSERT INTO t SELECT (:x::text)::regtype::text", "int", SECRET),
], ids=["tsquery", "jsonpath", "regproc", "regtype"])
def test_f92_a_value_that_reads_like_a_faulty_statement_is_the_messages_fault(tmp_path, where, do, good, bad):
    """The SQLSTATE is that of a statement that is wrong; one message must not stop all others."""
    p, url = pipeline(tmp_path / "p", do, where)
    p.write(*({"id": i, "x": bad if i == 2 else good} for i in range(5)))
    ended = p.try_run()
    assert ended.status == 1 and ended.json["done"] == 4 and ended.json["dead"] == 1, ended
    assert SECRET not in ended.out + ended.err, ended
    assert psql(url, "SELECT count(*) FROM t") == "4\n"


@pytest.mark.parametrize("where", ["store", "elsewhere"])
@pytest.mark.parametrize("gone", ["DROP TABLE u", "ALTER TABLE t DROP COLUMN id", "DROP FUNCTION built(text)"], ids=["table", "column", "function"])
def test_f92_what_went_away_in_the_database_buries_nothing(tmp_path, where, gone):
    do = "INSERT INTO t(id) SELECT built(:x) WHERE NOT EXISTS (SELECT FROM u)"
    p, url = pipeline(tmp_path / "p", do, where)
    p.write({"id": 0, "x": "a"})
    assert p.try_run().json["done"] == 1
    psql(url, gone)
    p.write(*({"id": i, "x": "a"} for i in range(5)))
    ended = p.try_run()
    assert ended.status in (2, 3) and ended.json["dead"] == 0 and ended.json["acked"] <= 1, ended
