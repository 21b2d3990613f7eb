"""A PostgreSQL store with a streaming replica, synchronous and asynchronous, whose primary is killed and whose replica is promoted."""

import pytest

import pq
from harness import Pipeline, check_sum, until
from pgpipeline import PostgresPipeline, need_postgres
from pgreplica import Pair

need_postgres()

TABLES = "CREATE TABLE t(id bigint)"
CONFIG = 'key: "${/id}"\nhandler: {sql: "INSERT INTO t VALUES (:id)"}\nbatch: {max: 20}\n'
FOLLOW = "{path: in.ndjson, follow: true, cursor: true}"


def some(n, first=0):
    return [{"id": i} for i in range(first, first + n)]


def pipeline(folder, pair, **more):
    pair.primary.query("CREATE DATABASE d")
    return PostgresPipeline(folder, CONFIG, TABLES, server=pair.primary, url=pair.url("d"), **more)


def ids(p):
    return [int(i) for i, in p.sql.rows("SELECT id FROM t ORDER BY id")]


def fail_over(p, pair):
    pair.fail_over()
    p.sql = pq.Connection(p.url)


def forget_the_second_hundred(p, pair):
    """The first hundred messages are kept by both servers, the second by the one that is killed."""
    until(lambda: len(ids(p)) == 100, what="what both have")
    pair.replica.catch_up()
    pair.replica.fall_behind()
    p.append(*some(100, 100))
    until(lambda: len(ids(p)) == 200, what="what one has")
    fail_over(p, pair)


@pytest.mark.parametrize("synchronous", [True, False])
def test_f89_a_failover_that_forgets_nothing_is_gone_through(tmp_path, synchronous):
    """A new timeline alone is no reason to stop."""
    with Pair(synchronous) as pair:
        p = pipeline(tmp_path, pair, source=FOLLOW)
        p.write(*some(200))
        with p.start() as worker:
            until(lambda: len(ids(p)) == 200, what="the first half")
            pair.replica.catch_up()
            fail_over(p, pair)
            p.append(*some(200, 200))
            until(lambda: len(ids(p)) == 400, deadline_s=60, what="the second half")
            worker.send(15)
            ended = worker.end()
        assert ended.status == 0, ended
        check_sum(ended.json)
        assert ids(p) == list(range(400))


def test_f89_commits_that_a_failover_forgot_are_noticed(tmp_path):
    with Pair(False) as pair:
        p = pipeline(tmp_path, pair, source=FOLLOW)
        p.write(*some(100))
        with p.start() as worker:
            forget_the_second_hundred(p, pair)
            assert ids(p) == list(range(100))
            p.append(*some(100, 200))
            ended = worker.end(60)  # it stops by itself
        assert ended.status == 3 and "has lost commits that it had acknowledged" in ended.err, ended
        assert ids(p) == list(range(100)), "something was done by a worker whose store had forgotten what it did"
        # What it starts from is what the store knows: the cursor was forgotten with the rest.
        p.configure(CONFIG, source="{path: in.ndjson, cursor: true}")
        p.run(status=0)
        assert ids(p) == list(range(300))


def test_f89_an_idle_worker_notices(tmp_path):
    with Pair(False) as pair:
        p = pipeline(tmp_path, pair, source=FOLLOW)
        p.write(*some(100))
        with p.start() as worker:
            forget_the_second_hundred(p, pair)
            ended = worker.end(60)
        assert ended.status == 3 and "has lost commits" in ended.err, ended
        assert ids(p) == list(range(100))


def waiting_for_standby(pair):
    return pair.primary.query("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'").split()


@pytest.mark.parametrize("fails", [True, False])
def test_f89_a_commit_that_did_not_wait_for_its_standby_is_not_taken_for_replicated(tmp_path, fails):
    with Pair(True) as pair:
        p = pipeline(tmp_path, pair, source=FOLLOW)
        p.write(*some(20))
        with p.start() as worker:
            until(lambda: len(ids(p)) == 20, what="what both have")
            pair.replica.fall_behind()
            p.append(*some(20, 20))
            pid, = until(lambda: waiting_for_standby(pair), what="a commit that waits")
            pair.primary.query(f"SELECT pg_cancel_backend({pid})")
            until(lambda: len(ids(p)) == 40, what="the primary has it, the standby has not")
            # It is asked again by a commit that waits, too.
            until(lambda: waiting_for_standby(pair), what="a commit that waits again")
            if fails:
                fail_over(p, pair)
            else:
                pair.replica.go_on()
            until(lambda: len(ids(p)) == 40, deadline_s=60, what="all of it, once")
            worker.send(15)
            ended = worker.end(60)
        assert ended.status == 0, ended
        assert "may not have reached its standby" in ended.err, ended
        check_sum(ended.json)
        assert ids(p) == list(range(40)) and ended.json["done"] == 40, ended


def test_f89_an_effect_elsewhere_whose_commit_did_not_wait_is_unknown(tmp_path):
    with Pair(True) as pair:
        pair.primary.query("CREATE TABLE t(id bigint)")
        p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{sql: {{url: "{pair.primary.url}", do: "INSERT INTO t VALUES (:id)"}}}}\nunknown: hold\n')
        p.write({"id": 1})
        pair.replica.fall_behind()
        with p.start() as worker:
            pid, = until(lambda: waiting_for_standby(pair), what="a commit that waits")
            pair.primary.query(f"SELECT pg_cancel_backend({pid})")
            ended = worker.end()
        pair.replica.go_on()
        assert ended.status == 1 and ended.json["unknown"] == 1 and ended.json["done"] == 0, ended
        held, = p.once("list", "--unknown", "--json", p.name).json["messages"]
        assert "may not have reached its standby" in held["reason"], held


def test_f89_what_follows_a_commit_that_did_not_wait_is_done(tmp_path):
    """The wait of one commit was cancelled, and that is said of this one alone."""
    with Pair(True) as pair:
        pair.primary.query("CREATE TABLE t(id bigint)")
        p = Pipeline(tmp_path, f'key: "${{/id}}"\nbatch: {{max: 1}}\nhandler: {{sql: {{url: "{pair.primary.url}", do: "INSERT INTO t VALUES (:id)"}}}}\nunknown: hold\n',
                     source=FOLLOW)
        p.write({"id": 1})
        pair.replica.fall_behind()
        with p.start() as worker:
            pid, = until(lambda: waiting_for_standby(pair), what="a commit that waits")
            pair.primary.query(f"SELECT pg_cancel_backend({pid})")
            until(lambda: not waiting_for_standby(pair), what="nobody waits any more")
            pair.replica.go_on()
            p.append(*some(5, 2))
            until(lambda: len(pair.primary.query("SELECT id FROM t").split()) == 6, what="all of them")
            worker.send(15)
            ended = worker.end(60)
        assert ended.status == 1 and (ended.json["done"], ended.json["unknown"]) == (5, 1), ended
        held, = p.once("list", "--unknown", "--json", p.name).json["messages"]
        assert held["key"] == "1" and "may not have reached its standby" in held["reason"], held
