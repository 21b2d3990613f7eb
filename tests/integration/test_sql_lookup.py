"""`lookup` of SQL in another database: a SELECT is asked what became of an attempt whose outcome is unknown. SQLite and PostgreSQL."""

import re

import pytest

import postgres
from harness import Pipeline, counts, until
from pgpipeline import need_postgres, new_name, psql, socket_of
from tcpproxy import Proxy

CONFIG = """
key: "${/id}"
lease: 1s
timeout: %(timeout)s
unknown: %(unknown)s
retry: {attempts: 5, backoff: 1ms..50ms}
handler:
  sql:
    url: %(url)s
    do:
      - INSERT INTO booked(key, id, attempt) VALUES (:once_idempotency_key, :id, :once_attempt)
    lookup: {select: "%(select)s", after: 1ms, for: %(long)s}
%(more)s"""
SELECT = "SELECT 1 FROM booked WHERE key = :once_idempotency_key AND id = :id"
TABLES = "CREATE TABLE booked(key text, id text, attempt int)"


class Asked(Pipeline):
    """A sqlite store, and the effects in another database."""

    def __init__(self, kind, folder, **how):
        super().__init__(folder)
        self.other = None
        if kind == "postgres":
            need_postgres()
            self.where = postgres.shared().schema(new_name())
            psql(self.where, TABLES)
        else:
            self.where = "sqlite:other.db"
            self.other = Pipeline(folder, tables=TABLES + ";", store=self.where)
        self.ask(**how)
        self.write({"id": "a"})

    def ask(self, unknown="hold", long="1h", timeout="10s", select=SELECT, url=None, more=""):
        self.configure(CONFIG % {"url": url or self.where, "unknown": unknown, "long": long, "timeout": timeout, "select": select, "more": more})

    def booked(self):
        sql = "SELECT id, attempt FROM booked ORDER BY id, attempt"
        if self.other:
            return self.other.rows(sql)
        return [(id, int(attempt)) for id, attempt in (line.split("|") for line in psql(self.where, sql).split())]

    def execute_there(self, sql):
        self.other.execute(sql) if self.other else psql(self.where, sql)


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request):
    return request.param


@pytest.mark.parametrize("unknown", ["hold", "retry"])
def test_f69_an_effect_that_committed_is_found_and_not_repeated(tmp_path, kind, unknown):
    p = Asked(kind, tmp_path, unknown=unknown)
    counts(p.run(status=0, failpoint="effect_after:error"), received=1, done=1, attempts=1, repeats=0)
    assert p.booked() == [("a", 1)] and p.explain("a")[0]["state"] == "done"


@pytest.mark.parametrize("unknown", ["hold", "retry"])
def test_f02_an_attempt_that_ended_before_its_effect_is_tried_again(tmp_path, kind, unknown):
    """Killed with the claim durable and nothing begun: no row, so it did not happen."""
    p = Asked(kind, tmp_path, unknown=unknown)
    assert p.try_run(failpoint="commit_after:kill").killed
    summary = p.run(status=0)
    counts(summary, received=1, done=1, attempts=1)
    assert p.booked() == [("a", 2)], "under the same key, with the next attempt"


def test_f04_an_attempt_that_was_killed_after_its_commit_is_found(tmp_path, kind):
    p = Asked(kind, tmp_path)
    assert p.try_run(failpoint="effect_after:kill").killed
    counts(p.run(status=0), received=1, done=1, attempts=0)
    assert p.booked() == [("a", 1)]


def test_a_select_that_fails_is_asked_again_and_held_in_the_end(tmp_path, kind):
    p = Asked(kind, tmp_path, long="400ms", select="SELECT 1 FROM booked WHERE 1 = 1 / (SELECT count(*) - 1 FROM booked)" if kind == "postgres" else
              "SELECT abs(-9223372036854775808)")
    counts(p.run(status=1, failpoint="effect_after:error"), received=1, unknown=1, attempts=1)
    entry = p.explain("a")[0]
    assert entry["state"] == "unknown" and "p.yaml:14: lookup: " in entry["reason"], entry
    assert p.booked() == [("a", 1)], "and nothing was repeated"


@pytest.mark.parametrize("select", ["SELECT count(*) FROM booked WHERE key = :once_idempotency_key", "SELECT 1 FROM booked",
                                    "SELECT EXISTS (SELECT 1 FROM booked WHERE key = :once_idempotency_key)"], ids=["count", "constant", "exists"])
def test_a_select_that_always_has_a_row_is_no_answer(tmp_path, kind, select):
    """It would say of a message whose effect has not happened that it has, and the message would be lost."""
    p = Asked(kind, tmp_path, long="400ms", select=select)
    counts(p.run(status=1, failpoint="effect_after:error"), received=1, unknown=1, attempts=1)
    entry = p.explain("a")[0]
    assert entry["state"] == "unknown" and "'select' returns a row for no message, too" in entry["reason"], entry


def test_f81_a_select_that_does_not_end_in_time_has_found_out_nothing(tmp_path, kind):
    slow = "SELECT pg_sleep(60)" if kind == "postgres" else "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    p = Asked(kind, tmp_path, long="300ms", timeout="300ms", select=slow)
    counts(p.run(status=1, failpoint="effect_after:error"), received=1, unknown=1, attempts=1)
    assert "lookup: ended at its timeout of 300ms" in p.explain("a")[0]["reason"] and p.booked() == [("a", 1)]


def test_a_missing_table_is_a_mistake_with_its_line(tmp_path, kind):
    p = Asked(kind, tmp_path, select="SELECT 1 FROM nowhere")
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "p.yaml:14: " in ended.err and "nowhere" in ended.err, ended


def through(p, proxy, **how):
    """The effects' connection goes through a proxy."""
    p.ask(url=re.sub(r"@/(\w+)\?host=[^&]*&?", rf"@127.0.0.1:{proxy.port}/\1?", p.where), **how)


def test_f06_f69_a_commit_whose_reply_is_lost_is_found(tmp_path):
    p = Asked("postgres", tmp_path)
    p.write({"id": "a"}, {"id": "b"}, {"id": "c"})
    with Proxy(socket_of(postgres.shared())) as proxy:
        through(p, proxy)
        proxy.lose_reply_to = b"COMMIT\0"
        counts(p.run(status=0), received=3, done=3, attempts=3, repeats=0)
        assert proxy.lost == 1
    assert p.booked() == [("a", 1), ("b", 1), ("c", 1)]


def test_f06_a_commit_that_did_not_arrive_is_tried_again(tmp_path):
    p = Asked("postgres", tmp_path)
    with Proxy(socket_of(postgres.shared())) as proxy:
        through(p, proxy)
        proxy.cut_at = b"COMMIT\0"
        counts(p.run(status=0), received=1, done=1, attempts=2, repeats=1)
    assert p.booked() == [("a", 2)]


def test_a_database_that_is_away_is_asked_when_it_is_back(tmp_path):
    p = Asked("postgres", tmp_path)
    with Proxy(socket_of(postgres.shared())) as proxy:
        through(p, proxy)
        assert p.try_run(failpoint="effect_after:kill").killed
        proxy.refuse = True
        with p.start() as running:
            until(p.is_running, what="it runs")
            proxy.refuse = False
            ended = running.end()
    counts(ended.json, received=1, done=1, attempts=0)
    assert p.booked() == [("a", 1)]


def test_f59_a_stop_cancels_the_question(tmp_path):
    """It is put back, and the next run asks."""
    p = Asked("postgres", tmp_path)
    assert p.try_run(failpoint="effect_after:kill").killed
    mark = new_name()
    p.ask(select=f"SELECT pg_sleep(100), '{mark}'", timeout="100s", more="drain: 50ms\n")
    running_there = f"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%{mark}%'"
    with p.start() as running:
        until(lambda: psql(p.where, running_there) == "1\n", what="the question")
        running.process.terminate()
        ended = running.end()
    assert ended.status in (0, 1) and p.explain("a")[0]["state"] == "unknown", ended
    until(lambda: psql(p.where, running_there) == "0\n", what="it is cancelled there")
    p.ask()
    summary = p.run(status=0)
    assert (summary["done"], summary["attempts"]) == (1, 0) and p.booked() == [("a", 1)], summary


def test_what_follows_is_written_with_what_was_found(tmp_path, kind):
    p = Asked(kind, tmp_path)
    p.execute("CREATE TABLE mirrored(id text)")
    p.ask(more="  then: {sql: [\"INSERT INTO mirrored VALUES (:id)\"]}\n")
    counts(p.run(status=0, failpoint="effect_after:error"), received=1, done=1, attempts=1)
    assert p.rows("SELECT id FROM mirrored") == [("a",)] and p.booked() == [("a", 1)]


def test_check_says_that_it_asks(tmp_path, kind):
    p = Asked(kind, tmp_path)
    ended = p.once("check", p.name)
    assert ended.status == 0 and "an attempt with an unknown outcome is held for 'once resolve', unless the lookup finds its effect" in ended.out, ended
