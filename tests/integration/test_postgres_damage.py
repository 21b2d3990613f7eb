"""Rows of a PostgreSQL store that somebody removed or changed by hand: noticed and named, never waited for in silence or taken for "not
seen"; and mended, where that is possible."""

import signal

import pytest

from harness import counts, until
from pgpipeline import PostgresPipeline, need_postgres

need_postgres()

CONFIG = """key: "${/id}"
order: "${/lane}"
version: "${/v}"
retry: {attempts: 50, backoff: 50ms..60ms, on: [P0001]}
handler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}
"""
TABLES = """CREATE TABLE t(n serial, id text); CREATE TABLE gate(open int);
CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.id = 'b' AND NOT EXISTS (SELECT FROM gate) THEN RAISE EXCEPTION 'not yet'; END IF; RETURN NEW; END $$;
CREATE TRIGGER late BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION g()"""
MESSAGES = [{"id": key, "lane": "L", "v": i + 1} for i, key in enumerate("abc")]


def parked(folder):
    """a has settled, b waits for its next try, c is parked behind it."""
    p = PostgresPipeline(folder, CONFIG, TABLES)
    p.write(*MESSAGES)
    with p.start() as running:
        until(lambda: p.has_table("once_live") and p.value("SELECT count(*) FROM once_live") == 2, what="two that wait")
        running.send(signal.SIGTERM)
        running.end()
    p.execute("INSERT INTO gate VALUES (1)")
    return p


def effects(p):
    return [key for key, in p.rows("SELECT id FROM t ORDER BY n")]


def deep(p, *said):
    ended = p.once("check", "--deep", p.name)
    assert ended.status == 3 and "--repair" in ended.err, ended
    for part in said:
        assert part in ended.out, ended


def repaired(p, n):
    said = p.once("check", "--repair", p.name)
    assert said.status == 0 and f"{n} entries, lanes or letters were repaired" in said.out, said
    assert p.value("SELECT encode(note, 'escape') AS note FROM once_audit").startswith(f"{n} entries, lanes or letters")
    said = p.once("check", "--repair", "--deep", p.name)
    assert said.status == 0 and "nothing had to be repaired" in said.out and "every row was read" in said.out, said


BRINGS = {"nothing": [], "the same": MESSAGES, "a new one": [{"id": "d", "lane": "L", "v": 4}], "one of them": MESSAGES[2:]}


@pytest.mark.parametrize("brings", BRINGS)
def test_f55_a_lane_that_is_gone_is_noticed(tmp_path, brings):
    """Nobody could lock its row, so what is in it was waited for without end, and nothing said so."""
    p = parked(tmp_path)
    p.execute("DELETE FROM once_lane")
    p.write(*BRINGS[brings])
    ended = p.try_run()
    assert ended.status == 3 and "the lane of key 'b'" in ended.err and "its row is gone" in ended.err and "--repair" in ended.err, ended
    assert effects(p) == ["a"] and ended.json["acked"] == 0
    deep(p, "key 'b': its lane has no row in once_lane", "key 'c': its lane")
    repaired(p, 1)
    summary = p.run(status=0)
    assert summary["done"] == 2 + (brings == "a new one"), summary
    assert effects(p) == list("abc") + ["d"] * (brings == "a new one")


def test_f55_a_lane_that_is_removed_under_a_run_is_noticed(tmp_path):
    p = parked(tmp_path)
    p.execute("DELETE FROM gate")
    p.configure(CONFIG, source="{path: in.ndjson, follow: true, cursor: true}")
    with p.start() as running:
        until(p.is_running, what="a run")
        p.execute("DELETE FROM once_lane")
        ended = running.end()
    assert ended.status == 3 and "the lane of key 'b'" in ended.err, ended


DAMAGES = {
    "lane's time": ("UPDATE once_lane SET expires_ms = -5", "the lane of key 'b': its time is before 1970", "table once_lane, id", True),
    "how long": ("UPDATE once_live SET remember_ms = -1", "key 'b'", "key 'b': its row in once_live cannot be used: its 'remember' time is not positive", False),
    "time": ("UPDATE once_live SET expires_ms = -5", "key 'b'", "key 'c': its row in once_live cannot be used: one of its times is before 1970", False),
    "state": ("UPDATE once_live SET state = 9", "once_live is damaged", "key 'b': its row in once_live cannot be used", False),
    "body": ("DELETE FROM once_body", "once_body is damaged", "key 'b': its body is not in once_body", False),
    "entry": ("DELETE FROM once_entry WHERE expires_ms IS NULL", None, "key 'b': it is in once_live and not in once_entry", False),
    "record": ("UPDATE once_lane SET record = '\\xff'", "", "table once_lane, id", False),
    "finished": ("UPDATE once_entry SET detail = '\\x00' WHERE expires_ms IS NOT NULL", None, "table once_entry, id", False),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_f55_check_deep_names_what_is_damaged_in_postgres(tmp_path, damage):
    sql, run, found, mends = DAMAGES[damage]
    p = parked(tmp_path)
    p.execute(sql)
    p.write()
    if run is not None and damage != "state":
        ended = p.try_run()
        assert ended.status == 3 and run in ended.err, ended
        assert effects(p) == ["a"], "nothing runs"
    deep(p, found)
    if mends:
        repaired(p, 1)
        counts(p.run(status=0), resumed=2, done=2)
        assert effects(p) == list("abc")


def test_f55_a_finished_entry_with_a_time_before_1970_is_not_swept(tmp_path):
    """It would be new again."""
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n', TABLES)
    p.write({"id": "a"}, {"id": "x"})
    counts(p.run(status=0), received=2, done=2)
    p.execute("UPDATE once_entry SET expires_ms = -5")
    assert p.once("sweep", p.name).status == 0
    ended = p.try_run()
    assert ended.status == 3 and "one of its times is before 1970" in ended.err, ended
    deep(p, "table once_entry, id", "one of its times is before 1970")
    repaired(p, 2)
    counts(p.run(status=0), received=2, duplicates=2)
    assert effects(p) == ["a", "x"]


def test_check_deep_says_what_it_did_not_read_in_postgres(tmp_path):
    p = parked(tmp_path)
    p.run(status=0)
    ended = p.once("check", "--deep", p.name)
    assert ended.status == 0 and "every row was read and fits" in ended.out, ended
    assert "no checksums of ours" in ended.out and "the server checks its own pages" in ended.out and "whole" not in ended.out, ended
