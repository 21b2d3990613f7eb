"""SQL effects: what is bound, and how the database's answer becomes an outcome."""

import json

import pytest

from harness import Pipeline, counts, until

FAST = "retry: {attempts: 4, backoff: 1ms..10ms}\nlease: 1s\n"


def pipeline(folder, sql, tables, config="", more="", fast=FAST):
    return Pipeline(folder, f'key: "${{/id}}"\nhandler:\n  sql:\n' + "".join(f"    - {s}\n" for s in sql) + more + fast + config, tables)


# ---- values ----

@pytest.mark.parametrize("text, expected, kind", [
    ("null", None, "null"), ("true", 1, "integer"), ("false", 0, "integer"), ("0", 0, "integer"), ("-0", 0, "integer"),
    ("9223372036854775807", 9223372036854775807, "integer"), ("-9223372036854775808", -9223372036854775808, "integer"),
    ("1.5", 1.5, "real"), ("1e300", 1e300, "real"), ("-2.5e-3", -0.0025, "real"), ("0.1", 0.1, "real"),
    ('""', "", "text"), ('"plain"', "plain", "text"), ('"\\u00fc \\ud83d\\ude00 \\n \\" \\\\ \\/"', 'ü 😀 \n " \\ /', "text"),
    ('"\'; DROP TABLE t; --"', "'; DROP TABLE t; --", "text"), ('"a\\u0000b"', "a\0b", "text"),
    ('"9223372036854775808"', "9223372036854775808", "text"),
])
def test_values_are_bound_as_they_are(tmp_path, text, expected, kind):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:v, typeof(:v))"], "CREATE TABLE t(v, kind);")
    p.write(f'{{"id": 1, "v": {text}}}')
    counts(p.run(status=0), received=1, done=1)
    assert p.rows("SELECT v, kind FROM t") == [(expected, kind)]


def test_objects_and_arrays_are_json_text(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:o, :a)"], "CREATE TABLE t(o, a);")
    value = {"b": [1, {"c": None}], "a": "ü"}
    p.write({"id": 1, "o": value, "a": [1, 2, "x"]})
    counts(p.run(), received=1, done=1)
    ((o, a),) = p.rows("SELECT o, a FROM t")
    assert json.loads(o) == value and json.loads(a) == [1, 2, "x"]


def test_pointers_and_optional_fields(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:id, :{/a/b/1}, :{/a/none?}, :{/maybe?}, :{/with~1slash})"], "CREATE TABLE t(a, b, c, d, e);")
    p.write({"id": 1, "a": {"b": [0, "one"]}, "maybe": 5, "with/slash": "s"}, {"id": 2, "a": {"b": [0, "one"]}, "with/slash": "s"},
            {"id": 3, "a": {"b": [0]}, "with/slash": "s"}, {"id": 4, "a": {"b": [0, None]}, "with/slash": None})
    counts(p.run(status=1), received=4, done=3, dead=1)
    assert p.rows("SELECT * FROM t ORDER BY a") == [(1, "one", None, 5, "s"), (2, "one", None, None, "s"), (4, None, None, None, None)]
    assert p.letters() == [(3, "missing field '/a/b/1'")]


def test_same_parameter_in_several_statements(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:id, :n)", "UPDATE t SET n = n + :n WHERE id = :id AND :id > 0"], "CREATE TABLE t(id, n);")
    p.write({"id": 1, "n": 5})
    p.run()
    assert p.rows("SELECT * FROM t") == [(1, 10)]


def test_f65_numbers_beyond_64_bits_where_they_are_used(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:v)"], "CREATE TABLE t(v);")
    p.write('{"id": 1, "v": 9223372036854775808}', '{"id": 2, "v": 1, "unused": 123456789012345678901234567890}', '{"id": 3, "v": -9223372036854775809}',
            '{"id": 4, "v": 1e400}')
    counts(p.run(status=1), received=4, done=1, dead=3)
    assert [line for line, reason in p.letters() if "does not fit" in reason] == [1, 3, 4]


# ---- outcomes ----

def test_f70_same_payment_under_two_event_ids_is_already(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO payments VALUES (:payment, :amount)", "UPDATE account SET balance = balance + :amount"],
                 "CREATE TABLE payments(id PRIMARY KEY, amount); CREATE TABLE account(balance); INSERT INTO account VALUES (0);",
                 more="  already: payments.id\n")
    p.write({"id": "event-1", "payment": "p1", "amount": 10}, {"id": "event-2", "payment": "p1", "amount": 10}, {"id": "event-3", "payment": "p2", "amount": 5},
            {"id": "event-1", "payment": "p1", "amount": 10})
    counts(p.run(status=0), received=4, done=2, already=1, duplicates=1)
    assert p.value("SELECT balance FROM account") == 15
    assert p.explain("event-2")[0]["state"] == "already"
    counts(p.run(status=0), received=4, duplicates=4)


def test_already_over_several_columns_and_after_a_first_statement(tmp_path):
    p = pipeline(tmp_path, ["UPDATE account SET balance = balance + 1", "INSERT INTO t(a, b) VALUES (:a, :b)"],
                 "CREATE TABLE t(a, b, UNIQUE(a, b)); CREATE TABLE account(balance); INSERT INTO account VALUES (0);", more='  already: ["t.a,t.b"]\n')
    p.write({"id": 1, "a": 1, "b": 2}, {"id": 2, "a": 1, "b": 2}, {"id": 3, "a": 1, "b": 3})
    counts(p.run(status=0), received=3, done=2, already=1)
    assert p.value("SELECT balance FROM account") == 2, "nothing of the already message stays"


@pytest.mark.parametrize("said", ["enough", "SQLITE_CONSTRAINT_CHECK", "275"])
def test_rejected_by_name_or_code(tmp_path, said):
    p = pipeline(tmp_path, ["INSERT INTO log VALUES (:id)", "UPDATE account SET balance = balance - :amount"],
                 "CREATE TABLE account(balance, CONSTRAINT enough CHECK (balance >= 0)); INSERT INTO account VALUES (10); CREATE TABLE log(id);",
                 more=f'  rejected: ["{said}"]\n')
    p.write({"id": 1, "amount": 8}, {"id": 2, "amount": 8}, {"id": 3, "amount": 2})
    counts(p.run(status=0), received=3, done=2, rejected=1)
    assert p.rows("SELECT id FROM log") == [(1,), (3,)]
    assert p.value("SELECT balance FROM account") == 0
    counts(p.run(status=0), received=3, duplicates=3)


def test_other_constraints_are_dead(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:v)"], "CREATE TABLE t(v INTEGER NOT NULL CHECK (v < 100) UNIQUE);")
    p.write({"id": 1, "v": 1}, {"id": 2, "v": None}, {"id": 3, "v": 100}, {"id": 4, "v": 1}, {"id": 5, "v": 2})
    summary = p.run(status=1)
    counts(summary, received=5, done=2, dead=3, retries=0)
    assert [line for line, _ in p.letters()] == [2, 3, 4]
    assert "UNIQUE" in p.letters()[2][1] and "NOT NULL" in p.letters()[0][1]


def test_a_trigger_may_say_no(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:id)"],
                 "CREATE TABLE t(id); CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(ABORT, 'not two'); END;",
                 more="  rejected: SQLITE_CONSTRAINT_TRIGGER\n")
    p.write({"id": 1}, {"id": 2}, {"id": 3})
    counts(p.run(status=0), received=3, done=2, rejected=1)
    assert p.explain("2")[0]["reason"] == "not two"


@pytest.mark.parametrize("batch", [1, 1024])
@pytest.mark.parametrize("what", ["ROLLBACK", "FAIL"])
def test_f03_f31_a_trigger_that_rolls_back_or_keeps_half(tmp_path, what, batch):
    """RAISE(ROLLBACK) ends the transaction of everybody, RAISE(FAIL) keeps the rows before it: the others must not suffer."""
    p = pipeline(tmp_path, ["INSERT INTO t SELECT value FROM json_each(:rows)"],
                 f"CREATE TABLE t(v); CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.v = -1 BEGIN SELECT RAISE({what}, 'no'); END;",
                 config=f"batch: {{max: {batch}}}\n")
    p.write({"id": 1, "rows": [1]}, {"id": 2, "rows": [2, -1, 3]}, {"id": 3, "rows": [4]}, {"id": 4, "rows": [-1]}, {"id": 5, "rows": [5]})
    counts(p.run(status=1), received=5, done=3, dead=2, attempts=5)
    assert sorted(v for (v,) in p.rows("SELECT v FROM t")) == [1, 4, 5]
    assert p.explain("2")[0]["failures"] == 1


@pytest.mark.parametrize("otherwise, fate", [("stale", "stale"), ("rejected", "rejected"), ("dead", "dead"), (None, "dead")])
def test_rows_unmet(tmp_path, otherwise, fate):
    p = pipeline(tmp_path, ["INSERT INTO log VALUES (:id)", "{do: \"UPDATE orders SET paid = 1 WHERE id = :order\", rows: 1" + (f", else: {otherwise}}}" if otherwise else "}")],
                 "CREATE TABLE orders(id, paid); INSERT INTO orders VALUES (1, 0), (2, 0), (2, 0); CREATE TABLE log(id);")
    p.write({"id": "a", "order": 1}, {"id": "b", "order": 7}, {"id": "c", "order": 2})
    counts(p.run(), received=3, done=1, **{fate: 2})
    assert p.rows("SELECT id FROM log") == [("a",)], "nothing of the unmet ones stays"
    assert p.rows("SELECT paid FROM orders ORDER BY id") == [(1,), (0,), (0,)]
    counts(p.run(), received=3, duplicates=3)


@pytest.mark.parametrize("batch", [1, 1024])
@pytest.mark.parametrize("otherwise, fate", [("stale", "stale"), ("rejected", "rejected"), ("dead", "dead"), ("retry", "dead")])
def test_f03_too_many_rows_of_an_only_statement_are_not_committed(tmp_path, otherwise, fate, batch):
    p = pipeline(tmp_path, ["{do: \"UPDATE orders SET paid = paid + 1 WHERE id = :order\", rows: 1, else: " + otherwise + "}"],
                 "CREATE TABLE orders(id, paid); INSERT INTO orders VALUES (1, 0), (2, 0), (2, 0), (3, 0);", config=f"batch: {{max: {batch}}}\n")
    p.write({"id": "a", "order": 1}, {"id": "b", "order": 2}, {"id": "c", "order": 3})
    counts(p.run(), received=3, done=2, **{fate: 1})
    assert p.rows("SELECT id, paid FROM orders ORDER BY id") == [(1, 1), (2, 0), (2, 0), (3, 1)], "nothing of the unmet one stays"
    assert "changed or returned 2 rows, and 'rows' says 1" in p.explain("b")[0]["reason"]


def test_f70_a_constraint_is_known_by_its_whole_name(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO pay VALUES (:pay, :idx)"], "CREATE TABLE pay(id UNIQUE, idx UNIQUE);", more="  already: pay.id\n")
    p.write({"id": 1, "pay": "a", "idx": 1}, {"id": 2, "pay": "a", "idx": 2}, {"id": 3, "pay": "b", "idx": 1})
    counts(p.run(status=1), received=3, done=1, already=1, dead=1)
    assert p.letters() == [(3, "UNIQUE constraint failed: pay.idx")], "pay.idx is not pay.id"


def test_rows_of_select_and_zero(tmp_path):
    p = pipeline(tmp_path, ["{do: \"SELECT 1 FROM blocked WHERE id = :id\", rows: 0, else: rejected}", "INSERT INTO t VALUES (:id)"],
                 "CREATE TABLE blocked(id); INSERT INTO blocked VALUES (2); CREATE TABLE t(id);")
    p.write({"id": 1}, {"id": 2})
    counts(p.run(status=0), received=2, done=1, rejected=1)
    assert p.rows("SELECT id FROM t") == [(1,)]


# ---- retry ----

ORDER_FIRST = ["{do: \"INSERT INTO payments SELECT :id, :order FROM orders WHERE id = :order\", rows: 1, else: retry}"]
ORDERS = "CREATE TABLE orders(id PRIMARY KEY); CREATE TABLE payments(id PRIMARY KEY, order_id);"


def by_type(folder, attempts=1000, backoff="1ms..10ms", remember=""):
    return Pipeline(folder, f"""
key: "${{/id}}"
type: "${{/type}}"
handlers:
  order: {{sql: ["INSERT INTO orders VALUES (:id)"]}}
  payment:
    sql:
      - {ORDER_FIRST[0]}
retry: {{attempts: {attempts}, backoff: {backoff}}}
lease: 1s
{remember}
""", ORDERS)


def test_failure_then_retry_until_the_dependency_appears(tmp_path):
    p = by_type(tmp_path)
    p.write({"type": "payment", "id": "p1", "order": "o1"}, {"type": "payment", "id": "p2", "order": "o2"}, {"type": "order", "id": "o2"},
            {"type": "order", "id": "o1"}, {"type": "payment", "id": "p1", "order": "o1"})
    summary = p.run(status=0)
    counts(summary, received=5, done=4, duplicates=1, acked=5)
    assert summary["retries"] >= 2 and summary["attempts"] >= 6 and summary["repeats"] == 0
    assert p.rows("SELECT id, order_id FROM payments ORDER BY id") == [("p1", "o1"), ("p2", "o2")]
    assert p.explain("p1")[-1]["failures"] >= 1


@pytest.mark.parametrize("batch", [1, 5, 1024])
def test_duplicates_of_a_message_that_waits(tmp_path, batch):
    """Whichever copy goes on with it, each message is counted where it stands at the end, and nothing waits then."""
    p = by_type(tmp_path, backoff="1ms..2ms")
    with open(tmp_path / p.name, "a") as file:
        file.write(f"batch: {{max: {batch}}}\n")
    copies = [{"type": "payment", "id": f"p{i % 5}", "order": "o1"} for i in range(100)]
    p.write(*copies, {"type": "order", "id": "o1"}, *copies)
    counts(p.run(status=0), received=201, done=6, duplicates=195, acked=201)
    assert p.value("SELECT count(*) FROM payments") == 5


def test_retry_on_a_foreign_key(tmp_path):
    tables = "CREATE TABLE orders(id PRIMARY KEY); CREATE TABLE payments(id PRIMARY KEY, order_id REFERENCES orders(id));"
    config = 'key: "${/id}"\ntype: "${/type}"\nlease: 1s\nretry: {attempts: 1000, backoff: 1ms..10ms, on: [SQLITE_CONSTRAINT_FOREIGNKEY]}\nhandlers:\n' \
             '  order: {sql: ["INSERT INTO orders VALUES (:id)"]}\n  payment: {sql: ["INSERT INTO payments VALUES (:id, :order)"]}\n'
    p = Pipeline(tmp_path, config, tables)
    p.write({"type": "payment", "id": "p1", "order": "o1"}, {"type": "order", "id": "o1"})
    summary = p.run(status=0)
    counts(summary, received=2, done=2)
    assert summary["retries"] >= 1 and p.rows("SELECT * FROM payments") == [("p1", "o1")]


def test_retry_on_by_constraint_name_per_handler(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:v)"], "CREATE TABLE t(v CONSTRAINT small CHECK (v < 10));",
                 more="  retry: {attempts: 3, on: small}\n")
    p.write({"id": 1, "v": 50}, {"id": 2, "v": 5})
    summary = p.run(status=1)
    counts(summary, received=2, done=1, dead=1, attempts=4, retries=2)
    assert "small" in p.letters()[0][1]


def test_f31_budget_spent_one_letter_and_no_new_try(tmp_path):
    p = pipeline(tmp_path, ["{do: \"UPDATE t SET n = n + 1 WHERE id = :id\", rows: 1, else: retry}"], "CREATE TABLE t(id, n);")
    p.write({"id": "a"}, {"id": "a"})
    summary = p.run(status=1)
    counts(summary, received=2, dead=1, duplicates=1, attempts=4, retries=3, store_dead=1)
    assert len(p.letters()) == 1
    p.execute("INSERT INTO t VALUES ('a', 0)")
    counts(p.run(status=1), received=2, duplicates=2, attempts=0, store_dead=1)
    assert len(p.letters()) == 1 and p.value("SELECT n FROM t") == 0
    (entry,) = p.explain("a")
    assert (entry["state"], entry["attempt"]) == ("dead", 4)


def test_f31_the_stream_moves_on_past_poison(tmp_path):
    p = pipeline(tmp_path, ["{do: \"INSERT INTO t SELECT :id WHERE :id % 10 <> 3\", rows: 1, else: retry}"], "CREATE TABLE t(id);")
    p.write(*[{"id": i} for i in range(200)])
    counts(p.run(status=1), received=200, done=180, dead=20, attempts=180 + 20 * 4)
    assert p.value("SELECT count(*) FROM t") == 180


def test_attempts_1_means_no_second_try(tmp_path):
    p = pipeline(tmp_path, ["{do: \"UPDATE t SET n = 1 WHERE id = :id\", rows: 1, else: retry}"], "CREATE TABLE t(id, n);", fast="retry: {attempts: 1}\n")
    p.write({"id": "a"})
    counts(p.run(status=1), received=1, dead=1, attempts=1, retries=0)


def test_f32_failures_are_counted_across_restarts(tmp_path):
    p = by_type(tmp_path, attempts=3, backoff="1d..1d")
    p.write({"type": "payment", "id": "p1", "order": "o1"})
    total = 0
    for failures in (1, 2):
        with p.start() as running:
            until(p.is_running, what="it runs")
            until(lambda: p.rows("SELECT 1 FROM once_entry WHERE state = 2 AND failures = ?", failures), what=f"failure {failures}")
            running.send(15)
            ended = running.end()
        assert ended.status == 0 and ended.json["waiting"] == 1, ended
        total += ended.json["attempts"]
        p.edit("UPDATE once_entry SET due_ms = 0")  # the backoff is over
    counts(p.run(status=1), received=1, resumed=1, dead=1, duplicates=1, attempts=1)
    assert total == 2 and len(p.letters()) == 1


def test_f77_stopping_does_not_spend_the_budget(tmp_path):
    p = by_type(tmp_path, attempts=2, backoff="1d..1d")  # full jitter may shorten it to a second, once in a day of seconds
    p.write({"type": "payment", "id": "p1", "order": "o1"})
    for _ in range(3):
        with p.start() as running:
            until(p.is_running, what="it runs")
            until(lambda: p.rows("SELECT 1 FROM once_entry WHERE state = 2"), what="the message waits")
            running.send(15)
            assert running.end().status == 0
    assert p.explain("p1")[-1]["failures"] == 1
    p.edit("INSERT INTO orders VALUES ('o1'); UPDATE once_entry SET due_ms = 0")
    summary = p.run(status=0)
    assert summary["resumed"] == 1 and summary["done"] == 1


def test_retries_outlive_remember(tmp_path):
    """Waiting entries belong to the store and are never dropped by time."""
    p = by_type(tmp_path, attempts=1000, backoff="1ms..50ms", remember="remember: 1ms")
    p.write({"type": "payment", "id": "p1", "order": "o1"})
    with p.start() as running:
        until(p.is_running, what="it runs")
        until(lambda: p.rows("SELECT 1 FROM once_entry WHERE failures > 3"), what="failures")
        p.execute("INSERT INTO orders VALUES ('o1')")
        ended = running.end()
    assert ended.status == 0 and ended.json["done"] == 1, ended


# ---- atomic ----

@pytest.mark.parametrize("batch", [1, 3, 1024])
def test_f03_a_failing_statement_leaves_nothing_of_the_others(tmp_path, batch):
    p = pipeline(tmp_path, ["INSERT INTO a VALUES (:id)", "UPDATE total SET n = n + 1", "INSERT INTO b VALUES (:v)"],
                 "CREATE TABLE a(id); CREATE TABLE b(v INTEGER NOT NULL); CREATE TABLE total(n); INSERT INTO total VALUES (0);", f"batch: {{max: {batch}}}\n")
    p.write(*[{"id": i, "v": None if i % 3 == 1 else i} for i in range(30)])
    counts(p.run(status=1), received=30, done=20, dead=10)
    good = [i for i in range(30) if i % 3 != 1]
    assert [i for (i,) in p.rows("SELECT id FROM a ORDER BY id")] == good
    assert [i for (i,) in p.rows("SELECT v FROM b ORDER BY v")] == good
    assert p.value("SELECT n FROM total") == 20


def test_effects_run_in_the_order_of_the_source(tmp_path):
    p = pipeline(tmp_path, ["INSERT INTO t(id) VALUES (:id)"], "CREATE TABLE t(n INTEGER PRIMARY KEY, id);")
    p.write(*[{"id": i} for i in range(2000)])
    p.run()
    assert [i for (i,) in p.rows("SELECT id FROM t ORDER BY n")] == list(range(2000))


# ---- statements that may not be ----

@pytest.mark.parametrize("statement, named", [
    ("COMMIT", "COMMIT"), ("ROLLBACK", "ROLLBACK"), ("BEGIN IMMEDIATE", "BEGIN"), ("SAVEPOINT x", "SAVEPOINT"),
    ("RELEASE x", "RELEASE"), ("END", "END"),
    ("ATTACH 'x.db' AS x", "ATTACH"), ("DETACH x", "DETACH"), ("PRAGMA synchronous = OFF", "PRAGMA"), ("VACUUM", "VACUUM"),
    ("/* a */ commit", "COMMIT"), ("INSERT INTO t VALUES (1); COMMIT", "statement"), ("DELETE FROM once_entry", "once_entry"),
    ("UPDATE ONCE_META SET value = 0", "once"),
    ("CREATE TEMP TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM once_letter; END", "once"),
    ("CREATE TEMP TABLE t(v)", "temporary"), ("CREATE TABLE temp.t(v)", "temporary"), ("CREATE TEMPORARY VIEW t AS SELECT 1 AS v", "temporary"),
    ("CREATE VIRTUAL TABLE temp.t USING fts5(v)", "temporary")])
def test_f78_statements_that_end_or_bend_the_transaction_are_refused(tmp_path, statement, named):
    p = pipeline(tmp_path, [json.dumps(statement)], "CREATE TABLE t(v);")
    p.write({"id": 1})
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "p.yaml:7: " in ended.err, ended
        assert named.lower() in ended.err.lower(), ended
    assert not p.rows("SELECT 1 FROM sqlite_schema WHERE name = 'once_letter'") or p.letters() == []
    assert p.value("SELECT count(*) FROM t") == 0


@pytest.mark.parametrize("statement, told", [
    ("INSERT INTO missing VALUES (1)", "no such table"), ("INSERT INTO t(nope) VALUES (1)", "nope"),
    ("INSERT INT t VALUES (1)", "syntax"),
    ("INSERT INTO t VALUES (nofunction(1))", "nofunction"), ("SELECT nope FROM t", "nope"),
    ("INSERT INTO t VALUES (1, 2)", "column")])
def test_f67_statement_that_does_not_prepare_stops_before_the_first_message(tmp_path, statement, told):
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:id)", json.dumps(statement)], "CREATE TABLE t(v);")
    p.write({"id": 1})
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "p.yaml:8: " in ended.err and told in ended.err, ended
    assert p.value("SELECT count(*) FROM t") == 0
    p.execute("CREATE TABLE missing(v); ALTER TABLE t ADD COLUMN nope")
    if "nope" in statement or "missing" in statement:
        p.configure(f'key: "${{/id}}"\nhandler:\n  sql:\n    - {json.dumps(statement)}\n')
        counts(p.run(status=0), received=1, done=1)


def test_table_that_vanishes_while_it_runs_stops_the_run(tmp_path):
    """Not the message's fault: nothing becomes a dead letter, and the same run succeeds when the table is back."""
    p = pipeline(tmp_path, ["INSERT INTO t VALUES (:id)", "INSERT INTO log VALUES (:id)"], "CREATE TABLE t(v); CREATE TABLE log(v);")
    p.execute("CREATE TRIGGER gone AFTER INSERT ON t WHEN NEW.v = 3 BEGIN DELETE FROM missing; END")
    p.write(*[{"id": i} for i in range(6)])
    ended = p.try_run()
    assert ended.status in (2, 3) and "missing" in ended.err, ended
    assert p.letters() == [] if p.rows("SELECT 1 FROM sqlite_schema WHERE name = 'once_letter'") else True
    p.execute("CREATE TABLE missing(v)")
    assert p.run(status=0)["dead"] == 0
    assert [v for (v,) in p.rows("SELECT v FROM t ORDER BY v")] == list(range(6))


def test_init_makes_the_tables(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id)"]}\ninit: |\n'
                           '  CREATE TABLE IF NOT EXISTS t(v);\n  CREATE TABLE IF NOT EXISTS u(v);\n')
    p.write({"id": 1})
    counts(p.run(status=0), received=1, done=1)
    counts(p.run(status=0), received=1, duplicates=1)
    p.configure('key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id)"]}\ninit: CREATE TABLE oops(\n')
    ended = p.once("run", p.name)
    assert ended.status == 2 and "init" in ended.err


@pytest.mark.parametrize("module", ["fts5(body)", "fts4(body)", "rtree(id, a, b)"])
def test_effects_in_tables_of_sqlites_own_modules(tmp_path, module):
    """They ask the file what it is in the middle of a statement; also behind a trigger, and where an effect makes them."""
    values = ":n, :n, :n" if "rtree" in module else "'number ' || :n"
    made = f'"CREATE VIRTUAL TABLE IF NOT EXISTS late USING {module}"'
    tables = f"CREATE TABLE t(n); CREATE VIRTUAL TABLE m USING {module};"
    if "fts" in module:
        tables += "CREATE TRIGGER into AFTER INSERT ON t BEGIN INSERT INTO m VALUES ('of a trigger ' || NEW.n); END;".replace("TRIGGER into", "TRIGGER further")
    p = Pipeline(tmp_path, f'key: "${{/n}}"\nhandler: {{sql: [{made}, "INSERT INTO m VALUES ({values})", "INSERT INTO t VALUES (:n)"]}}\n', tables)
    p.write(*({"n": i} for i in range(1, 6)))
    assert p.once("check", p.name).status == 0
    assert p.run(status=0)["done"] == 5
    assert p.value("SELECT count(*) FROM m") == (10 if "fts" in module else 5)
