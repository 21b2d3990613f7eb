"""Lanes: one at a time per value, in order, by version, with gaps."""

import json
import os
import re

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
    p.write(*numbered("a", 3), *numbered("a", 4), *numbered("a", 2), *numbered("a", 5, 9), *numbered("b", 1))
    counts(p.run(status=0), received=6, done=5, stale=1)
    assert [x for x in ran(p) if x[0] == "a"] == ["a3", "a4", "a5", "a9"], "without gap a jump runs"
    counts(p.run(status=0), received=6, duplicates=6)
    p.write(*numbered("a", 8, 10))
    counts(p.run(status=0), received=2, done=1, stale=1)


SAME = {"lane": "a", "v": 4, "x": "once"}
CONTENT = 'version: "${/v}"\nfingerprint: [/v, /x]\n'


def why(p, point):
    ended = p.once("explain", "p.yaml", "--message", f"in.ndjson:{point}")
    assert ended.status == 0, ended
    return ended.out


def test_f86_an_equal_version_with_the_same_content_is_a_duplicate_that_is_recorded(tmp_path):
    p = pipeline(tmp_path, CONTENT)
    p.write({"id": "one", **SAME})
    counts(p.run(status=0), received=1, done=1)
    p.append({"id": "two", **SAME})
    assert "would be a duplicate: version 4 of this lane was settled by key 'one'" in why(p, 2), "told before it comes"
    assert p.value("SELECT count(*) FROM log") == 1
    counts(p.run(status=0), received=2, duplicates=2)
    (entry,) = p.explain("two")
    assert entry["state"] == "already" and entry["attempt"] == 0
    assert entry["reason"] == "version 4 of this lane was settled by key 'one'"
    assert "settled by key 'one'" in why(p, 2)
    assert ran(p) == ["once"]


def test_f86_an_equal_version_with_other_content_is_a_conflict(tmp_path):
    p = pipeline(tmp_path, CONTENT)
    p.write({"id": "one", **SAME}, {"id": "two", **SAME, "x": "twice"})
    counts(p.run(status=1), received=2, done=1, dead=1, conflicts=1)
    ((line, reason),) = p.letters()
    assert line == 2 and reason == "version 4 of this lane was settled by key 'one' with other content"
    assert "settled by key 'one'" in why(p, 2)
    assert ran(p) == ["once"]
    p.append(*numbered("a", 5))
    counts(p.run(status=1), received=3, done=1, duplicates=2)  # it has its letter
    counts(p.run(status=1), received=3, duplicates=2, stale=1)  # and the lane has gone on: now it is old


def test_f86_nobody_says_that_the_key_of_a_version_conflict_was_used(tmp_path):
    p = pipeline(tmp_path, CONTENT)
    p.write({"id": "one", **SAME}, {"id": "two", **SAME, "x": "twice"})
    assert re.search(r"conflicts +1  of the dead: key or version used before, with other content\n", p.once("run", "p.yaml").out)
    assert "conflict: its key or its version was used by another message" in p.once("replay", "--dry-run", "--all", "p.yaml").out


# ---- letters of versions that are over ----

def replayed(p, *arguments):
    """What a dry run says of each letter; then the replay itself, which must say the same."""
    said = []
    for dry in (["--dry-run"], []):
        ended = p.once("replay", "--json", *dry, *arguments, p.name, "--all")
        assert ended.status in (0, 1), ended
        said.append([(letter["verdict"], letter["leaves"]) for letter in ended.json["letters"]])
        assert ended.status == (0 if all(leaves for _, leaves in said[0]) else 1), ended
    assert said[0] == said[1], said
    return said[1]


STRICT = '{do: "INSERT INTO log(x) SELECT :x WHERE :{/needs?} IS NULL OR EXISTS (SELECT 1 FROM gate WHERE id = :{/needs?})", rows: 1, else: dead}'


def test_f34_a_letter_that_a_newer_version_overtook_stays(tmp_path):
    """Nothing would run, and nobody would have its body any more."""
    p = pipeline(tmp_path, 'version: "${/v}"\n', STRICT)
    p.write({"id": "k1", "lane": "a", "v": 1, "x": "one", "needs": "key"}, *numbered("a", 2), {"id": "b3", "lane": "b", "v": 3, "x": "b3", "needs": "key"})
    counts(p.run(status=1), received=3, done=1, dead=2)
    p.write()
    p.execute("INSERT INTO gate VALUES ('key')")
    assert replayed(p) == [("stale", False), ("run", True)]
    counts(p.run(status=1), resumed=1, done=1)
    assert ran(p) == ["a2", "b3"] and len(p.bodies()) == 1 and b'"one"' in p.bodies()[0]
    assert replayed(p, "--force") == [("stale", False)], "an older version never runs after a newer one"
    text = p.once("replay", "p.yaml", "--all")
    assert "stale: a newer version came first, or is at work: it would not run" in text.out, text
    assert "(version 2 of this lane was settled by key 'a2')" in text.out, text
    assert p.explain("k1")[0]["state"] == "dead"
    assert p.once("discard", "p.yaml", "1").status == 0
    counts(p.run(status=0))
    assert p.explain("k1")[0]["state"] == "rejected" and ran(p) == ["a2", "b3"]


def test_f34_a_forced_replay_of_a_finished_key_that_a_newer_version_overtook(tmp_path):
    p = pipeline(tmp_path, CONTENT)
    p.write({"id": "k1", "lane": "a", "v": 1, "x": "one"}, {"id": "k1", "lane": "a", "v": 1, "x": "corrected"}, *numbered("a", 2))
    counts(p.run(status=1), received=3, done=2, dead=1, conflicts=1)
    p.write()
    assert replayed(p) == [("conflict", False)]
    assert replayed(p, "--force") == [("stale", False)], "it said forced, and the run made it stale"
    counts(p.run(status=1))
    assert p.explain("k1")[0]["state"] == "done" and ran(p) == ["one", "a2"] and len(p.bodies()) == 1


def test_f34_f86_a_dead_one_whose_version_another_key_settled(tmp_path):
    p = pipeline(tmp_path, CONTENT, STRICT)
    p.write({"id": "k1", "lane": "a", "v": 1, "x": "one", "needs": "key"}, {"id": "k2", "lane": "a", "v": 1, "x": "two"},
            {"id": "k3", "lane": "b", "v": 1, "x": "one", "needs": "key"}, {"id": "k4", "lane": "b", "v": 1, "x": "one"})
    counts(p.run(status=1), received=4, done=2, dead=2)
    p.write()
    assert replayed(p) == [("conflict", False), ("duplicate", True)]
    counts(p.run(status=1), resumed=1, duplicates=1)
    assert p.explain("k3")[0]["state"] == "already" and p.explain("k1")[0]["state"] == "dead" and len(p.bodies()) == 1
    assert sorted(ran(p)) == ["one", "two"]


def test_f34_f86_a_version_conflict_that_is_stale_by_now_is_no_duplicate(tmp_path):
    p = pipeline(tmp_path, CONTENT)
    p.write({"id": "k1", "lane": "a", "v": 1, "x": "A"}, {"id": "k2", "lane": "a", "v": 1, "x": "B"})
    counts(p.run(status=1), received=2, done=1, dead=1, conflicts=1)
    p.append({"id": "k3", "lane": "a", "v": 2, "x": "C"})
    counts(p.run(status=1), received=3, done=1, duplicates=2)
    text = p.once("explain", "p.yaml", "k2").out
    assert "However, dead letter 1 has this key: conflict, delivered 2 times, last 20" in text, text
    counts(p.run(status=1), received=3, duplicates=2, stale=1)
    (entry,) = p.explain("k2")
    assert entry["state"] == "stale" and entry["all_letters"] == 1
    assert [(l["letter"], l["kind"], l["count"], l["reason"]) for l in entry["letters"]] == [
        (1, "conflict", 2, "version 1 of this lane was settled by key 'k1' with other content")]
    text = p.once("explain", "p.yaml", "k2").out
    assert "  Dead letter 1 has this key: conflict, delivered 2 times, last 20" in text, text
    assert "; version 1 of this lane was settled by key 'k1' with other content.\n" in text, text
    assert p.explain("k1")[0]["letters"] == [], "it is not the letter of the key that settled the version"
    assert replayed(p) == [("stale", False)], "B never ran"
    assert replayed(p, "--force") == [("stale", False)]
    assert ran(p) == ["A", "C"] and len(p.bodies()) == 1


def test_f34_a_letter_of_a_key_that_nobody_knows_leaves_nothing_when_it_is_stale(tmp_path):
    """Replayed before the message comes again: the letter stays, and no entry is made for it."""
    p = pipeline(tmp_path, CONTENT)
    p.write({"id": "k1", "lane": "a", "v": 1, "x": "A"}, {"id": "k2", "lane": "a", "v": 1, "x": "B"}, {"id": "k2", "lane": "a", "v": 1, "x": "B2"},
            {"id": "k3", "lane": "a", "v": 2, "x": "C"})
    counts(p.run(status=1), received=4, done=2, dead=2, conflicts=2)
    assert replayed(p) == [("stale", False), ("stale", False)]
    (entry,) = p.explain("k2")
    assert entry["state"] == "absent" and [l["letter"] for l in entry["letters"]] == [1, 2]


def test_f34_a_letter_waits_while_a_newer_version_is_at_work(tmp_path):
    """It would go back to work, and be stale when the newer one has settled."""
    p = pipeline(tmp_path, 'version: "${/v}"\n', STRICT)
    p.configure('key: "${/id}"\norder: "${/lane}"\nversion: "${/v}"\nhandler: {exec: [sh, run.sh, "${/x}"]}\nlease: 60s\n')
    with open(tmp_path / "run.sh", "w", encoding="utf-8") as script:
        script.write('case "$1" in first) exit 65;; esac\necho > began\nwhile [ ! -e go ]; do sleep 0.02; done\n')
    p.write({"id": "k1", "lane": "a", "v": 1, "x": "first"}, {"id": "k2", "lane": "a", "v": 2, "x": "second"})
    with p.start() as running:
        until(lambda: os.path.exists(tmp_path / "began"), what="the newer version is at work")
        assert replayed(p) == [("stale", False)]
        assert "a newer version of its lane is running, or its end is unknown" in p.once("replay", "p.yaml", "--all").out
        open(tmp_path / "go", "w", encoding="utf-8").close()
        counts(running.end().json, received=2, done=1, dead=1)
    assert len(p.bodies()) == 1


def test_f86_an_equal_version_waits_for_the_first_one(tmp_path):
    """Both are in the store, the first one fails: the others wait behind it and are judged when it has settled."""
    p = pipeline(tmp_path, 'version: "${/v}"\nfingerprint: [/v, /x]\nack: after_accept\n', GATED)
    p.write({"id": "one", "lane": "a", "v": 4, "x": "once", "needs": "key"}, {"id": "two", "lane": "a", "v": 4, "x": "once", "needs": "key"},
            {"id": "three", "lane": "a", "v": 4, "x": "other"}, {"id": "four", "lane": "b", "v": 1, "x": "b1", "opens": "key"})
    ended = p.try_run()
    assert ended.status == 1 and len(re.findall(r"event=dead .*key=three ", ended.err)) == ended.err.count("event=dead") == 1, ended
    counts(ended.json, received=4, done=2, duplicates=1, dead=1, conflicts=1)
    assert sorted(ran(p)) == ["b1", "once"]
    assert {key: p.explain(key)[0]["state"] for key in ("one", "two", "three")} == {"one": "done", "two": "already", "three": "dead"}
    ((_, reason),) = p.letters()
    assert reason == "version 4 of this lane was settled by key 'one' with other content"


def test_f86_a_forced_replay_of_the_lanes_version_runs(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\n')
    p.write(*numbered("a", 1))
    counts(p.run(status=0), received=1, done=1)
    p.write({"id": "a1", "lane": "a", "v": 1, "x": "corrected"})
    counts(p.run(status=1), received=1, dead=1, conflicts=1)
    assert p.once("replay", "p.yaml", "--all", "--force").status == 0
    p.write()
    counts(p.run(status=0), resumed=1, done=1)
    assert ran(p) == ["a1", "corrected"]


# ---- where a lane begins ----

FIRST = 'version: {from: "${/v}", first: 1}\n'


def test_f86_a_lane_waits_for_its_first_version(tmp_path):
    p = pipeline(tmp_path, FIRST + "gap: {wait: 20s, then: dead}\n")
    p.write(*numbered("a", 3, 1, 2))
    counts(p.run(status=0), received=3, done=3)
    assert ran(p) == ["a1", "a2", "a3"], "nothing was taken for old"


def test_f86_of_equals_behind_a_gap_the_first_runs(tmp_path):
    """All in one batch, in many lanes: ids are hashes, so an order that follows them would be found out."""
    p = pipeline(tmp_path, FIRST + "fingerprint: [/v, /x]\ngap: {wait: 20s, then: dead}\n")
    lanes = [f"l{i}" for i in range(12)]
    for lane in lanes:
        p.append({"id": f"{lane}-3", "lane": lane, "v": 3, "x": "original"}, {"id": f"{lane}-2", "lane": lane, "v": 2, "x": "two"},
                 {"id": f"{lane}-1", "lane": lane, "v": 1, "x": "one"}, {"id": f"{lane}-2b", "lane": lane, "v": 2, "x": "two"},
                 {"id": f"{lane}-3b", "lane": lane, "v": 3, "x": "other"})
    n = len(lanes)
    counts(p.run(status=1), received=5 * n, done=3 * n, duplicates=n, dead=n, conflicts=n)
    assert "other" not in ran(p)
    for lane in lanes:
        assert [p.explain(f"{lane}-{key}")[0]["state"] for key in ("1", "2", "3", "2b", "3b")] == ["done", "done", "done", "already", "dead"]
    assert sorted(reason for _, reason in p.letters()) == sorted(f"version 3 of this lane was settled by key '{lane}-3' with other content" for lane in lanes)


def test_f86_below_the_first_version_is_a_letter(tmp_path):
    p = pipeline(tmp_path, FIRST)
    p.write(*numbered("a", 0, 1))
    counts(p.run(status=1), received=2, done=1, dead=1)
    ((line, reason),) = p.letters()
    assert line == 1 and reason == "version 0 is below 1, the first version of a lane"


def test_f86_without_gap_a_jump_over_the_first_runs(tmp_path):
    p = pipeline(tmp_path, FIRST)
    p.write(*numbered("a", 3, 1))
    counts(p.run(status=0), received=2, done=1, stale=1)


def test_f86_check_warns_of_a_gap_without_first(tmp_path):
    for i, (version, warns) in enumerate((('version: "${/v}"\n', True), ('version: {from: "${/v}"}\n', True), (FIRST, False))):
        folder = tmp_path / str(i)
        folder.mkdir()
        p = pipeline(folder, version + "gap: {wait: 1s}\n")
        p.write()
        p.try_run()
        ended = p.once("check", "p.yaml")
        assert ended.status == 0, ended
        assert ("a lane begins with the first version seen" in ended.out + ended.err) is warns, ended
    for text, words in (('version: {from: "${/v}", first: -1}\n', "first"), ("version: {first: 1}\n", "'from'")):
        p.configure('key: "${/id}"\norder: "${/lane}"\nhandler: {sql: ["SELECT 1"]}\n' + text)
        ended = p.once("check", "p.yaml")
        assert ended.status != 0 and words in ended.err, ended


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
    assert line == 5 and reason == "versions 2 to 4 did not come within 100ms; this one was not run, those behind it go on"
    p.write(*numbered("b", 2, 3, 4))
    counts(p.run(status=1), received=3, done=3)  # given up, but nothing newer has settled
    assert ran(p)[-3:] == ["b2", "b3", "b4"]
    assert p.once("replay", "p.yaml", "--all").status == 0
    p.write()
    counts(p.run(status=0), resumed=1, done=1)


def test_f28_a_wrong_version_does_not_end_its_lane(tmp_path):
    p = pipeline(tmp_path, 'version: {from: "${/v}", first: 1}\ngap: {wait: 100ms, then: dead}\n')
    p.write(*numbered("a", 1, 2**63 - 1))
    counts(p.run(status=1), received=2, done=1, dead=1, given_up=1000)
    p.write(*numbered("a", 2))
    counts(p.run(status=1), received=1, done=1)
    assert p.once("discard", "p.yaml", "1").status == 0
    p.write(*numbered("a", 4, 3))
    counts(p.run(status=0), received=2, done=2)
    assert ran(p) == ["a1", "a2", "a3", "a4"]


def test_f28_gap_then_run(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\ngap: {wait: 100ms, then: run}\n')
    p.write(*numbered("a", 1, 5, 6))
    counts(p.run(status=0), received=3, done=3)
    assert ran(p) == ["a1", "a5", "a6"]
    (entry,) = p.explain("a5")
    assert entry["reason"] == "versions 2 to 4 did not come within 100ms"
    p.write(*numbered("a", 4))
    counts(p.run(status=0), received=1, stale=1)
    (entry,) = p.explain("a4")
    assert entry["reason"] == "version 4 was given up before it came"


def test_f28_versions_that_are_given_up_are_counted(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\ngap: {wait: 100ms, then: run}\n')
    p.write(*numbered("a", 1, 5, 6), *numbered("b", 1, 2))
    counts(p.run(status=0), received=5, done=5, given_up=3)
    p.write(*numbered("a", 8), *numbered("b", 3))
    counts(p.run(status=0), received=2, done=2, given_up=1)
    p.write(*numbered("a", 9))
    counts(p.run(status=0), received=1, done=1, given_up=0)
    assert p.once("status", "--json", "p.yaml").json["given_up"] == 4, "ever"
    assert "given_up              4  versions that did not arrive within gap.wait, in total" in p.once("status", "p.yaml").out
    (tmp_path / "dead").mkdir()
    dead = pipeline(tmp_path / "dead", 'version: "${/v}"\ngap: {wait: 100ms, then: dead}\n')
    dead.write(*numbered("a", 1, 3))
    counts(dead.run(status=1), received=2, done=1, dead=1, given_up=1)
    text = dead.once("run", "p.yaml")
    assert "given_up" not in text.out, "nothing was given up by this run"
    assert dead.once("status", "--json", "p.yaml").json["given_up"] == 1


def test_f28_a_gap_is_given_up_once_for_all_behind_it(tmp_path):
    p = pipeline(tmp_path, 'version: "${/v}"\ngap: {wait: 1s, then: dead}\n')
    p.write(*numbered("a", 1, 4, 5, 6, 7))
    summary = p.run(status=1)
    counts(summary, received=5, done=4, dead=1)
    assert ran(p) == ["a1", "a5", "a6", "a7"]
    assert p.letters() == [(2, "versions 2 to 3 did not come within 1s; this one was not run, those behind it go on")]
    assert replayed(p) == [("stale", False)], "its letter stays"
    p.write()
    counts(p.run(status=1))
    assert p.once("discard", "p.yaml", "1").status == 0
    counts(p.run(status=0))


def test_f28_time_without_a_run_is_not_waited(tmp_path):
    """The clock of the store is an hour further when the next run begins; the wait goes on where it was."""
    p = pipeline(tmp_path, 'version: "${/v}"\ngap: {wait: 60s, then: dead}\n', source="{path: in.ndjson, follow: true}")
    p.write(*numbered("a", 1, 3))
    with p.start() as running:
        until(p.is_running, what="it runs")
        until(lambda: p.value("SELECT count(*) FROM once_entry WHERE state = 2") == 1, what="the second one waits")
        (entry,) = p.explain("a3")
        assert entry["reason"].startswith("version 2 is missing; "), entry
        running.send(15)
        running.end()
    p.edit("UPDATE once_store SET clock_tenths = clock_tenths + 36000000")
    with p.start() as running:
        until(p.is_running, what="it runs")
        due = p.value("SELECT due_ms FROM once_entry WHERE state = 2")
        until(lambda: p.value("SELECT due_ms FROM once_entry WHERE state = 2") != due, what="somebody looked at it")
        p.append(*numbered("a", 2))
        until(lambda: len(ran(p)) == 3, what="the gap is closed")
        running.send(15)
        ended = running.end()
    assert ended.status == 0
    assert ran(p) == ["a1", "a2", "a3"]


# ---- behind a dead one ----

def test_f33_on_dead_block(tmp_path):
    p = pipeline(tmp_path, "on_dead: block\n", GATED)
    p.write({"id": 1, "lane": "a", "x": "a1", "needs": "key"}, {"id": 2, "lane": "a", "x": "a2"}, {"id": 3, "lane": "b", "x": "b1"})
    counts(p.run(status=1), received=3, done=1, dead=1, waiting=1)
    assert ran(p) == ["b1"], "another lane goes on"
    counts(p.run(status=1), received=3, duplicates=3)  # and it ends, although somebody waits
    (entry,) = p.explain("2")
    assert entry["state"] == "waiting"
    assert entry["reason"] == "it waits for a dead letter of its lane to be replayed or discarded"
    (entry,) = p.explain("1")
    assert entry["state"] == "dead" and "its lane waits for this letter" in entry["reason"]
    listed = json.loads(p.once("list", "p.yaml", "--json").out)["messages"]
    assert {m["state"]: m["reason"].split("; ")[-1] for m in listed} == {
        "waiting": "it waits for a dead letter of its lane to be replayed or discarded", "dead": "its lane waits for this letter"}
    assert json.loads(p.once("status", "p.yaml", "--json").out)["blocking"] == 1
    p.execute("INSERT INTO gate VALUES ('key')")
    assert p.once("replay", "p.yaml", "--all").status == 0
    p.write()
    counts(p.run(status=0), resumed=2, done=2)
    assert ran(p) == ["b1", "a1", "a2"]


def test_f33_on_dead_block_ends_with_discard_and_forget(tmp_path):
    for act in (("discard", "1"), ("forget", "1")):
        folder = tmp_path / act[0]
        folder.mkdir()
        p = pipeline(folder, "on_dead: block\n", GATED)
        p.write({"id": 1, "lane": "a", "x": "a1", "needs": "key"}, {"id": 2, "lane": "a", "x": "a2"})
        counts(p.run(status=1), received=2, dead=1, waiting=1)
        ended = p.once(act[0], "p.yaml", act[1])
        assert ended.status == 0, ended
        p.write()
        counts(p.run(), resumed=1, done=1)
        assert ran(p) == ["a2"]


def test_f33_status_counts_the_letters_that_lanes_wait_for(tmp_path):
    """Not every message that died with `block` holds its lane up now; `status` and `list` say the same."""
    p = pipeline(tmp_path, 'version: "${/v}"\non_dead: block\n', GATED)
    p.write({"id": 5, "lane": "a", "v": 5, "x": "a5", "needs": "key"}, {"id": 1, "lane": "b", "v": 1, "x": "b1", "needs": "key"})
    counts(p.run(status=1), received=2, dead=2)
    p.append({"id": 4, "lane": "a", "v": 4, "x": "a4", "needs": "key"})
    counts(p.run(status=1), received=3, dead=1, duplicates=2)
    listed = json.loads(p.once("list", "p.yaml", "--json").out)["messages"]
    waited_for = [m["key"] for m in listed if "its lane waits for this letter" in m["reason"]]
    assert len(listed) == 3 and 1 <= len([key for key in waited_for if key in "45"]) <= 2 and "1" in waited_for, listed
    assert json.loads(p.once("status", "p.yaml", "--json").out)["blocking"] == len(waited_for)
    assert p.once("discard", "p.yaml", "1", "2", "3").status == 0
    assert json.loads(p.once("status", "p.yaml", "--json").out)["blocking"] == 0


def test_f33_f55_what_a_damaged_lane_holds_up_is_not_listed_as_free(tmp_path):
    p = pipeline(tmp_path, "on_dead: block\n", GATED)
    p.write({"id": 1, "lane": "a", "x": "a1", "needs": "key"}, {"id": 2, "lane": "a", "x": "a2"})
    counts(p.run(status=1), received=2, dead=1, waiting=1)
    p.edit("UPDATE once_lane SET record = x'ff'")
    for what in ("list", "status"):
        ended = p.once(what, "p.yaml")
        assert ended.status != 0 and "lane" in ended.err, (what, ended)


def test_f33_on_dead_needs_order(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["SELECT 1"]}\non_dead: block\n', TABLES)
    ended = p.once("check", "p.yaml")
    assert ended.status != 0 and "'on_dead' needs 'order'" in ended.err, ended


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
