"""Replay of more letters than one transaction has, on PostgreSQL: while one lot is committed, the next is read over a second
connection. Lots are committed in the order of their letters."""

import json
import signal
import subprocess
import time

import pytest

import postgres
from harness import ONCE, Running, counts, environment, stopped, until
from pgpipeline import PostgresPipeline, need_postgres, new_name, psql

need_postgres()

LOT = 4096
N = 2 * LOT + 500
TABLES = """
CREATE TABLE t(n int GENERATED ALWAYS AS IDENTITY, id text, lane int); CREATE TABLE gate(is_open bool); INSERT INTO gate VALUES (false);
CREATE TABLE sessions(n bigint, pid int, PRIMARY KEY (n, pid));
"""
CONFIG = """
key: "${/id}"
dead_limit: off
%s
handler:
  sql: [{do: "INSERT INTO t(id, lane) SELECT :id, :lane FROM gate WHERE is_open", rows: 1, else: dead}]
"""


def pipeline(folder, n, more="", url=None):
    """With n letters, whose effects succeed from now on."""
    p = PostgresPipeline(str(folder), CONFIG % more, TABLES, url=url)
    p.write(*[{"id": f"p{i}", "lane": i % (n // 2)} for i in range(n)])
    counts(p.run(status=1), received=n, dead=n)
    p.execute("UPDATE gate SET is_open = true")
    return p


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """The name of a database with N letters."""
    name = new_name()
    p = pipeline(tmp_path_factory.mktemp("letters"), N, url=postgres.shared().database(name))
    p.sql.close()
    return name


@pytest.fixture
def p(tmp_path, letters):
    """A copy of it."""
    return PostgresPipeline(str(tmp_path), CONFIG % "", url=postgres.shared().database(new_name(), like=letters))


def watch_sessions(p):
    """Notes which session wrote the audit of each lot."""
    p.execute("""
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          INSERT INTO sessions SELECT min(letter), pg_backend_pid() FROM new_rows; RETURN NULL; END $$;
        CREATE TRIGGER note AFTER INSERT ON once_audit REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION note()""")


def sessions(p):
    return [pid for (pid,) in p.rows("SELECT pid FROM sessions ORDER BY n")]


def works_once(p, n=N):
    p.write()
    counts(p.run(status=0), received=0, resumed=n, done=n)
    assert p.value("SELECT count(*) FROM t") == n and p.value("SELECT count(DISTINCT id) FROM t") == n


def test_lots_take_turns_on_two_connections_and_are_reported_in_order(p):
    watch_sessions(p)
    ended = p.once("replay", "--json", p.name, "--all")
    assert ended.status == 0 and ended.json["counts"]["run"] == N, ended.err
    ids = [letter["letter"] for letter in ended.json["letters"]]
    assert ids == sorted(ids) and len(set(ids)) == N
    a, b, c = sessions(p)
    assert a == c != b
    works_once(p)


def test_named_letters_are_moved_one_lot_after_the_other(p):
    """One may be named twice: the second time it is gone."""
    watch_sessions(p)
    ids = [id for (id,) in p.rows("SELECT id FROM once_letter ORDER BY id DESC LIMIT %d" % LOT)]
    ended = p.once("replay", "--json", p.name, *ids, *ids[:100])
    assert ended.status == 1 and ended.json["counts"]["run"] == LOT and ended.json["counts"]["gone"] == 100, ended.err
    assert [letter["letter"] for letter in ended.json["letters"][:LOT]] == [int(id) for id in ids]
    assert len(set(sessions(p))) == 1 and p.value("SELECT count(*) FROM once_audit") == LOT


def test_one_connection_is_enough(p):
    """A second one is not to be had."""
    role = new_name()
    p.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1; GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    p.configure(CONFIG % "", store=p.url.replace("postgres@", f"{role}@"))
    watch_sessions(p)
    p.execute("GRANT ALL ON sessions TO PUBLIC")
    ended = p.once("replay", "--json", p.name, "--all")
    assert ended.status == 0 and ended.json["counts"]["run"] == N, ended.err
    assert len(set(sessions(p))) == 1 and p.value("SELECT count(*) FROM once_letter") == 0


def connections(p):
    """How many the database has had; the server counts one when it ends."""
    return p.value("SELECT sessions FROM pg_stat_database WHERE datname = current_database()")


@pytest.mark.parametrize("way, n", [(["--dry-run"], 1), (["--rate", "1000000"], 1), ([], 2)])
def test_a_dry_run_and_a_given_rate_ask_for_no_second_connection(p, way, n):
    p.once("status", p.name)
    before = connections(p)
    ended = p.once("replay", "--json", p.name, "--all", *way)
    assert ended.status == 0 and ended.json["counts"]["run"] == N, ended.err
    until(lambda: connections(p) >= before + n, what="the end of its sessions is counted")
    assert connections(p) == before + n


def refuse_audit(p, letter):
    p.execute(f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF NEW.letter = {letter} THEN RAISE EXCEPTION 'no audit today'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON once_audit FOR EACH ROW EXECUTE FUNCTION refuse()""")


def moved(p, ended):
    """How many letters were moved, by the tables; the output must say the same."""
    n = p.value("SELECT count(*) FROM once_audit")
    assert p.value("SELECT count(*) FROM once_letter") == N - n and p.value("SELECT count(*) FROM once_live WHERE state = 2") == n
    assert ended.json["counts"]["run"] == n == len(ended.json["letters"])
    return n


@pytest.mark.parametrize("lot", [1, 2, 3])
def test_f35_no_lot_is_committed_behind_one_that_failed(p, lot):
    """Those before it are committed and reported, the one that was being read is rolled back."""
    refuse_audit(p, p.value("SELECT min(id) FROM once_letter") + (lot - 1) * LOT + 100)
    ended = p.once("replay", "--json", p.name, "--all")
    assert ended.status == 3 and "no audit today" in ended.err, ended
    n = moved(p, ended)
    assert n == (lot - 1) * LOT
    p.execute("DROP TRIGGER refuse ON once_audit")
    assert p.once("replay", "--json", p.name, "--all").json["counts"]["run"] == N - n


@pytest.mark.parametrize("fails", [False, True])
def test_f35_a_letter_that_cannot_be_read_while_the_lot_before_is_committed(p, fails):
    """That lot is waited for, and reported if it was committed. If both failed, the first failure is shown."""
    first = p.value("SELECT min(id) FROM once_letter")
    if fails:
        refuse_audit(p, first + 100)
    p.execute(f"""
        UPDATE once_letter SET kind = 77 WHERE id = {first} + {LOT} + 100;
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.7); RETURN NULL; END $$;
        CREATE TRIGGER slow BEFORE INSERT ON once_audit FOR EACH STATEMENT EXECUTE FUNCTION slow()""")
    ended = p.once("replay", "--json", p.name, "--all")
    assert ended.status == 3 and ("no audit today" if fails else "damaged") in ended.err, ended
    assert moved(p, ended) == (0 if fails else LOT)


def test_a_slow_reader_of_the_output_keeps_no_transaction_open(p):
    """What was moved waits for workers meanwhile, and nothing is locked."""
    process = subprocess.Popen([ONCE, "replay", "--json", p.name, "--all"], cwd=p.folder, stdout=subprocess.PIPE, env=environment(None, None, p.folder))
    until(lambda: p.value("SELECT count(*) FROM once_audit") >= 2 * LOT, what="two lots are committed, and nobody reads")
    until(lambda: p.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'") == 0,
          what="no transaction is open")
    time.sleep(0.3)
    assert p.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'") == 0
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and len(json.loads(out)["letters"]) == N


def test_the_same_new_key_in_two_lots(tmp_path):
    """Letters without an entry: their keys are new to the store."""
    n = LOT + 300
    routed = 'key: "${/id}"\ntype: "${/type}"\ndead_limit: off\nhandlers:\n  %s: {sql: ["INSERT INTO t(id, lane) VALUES (:id, 0)"]}\n'
    p = PostgresPipeline(str(tmp_path), routed % "other", TABLES)
    p.write(*[{"id": f"p{i % (n - 200)}", "type": "new", "n": i} for i in range(n)])
    counts(p.run(status=1), received=n, dead=n)
    p.configure(routed % "new")
    ended = p.once("replay", "--json", p.name, "--all")
    assert ended.status in (0, 1) and ended.json["counts"]["run"] == n - 200, ended.err


@pytest.mark.parametrize("hit", [LOT + 1, 2 * LOT + 200])
def test_f35_killed_while_one_lot_is_committed_and_the_next_is_read(p, hit):
    assert p.once("replay", p.name, "--all", failpoint=f"replay_between:kill:{hit}").killed
    now = p.once("status", "--json", p.name).json
    assert now["dead"] + now["waiting"] == N and now["waiting"] % LOT == 0, "whole lots; a letter or a waiting message"
    assert p.once("replay", "--json", p.name, "--all").json["counts"]["run"] == now["dead"]
    works_once(p)


def test_lots_with_the_same_lanes_wait_for_each_other(tmp_path):
    """The second lot waits for the lanes that the first has locked until its commit; nothing waits for ever."""
    p = pipeline(tmp_path, LOT + 300, 'order: "${/lane}"')
    ended = p.once("replay", "--json", p.name, "--all", deadline_s=25)
    assert ended.status == 0 and ended.json["counts"]["run"] == LOT + 300, ended.err
    works_once(p, LOT + 300)


def test_f35_a_letter_that_another_process_moves_while_its_entry_is_waited_for(tmp_path):
    """It was read before. Its message may have run since: what was read says nothing any more."""
    p = pipeline(tmp_path, 2)
    p.execute("BEGIN; SELECT FROM once_entry FOR UPDATE; DELETE FROM once_letter WHERE id = (SELECT min(id) FROM once_letter)")
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with Running(["replay", "--json", "--force", "--all", p.name], p.folder) as running:
        until(lambda: psql(p.url, waits) == "1\n", what="it waits for the entries")
        p.execute("COMMIT")
        ended = running.end()
    assert ended.json["counts"]["run"] == 1 and ended.json["counts"]["gone"] == 1, ended


def test_f35_letters_without_an_entry_are_moved_by_one_replay(tmp_path):
    """There is no entry whose lock another replay would wait for: it waits for the letter."""
    config = 'key: "${/id}"\ntype: "${/type}"\nhandlers:\n  %s: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n'
    p = PostgresPipeline(str(tmp_path), "dead_limit: off\n" + config % "wrong", TABLES)
    p.write({"id": "a", "type": "id"}, {"id": "b", "type": "id"})
    counts(p.run(status=1), received=2, dead=2)
    p.configure("dead_limit: off\n" + config % "id")
    last = p.value("SELECT max(id) FROM once_letter")
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with Running(["replay", "--json", "--force", "--all", p.name], p.folder, failpoint="replay_between:stop:1") as first:
        until(lambda: stopped(first), what="it stops behind its first letter")
        with Running(["replay", "--json", "--force", p.name, str(last)], p.folder) as second:
            until(lambda: psql(p.url, waits) == "1\n" or second.process.poll() is not None, what="the second one waits, or is through")
            first.send(signal.SIGCONT)
            moved = [running.end().json["counts"] for running in (first, second)]
    assert moved[0]["run"] + moved[0]["forced"] == 2 and moved[1]["gone"] == 1, moved
    p.write()
    p.run()
    assert p.rows("SELECT id, count(*) FROM t GROUP BY id ORDER BY id") == [("a", 1), ("b", 1)]


def test_a_letter_that_is_named_again_is_gone(tmp_path):
    """Also when it was read in an earlier part of the lot."""
    p = pipeline(tmp_path, 80)
    ids = [str(i) for (i,) in p.rows("SELECT id FROM once_letter ORDER BY id")]
    moved = p.once("replay", "--json", p.name, *ids[:40], ids[1], ids[0]).json["counts"]
    assert moved["run"] == 40 and moved["gone"] == 2, moved
    ended = p.once("discard", "--json", p.name, *ids[40:], ids[41], ids[40])
    assert ended.json["count"] == 40, ended
