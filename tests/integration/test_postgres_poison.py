"""Messages whose effects kill their database backend, or raise what looks like an error of the server."""

import pytest

import postgres
import pq
from harness import check_sum
from pgpipeline import PostgresPipeline, need_postgres

need_postgres()

TABLES = """
CREATE TABLE t(id bigint);
CREATE SEQUENCE tries;
CREATE FUNCTION harm(how text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  IF how = 'crash' THEN
    EXECUTE $copy$ COPY t FROM PROGRAM 'kill -9 $PPID; sleep 1' $copy$;
  ELSIF how = 'terminate' THEN
    PERFORM pg_terminate_backend(pg_backend_pid());
    PERFORM pg_sleep(1);
  ELSIF how LIKE 'once %' THEN
    IF nextval('tries') <= 2 THEN -- presumed done, and then on its own
      RAISE EXCEPTION 'made up' USING ERRCODE = substr(how, 6);
    END IF;
  ELSIF how <> '' THEN
    RAISE EXCEPTION 'made up' USING ERRCODE = how;
  END IF;
  RETURN 0;
END $$;
"""
CONFIG = """key: "${/id}"
handler: {sql: "INSERT INTO t SELECT :id + harm(:how)"}
batch: {max: 50}
lease: 5s
retry: {attempts: 2, backoff: 1ms..20ms}
"""


@pytest.fixture(scope="module")
def server():
    own = postgres.Server(restart_after_crash="on", max_connections="20")
    yield own
    own.close()


def some(n, **harmful):
    return [{"id": i, "how": harmful.get(f"m{i}", "")} for i in range(n)]


def run(p, n, poison):
    ended = p.try_run()
    assert ended.status == 1, ended
    check_sum(ended.json)
    p.sql = pq.Connection(p.url)  # a crash has ended the one before
    assert ended.json["dead"] == len(poison) and ended.json["done"] == n - len(poison), ended
    assert [i for i, in p.rows("SELECT id FROM t ORDER BY id")] == [i for i in range(n) if i not in poison]
    return ended


@pytest.mark.parametrize("inbox", [False, True])
@pytest.mark.parametrize("how", ["terminate", "crash"])
def test_f92_an_effect_that_kills_its_backend_is_found_and_buried(tmp_path, server, how, inbox):
    p = PostgresPipeline(tmp_path, CONFIG + ("ack: after_accept\n" if inbox else ""), TABLES, server=server)
    p.write(*some(300, m120=how))
    run(p, 300, [120])
    (_, reason), = p.letters()
    assert "the database hung up while its effect ran, and it ran alone" in reason, reason


def test_f92_two_of_them_in_one_batch(tmp_path, server):
    p = PostgresPipeline(tmp_path, CONFIG, TABLES, server=server)
    p.write(*some(100, m7="terminate", m8="terminate"))
    run(p, 100, [7, 8])


@pytest.mark.parametrize("state", ["XX000", "58030", "53200", "08006", "57P01", "53300"])
def test_f92_an_internal_error_of_a_statement_is_that_messages_failure(tmp_path, state):
    p = PostgresPipeline(tmp_path, CONFIG, TABLES)
    p.write(*some(60, m30=state))
    run(p, 60, [30])
    (_, reason), = p.letters()
    assert "made up" in reason, reason
    assert p.run(status=1)["duplicates"] == 60


def test_f92_an_internal_error_that_passes_costs_one_try(tmp_path):
    p = PostgresPipeline(tmp_path, CONFIG.replace("batch: {max: 50}", "batch: {max: 1}"), TABLES)
    p.write(*some(10, m5="once XX000"))
    ended = p.run()
    assert ended["done"] == 10 and ended["dead"] == 0 and ended["retries"] == 1, ended
    assert sorted(i for i, in p.rows("SELECT id FROM t")) == list(range(10))


@pytest.mark.parametrize("state", ["53100", "XX001", "XX002"])
def test_f92_a_full_disk_or_damage_is_nobodys_failure(tmp_path, state):
    """Whichever statement has met it: all would. The run gives up, and the message is still to be done."""
    p = PostgresPipeline(tmp_path, CONFIG + "patience: 1ms\n", TABLES)
    p.write(*some(10, m5=state))
    ended = p.try_run()
    assert ended.status not in (0, 1), ended
    assert not p.letters()
    assert (5,) not in p.rows("SELECT id FROM t")


def test_f92_a_server_that_is_stopped_blames_nobody(tmp_path):
    """Restarts in the middle of batches, with a budget of one attempt: whoever was in a batch is innocent."""
    own = postgres.Server()
    try:
        p = PostgresPipeline(tmp_path, CONFIG.replace("attempts: 2", "attempts: 1") + "patience: 60s\n", TABLES + "ALTER FUNCTION harm(text) COST 1;", server=own)
        p.write(*some(3000))
        with p.start() as worker:
            for _ in range(3):
                own.kill()
                own.start()
            ended = worker.end(120)
        assert ended.status == 0, ended
        assert ended.json["done"] == 3000 and ended.json["dead"] == 0, ended
    finally:
        own.close()
