"""Rows of a store with impossible contents: an error names the key, nothing is asserted, and other rows stay as they are."""

from harness import Pipeline
from pgpipeline import PostgresPipeline, need_postgres

TABLE = "CREATE TABLE t(id TEXT CHECK (id <> 'bad'));"
CONFIG = 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id)"]}\n'


def waiting(p):
    """One that died, and was sent back to work."""
    p.write({"id": "bad"})
    p.run(status=1)
    replayed = p.once("replay", "--all", p.name)
    assert replayed.status == 0, replayed


def check(p, edit):
    for column, value in [("remember_ms", -5), ("remember_ms", 0), ("gap_ms", -2), ("changed_ms", -1), ("due_ms", -1)]:
        was = edit(column, value)
        ended = p.once("run", "--json", p.name)
        assert ended.status == 3 and "the entry of key 'bad'" in ended.err, (column, value, ended)
        edit(column, was)
    assert p.once("run", "--json", p.name).status == 1, "as it was it works"


def check_rows(p, table, update):
    waiting(p)

    def edit(column, value):
        was = p.value(f"SELECT {column} FROM {table}")
        update(f"UPDATE {table} SET {column} = {value}")
        return was

    check(p, edit)


def test_f93_a_row_of_sqlite_that_cannot_be(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLE)
    check_rows(p, "once_entry", p.edit)


def test_f93_a_row_of_postgres_that_cannot_be(tmp_path):
    need_postgres()
    p = PostgresPipeline(tmp_path, CONFIG, TABLE)
    check_rows(p, "once_live", p.execute)
