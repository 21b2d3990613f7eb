"""Lanes: one at a time per value, in order, by version, with gaps."""

from harness import Pipeline, counts, until

TABLES = "CREATE TABLE log(n INTEGER PRIMARY KEY, x); CREATE TABLE gate(id TEXT PRIMARY KEY);"


def pipeline(folder, config, statements='"INSERT INTO log(x) VALUES (:x)"', attempts=4, **more):
    text = f'key: "${{/id}}"\norder: "${{/lane}}"\nhandler: {{sql: [{statements}]}}\nlease: 1s\n' \
           f'retry: {{attempts: {attempts}, backoff: 1ms..20ms}}\n' + config
    return Pipeline(folder, text, TABLES, **more)


def ran(p):
    return [x for (x,) in p.rows("SELECT x FROM log ORDER BY n")]


def numbered(lane, *versions):
    return [{"id": f"{lane}{v}", "lane": lane, "v": v, "x": f"{lane}{v}"} for v in versions]


# ---- order ----

GATED = '{do: "INSERT INTO log(x) SELECT :x WHERE :{/needs?} IS NULL OR EXISTS (SELECT 1 FROM gate WHERE id = :{/needs?})", rows: 1, else: retry}, ' \
        '"INSERT OR IGNORE INTO gate SELECT :{/opens?} WHERE :{/opens?} IS NOT NULL"'


def test_f33_followers_park_behind_a_failed_one(tmp_path):
    p = pipeline(tmp_path, "", GATED)
    p.write({"id": 1, "lane": "a", "x": "a1", "needs": "key"}, {"id": 2, "lane": "a", "x": "a2"}, {"id": 3, "lane": "b", "x": "b1"},
            {"id": 4, "lane": "a", "x": "a3"}, {"id": 5, "lane": "b", "x": "b2", "opens": "key"})
    summary = p.run(status=0)
    counts(summary, received=5, done=5)
    order = ran(p)
    assert [x for x in order if x[0] == "a"] == ["a1", "a2", "a3"], "nobody overtakes in a lane"
    assert order.index("b2") < order.index("a1"), "another lane goes on meanwhile"
    assert summary["retries"] >= 1


def test_f33_f77_followers_go_on_after_a_dead_one(tmp_path):
    p = pipeline(tmp_path, "", GATED)
    p.write({"id": 1, "lane": "a", "x": "a1", "needs": "nothing opens this"}, {"id": 2, "lane": "a", "x": "a2"}, {"id": 3, "lane": "a", "x": "a3"})
    counts(p.run(status=1), received=3, done=2, dead=1)
    assert ran(p) == ["a2", "a3"]
    assert [(e["attempt"], e["failures"]) for key in "23" for e in p.explain(key)] == [(1, 0), (1, 0)], "parking is not a failure"


def test_f33_parked_across_runs(tmp_path):
    """Stopped while followers are parked: the next run takes them from the store, in order, before the new ones."""
    p = pipeline(tmp_path, "", GATED, attempts=100000)
    p.write({"id": 1, "lane": "a", "x": "a1", "needs": "key"}, {"id": 2, "lane": "a", "x": "a2"})
    with p.start() as running:
        until(p.is_running, what="it runs")
        until(lambda: p.value("SELECT count(*) FROM once_entry WHERE state IN (1, 2)") == 2, what="both wait")
        running.send(15)
        summary = running.end().json
    assert summary["stopped"] is True and summary["waiting"] == 2
    p.write({"id": 3, "lane": "b", "x": "b1", "opens": "key"}, {"id": 4, "lane": "a", "x": "a3"})
    counts(p.run(status=0), received=2, resumed=2, done=4)
    order = ran(p)
    assert [x for x in order if x[0] == "a"] == ["a1", "a2", "a3"]


def test_lanes_keep_the_order_of_a_long_input(tmp_path):
    p = pipeline(tmp_path, "batch: {max: 16}\n")
    messages = [{"id": i, "lane": f"l{i % 7}", "x": i} for i in range(400)]
    p.write(*messages)
    counts(p.run(status=0), received=400, done=400)
    order = ran(p)
    for lane in range(7):
        mine = [x for x in order if x % 7 == lane]
        assert mine == sorted(mine)


def test_f79_one_key_twice_in_one_batch(tmp_path):
    p = pipeline(tmp_path, "")
    p.write({"id": 1, "lane": "a", "x": 1}, {"id": 1, "lane": "a", "x": 1}, {"id": 2, "lane": "a", "x": 2}, {"id": 1, "lane": "a", "x": 1},
            {"id": 1, "lane": "a", "x": 9})
    counts(p.run(status=1), received=5, done=2, duplicates=2, dead=1, conflicts=1)
    assert ran(p) == [1, 2]


def test_lanes_are_scoped_by_tenant(tmp_path):
    p = pipeline(tmp_path, 'tenant: "${/t}"\nversion: "${/v}"\n')
    p.write({"id": 1, "t": "a", "lane": "l", "v": 5, "x": "a5"}, {"id": 2, "t": "b", "lane": "l", "v": 1, "x": "b1"})
    counts(p.run(status=0), received=2, done=2)


# ---- versions ----

def test_f28_versions(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\n')
    p.write(*numbered("a", 3), *numbered("a", 4), {"id": "other", "lane": "a", "v": 4, "x": "again"}, *numbered("a", 2), *numbered("a", 5, 9),
            *numbered("b", 1))
    counts(p.run(status=0), received=7, done=5, duplicates=1, stale=1)
    assert [x for x in ran(p) if x[0] == "a"] == ["a3", "a4", "a5", "a9"], "without gap a jump runs"
    counts(p.run(status=0), received=7, duplicates=6, stale=1)  # the second version 4 has no entry, and is old by now
    counts(p.run(status=0), received=7, duplicates=7)
    p.write(*numbered("a", 8, 10))
    counts(p.run(status=0), received=2, done=1, stale=1)


def test_versions_are_whole_numbers(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\n')
    p.write(*[{"id": i, "lane": i, "v": v, "x": i} for i, v in enumerate(
        [0, 9223372036854775807, "7", -1, 1.5, "x", 9223372036854775808, None, "", [1]])])
    counts(p.run(status=1), received=10, done=3, dead=7)
    assert [line for line, _ in p.letters()] == [4, 5, 6, 7, 8, 9, 10]


# ---- gaps ----

def test_f28_gap_is_closed_by_the_missing_one(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\ngap: {wait: 20s, then: dead}\nbatch: {max: 2}\n')
    p.write(*numbered("a", 1, 4, 3), *numbered("b", 7), *numbered("a", 2))
    summary = p.run(status=0)
    counts(summary, received=5, done=5)
    assert [x for x in ran(p) if x[0] == "a"] == ["a1", "a2", "a3", "a4"]
    assert summary["seconds"] < 10
    assert all(e["failures"] == 0 for key in ("a3", "a4") for e in p.explain(key)), "waiting for a gap is not a failure"


def test_f28_gap_then_dead(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\ngap: {wait: 100ms, then: dead}\n')
    p.write(*numbered("a", 1, 3, 2), *numbered("b", 1, 5))
    counts(p.run(status=1), received=5, done=4, dead=1)
    assert sorted(ran(p)) == ["a1", "a2", "a3", "b1"]
    ((line, reason),) = p.letters()
    assert line == 5 and "earlier version" in reason


def test_f28_gap_then_run(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\ngap: {wait: 100ms, then: run}\n')
    p.write(*numbered("a", 1, 5, 6))
    counts(p.run(status=0), received=3, done=3)
    assert ran(p) == ["a1", "a5", "a6"]
    p.write(*numbered("a", 4))
    counts(p.run(status=0), received=1, stale=1)


def test_f28_missing_one_comes_in_a_later_run(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\ngap: {wait: 60s, then: dead}\n', source="{path: in.ndjson, follow: true}")
    p.write(*numbered("a", 1, 3))
    with p.start() as running:
        until(lambda: p.rows("SELECT 1 FROM log"), what="the first one ran")
        until(lambda: p.value("SELECT count(*) FROM once_entry WHERE state = 2") == 1, what="the second one waits")
        running.send(15)
        summary = running.end().json
    counts(summary, received=2, done=1, waiting=1)
    p.append(*numbered("a", 2))
    with p.start() as running:
        until(lambda: len(ran(p)) == 3, what="the gap is closed")
        running.send(15)
        ended = running.end()
    assert ended.status == 0
    # The waiting one was read again from the file as well: its second copy is a duplicate.
    counts(ended.json, received=3, resumed=1, done=2, duplicates=2)
    assert ran(p) == ["a1", "a2", "a3"]
