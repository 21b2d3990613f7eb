"""Handlers that cannot work are paused, not their messages buried; a breaker, a limit of dead letters, a rate, workers."""

import os
import re
import signal
import stat
import time

import pytest

from gateway import Gateway
from harness import Pipeline, check_sum, counts, until
from httppipeline import Paying
from pgpipeline import PostgresPipeline, has_postgres
from terminal import Terminal

FOLLOW = "{path: in.ndjson, follow: true}"
FINITE = "{path: in.ndjson}"


def script(folder, name, text):
    """A command; it is there at once as a whole."""
    path = os.path.join(folder, name)
    with open(path + ".new", "w") as file:
        file.write("#!/bin/sh\n" + text)
    os.chmod(path + ".new", stat.S_IRWXU)
    os.rename(path + ".new", path)


def lines(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return file.read().split()


def paused(p):
    """What the store says of handlers that are paused, as {name: reason}."""
    ended = p.once("status", "--json", p.name)
    return {h["handler"]: h["reason"] for w in ended.json["workers"] for h in w["paused"]}


def status(p):
    return p.once("status", "--json", p.name).json


def made(kind, folder, config, tables, source):
    if kind == "sqlite":
        return Pipeline(folder, config, tables, source=source)
    if not has_postgres():
        pytest.skip("missing: libpq in the build")
    return PostgresPipeline(folder, config, tables, source=source)


def append_until_one_is_dead(p):
    """One after the other: each shows that others get through."""
    for n in range(1000):
        p.append({"id": f"{n}"})
        if status(p)["dead"]:
            return
        time.sleep(0.05)
    assert False, "none became a dead letter"


def stop(run):
    run.send(signal.SIGTERM)
    ended = run.end()
    check_sum(ended.json)
    return ended


# ---- a pause ----

@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_f96_a_missing_table_pauses_its_handler_alone(tmp_path, kind):
    p = made(kind, tmp_path, """
key: "${/id}"
type: "${/type}"
handlers:
  broken: {sql: ["INSERT INTO gone(id) VALUES (:id)"]}
  sound: {sql: ["INSERT INTO t(id) VALUES (:id)"]}
""", "CREATE TABLE gone(id TEXT PRIMARY KEY); CREATE TABLE t(id TEXT PRIMARY KEY);", FOLLOW)
    with p.start() as run:
        until(p.is_running)
        p.execute("DROP TABLE gone")
        p.append(*[{"id": f"{i}", "type": kind} for i in range(20) for kind in ("broken", "sound")])
        assert "handler 'broken' is paused" in run.hear("event=paused")
        until(lambda: p.value("SELECT count(*) FROM t") == 20, what="the other handler went on")
        (name, reason), = until(lambda: paused(p)).items()
        assert name == "broken" and "gone" in reason
        p.append({"id": "19", "type": "broken"})  # a duplicate of what waits
        until(lambda: status(p)["waiting"] == 20)
        told = until(lambda: [e for e in p.explain("19") if e["state"] == "waiting"], what="it is not just tried")
        assert (told[0]["operation"], told[0]["paused"]["handler"], told[0]["paused"]["cause"], told[0]["paused"]["reason"]) == ("broken", "broken", "pause", reason)
        says = r"^  Its handler 'broken' is paused \(pause\) by \S+, since .* UTC: .*gone.*\.$"
        until(lambda: re.search(says, p.once("explain", p.name, "19").out, re.M))
        assert all("paused" not in e for e in p.explain("19") if e["operation"] == "sound")
        p.execute("CREATE TABLE gone(id TEXT PRIMARY KEY)")
        run.hear("event=resumed")
        until(lambda: p.value("SELECT count(*) FROM gone") == 20)
        until(lambda: not paused(p))
        ended = stop(run)
    counts(ended.json, received=41, done=40, duplicates=1)
    assert p.letters() == []
    assert all(p.explain(str(i))[0]["failures"] == 0 for i in range(0, 20, 7)), "nobody is to blame"


def test_f96_a_command_that_is_gone_pauses_its_handler_alone(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
type: "${/type}"
handlers:
  broken: {exec: [./effect], retry: {attempts: 1}}
  sound: {sql: ["INSERT INTO t(id) VALUES (:id)"]}
""", "CREATE TABLE t(id TEXT PRIMARY KEY);", source=FOLLOW)
    script(tmp_path, "effect", 'echo "$ONCE_KEY" >> ledger\n')
    with p.start() as run:
        until(p.is_running)
        os.remove(os.path.join(tmp_path, "effect"))
        p.append(*[{"id": f"{i}", "type": kind} for i in range(20) for kind in ("broken", "sound")])
        run.hear("event=paused")
        until(lambda: p.value("SELECT count(*) FROM t") == 20, what="the other handler went on")
        assert "No such file" in until(lambda: paused(p))["broken"]
        script(tmp_path, "effect", 'echo "$ONCE_KEY" >> ledger\n')
        run.hear("event=resumed")
        until(lambda: len(lines(tmp_path, "ledger")) == 20)
        ended = until(lambda: status(p)["waiting"] == 0) and stop(run)
    counts(ended.json, received=40, done=40)
    assert sorted(lines(tmp_path, "ledger")) == sorted(str(i) for i in range(20))


def test_explain_names_the_handler_of_the_message_and_no_other(tmp_path):
    """Both handlers have the same operation; only one of them is paused."""
    p = Pipeline(tmp_path, """
key: "${/id}"
type: "${/type}"
operation: effect
retry: {backoff: 10m..10m}
handlers:
  broken: {exec: [./effect]}
  busy: {exec: [sh, -c, 'exit 75']}
""", source=FOLLOW)
    script(tmp_path, "effect", "true\n")
    with p.start() as run:
        until(p.is_running)
        os.remove(os.path.join(tmp_path, "effect"))
        p.append({"id": "a", "type": "broken"}, {"id": "b", "type": "busy"})
        run.hear("event=paused")
        until(lambda: status(p)["waiting"] == 2)
        until(lambda: p.explain("a")[0].get("paused", {}).get("handler") == "broken")
        entry, = p.explain("b")
        assert entry["state"] == "waiting" and "paused" not in entry
        stop(run)


def test_f96_a_server_that_refuses_the_credentials_pauses_its_handler_alone(tmp_path):
    with Gateway(tmp_path) as gateway:
        account = gateway.account(token="right")
        p = Pipeline(tmp_path, f"""
key: "${{/id}}"
type: "${{/type}}"
handlers:
  broken: {{http: {{post: "{account.url('/charges/${/id}')}", window: 2}}, retry: {{attempts: 1}}}}
  sound: {{sql: ["INSERT INTO t(id) VALUES (:id)"]}}
""", "CREATE TABLE t(id TEXT PRIMARY KEY);", source=FOLLOW)
        p.append(*[{"id": f"{kind}{i}", "type": kind} for i in range(20) for kind in ("broken", "sound")])
        with p.start() as run:
            assert re.search(r"handler 'broken' is paused, because its effects cannot work until somebody acts: POST \S+ status 401", run.hear("event=paused"))
            until(lambda: p.value("SELECT count(*) FROM t") == 20, what="the other handler went on")
            until(lambda: status(p)["waiting"] == 20)
            assert len(account.tries()) < 10, "two at once, and some probes"
            account.set(token=None)
            run.hear("event=resumed")
            until(lambda: status(p)["waiting"] == 0 and status(p)["busy"] == 0)
            ended = stop(run)
        counts(ended.json, received=40, done=40)
        assert account.per_reference() == {f"broken{i}": 1 for i in range(20)}


def test_f96_a_message_that_alone_is_refused_does_not_pause_its_handler_again_and_again(tmp_path):
    with Gateway(tmp_path) as gateway:
        account = gateway.account()
        account.fault(path="/charges/bad", status=403)
        p = Pipeline(tmp_path, f"""
key: "${{/id}}"
handler: {{operation: pay, http: {{post: "{account.url('/charges/${/id}')}"}}, retry: {{attempts: 3, backoff: 1ms..5ms}}}}
""", source=FOLLOW)
        p.append({"id": "bad"})
        with p.start() as run:
            run.hear("event=paused")
            append_until_one_is_dead(p)
            until(lambda: status(p)["waiting"] == 0 and status(p)["busy"] == 0)
            ended = stop(run)
        counts(ended.json, done=ended.json["received"] - 1, dead=1)
        assert "403" in p.once("list", "--dead", p.name).out


def test_f96_a_row_that_alone_is_refused_does_not_pause_its_handler_again_and_again(tmp_path):
    """As row-level security does it."""
    p = made("postgres", tmp_path, """
key: "${/id}"
retry: {attempts: 3, backoff: 1ms..5ms}
handler: {operation: pay, sql: ["INSERT INTO t(id) VALUES (:id)"]}
""", "CREATE TABLE t(id TEXT PRIMARY KEY);"
         "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
         "$$ BEGIN IF NEW.id = 'bad' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '42501'; END IF; RETURN NEW; END $$;"
         "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse();", FOLLOW)
    p.append({"id": "bad"})
    with p.start() as run:
        run.hear("event=paused")
        append_until_one_is_dead(p)
        until(lambda: status(p)["waiting"] == 0 and status(p)["busy"] == 0)
        ended = stop(run)
    counts(ended.json, done=ended.json["received"] - 1, dead=1)


def test_f96_status_log_and_live_line_say_since_when_why_and_when_it_is_tried_next(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: [./effect], workers: 1}\n', source=FOLLOW)
    script(tmp_path, "effect", "rm ./effect\n")  # the first one takes it away
    p.write(*[{"id": f"{i}"} for i in range(5)])
    why, begun_ms = r"cannot run './effect': No such file or directory", int(time.time() * 1000)
    with Terminal(p) as terminal:
        terminal.see(rf"event=paused msg=\"handler 'handler' is paused, because .*: {why}; .* in 1s for the first time")
        terminal.see(rf"paused: handler for \ds, (next try in \ds|tried now) \({why}\)")
        (told,) = until(lambda: [h for w in status(p)["workers"] for h in w["paused"] if h["tries"]], what="it was tried")
        assert (told["handler"], told["cause"]) == ("handler", "pause") and re.fullmatch(why, told["reason"]), told
        assert begun_ms <= told["since_ms"] < told["next_ms"], told
        terminal.see(rf"event=paused msg=\"handler 'handler' is paused since .*: {why}; it was tried 1 time, and is tried again in \ds")
        shown = p.once("status", p.name).out
        assert re.search(rf"^  paused     handler 'handler' of that worker \(pause\), since .* UTC, tried \d+ times? in vain, next (in \d+s|now): {why}$",
                         shown, re.M), shown
        script(tmp_path, "effect", "exit 0\n")
        terminal.see("event=resumed msg=\"handler 'handler' goes on")
        terminal.see("5 done")
    assert terminal.status == 0 and "paused" not in terminal.seen.rpartition("\033[K")[2], "the summary tells of no pause that is over"


def test_a_paused_handler_of_which_no_message_waits_says_that_it_waits_for_one(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: [./effect]}\n', source=FOLLOW)
    script(tmp_path, "effect", "exit 0\n")
    with p.start() as run:
        until(p.is_running)
        os.remove(os.path.join(tmp_path, "effect"))
        p.append({"id": "a"})
        run.hear("event=paused")
        until(lambda: p.once("forget", p.name, "a").status == 0, what="it is not just tried")
        until(lambda: [h for w in status(p)["workers"] for h in w["paused"] if h["next_ms"] is None])
        assert re.search(r"^  paused .* in vain, next with its next message, because none of it waits: cannot run", p.once("status", p.name).out, re.M)
        script(tmp_path, "effect", "exit 0\n")
        p.append({"id": "b"})
        run.hear("event=resumed")
        until(lambda: not paused(p))
        stop(run)


def test_a_finite_run_gives_up_by_name_when_only_a_paused_handler_is_left(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
type: "${/type}"
patience: 300ms
handlers:
  broken: {exec: [./effect], workers: 1}
  sound: {sql: ["INSERT INTO t(id) VALUES (:id)"]}
""", "CREATE TABLE t(id TEXT PRIMARY KEY);", source=FINITE)
    script(tmp_path, "effect", "rm ./effect\n")  # the first one takes it away
    p.write(*[{"id": f"{kind}{i}", "type": kind} for i in range(10) for kind in ("broken", "sound")])
    ended = p.try_run()
    assert ended.status == 3, ended
    counts(ended.json, received=20, done=11, waiting=9, paused=1)
    assert "handler 'broken' is paused: cannot run './effect'" in ended.json["error"] and "'patience' (300ms)" in ended.json["error"]
    script(tmp_path, "effect", "exit 0\n")
    assert p.run(status=0)["done"] == 9


def test_a_finite_run_gives_up_by_name_when_waiting_max_is_full_of_a_paused_handler(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
type: "${/type}"
patience: 300ms
waiting_max: 50
batch: {max: 20}
handlers:
  broken: {exec: [./effect], workers: 1}
  sound: {sql: ["INSERT INTO t(id) VALUES (:id)"]}
""", "CREATE TABLE t(id TEXT PRIMARY KEY);", source=FINITE)
    script(tmp_path, "effect", "rm ./effect\n")
    p.write(*[{"id": f"{kind}{i}", "type": kind} for i in range(1000) for kind in ("broken", "sound")])
    ended = p.try_run()
    assert ended.status == 3, ended
    assert "handler 'broken' is paused: cannot run './effect'" in ended.json["error"]
    assert 50 <= ended.json["waiting"] < 1000 and ended.json["received"] < 2000
    script(tmp_path, "effect", "exit 0\n")
    assert p.run(status=0)["done"] == 2000 - ended.json["done"]


def test_the_log_names_the_paused_handler_that_fetching_waits_for(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nwaiting_max: 50\nhandler: {operation: pay, exec: [./effect], workers: 1}\n', source=FOLLOW)
    script(tmp_path, "effect", "rm ./effect\n")
    p.append({"id": "a"}, {"id": "b"})
    with p.start("--log-level", "debug") as run:
        run.hear("event=paused")
        p.append(*[{"id": f"{i}"} for i in range(200)])
        assert ", handler 'pay' is paused, and waiting_max is 50 messages" in run.hear("event=fetch_paused")
        stop(run)


def test_a_stop_does_not_wait_for_a_paused_handler(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: [./effect], workers: 1}\n', source=FINITE)
    script(tmp_path, "effect", "rm ./effect\n")
    p.write(*[{"id": f"{i}"} for i in range(10)])
    with p.start() as run:
        run.hear("event=paused")
        ended = stop(run)
    assert ended.status == 0, ended
    assert ended.json["done"] == 1 and ended.json["stopped"]
    script(tmp_path, "effect", "exit 0\n")
    summary = p.run(status=0)
    assert summary["done"] == 9


# ---- a storm of letters ----

def test_f96_a_misspelt_field_pauses_the_handler_and_buries_few(tmp_path):
    config = """
key: "${/id}"
type: "${/type}"
patience: 200ms
batch: {max: 500}
handlers:
  typo: {sql: ["INSERT INTO t(id, n) VALUES (:id, :%s)"]}
  sound: {sql: ["INSERT INTO u(id) VALUES (:id)"]}
"""
    p = Pipeline(tmp_path, config % "amont", "CREATE TABLE t(id TEXT PRIMARY KEY, n); CREATE TABLE u(id TEXT PRIMARY KEY);")
    p.write(*[{"id": f"{kind}{i}", "type": kind, "amount": i} for i in range(5000) for kind in ("typo", "sound")])
    ended = p.try_run()
    assert ended.status == 3, ended
    assert "handler 'typo' is paused" in ended.json["error"] and "amont" in ended.json["error"] and "dead_limit" in ended.json["error"]
    buried = ended.json["dead"]
    assert 0 < buried < 250
    counts(ended.json, received=10000, done=5000, dead=buried, waiting=5000 - buried)
    p.configure(config % "amount")
    summary = p.run(status=1)
    assert summary["done"] == 5000 - buried
    assert p.once("replay", "--all", p.name).status == 0
    assert p.run(status=0)["done"] == buried
    assert p.value("SELECT count(*) FROM t") == 5000


def test_f96_effects_that_all_die_of_one_reason_pause_their_handler(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\npatience: 200ms\nhandler: {sql: ["INSERT INTO t(id, n) VALUES (:id, :n)"]}\n',
                 "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER CHECK (n < 0));")
    p.write(*[{"id": f"{i}", "n": i} for i in range(2000)])
    ended = p.try_run()
    assert ended.status == 3, ended
    assert ended.json["dead"] < 250 and ended.json["dead"] + ended.json["waiting"] == 2000
    p.execute("DROP TABLE t; CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER);")
    assert p.run(status=1)["done"] == 2000 - ended.json["dead"]


def test_f96_a_server_that_refuses_all_pauses_its_handler_and_buries_few(tmp_path):
    """With a body of its own for each: numbers and what is quoted make no other reason."""
    with Gateway(tmp_path) as gateway:
        account = gateway.account()
        account.fault(status=400, body='{"error": "no such field", "request": "req_@n", "at": @n}')
        p = Paying(tmp_path / "p", account, n=400, lease="30s", more="patience: 200ms\n")
        ended = p.try_run()
        assert ended.status == 3 and "dead_limit" in ended.json["error"] and "status 400" in ended.json["error"], ended
        buried = ended.json["dead"]
        assert 0 < buried <= 99 and len(account.tries()) < 99 + 64 + 20, "of the calls in flight, too, and a probe now and then"
        counts(ended.json, received=400, dead=buried, waiting=400 - buried, paused=1)
        account.heal()
        assert p.run(status=1)["done"] == 400 - buried
        assert p.once("replay", "--all", p.name).status == 0
        assert p.run(status=0)["done"] == buried
        assert account.per_reference() == dict.fromkeys(p.keys(), 1)


def test_the_limit_of_letters_can_be_switched_off(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\ndead_limit: off\nhandler: {sql: ["INSERT INTO t(id, n) VALUES (:id, :amont)"]}\n',
                 "CREATE TABLE t(id TEXT PRIMARY KEY, n);")
    p.write(*[{"id": f"{i}"} for i in range(500)])
    counts(p.run(status=1), received=500, dead=500)


def test_letters_that_are_not_the_handlers_fault_do_not_pause_it(tmp_path):
    """Conflicts, and types that the file itself buries."""
    p = Pipeline(tmp_path, 'key: "${/id}"\ntype: "${/type}"\nhandlers:\n  a: {sql: ["INSERT INTO t(n) VALUES (:n)"]}\n  "*": {dead: unknown type}\n',
                 "CREATE TABLE t(n);")
    p.write({"id": "x", "type": "a", "n": 0}, *[{"id": "x", "type": "a", "n": i} for i in range(1, 300)],
            *[{"id": f"y{i}", "type": "b"} for i in range(300)])
    counts(p.run(status=1), received=600, done=1, dead=599, conflicts=299)


# ---- an outage ----

def test_f95_an_outage_opens_the_breaker_and_nothing_dies_of_it(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
handler: {exec: [./effect], retry: {attempts: 3, backoff: 1ms..5ms}, breaker: {of: 10, within: 1m}}
""", source=FOLLOW)
    script(tmp_path, "effect", 'echo "$ONCE_KEY" >> ledger\n[ ! -e down ] || exit 75\n')
    script(tmp_path, "down", "")
    p.append(*[{"id": f"{i}"} for i in range(60)])
    with p.start() as run:
        assert "too many of its effects fail" in run.hear("event=paused")
        until(lambda: status(p)["waiting"] == 60)
        began = len(lines(tmp_path, "ledger"))
        assert began < 40, "otherwise each of them would have been tried three times, and be dead"
        os.remove(os.path.join(tmp_path, "down"))
        run.hear("event=resumed")
        until(lambda: status(p)["waiting"] == 0 and status(p)["busy"] == 0)
        ended = stop(run)
    counts(ended.json, received=60, done=60)
    assert p.letters() == []


def test_f95_a_server_that_is_away_opens_the_breaker_and_nothing_dies_of_it(tmp_path):
    """Nobody answers at its port, so no call is ever begun: that is a failure, too."""
    with Gateway(tmp_path) as gateway:
        account = gateway.account()
        p = Pipeline(tmp_path, f"""
key: "${{/id}}"
handler:
  http: {{post: "{account.url('/charges/${/id}')}", window: 5}}
  retry: {{attempts: 3, backoff: 1ms..5ms}}
""", source=FOLLOW)
        gateway.kill()
        p.append(*[{"id": f"{i}"} for i in range(60)])
        with p.start() as run:
            assert re.search(r"too many of its effects fail: POST \S+ nothing was sent", run.hear("event=paused"))
            (told,) = until(lambda: [h for w in status(p)["workers"] for h in w["paused"]])
            assert told["cause"] == "breaker", told
            until(lambda: status(p)["waiting"] == 60)
            gateway.start()
            run.hear("event=resumed")
            until(lambda: status(p)["waiting"] == 0 and status(p)["busy"] == 0)
            ended = stop(run)
        counts(ended.json, received=60, done=60)
        assert ended.json["retries"] < 60, "otherwise each of them would have been tried three times, and be dead"
        assert account.per_reference() == {f"{i}": 1 for i in range(60)}


@pytest.mark.parametrize("how", ["away", "overloaded"])
def test_f95_an_outage_of_some_seconds_over_http_with_default_settings(tmp_path, how):
    """Nothing is written but the URL: no message dies, and none is charged twice."""
    with Gateway(tmp_path) as gateway:
        account = gateway.account(honour=False)
        p = Pipeline(tmp_path, f"""
key: "${{/id}}"
handler: {{http: {{post: "{account.url('/charges/${/id}')}"}}}}
""")
        p.write(*[{"id": f"{i}"} for i in range(100)])
        if how == "away":
            gateway.kill()
        else:
            account.fault(status=503)
        with p.start() as run:
            run.hear("event=paused")
            time.sleep(3)
            if how == "away":
                gateway.start()
            else:
                account.heal()
            ended = run.end()
        assert ended.status == 0, ended
        counts(ended.json, received=100, done=100, repeats=0)
        assert account.per_reference() == {f"{i}": 1 for i in range(100)}


def test_an_outage_without_end_ends_a_finite_run_and_its_messages_wait(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
patience: 300ms
handler: {exec: [./effect], retry: {attempts: 3, backoff: 1ms..5ms}}
""")
    script(tmp_path, "effect", "[ ! -e down ] || exit 75\n")
    script(tmp_path, "down", "")
    p.write(*[{"id": f"{i}"} for i in range(60)])
    ended = p.try_run()
    assert ended.status == 3 and "handler 'handler' is paused by its breaker" in ended.err and "'breaker: off'" in ended.err, ended
    counts(ended.json, received=60, waiting=60, paused=1)
    os.remove(os.path.join(tmp_path, "down"))
    assert p.run(status=0)["done"] == 60


def test_without_a_breaker_every_message_spends_its_attempts(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: [sh, -c, "exit 75"], breaker: off, retry: {attempts: 3, backoff: 1ms..5ms}}\n')
    p.write(*[{"id": f"{i}"} for i in range(60)])
    counts(p.run(status=1), received=60, dead=60, attempts=180)


def test_check_says_what_pauses_a_handler(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
type: "${/type}"
handlers:
  a: {exec: ["true"]}
  b: {exec: ["true"], breaker: {share: 50%, of: 10}, dead_limit: off, rate: 30/m}
  c: {sql: ["SELECT 1"], dead_limit: 20%}
""")
    said = p.once("check", p.name).out.splitlines()
    paused = "paused when its effects cannot work"
    assert f"handler a: {paused}, or when 80% of its last 20 outcomes, all within 10s, are failures (breaker)" \
           ", or when 50% of its last 200 are dead letters for one reason (dead_limit)" in said
    assert f"handler b: {paused}, or when 50% of its last 10 outcomes, all within 10s, are failures (breaker); at most 30 messages begin in 1m (rate)" in said
    assert f"handler c: {paused}, or when 20% of its last 200 are dead letters for one reason (dead_limit)" in said


# ---- rate and workers ----

def times(p, folder, effect):
    if effect == "sql":
        return sorted(t for t, in p.rows("SELECT at FROM t"))
    return sorted(int(line) / 1e9 for line in lines(folder, "ledger"))


@pytest.mark.parametrize("effect", ["sql", "exec"])
def test_a_rate_is_kept(tmp_path, effect):
    handlers = {"sql": """{rate: 100/s, sql: ["INSERT INTO t(at) SELECT (julianday('now') - 2440587.5) * 86400.0 WHERE :id <> ''"]}""",
                "exec": "{rate: 40/s, exec: [./effect]}"}
    rate, n = {"sql": (100, 250), "exec": (40, 100)}[effect]
    p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler: {handlers[effect]}\n', "CREATE TABLE t(at REAL);")
    script(tmp_path, "effect", "date +%s%N >> ledger\n")
    p.write(*[{"id": f"{i}"} for i in range(n)])
    counts(p.run(status=0), received=n, done=n)
    at = times(p, tmp_path, effect)
    assert len(at) == n
    assert at[-1] - at[0] > 0.8 * (n / rate - 1), "they did not all begin at once"
    for first in at:
        assert sum(first <= t < first + 1 for t in at) <= 2 * rate + rate / 2


@pytest.mark.parametrize("kind", ["replayed", "tried_again"])
def test_a_rate_is_kept_over_http(tmp_path, kind):
    """Also by messages that begin again: a replay, or an outage that is over, does not flatten the other side."""
    rate, n = 100, 80

    def run():
        """How long it took until the last of `n` calls came."""
        came, began = len(account.tries()), time.monotonic()
        summary = p.run()
        calls = account.tries()[came:]
        assert len(calls) == n, summary
        return max(each["at"] for each in calls) - began

    with Gateway(tmp_path) as gateway:
        account = gateway.account()
        messages = n if kind == "replayed" else n // 4
        p = Paying(tmp_path / "p", account, n=messages, lease="30s", then=f"  rate: {rate}/s\n  breaker: off\n  dead_limit: off\n")
        account.fault(status=400 if kind == "replayed" else 503, times=n if kind == "replayed" else n - messages)
        assert run() > 0.9 * n / rate
        if kind == "replayed":
            assert len(p.dead()) == n and not account.charges()
            assert p.once("replay", "--all", p.name).status == 0
            assert run() > 0.9 * n / rate
        assert account.per_reference() == dict.fromkeys(p.keys(), 1)


def test_handlers_have_their_own_number_of_workers(tmp_path):
    p = Pipeline(tmp_path, """
key: "${/id}"
type: "${/type}"
workers: 4
handlers:
  few: {exec: [./effect, few], workers: 2}
  many: {exec: [./effect, many]}
""")
    script(tmp_path, "effect", 'echo "+$1" >> ledger\nsleep 0.05\necho "-$1" >> ledger\n')
    p.write(*[{"id": f"{kind}{i}", "type": kind} for i in range(8) for kind in ("few", "many")])
    counts(p.run(status=0), received=16, done=16)
    most = {"few": 0, "many": 0}
    now = dict(most)
    for line in lines(tmp_path, "ledger"):
        now[line[1:]] += 1 if line[0] == "+" else -1
        most[line[1:]] = max(most[line[1:]], now[line[1:]])
    assert most["few"] <= 2 and 2 <= most["many"] <= 4
