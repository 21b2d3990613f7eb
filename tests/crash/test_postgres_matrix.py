"""The crash matrix on PostgreSQL: kill -9 of once at every failpoint that a run reaches, and failures instead of kills."""

import random
import signal

import pytest

import postgres
from crashes import Workload, at_once
from harness import Running, check_sum, counts, until
from pgpipeline import PostgresPipeline, need_postgres
from test_matrix import ELSEWHERE, HITS, HTTP, OPERATORS, POINTS, SILENT, THEN, name_of

need_postgres()


def work_in(folder, **more):
    return Workload(str(folder), postgres=postgres.shared(), **more)


@pytest.mark.parametrize("point", [p for p in POINTS if p not in ELSEWHERE + OPERATORS + THEN + HTTP + ("drain_before",)], ids=name_of)
def test_killed_at(tmp_path, point):
    def one(hit):
        work = work_in(tmp_path / str(hit))
        ended = work.p.try_run(failpoint=f"{point}:kill:{hit}")
        assert ended.killed or (hit > 1 and ended.status in (0, 1)), f"{point} was not reached: {ended}"
        work.check_now()
        work.finish()
        work.check_replay()

    at_once(one, HITS[:2])


@pytest.mark.parametrize("point", [p for p in POINTS if p not in SILENT + ELSEWHERE + OPERATORS + THEN + HTTP],
                         ids=lambda p: "f06_f76_" + p if p == "commit_after" else "f76_" + p)
def test_failure_reported_at(tmp_path, point):
    def one(hit):
        work = work_in(tmp_path / str(hit))
        summary = work.p.run(status=1, failpoint=f"{point}:error:{hit}")
        work.check_end()
        counts(summary, received=work.received, done=len(work.expected), duplicates=work.duplicates, dead=len(work.dead_lines),
               conflicts=work.conflicts, acked=work.received)

    at_once(one, HITS[:2])


def test_f25_f57_four_processes_killed_at_random(tmp_path):
    """Four of them on one pipeline; again and again one is killed and another one takes its place."""
    work = work_in(tmp_path, n=400, batch=16)
    rng = random.Random(4)
    running = [work.p.start() for _ in range(4)]
    kills = 0
    try:
        while any(r.process.poll() is None for r in running) and kills < 12:
            seen = work.p.value("SELECT count(*) FROM payments")
            try:
                until(lambda: work.p.value("SELECT count(*) FROM payments") > seen or any(r.process.poll() is not None for r in running), 5)
            except AssertionError:
                pass
            at = rng.randrange(4)
            if running[at].process.poll() is not None:
                break
            running[at].send(signal.SIGKILL)
            running[at].end()
            kills += 1
            running[at] = work.p.start()
        ended = [r.end() for r in running]
    finally:
        for r in running:
            r.__exit__()
    for e in ended:
        assert e.status in (0, 1), e
        check_sum(e.json)
    assert kills > 0
    work.p.run(status=1)
    work.check_end()
    work.check_replay()


EXPIRED = "FROM once_entry WHERE expires_ms <= extract(epoch FROM now()) * 1000"
OLD = 40000  # ten steps of a sweep


def test_f12_sweepers_are_killed_while_a_worker_runs(tmp_path):
    """Two at a time, at failpoints and at any moment. What lives is still known, and what has expired goes in the end."""
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n', "CREATE TABLE t(id text)",
                         source="{path: in.ndjson, follow: true}")
    live = [{"id": f"live{i}"} for i in range(500)]
    fresh = ({"id": f"fresh{i}"} for i in range(10**6))
    p.append(*live)
    sent = 0

    def deliver_again():
        nonlocal sent
        p.append(*live, next(fresh))
        sent += 1
        until(lambda: p.value("SELECT count(*) FROM t") >= 500 + sent, what="the new message")

    def sweeper(failpoint=None):
        return Running(["sweep", "--json", p.name], p.folder, failpoint)

    def left():
        return p.value(f"SELECT count(*) {EXPIRED}")

    with p.start() as worker:
        until(lambda: p.has_table("t") and p.value("SELECT count(*) FROM t") == 500, what="what is to live")
        # The worker has swept when it began and does so again in a minute: the old ones are for others.
        p.execute("INSERT INTO once_entry(expires_ms, id, token, fingerprint, detail) SELECT e.expires_ms - 8 * 86400000::bigint - g, gen_random_uuid(),"
                  f" e.token, e.fingerprint, e.detail FROM generate_series(1, {OLD}) g, (SELECT * FROM once_entry LIMIT 1) e")
        for hit in (1, 2, 3):
            with sweeper(f"sweep_between:kill:{hit}") as one, sweeper(f"sweep_between:kill:{hit}") as two:
                deliver_again()
                assert one.end().killed and two.end().killed
        assert left() == OLD - 4 * 4000, "what a killed sweeper had committed is gone, and nothing else"
        for _ in range(2):
            before = left()
            with sweeper() as one:
                until(lambda: left() < before, what="a step")
                one.send(signal.SIGKILL)
                deliver_again()
        rest = left()
        with sweeper() as one, sweeper() as two:
            deliver_again()
            ended = [one.end(), two.end()]
        assert [e.status for e in ended] == [0, 0], ended
        assert sum(e.json["dropped"] for e in ended) == rest
        assert left() == 0
        deliver_again()
        worker.send(signal.SIGTERM)
        counts(worker.end().json, received=500 + sent * 501, done=500 + sent, duplicates=sent * 500)
    assert p.value("SELECT count(*) FROM once_entry") == 500 + sent
    assert p.rows("SELECT count(*) AS a, count(DISTINCT id) AS b FROM t") == [(500 + sent, 500 + sent)]
