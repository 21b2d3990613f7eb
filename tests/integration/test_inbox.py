"""ack: after_accept. The store takes the message, the source gets its ack, and the effect runs from the store."""

import pytest

from harness import Pipeline, counts

TABLES = "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER CHECK (n > 0)); CREATE TABLE total(n INTEGER); INSERT INTO total VALUES (0);"
CONFIG = """
key: "${/id}"
ack: after_accept
lease: 300ms
retry: {attempts: 8, backoff: 1ms..5ms}
batch: {max: 7}
handler:
  sql:
    - INSERT INTO t(id, n) VALUES (:id, :n)
    - UPDATE total SET n = n + :n
"""
MESSAGES = [{"id": f"m{i % 40}", "n": 1 + i % 40} for i in range(60)]
POINTS = ["fetch_after", "accept_before", "accept_after", "commit_before", "commit_after", "ack_before", "take_before", "take_after",
          "effect_before", "effect_between", "settle_before", "settle_after"]


def pipeline(folder, config=CONFIG):
    return Pipeline(folder, tables=TABLES, config=config)


def check_books(p):
    assert p.rows("SELECT count(*), sum(n) FROM t") == [(40, sum(range(1, 41)))]
    assert p.rows("SELECT n FROM total") == [(sum(range(1, 41)),)]


def test_everything_goes_through_the_store(tmp_path):
    p = pipeline(tmp_path)
    p.write(*MESSAGES, {"id": "bad", "n": -1}, {"id": "m1", "n": 99}, "no json")
    counts(p.run(status=1), received=63, done=40, duplicates=20, dead=3, conflicts=1, acked=63)
    check_books(p)
    counts(p.run(status=1), received=63, duplicates=63, attempts=0)


def test_f02_what_was_acked_is_done_without_the_source(tmp_path):
    """Killed when everything was accepted and acked, and nothing was worked on; then the source forgets."""
    p = pipeline(tmp_path, CONFIG.replace("batch: {max: 7}", "batch: {max: 1000}"))
    p.write(*MESSAGES)
    assert p.try_run(failpoint="take_before:kill:2").killed
    assert p.rows("SELECT count(*) FROM t") == [(0,)]
    p.write()
    summary = p.run(status=0)
    counts(summary, received=0, resumed=40, done=40)
    check_books(p)


@pytest.mark.parametrize("hit", [1, 4])
@pytest.mark.parametrize("point", POINTS)
def test_f09_f32_f73_killed_at(tmp_path, point, hit):
    p = pipeline(tmp_path)
    p.write(*MESSAGES)
    killed = p.try_run(failpoint=f"{point}:kill:{hit}").killed
    assert killed or (point == "ack_before" and hit > 1), "one ack may cover all batches that were committed before it"
    p.run(status=0)
    check_books(p)


def test_f25_f57_two_share_the_work(tmp_path):
    p = pipeline(tmp_path)
    p.write(*MESSAGES)
    with p.start() as one, p.start() as two:
        ended = one.end(), two.end()
    assert [e.status for e in ended] == [0, 0], ended
    check_books(p)


def test_f33_lanes_keep_their_order_in_the_inbox(tmp_path):
    p = Pipeline(tmp_path, tables="CREATE TABLE log(n INTEGER PRIMARY KEY AUTOINCREMENT, lane TEXT, v INTEGER);", config="""
key: "${/lane}:${/v}"
ack: after_accept
order: "${/lane}"
handler: {sql: "INSERT INTO log(lane, v) VALUES (:lane, :v)"}
""")
    p.write(*[{"lane": f"l{i % 3}", "v": i} for i in range(90)])
    counts(p.run(status=0), received=90, done=90)
    for lane in range(3):
        seen = [v for (v,) in p.rows("SELECT v FROM log WHERE lane = ? ORDER BY n", f"l{lane}")]
        assert seen == sorted(seen) and len(seen) == 30
