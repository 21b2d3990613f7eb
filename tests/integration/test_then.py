"""`then`: SQL that commits together with the outcome of an effect outside, from the pipeline file to the rows, on SQLite and PostgreSQL."""

import contextlib
import json
import os
import signal

import pytest

import postgres
import redisserver
from gateway import Gateway
from harness import Pipeline, counts, once, stopped, until
from pgbouncer import Pooler
from pgpipeline import Session, need_postgres
from thenpipeline import CHARGE, INSERT, STREAM, TABLES, config, kind, make  # noqa: F401 (kind is a fixture)


def some(n, **more):
    return [{"id": f"m{i}", **more} for i in range(n)]


def pairs(n):
    return sorted((f"m{i}", f"ch_m{i}") for i in range(n))


# ---- what it does ----

@pytest.mark.parametrize("mode", ["message", "stream"])
def test_it_commits_with_the_outcome_and_once(tmp_path, kind, mode):
    p = make(kind, tmp_path, config(more="mode: stream" if mode == "stream" else ""), script=STREAM if mode == "stream" else CHARGE)
    n = 200 if mode == "stream" else 20
    p.write(*some(n), *some(5))
    counts(p.run(status=0), received=n + 5, done=n, duplicates=5, attempts=n)
    assert p.charged() == pairs(n)
    assert json.loads(p.explain("m3")[0]["result"])["charge_id"] == "ch_m3", "duplicates get the result of the effect"
    counts(p.run(status=0), received=n + 5, duplicates=n + 5)
    assert p.charged() == pairs(n) and set(p.ledger().values()) == {1}


@pytest.mark.parametrize("mode", ["message", "stream"])
def test_f70_what_had_happened_before_is_followed_by_it_too(tmp_path, kind, mode):
    """The reply of an earlier attempt was lost: nobody else would write it."""
    p = make(kind, tmp_path, config(more="mode: stream" if mode == "stream" else ""), script=STREAM if mode == "stream" else CHARGE)
    p.write(*some(3, exit=66, outcome="already"))
    counts(p.run(status=0), received=3, already=3)
    assert p.charged() == pairs(3)


@pytest.mark.parametrize("code,state", [(64, "rejected"), (65, "dead"), (67, "stale"), (70, "unknown")])
def test_what_has_not_happened_is_not_followed_by_it(tmp_path, kind, code, state):
    p = make(kind, tmp_path)
    p.write({"id": "m0", "exit": code})
    counts(p.run(status=1 if state in ("dead", "unknown") else 0), received=1, **{state: 1})
    assert p.charged() == []


def test_each_way_to_bind_a_result(tmp_path, kind):
    p = make(kind, tmp_path, config("INSERT INTO bound VALUES (:{result:/cents}, :{result:/cents as text}, :{result:/card/last4}, :{result:/card}, "
                                    ":{result:/none?}, :{result}, :{/id}, :once_key, :once_attempt, :{result:/none? as text})"),
             tables="CREATE TABLE bound(cents int, exact text, last4 text, card text, none text, whole text, id text, key text, attempt int, no text)")
    p.write({"id": "a"})
    p.run(status=0)
    whole = '{"charge_id": "ch_a", "cents": 1250, "card": {"last4": "4242"}}'
    assert p.rows("SELECT * FROM bound") == [(1250, "1250", "4242", '{"last4": "4242"}', None, whole, "a", "a", 1, None)]


@pytest.mark.parametrize("says,why", [
    ("not json", "the result of the effect is not JSON: "),
    ("{}", "in the result of the effect: "),
    ("", "in the result of the effect: "),
], ids=["no JSON", "no field", "empty"])
def test_f81_a_result_that_lacks_something_is_no_success_and_no_reason_to_repeat_it(tmp_path, kind, says, why):
    p = make(kind, tmp_path, "result_max: 100B\n" + config(unknown="retry").lstrip())
    p.write(*some(3), {"id": "odd", "says": says})
    counts(p.run(status=1), received=4, done=3, unknown=1, attempts=4)
    state, reason = p.state("odd")
    assert state == "unknown" and reason.startswith("its effect has happened, and its 'then' was not written: " + why), reason
    assert "charge_id" in reason or "JSON" in reason
    assert p.charged() == pairs(3) and set(p.ledger().values()) == {1}
    counts(p.run(status=1), received=4, duplicates=3, unknown=1)
    assert p.ledger()["odd"] == 1


@pytest.mark.parametrize("says", ["", "{}", "null"], ids=["empty", "no field", "null"])
def test_what_a_result_may_lack_is_null(tmp_path, kind, says):
    p = make(kind, tmp_path, config("INSERT INTO charged(id, charge) VALUES (:id, :{result:/charge_id?})"))
    p.write({"id": "a", "says": says, "exit": 66})
    counts(p.run(status=0), received=1, already=1)
    assert p.charged() == [("a", None)]


@pytest.mark.parametrize("binds, bound", [(":{result?}", None), (":{result}", "")])
def test_a_result_of_nothing_is_null_only_where_it_may_be(tmp_path, kind, binds, bound):
    p = make(kind, tmp_path, config(f"INSERT INTO charged(id, charge) VALUES (:id, {binds})"))
    p.write({"id": "a", "says": ""})
    counts(p.run(status=0), received=1, done=1)
    assert p.charged() == [("a", bound)]


@pytest.mark.parametrize("mode", ["message", "stream"])
@pytest.mark.parametrize("binds", [":{result}", ":{result?}", ":{result:/charge_id?}"])
def test_f81_a_result_that_is_too_long_is_not_taken_for_an_empty_one(tmp_path, kind, mode, binds):
    stream = mode == "stream"
    p = make(kind, tmp_path, "result_max: 100B\n" + config(f"INSERT INTO charged(id, charge) VALUES (:id, {binds})", unknown="retry",
                                                          more="mode: stream" if stream else "").lstrip(), script=STREAM if stream else CHARGE)
    p.write({"id": "short", "says": "{}"}, {"id": "long", "says": "x" * 200})
    counts(p.run(status=1), received=2, done=1, unknown=1, attempts=2)
    assert "the result of the effect was not kept: it is too long" in p.state("long")[1] and [key for key, _ in p.charged()] == ["short"]


def test_a_result_that_nobody_names_may_be_anything(tmp_path, kind):
    p = make(kind, tmp_path, "result_max: 100B\n" + config("INSERT INTO charged(id, charge) VALUES (:id, 'charged')").lstrip())
    p.write({"id": "a", "says": "x" * 200}, {"id": "b", "says": "no JSON"})
    counts(p.run(status=0), received=2, done=2, attempts=2)
    assert sorted(p.charged()) == [("a", "charged"), ("b", "charged")]


def test_bytes_that_are_no_text_are_not_bound(tmp_path, kind):
    p = make(kind, tmp_path, config("INSERT INTO charged(id, charge) VALUES (:id, :{result})"), script="#!/bin/sh\nprintf '\\377'\n")
    p.write({"id": "a"})
    counts(p.run(status=1), received=1, unknown=1)
    assert "the result of the effect is not text; its result: '?'" in p.state("a")[1] and p.charged() == []


def test_a_field_that_a_message_lacks_is_found_before_its_effect(tmp_path, kind):
    p = make(kind, tmp_path, config("UPDATE charged SET charge = :{/order}"))
    p.write({"id": "a"})
    counts(p.run(status=1), received=1, dead=1, attempts=0)
    assert "/order" in p.letters()[0][1] and not p.ledger()


# ---- when it fails ----

FAILS = {
    "constraint": "INSERT INTO taken(id) SELECT 'unique' WHERE :{/fails? as text} = 'yes'",
    "rows": "{do: \"UPDATE taken SET id = id WHERE coalesce(:{/fails? as text}, 'no') = 'no'\", rows: 1}",
}


@pytest.mark.parametrize("unknown", ["hold", "retry"])
@pytest.mark.parametrize("how", FAILS)
def test_one_that_fails_is_held_and_the_others_are_done(tmp_path, kind, how, unknown):
    p = make(kind, tmp_path, config(INSERT, FAILS[how], unknown=unknown))
    p.write(*some(10), {"id": "odd", "fails": "yes"}, *[{"id": f"n{i}"} for i in range(10)])
    counts(p.run(status=1), received=21, done=20, unknown=1, attempts=21)
    assert len(p.charged()) == 20 and "odd" not in dict(p.charged()), "nothing of it is left"
    state, reason = p.state("odd")
    assert state == "unknown" and reason.startswith("its effect has happened, and its 'then' was not written: "), reason
    assert ("'rows' says 1" if how == "rows" else "taken") in reason, reason
    assert "; its result: '{\"charge_id\": \"ch_odd\", " in reason, "whoever repairs it needs that"
    counts(p.run(status=1), received=21, duplicates=20, unknown=1)
    assert set(p.ledger().values()) == {1}, "it was not repeated, whatever 'unknown' says"


def test_one_in_a_hundred_that_fails(tmp_path, kind):
    p = make(kind, tmp_path, config(INSERT, FAILS["constraint"], more="mode: stream"), script=STREAM)
    odd = {f"m{i}" for i in range(0, 1000, 100)}
    p.write(*[dict(m, **({"fails": "yes"} if m["id"] in odd else {})) for m in some(1000)])
    counts(p.run(status=1), received=1000, done=990, unknown=10, attempts=1000)
    assert {id for id, _ in p.charged()} == {f"m{i}" for i in range(1000)} - odd and len(p.charged()) == 990
    assert p.unknown_keys() == odd and set(p.ledger().values()) == {1}
    groups = p.once("list", "--unknown", "--by", "reason", "--json", p.name).json["groups"]
    assert [group["count"] for group in groups] == [10], groups


def test_what_an_operator_can_do_with_one_that_failed(tmp_path, kind):
    p = make(kind, tmp_path, config(INSERT, FAILS["constraint"]))
    p.write({"id": "a", "fails": "yes"}, {"id": "b", "fails": "yes"})
    counts(p.run(status=1), received=2, unknown=2)
    done = p.once("resolve", p.name, "a", "done")
    assert done.status == 0 and "resolved as done" in done.out and "'then' is not run by this" in done.out, done
    assert once("resolve", "--json", p.name, "b", "retry", cwd=p.folder).json["resolved"] == "retry"
    p.execute("DELETE FROM taken")
    counts(p.run(status=0), received=2, resumed=1, duplicates=2, done=1)
    assert p.charged() == [("b", "ch_b")] and p.ledger() == {"a": 1, "b": 2}, "retry runs both again, done neither"


def test_a_lookup_leads_to_it(tmp_path, kind):
    """It failed; the other side is asked, says done, and it is written then, with what the other side says."""
    status = os.path.join(tmp_path, "status")
    p = make(kind, tmp_path, config(INSERT, FAILS["constraint"], more="lookup: {exec: [./status], after: 1ms, for: 1h}"))
    with open(status, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\necho asked >> questions\ntouch free\nprintf '{\"charge_id\": \"found\"}'\n")
    os.chmod(status, 0o755)
    p.write({"id": "a", "fails": "yes"})
    with p.start() as running:
        until(lambda: os.path.exists(os.path.join(p.folder, "free")), what="the question")
        p.execute("DELETE FROM taken")
        ended = running.end()
    counts(ended.json, received=1, done=1, attempts=1)
    assert p.charged() == [("a", "found")] and p.ledger() == {"a": 1}


@pytest.mark.parametrize("verb", ["check", "run"])
def test_f67_a_missing_table_is_a_mistake_with_its_line(tmp_path, kind, verb):
    p = make(kind, tmp_path, config(INSERT, "DELETE FROM nowhere"))
    ended = p.once(verb, p.name)
    assert ended.status == 2 and "p.yaml:15: " in ended.err and "nowhere" in ended.err, ended
    assert not p.ledger()


def test_f96_a_table_that_vanishes_buries_nobody(tmp_path, kind):
    """It concerns every message of the handler, so none is blamed: the handler is paused, and a run whose source ends gives up. What had its effect is never repeated."""
    p = make(kind, tmp_path, config(lease="1s", more="timeout: 5s").replace("workers: 4", "workers: 1\npatience: 1s\nbatch: {max: 1}"))
    p.write(*some(6))
    with open(os.path.join(p.folder, "charge"), "w", encoding="utf-8") as file:
        file.write(CHARGE.replace("sys.exit(", "import time\nwhile os.path.exists('wait'): time.sleep(0.01)\nsys.exit("))
    open(os.path.join(p.folder, "wait"), "w").close()
    with p.start() as running:
        until(p.ledger, what="the first charge")
        p.execute("ALTER TABLE charged RENAME TO away")
        os.unlink(os.path.join(p.folder, "wait"))
        ended = running.end()
    assert ended.status == 3 and "charged" in ended.json["error"], ended
    p.execute("ALTER TABLE away RENAME TO charged")
    summary = p.run()
    assert summary["dead"] == 0 and set(p.ledger().values()) == {1}, summary
    held = p.unknown_keys()
    assert len(held) <= 1 and {id for id, _ in p.charged()} | held == {f"m{i}" for i in range(6)}


def test_f96_a_run_gives_up_although_more_of_its_lane_is_left_to_read(tmp_path):
    """What was read stands behind the message whose row cannot be written, and no more is read."""
    text = config(lease="2s", more="timeout: 5s").replace("workers: 4", 'workers: 1\npatience: 1s\nbatch: {max: 1}\norder: "${/lane}"')
    p = make("sqlite", tmp_path, text)
    p.write(*[{"id": f"m{i}", "lane": "one"} for i in range(200)])
    with open(os.path.join(p.folder, "charge"), "w", encoding="utf-8") as file:
        file.write(CHARGE.replace("sys.exit(", "import time\nwhile os.path.exists('wait'): time.sleep(0.01)\nsys.exit("))
    open(os.path.join(p.folder, "wait"), "w").close()
    with p.start() as running:
        until(p.ledger, what="the first charge")
        p.execute("ALTER TABLE charged RENAME TO away")
        os.unlink(os.path.join(p.folder, "wait"))
        ended = running.end()
    assert ended.status == 3 and "charged" in ended.json["error"] and ended.json["received"] < 200, ended
    assert sum(p.ledger().values()) == 1


def test_f96_a_run_that_goes_on_waits_for_its_table(tmp_path, kind):
    """No more effects happen than are in flight, and what belongs to these is written when the table is back."""
    p = make(kind, tmp_path, script=STREAM)
    p.configure(config(more="mode: stream\nwindow: 4"), source="{path: in.ndjson, follow: true}")
    p.write(*some(5))
    with p.start() as running:
        until(lambda: len(p.charged()) == 5, what="the first ones")
        p.execute("ALTER TABLE charged RENAME TO away")
        p.append(*[{"id": f"n{i}"} for i in range(30)])
        running.hear("event=paused", "charged")
        assert sum(p.ledger().values()) <= 5 + 4
        p.execute("ALTER TABLE away RENAME TO charged")
        until(lambda: len(p.charged()) == 35, what="all of them")
        running.send(signal.SIGTERM)
        counts(running.end().json, received=35, done=35, attempts=35)
    assert set(p.ledger().values()) == {1}


def test_a_statement_that_takes_too_long_is_held_alone(tmp_path):
    """The timeout is that of the command, too: it leaves room for an interpreter that starts on a busy machine."""
    forever = ("INSERT INTO taken(id) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE :{/fails? as text} = 'yes') "
               "SELECT max(i) FROM n WHERE :{/fails? as text} = 'yes' GROUP BY 1 = 2")
    p = make("sqlite", tmp_path, config(INSERT, forever, more="timeout: 4s"))
    p.write(*some(4), {"id": "odd", "fails": "yes"})
    counts(p.run(status=1), received=5, done=4, unknown=1)
    assert p.charged() == pairs(4) and "at its timeout of 4s" in p.state("odd")[1]


def test_a_check_at_the_commit_holds_its_message_alone(tmp_path, kind):
    bound = ":{/head?}::text" if kind == "postgres" else ":{/head?}"
    p = make(kind, tmp_path, config(INSERT, f"INSERT INTO line(head) SELECT {bound} WHERE {bound} IS NOT NULL"),
             tables=TABLES + "CREATE TABLE head(id text PRIMARY KEY); CREATE TABLE line(head text CONSTRAINT of REFERENCES head DEFERRABLE INITIALLY DEFERRED);")
    p.write(*some(8), {"id": "odd", "head": "nobody"})
    counts(p.run(status=1), received=9, done=8, unknown=1, attempts=9)
    assert sorted(p.charged()) == sorted(pairs(8)) and ('"of"' if kind == "postgres" else "FOREIGN KEY") in p.state("odd")[1]
    assert set(p.ledger().values()) == {1}


def test_f48_a_deadlock_is_tried_again(tmp_path):
    """Another session locks in the other order, once; then it is out of the way."""
    need_postgres()
    p = make("postgres", tmp_path, config("UPDATE taken SET id = id WHERE id = 'unique'", "UPDATE taken SET id = id WHERE id = 'other'", INSERT))
    p.execute("INSERT INTO taken VALUES ('other')")
    p.write({"id": "a"})
    with Session(p.url, "BEGIN; UPDATE taken SET id = id WHERE id = 'other'") as session:
        with p.start() as running:
            until(lambda: p.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"), what="it waits")
            session.process.stdin.write("UPDATE taken SET id = id WHERE id = 'unique';\nCOMMIT;\n")
            session.process.stdin.flush()
            ended = running.end()
    counts(ended.json, received=1, done=1, attempts=1)
    assert p.charged() == [("a", "ch_a")] and p.ledger() == {"a": 1}


def test_a_rollback_that_comes_again_and_again_is_held_alone(tmp_path):
    """The database ends the transaction at one statement, always."""
    need_postgres()
    p = make("postgres", tmp_path, config(INSERT, "SELECT CASE WHEN :{/fails? as text} = 'yes' THEN fail() END"),
             tables=TABLES + "CREATE FUNCTION fail() RETURNS int LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END$$")
    p.write(*some(6), {"id": "odd", "fails": "yes"}, {"id": "m6"})
    counts(p.run(status=1), received=8, done=7, unknown=1, attempts=8)
    assert p.charged() == pairs(7) and "rolled it back again and again" in p.state("odd")[1]


# ---- claims ----

@pytest.mark.parametrize("unknown", ["retry", "hold"])
def test_f14_whoever_lost_its_claim_writes_nothing(tmp_path, kind, unknown):
    """It is stopped between its effect and the transaction that would settle it, past its lease; meanwhile another worker decides."""
    p = make(kind, tmp_path, config(unknown=unknown, lease="1s"))
    p.write({"id": "a"})
    with p.start(failpoint="effect_after:stop") as paused:
        until(lambda: stopped(paused), what="it stands still")
        summary = p.run()
        assert (summary["done"], summary["store_unknown"]) == ((1, 0) if unknown == "retry" else (0, 1)), summary
        before = p.charged()
        paused.send(signal.SIGCONT)
        ended = paused.end()
    assert ended.json["done"] == 0, "it has settled nothing"
    assert p.charged() == before == ([("a", "ch_a")] if unknown == "retry" else [])
    assert p.state("a")[0] == ("done" if unknown == "retry" else "unknown")


def test_f14_whoever_stands_still_in_the_transaction_keeps_its_claim(tmp_path, kind):
    """Its claim was checked in the transaction: others wait for that, however long it takes."""
    p = make(kind, tmp_path, config(unknown="retry", lease="1s"))
    p.write({"id": "a"})
    with p.start(failpoint="then_after:stop") as paused:
        until(lambda: stopped(paused), what="it stands still")
        with p.start() as other:
            until(p.is_running, what="the other one runs")
            paused.send(signal.SIGCONT)
            both = [paused.end(), other.end()]
    assert sum(ended.json["done"] for ended in both) == 1, both
    assert p.charged() == [("a", "ch_a")] and p.ledger() == {"a": 1}


def test_it_follows_the_order_of_a_lane(tmp_path, kind):
    p = make(kind, tmp_path, 'order: "${/lane}"\n' + config(INSERT, more="natural: false").lstrip())
    p.write(*[{"id": f"{i}", "lane": i % 2} for i in range(12)])
    counts(p.run(status=0), received=12, done=12)
    rows = [int(id) for id, in p.rows("SELECT id FROM charged")]
    assert [i for i in rows if i % 2] == [1, 3, 5, 7, 9, 11] and [i for i in rows if not i % 2] == [0, 2, 4, 6, 8, 10]


def test_a_natural_effect_is_followed_by_it_at_each_delivery(tmp_path, kind):
    p = make(kind, tmp_path, config(more="natural: true", unknown="retry"))
    p.write(*some(4), *some(2))
    counts(p.run(status=0), received=6, done=6)
    assert [n for n, in p.rows("SELECT count(*) AS n FROM charged GROUP BY id ORDER BY 1")] == [1, 1, 2, 2]


def test_f88_behind_a_pooler(tmp_path):
    need_postgres()
    p = make("postgres", tmp_path)
    try:
        pooler = Pooler(p.server, "transaction")
    except postgres.Missing as why:
        pytest.skip(f"missing: {why}")
    with pooler:
        p.configure(config(INSERT, FAILS["constraint"]), store=pooler.url(p.url))
        p.write(*some(30), {"id": "odd", "fails": "yes"})
        counts(p.run(status=1), received=31, done=30, unknown=1)
        assert p.charged() == pairs(30)


# ---- the pipeline file ----

def test_it_follows_sql_in_another_database(tmp_path, kind):
    other = Pipeline(tmp_path, tables="CREATE TABLE booked(key TEXT PRIMARY KEY)", store="sqlite:other.db")
    p = make(kind, tmp_path)
    p.configure("""
key: "${/id}"
handler:
  sql: {url: "sqlite:other.db", do: ["INSERT INTO booked VALUES (:once_idempotency_key)"]}
  then: {sql: ["INSERT INTO charged VALUES (:id, :once_idempotency_key)"]}
""")
    p.write(*some(5))
    counts(p.run(status=0), received=5, done=5)
    assert {key for _, key in p.charged()} == {key for key, in other.rows("SELECT key FROM booked")}


HTTP = """
key: "${/id}"
retry: {attempts: 5, backoff: 1ms..20ms}
unknown: hold
handler:
  http:
    post: "%s"
    already: [409]
    lookup: {get: "%s/${idempotency_key}", done: [200], absent: [404], after: 1ms}
  then: {sql: ["INSERT INTO charged(id, charge) VALUES (:id, :{%s})"]}
"""


def test_it_follows_a_call(tmp_path, kind):
    """What it names is in the body of the answer; of a call whose answer was lost, in the one of the lookup."""
    if not any(effect["name"] == "http" for effect in once("version", "--json").json["effects"]):
        pytest.skip("missing: libcurl in the build")
    p = make(kind, tmp_path)
    with Gateway(tmp_path) as gateway:
        account = gateway.account()
        account.fault(path="m1", status=201, charge=True, body='"a text"')
        account.fault(method="POST", path="m2", cut=0, times=1)
        p.configure(HTTP % (account.url("/charges/${/id}"), account.url("/charges"), "result:/charge_id?"))
        p.write(*some(4))
        counts(p.run(status=0), received=4, done=4)
        charges = dict(p.charged())
        assert set(account.per_reference().values()) == {1} and charges.pop("m1") is None
        assert all(charges.values()) and len(set(charges.values())) == 3, charges
        p.configure(HTTP % (account.url("/charges/${/id}"), account.url("/charges"), "result"))
        account.fault(path="n1", status=201, charge=True, body="plain text", headers={"Content-Type": "text/plain"})
        account.fault(path="n2", status=409, charge=False, body='{"charge_id": "before"}')
        p.write({"id": "n1"}, {"id": "n2"})
        counts(p.run(status=0), received=2, done=1, already=1)
        charges = dict(p.charged())
        assert charges["n1"] == "plain text" and json.loads(charges["n2"]) == {"charge_id": "before"}


def test_an_answer_that_was_not_kept_is_not_taken_for_an_empty_one(tmp_path, kind):
    if not any(effect["name"] == "http" for effect in once("version", "--json").json["effects"]):
        pytest.skip("missing: libcurl in the build")
    with Gateway(tmp_path) as gateway:
        account = gateway.account()
        account.fault(path="m0", status=200, charge=True, body='{"charge_id": 1, "more": "%s"}' % ("x" * 70000))  # more than result_max
        account.fault(path="m1", status=200, charge=True, body="a\0b")
        account.fault(path="m2", status=200, charge=True, body="")
        for name in "result", "result:/charge_id?":
            os.makedirs(folder := tmp_path / ("whole" if name == "result" else "field"))
            p = make(kind, folder)
            p.configure("\n".join(line for line in HTTP.split("\n") if "lookup" not in line) % (account.url("/charges/${/id}"), name))
            p.write(*some(3))
            counts(p.run(status=1), received=3, done=1, unknown=2)
            assert [p.state(key)[0] for key in ("m0", "m1", "m2")] == ["unknown", "unknown", "done"]
            assert "was not kept: it is no text, or too long" in p.state("m0")[1] and [key for key, _ in p.charged()] == ["m2"]


def test_check_says_that_it_commits_with_the_outcome(tmp_path, kind):
    p = make(kind, tmp_path)
    ended = p.once("check", p.name)
    assert ended.status == 0 and "fenced: never lost; its 'then' commits together with the outcome; " in ended.out, ended


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_a_store_without_sql_is_refused(tmp_path, store):
    if store == "redis" and not redisserver.has_redis():
        pytest.skip("missing: redis")
    p = make("sqlite", tmp_path)
    with redisserver.RedisServer(tmp_path) if store == "redis" else contextlib.nullcontext() as server:
        p.configure(config(), store=server.url() if server else store)
        for verb in ("check", "run"):
            ended = p.once(verb, p.name)
            assert ended.status == 2 and f"p.yaml:12: 'then' runs in the database of the store, and store '{store}:' has none" in ended.err, ended
