"""Foreign keys that are checked only at the commit: the message that breaks one is found, and only that one fails."""

from harness import Pipeline

TABLES = """
CREATE TABLE parent(id TEXT PRIMARY KEY);
CREATE TABLE child(id TEXT PRIMARY KEY, parent TEXT NOT NULL REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED);
"""

CONFIG = """
key: "${/id}"
type: "${/type}"
retry: {attempts: 3, backoff: 1ms..2ms%s}
handlers:
  child: {sql: "INSERT INTO child(id, parent) VALUES (:id, :parent)"}
  parent: {sql: "INSERT INTO parent(id) VALUES (:id)"}
"""


def test_f03_a_deferred_foreign_key_costs_only_its_message(tmp_path):
    p = Pipeline(tmp_path, tables=TABLES, config=CONFIG % "")
    p.write({"type": "parent", "id": "a"}, {"type": "child", "id": "x", "parent": "a"},
            {"type": "child", "id": "y", "parent": "nobody"}, {"type": "child", "id": "z", "parent": "a"})
    summary = p.run(status=1)
    assert (summary["done"], summary["dead"]) == (3, 1)
    assert p.rows("SELECT id FROM child ORDER BY id") == [("x",), ("z",)]


def test_a_deferred_foreign_key_may_be_worth_another_try(tmp_path):
    config = (CONFIG % ", on: [SQLITE_CONSTRAINT_FOREIGNKEY]").replace("attempts: 3", "attempts: 1000") + "batch: {max: 1}\n"
    p = Pipeline(tmp_path, tables=TABLES, config=config)
    p.write({"type": "child", "id": "x", "parent": "a"}, {"type": "parent", "id": "a"})
    summary = p.run()
    assert summary["done"] == 2 and summary["retries"] >= 1, "more than one, where the parent is slow to come"
    assert p.rows("SELECT id FROM child") == [("x",)]
