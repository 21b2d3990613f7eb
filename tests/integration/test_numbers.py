"""Numbers of a message arrive as they are written, or the message does not run: nothing is rounded silently."""

import random
import sqlite3
from decimal import Decimal

import pytest

import postgres
from harness import Pipeline, counts
from pgpipeline import PostgresPipeline, has_postgres, new_name, psql


def rounded(field, optional=""):
    return f"the number in field '{field}' does not fit in SQLite without being rounded; bind its text with ':{{{field}{optional} as text}}'"


def survives(text):
    """What Python's decimals say: the double, printed, is the number again."""
    return repr(float(text)) not in ("inf", "-inf") and Decimal(repr(float(text))) == Decimal(text)


def some_decimals(seed, n):
    r = random.Random(seed)
    for _ in range(n):
        digits = "".join(r.choice("0123456789") for _ in range(r.choice((1, 2, 5, 14, 15, 16, 17, 18, 25))))
        whole = str(int(digits[:r.randint(0, len(digits))] or "0"))
        part = "." + digits[len(digits) // 2:] + r.choice(("", "", "0", "000"))
        exponent = r.choice(("", "", "", "e3", "E+20", "e-7", f"e{r.randint(-330, 310)}"))
        yield r.choice(("", "-")) + whole + (part if r.random() < 0.8 or not exponent else "") + exponent
    for _ in range(n // 4):  # what doubles print, and its neighbours
        text = repr(r.choice((1, -1)) * r.random() * 10 ** r.randint(-20, 20))
        mantissa, e, exponent = text.partition("e")
        yield (mantissa if "." in mantissa else mantissa + ".0") + e + exponent
        yield (mantissa if "." in mantissa else mantissa + ".0") + r.choice("123456789") + e + exponent


KNOWN = ["12345678901234567.89", "12.75", "0.1", "1.10", "1e3", "0.1000000000000000055", "0.10000000000000001", "1e400", "-1e400", "1e-400", "-0.0", "0e9", "5e-324",
         "4.9e-324", "9007199254740993.0", "9007199254740992.0", "1.7976931348623157e308", "123456789012345678901234567890.5"]


# ---- SQLite ----

def test_f87_in_sqlite_a_decimal_survives_or_the_message_is_dead(tmp_path):
    texts = KNOWN + list(some_decimals(87, 1500))
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id, :v, typeof(:v))"]}\n', "CREATE TABLE t(id, v, kind);")
    p.write(*[f'{{"id": {i}, "v": {text}}}' for i, text in enumerate(texts)])
    p.run(status=1)
    kept = {i: (v, kind) for i, v, kind in p.rows("SELECT * FROM t")}
    wrong = [text for i, text in enumerate(texts) if (i in kept) != survives(text)]
    assert not wrong
    assert all(kept[i] == (float(texts[i]), "real") for i in kept)
    letters = dict(p.letters())
    assert sorted(letters) == sorted(i + 1 for i in range(len(texts)) if i not in kept)
    assert set(letters.values()) == {rounded("/v")}
    assert 300 < len(kept) < len(texts) - 300, "both happen often"


@pytest.mark.parametrize("value", ["9223372036854775808", "-9223372036854775809", "123456789012345678901234567890", "18446744073709551616"])
def test_f87_integers_beyond_64_bits_are_dead_in_sqlite(tmp_path, value):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO log VALUES (:id)", "INSERT INTO t VALUES (:{/deep/v?})"]}\n', "CREATE TABLE t(v); CREATE TABLE log(id);")
    p.write('{"id": 1, "deep": {"v": 9223372036854775807}}', f'{{"id": 2, "deep": {{"v": {value}}}}}', '{"id": 3}')
    counts(p.run(status=1), received=3, done=2, dead=1)
    assert p.letters() == [(2, rounded("/deep/v", "?"))]
    assert p.rows("SELECT id FROM log") == [(1,), (3,)] and p.rows("SELECT v FROM t") == [(9223372036854775807,), (None,)]


def test_f87_a_dead_letter_is_replayed_when_its_field_is_bound_as_text(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:amount)"]}\n', "CREATE TABLE t(v TEXT);")
    p.write('{"id": 1, "amount": 12345678901234567.89}')
    counts(p.run(status=1), received=1, dead=1)
    p.configure('key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:{/amount as text})"]}\n')
    assert p.once("replay", "--all", p.name).status == 0
    counts(p.run(status=0), received=1, resumed=1, done=1, duplicates=1)
    assert p.rows("SELECT v FROM t") == [("12345678901234567.89",)]


TEXTS = ["12345678901234567.89", "1.10", "1e3", "-0", "-0.0", "1E+400", "9223372036854775808", "12", "true", "false"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_f87_as_text_is_what_the_message_has(tmp_path, elsewhere):
    statements = '["INSERT INTO t VALUES (:id, :{/v as text}, typeof(:{/v? AS TEXT}))"]'
    if elsewhere:
        sqlite3.connect(tmp_path / "other.db").executescript("CREATE TABLE t(id, v, kind)")
        statements = f"{{url: \"sqlite:{tmp_path}/other.db\", do: {statements}}}"
    p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{sql: {statements}}}\n', "CREATE TABLE t(id, v, kind);")
    p.write(*[f'{{"id": {i}, "v": {text}}}' for i, text in enumerate(TEXTS)], '{"id": 100, "v": "x\\u00e9"}', '{"id": 101, "v": null}', '{"id": 102, "v": [1.0, 2]}')
    counts(p.run(status=0), received=len(TEXTS) + 3, done=len(TEXTS) + 3)
    if elsewhere:
        p.database = str(tmp_path / "other.db")
    assert p.rows("SELECT v, kind FROM t ORDER BY id") == [(text, "text") for text in TEXTS] + [("xé", "text"), (None, "null"), ("[1.0, 2]", "text")]


def test_f87_as_text_may_be_absent(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id, :{/v? as text})"]}\n', "CREATE TABLE t(id, v);")
    p.write('{"id": 1}', '{"id": 2, "v": 1.50}')
    counts(p.run(status=0), received=2, done=2)
    assert p.rows("SELECT v FROM t ORDER BY id") == [(None,), ("1.50",)]
    p.configure('key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id, :{/v as text})"]}\n')
    p.write('{"id": 3}')
    counts(p.run(status=1), received=1, dead=1)
    assert p.letters() == [(1, "missing field '/v'")]


@pytest.mark.parametrize("written", [":{/v as numeric}", ":{/v as}", ":{/v as txt}", ":{/v as text as text}"])
def test_f87_another_type_is_a_mistake_with_its_line(tmp_path, written):
    p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler:\n  sql:\n    - "INSERT INTO t VALUES ({written})"\n', "CREATE TABLE t(v);")
    ended = p.once("check", p.name)
    assert ended.status == 2 and "p.yaml:7: " in ended.err and "as text" in ended.err, ended


def test_f87_elsewhere_in_sqlite(tmp_path):
    sqlite3.connect(tmp_path / "other.db").executescript("CREATE TABLE t(id, v); CREATE TABLE log(id)")
    p = Pipeline(tmp_path, f"""
key: "${{/id}}"
handler: {{sql: {{url: "sqlite:{tmp_path}/other.db", do: ["INSERT INTO log VALUES (:id)", "INSERT INTO t VALUES (:id, :v)"]}}}}
""")
    p.write('{"id": 1, "v": 12.75}', '{"id": 2, "v": 12345678901234567.89}', '{"id": 3, "v": 9223372036854775808}')
    counts(p.run(status=1), received=3, done=1, dead=2)
    assert p.letters() == [(2, rounded("/v")), (3, rounded("/v"))]
    p.database = str(tmp_path / "other.db")
    assert p.rows("SELECT * FROM t") == [(1, 12.75)] and p.rows("SELECT * FROM log") == [(1,)]


# ---- PostgreSQL ----

@pytest.fixture
def postgres_there():
    if not has_postgres():
        pytest.skip("this build has no postgres")


IN_NUMERIC = KNOWN + ["9223372036854775808", "123456789012345678901234567890", "100.00"] + list(some_decimals(88, 600))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_f87_postgres_gets_the_exact_text(tmp_path, postgres_there, elsewhere):
    statement = "INSERT INTO t(id, v, words) VALUES (:id, :v, :{/v as text})"
    tables = "CREATE TABLE t(id bigint, v numeric, words text)"
    if elsewhere:
        url = postgres.shared().schema(new_name())
        psql(url, tables)
        p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{sql: {{url: "{url}", do: ["{statement}"]}}}}\n')
        ask = lambda sql: [tuple(line.split("|")) for line in psql(url, sql).strip().splitlines()]
    else:
        p = PostgresPipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{sql: ["{statement}"]}}\n', tables)
        ask = lambda sql: [tuple(row) for row in p.rows(sql)]
    p.write(*[f'{{"id": {i}, "v": {text}}}' for i, text in enumerate(IN_NUMERIC)])
    counts(p.run(status=0), received=len(IN_NUMERIC), done=len(IN_NUMERIC))
    found = {int(i): (v, words) for i, v, words in ask("SELECT id, v::text AS v, words FROM t")}
    assert [found[i][1] for i in range(len(IN_NUMERIC))] == IN_NUMERIC
    assert [text for i, text in enumerate(IN_NUMERIC) if Decimal(found[i][0]) != Decimal(text)] == []
    assert found[IN_NUMERIC.index("1.10")][0] == "1.10" and found[IN_NUMERIC.index("100.00")][0] == "100.00"
    assert found[0][0] == "12345678901234567.89"


COLUMNS = [
    ("cents", "1.0", "1"), ("cents", "1e3", "1000"), ("varchar", "1e3", "1e3"), ("oid", "5.0", "5"), ("bigint", "1.0", "1"), ("integer", "1e3", "1000"), ("smallint", "-12.50e1", "-125"), ("bigint", "-0.0", "0"), ("bigint", "1e18", "1000000000000000000"),
    ("boolean", "1.0", "t"), ("double precision", "0.1", "0.1"), ("double precision", "1e3", "1000"), ("real", "12.75", "12.75"), ("text", "1.10", "1.10"),
    ("jsonb", "12345678901234567.89", "12345678901234567.89"), ("numeric(10,2)", "12.7", "12.70"), ("bigint", "9223372036854775807", "9223372036854775807"),
    ("numeric", "9223372036854775808", "9223372036854775808"), ("text", "123456789012345678901234567890", "123456789012345678901234567890"),
]


@pytest.mark.parametrize("column, text, expected", COLUMNS)
def test_f87_a_number_fits_into_every_column_that_takes_it(tmp_path, postgres_there, column, text, expected):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(v) VALUES (:v)"]}\n', f"CREATE DOMAIN cents AS integer; CREATE TABLE t(v {column})")
    p.write(f'{{"id": 1, "v": {text}}}')
    counts(p.run(status=0), received=1, done=1)
    assert psql(p.url, "SELECT v FROM t").strip() == expected


@pytest.mark.parametrize("column, text", [("bigint", "12.75"), ("bigint", "9223372036854775808"), ("integer", "1e10"), ("double precision", "1e400"), ("numeric", "1e999999")])
def test_f87_a_number_that_a_column_does_not_take_is_dead(tmp_path, postgres_there, column, text):
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(v) VALUES (:v)"]}\n', f"CREATE TABLE t(v {column})")
    p.write(f'{{"id": 1, "v": {text}}}', '{"id": 2, "v": 1}')
    counts(p.run(status=1), received=2, done=1, dead=1)
    assert psql(p.url, "SELECT v FROM t").strip() == "1"


def test_f87_numbers_in_expressions_and_casts(tmp_path, postgres_there):
    p = PostgresPipeline(tmp_path, """
key: "${/id}"
handler:
  sql:
    - "INSERT INTO t(v) SELECT round(:v::numeric, 1) + :n"
    - "UPDATE t SET v = v + :{/v as text}::numeric WHERE :v::double precision > 0"
""", "CREATE TABLE t(v numeric)")
    p.write('{"id": 1, "v": 12345678901234567.25, "n": 1.0}')
    counts(p.run(status=0), received=1, done=1)
    assert psql(p.url, "SELECT v FROM t").strip() == str(Decimal("12345678901234567.3") + 1 + Decimal("12345678901234567.25"))
