"""The crash matrix on PostgreSQL: kill -9 of once at every failpoint that a run reaches, and failures instead of kills."""

import random
import signal

import pytest

import postgres
from crashes import Workload, at_once
from harness import check_sum, counts, until
from pgpipeline import need_postgres
from test_matrix import ELSEWHERE, HITS, OPERATORS, POINTS, SILENT, name_of

need_postgres()


def work_in(folder, **more):
    return Workload(str(folder), postgres=postgres.shared(), **more)


@pytest.mark.parametrize("point", [p for p in POINTS if p not in ELSEWHERE + OPERATORS + ("drain_before",)], ids=name_of)
def test_killed_at(tmp_path, point):
    def one(hit):
        work = work_in(tmp_path / str(hit))
        ended = work.p.try_run(failpoint=f"{point}:kill:{hit}")
        assert ended.killed or (hit > 1 and ended.status in (0, 1)), f"{point} was not reached: {ended}"
        work.check_now()
        work.finish()
        work.check_replay()

    at_once(one, HITS[:2])


@pytest.mark.parametrize("point", [p for p in POINTS if p not in SILENT + ELSEWHERE + OPERATORS],
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

