"""The crash matrix: kill -9 at every failpoint that the binary has, several times each, then run to the end.

A failpoint that no run reaches fails its test. The list comes from the binary, so a new one is in the matrix at once; one that
the ordinary workload does not reach needs a line in SPECIAL."""

import os
import signal

import pytest

from crashes import Workload, at_once
from harness import ONCE, ROOT, Pipeline, counts, once, until

POINTS = [point["name"] for point in once("version", "--json").json["failpoints"]]
HITS = (1,) if "asan" in ONCE else (1, 2, 5)  # with the sanitizers everything takes longer, and they look at the same code

# Rows of faults.md that a point stands for; they go into the name of its test.
ROWS = {
    "fetch_after": "f01", "claim_before": "f01", "claim_after": "f02_f16", "effect_before": "f02", "effect_between": "f03", "effect_after": "f05",
    "settle_before": "f05", "settle_after": "f05_f09", "commit_before": "f05_f09", "commit_after": "f07_f09", "ack_before": "f07", "ack_after": "f09",
    "take_before": "f73", "take_after": "f73_f16", "migrate_between": "f13", "sweep_between": "f12", "merge_between": "f12", "drain_before": "f59",
    "bury_before": "f36", "bury_after": "f36", "replay_before": "f35", "replay_between": "f35",
    "then_before": "f05", "then_between": "f05", "then_after": "f05",
}


def name_of(point):
    return f"{ROWS[point]}_{point}" if point in ROWS else point


# ---- ways to reach a point ----

def ordinary(folder, point, hit):
    """Returns the workload, and whether the point was reached."""
    work = Workload(folder)
    ended = work.p.try_run(failpoint=f"{point}:kill:{hit}")
    return work, ended


def told_to_stop(folder, point, hit):
    """While work is in flight: a message that waits, and lines that are still to come."""
    work = Workload(folder, source="{path: in.ndjson, follow: true}")
    with work.p.start(failpoint=f"{point}:kill:{hit}") as running:
        until(work.p.is_running, what="it runs")
        if hit > 1:
            until(lambda: work.p.rows("SELECT 1 FROM payments"), what="the first payment")
        running.send(signal.SIGTERM)
        ended = running.end()
    work.p.configure(open(os.path.join(folder, work.p.name)).read().partition("\n")[2].partition("\n")[2].partition("\n")[2])
    return work, ended


FULL = 9 * 65536 - 1500  # the next 1500 fill the ninth run, and the merge of the first eight goes on
FILLER = """
key: "${/i}"
type: "${/t}"
fingerprint: none
batch: {max: 65536}
handlers:
  long: {remember: 7d, sql: [SELECT 1]}
  short: {remember: 1ms, sql: [SELECT 1]}
"""


def filler(folder, lines):
    p = Pipeline(folder, FILLER, consumer="filler", store="sqlite:filler.db", source="{path: filler.ndjson}", name="filler.yaml")
    with open(os.path.join(folder, "filler.ndjson"), "w") as file:
        file.writelines(lines)
    return p


@pytest.fixture(scope="module")
def full_store(tmp_path_factory):
    """A store with so many settled entries that a few more make it merge."""
    p = filler(tmp_path_factory.mktemp("full"), (f'{{"i":{i},"t":"long"}}\n' for i in range(FULL)))
    assert p.run(status=0)["done"] == FULL
    return p


@pytest.fixture(scope="module")
def expiring_store(tmp_path_factory):
    """Expired entries among ones that must stay."""
    p = filler(tmp_path_factory.mktemp("expiring"), (f'{{"i":{i},"t":"{"short" if i % 2 else "long"}"}}\n' for i in range(70000)))
    assert p.run(status=0)["done"] == 70000
    return p


def filler_again(folder, original):
    """The filler's input once more, on the store that was killed."""
    p = Pipeline(folder, FILLER, consumer="filler", source="{path: filler.ndjson}", name="filler.yaml")
    os.symlink(os.path.join(original.folder, "filler.ndjson"), os.path.join(folder, "filler.ndjson"))
    return p.run()


# ---- the matrix ----

OPERATORS = ("replay_before", "replay_between")  # not reached by a run
THEN = tuple(point for point in POINTS if point.startswith("then_"))  # test_then.py
HTTP = tuple(point for point in POINTS if point.startswith("http_"))  # test_requests.py


@pytest.mark.parametrize("point", [p for p in POINTS if p not in ("migrate_between", "sweep_between", "merge_between") + OPERATORS + THEN + HTTP], ids=name_of)
def test_killed_at(tmp_path, point):
    way = told_to_stop if point == "drain_before" else ordinary

    def one(hit):
        work, ended = way(str(tmp_path / str(hit)), point, hit)
        assert ended.killed or (hit > 1 and ended.status in (0, 1)), f"{point} was not reached: {ended}"
        work.check_now()
        work.finish()
        work.check_replay()

    at_once(one, HITS)


def replayable(folder):
    """A workload at its end; what was wrong with the dead ones of type 'bad' is repaired."""
    work = Workload(folder)
    work.finish()
    path = os.path.join(folder, work.p.name)
    text = open(path).read()
    head, _, bad = text.partition("  bad:\n")
    assert bad
    with open(path, "w") as file:
        file.write(head + "  bad:\n    sql: [\"INSERT INTO payments(id, account, amount) VALUES (:id, :account, :amount)\", "
                          "\"UPDATE accounts SET balance = balance + :amount WHERE id = :account\"]\n")
    repaired = {line["id"]: (line["account"], line["amount"]) for line in reversed(work.lines)
                if isinstance(line, dict) and line["type"] == "bad"}  # the first of a key is the one that counts
    assert len(repaired) > 2
    work.expected.update(repaired)
    return work, len(repaired)


def replayed(work, n):
    """The letters that can run did, once; the others are still there."""
    left = work.p.value("SELECT count(*) FROM once_letter") - (len(work.dead_lines) - n)
    ended = work.p.once("replay", work.p.name, "--all", "--json")
    assert ended.status == 1 and ended.json["counts"]["run"] == left, ended
    counts(work.p.run(status=1), received=work.received, duplicates=work.received, resumed=n, done=n)
    work.check_now()
    assert {id for (id,) in work.p.rows("SELECT id FROM payments")} == set(work.expected)
    assert work.p.value("SELECT count(*) FROM once_letter") == len(work.dead_lines) - n
    assert work.p.value("SELECT count(*) FROM once_audit") == n, "each letter moved once"


@pytest.mark.parametrize("point", OPERATORS, ids=name_of)
def test_killed_during_replay_at(tmp_path, point):
    def one(hit):
        work, n = replayable(str(tmp_path / str(hit)))
        ended = work.p.once("replay", work.p.name, "--all", failpoint=f"{point}:kill:{hit}")
        assert ended.killed or (hit > 1 and ended.status == 1), f"{point} was not reached: {ended}"
        if ended.killed:
            work.check_now()
            replayed(work, n)

    at_once(one, HITS)


@pytest.mark.parametrize("point", OPERATORS, ids=lambda p: "f35_" + p)
def test_failure_of_replay_reported_at(tmp_path, point):
    work, n = replayable(str(tmp_path))
    ended = work.p.once("replay", work.p.name, "--all", failpoint=f"{point}:error")
    assert ended.status == 3 and point in ended.err, ended
    work.check_now()
    replayed(work, n)


@pytest.mark.parametrize("hit", [1, 2, 9])
def test_f12_killed_at_sweep_between(tmp_path, expiring_store, hit):
    work = Workload(str(tmp_path), database=expiring_store.database)
    ended = work.p.try_run(failpoint=f"sweep_between:kill:{hit}")
    assert ended.killed, f"sweep_between was not reached: {ended}"
    work.check_now()
    work.finish()
    summary = filler_again(str(tmp_path), expiring_store)
    assert (summary["duplicates"], summary["done"]) == (35000, 35000), "no live key is lost, and no dead one blocks"
    work.check_replay()


@pytest.mark.parametrize("hit", [1, 30])
def test_f12_killed_at_merge_between(tmp_path, full_store, hit):
    work = Workload(str(tmp_path), n=1800, batch=1800, database=full_store.database)
    ended = work.p.try_run(failpoint=f"merge_between:kill:{hit}")
    assert ended.killed, f"merge_between was not reached: {ended}"
    work.check_now()
    work.finish()
    summary = filler_again(str(tmp_path), full_store)
    assert (summary["duplicates"], summary["done"]) == (FULL, 0), "no live key is lost"


VERSION_0 = os.path.join(ROOT, "tests", "fixtures", "version-0.db")


def migrating(folder, hit):
    work = Workload(str(folder), database=VERSION_0)
    # The fixture's claim of another worker lasts until the year 2100; this one does not wait for it.
    work.p.execute("DELETE FROM once_entry WHERE key = CAST('runs' AS BLOB)")
    return work, work.p.try_run(failpoint=f"migrate_between:kill:{hit}")


@pytest.mark.parametrize("hit", [1, 2, 3])
def test_f13_f58_killed_at_migrate_between(tmp_path, hit):
    work, ended = migrating(tmp_path / "a", hit)
    assert ended.killed, f"migrate_between was not reached: {ended}"
    p = work.p
    assert p.value("PRAGMA integrity_check") == "ok"
    assert p.value("SELECT value FROM once_meta WHERE name = 'version'") == 0, "old or new, never half"
    assert not p.rows("SELECT 1 FROM sqlite_schema WHERE name IN ('once_body', 'once_head', 'once_store', 'once_recent', 'once_old')")
    assert p.value("SELECT count(*) FROM once_entry") == 102
    finish_migrated(work)


def finish_migrated(work):
    p = work.p
    summary = p.run(status=1)
    assert summary["received"] == work.received and summary["done"] == len(work.expected)
    assert p.value("SELECT value FROM once_meta WHERE name = 'version'") > 0
    # What the old store owned is still owned: the waiting message of its consumer runs once, its dead letter stays.
    assert p.value("SELECT count(*) FROM once_letter WHERE consumer = CAST('pay' AS BLOB)") == 1
    old = Pipeline(p.folder, 'key: "${/id}"\nhandler: {operation: op, sql: ["INSERT INTO payments(id) VALUES (:id)"]}\n', consumer="pay",
                   source="{path: empty.ndjson}", name="old.yaml")
    open(os.path.join(p.folder, "empty.ndjson"), "w").close()
    counts(old.run(status=1), received=0, resumed=1, done=1)
    counts(old.run(status=1), received=0)
    assert p.value("SELECT count(*) FROM payments WHERE id = 'waits'") == 1


def test_f13_killed_in_every_migration_until_it_succeeds(tmp_path):
    work, ended = migrating(tmp_path / "a", 3)
    assert ended.killed
    for hit in (2, 1, 3):
        assert work.p.try_run(failpoint=f"migrate_between:kill:{hit}").killed
    finish_migrated(work)


# ---- the caller sees a failure instead ----

SILENT = ("fetch_after", "open_before", "open_after", "drain_before", "close_before")  # steps that cannot fail
ELSEWHERE = ("migrate_between", "sweep_between", "merge_between")
BLAMING = ("effect_before", "effect_between", "effect_after")  # these fail one message: it is tried again


@pytest.mark.parametrize("point", [p for p in POINTS if p not in SILENT + ELSEWHERE + OPERATORS + THEN + HTTP],
                         ids=lambda p: "f06_f76_" + p if p == "commit_after" else "f76_" + p)
def test_failure_reported_at(tmp_path, point):
    """One run, which sees an error that may or may not hide a success; its counts must be as if nothing had happened."""
    def one(hit):
        work = Workload(str(tmp_path / str(hit)))
        summary = work.p.run(status=1, failpoint=f"{point}:error:{hit}")
        work.check_end()
        counts(summary, received=work.received, done=len(work.expected), duplicates=work.duplicates, dead=len(work.dead_lines),
               conflicts=work.conflicts, acked=work.received)
        work.check_replay()

    at_once(one, HITS)


@pytest.mark.parametrize("point", ELSEWHERE)
def test_failure_of_the_file_reported_at(tmp_path, point, full_store, expiring_store):
    """These stop the run (3); the next one finds everything in order."""
    database = {"migrate_between": VERSION_0, "sweep_between": expiring_store.database, "merge_between": full_store.database}[point]
    work = Workload(str(tmp_path), n=1800 if point == "merge_between" else 40, batch=1800, database=database)
    work.p.execute("DELETE FROM once_entry WHERE key = CAST('runs' AS BLOB)")
    ended = work.p.try_run(failpoint=f"{point}:error")
    assert ended.status == 3 and point in ended.err, ended
    work.check_now()
    summary = work.p.run(status=1)
    assert summary["received"] == work.received
    assert {id for (id,) in work.p.rows("SELECT id FROM payments")} == set(work.expected)
    work.check_now()


def test_matrix_is_complete():
    """Every point is in exactly one list above."""
    assert len(POINTS) == len(set(POINTS)) >= 25
    for known in (*SILENT, *ELSEWHERE, *OPERATORS, *BLAMING, *ROWS):
        assert known in POINTS, f"{known} is not a failpoint any more"
