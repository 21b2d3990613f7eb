"""Workers that want the same rows and lanes at the same time: nobody is blamed, nothing is done twice, and they do not deadlock for ever.

Speed is measured by bench_postgres; here it is counted what happened."""

import random
import signal
from contextlib import ExitStack

import pytest

import pgbouncer
import postgres
from harness import Running, until
from pgpipeline import PostgresPipeline, Session, need_postgres

need_postgres()

ACCOUNTS = 10
TABLES = f"CREATE TABLE account(id int PRIMARY KEY, n bigint NOT NULL, moves bigint NOT NULL); INSERT INTO account SELECT i, 0, 0 FROM generate_series(0, {ACCOUNTS - 1}) i;"
PAYMENTS = """
key: "${/id}"
retry: {attempts: 1}
batch: {max: 32}
handler:
  sql:
    - UPDATE account SET n = n - :amount, moves = moves + 1 WHERE id = :from
    - UPDATE account SET n = n + :amount, moves = moves + 1 WHERE id = :to
"""
# For an hour.
TURNS = "INSERT INTO once_fact(name, value) VALUES ('turns/c', int8send((extract(epoch FROM now()) * 1000)::bigint + 3600000) || int8send(5000))"


def shares(folder, config, tables, messages, workers, url=None):
    """A pipeline for each worker, with a part of the messages, on one store."""
    first = PostgresPipeline(str(folder / "0"), config, tables)
    others = [PostgresPipeline(str(folder / str(i)), config, url=first.url) for i in range(1, workers)]
    for i, p in enumerate([first, *others]):
        p.configure(config, store=url(first.url) if url else None)
        p.write(*messages[i::workers])
    return [first, *others]


def run_all(pipelines):
    """All at once; their summaries."""
    running = [p.start() for p in pipelines]
    try:
        ended = [r.end(120) for r in running]
    finally:
        for r in running:
            r.__exit__()
    for e in ended:
        assert e.status == 0, e
    return [e.json for e in ended]


def total(summaries, name):
    return sum(s[name] for s in summaries)


def deadlocks(p):
    p.execute("SELECT pg_stat_clear_snapshot()")
    return p.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")


def payments(n, seed):
    rng = random.Random(seed)
    found = []
    for i in range(n):
        source, target = rng.sample(range(ACCOUNTS), 2)
        found.append({"id": str(i), "from": source, "to": target, "amount": rng.randrange(1, 100)})
    return found


def balances(messages):
    """What the accounts have when each message had its effect once."""
    n, moves = [0] * ACCOUNTS, [0] * ACCOUNTS
    for m in messages:
        n[m["from"]] -= m["amount"]
        n[m["to"]] += m["amount"]
        moves[m["from"]] += 1
        moves[m["to"]] += 1
    return list(zip(range(ACCOUNTS), n, moves))


def test_f91_a_rollback_does_not_count_against_a_message_that_was_not_alone(tmp_path):
    """The database says "deadlock" to one message whenever others are in its transaction. It has one attempt, and that is enough."""
    p = PostgresPipeline(str(tmp_path), """
key: "${/id}"
retry: {attempts: 1}
handler:
  sql:
    - INSERT INTO t(id) VALUES (:id)
    - SELECT crowded() WHERE :shy = 1
""", """CREATE TABLE t(id text, tx bigint DEFAULT txid_current());
CREATE FUNCTION crowded() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
  IF (SELECT count(*) FROM t WHERE tx = txid_current()) > 1 THEN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END IF;
  RETURN 1;
END $$;""")
    p.write(*[{"id": str(i), "shy": int(i in (3, 40, 41))} for i in range(100)])
    summary = p.run(status=0)
    assert (summary["done"], summary["dead"], summary["retries"]) == (100, 0, 0), summary
    assert p.letters() == []
    assert p.rows("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM t") == [(100, 100)]
    assert p.value("SELECT count(*) FROM once_fact WHERE name = 'turns/c'") == 1, "it is said in the store that turns are taken"


def test_f73_f91_nor_against_one_that_was_taken_from_the_store(tmp_path):
    p = PostgresPipeline(str(tmp_path), """
key: "${/id}"
ack: after_accept
retry: {attempts: 1}
handler:
  sql:
    - INSERT INTO t(id) VALUES (:id)
    - SELECT crowded() WHERE :shy = 1
""", """CREATE TABLE t(id text, tx bigint DEFAULT txid_current());
CREATE FUNCTION crowded() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
  IF (SELECT count(*) FROM t WHERE tx = txid_current()) > 1 THEN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END IF;
  RETURN 1;
END $$;""")
    p.write(*[{"id": str(i), "shy": int(i in (3, 7))} for i in range(50)])
    summary = p.run(status=0)
    assert (summary["done"], summary["dead"], summary["retries"]) == (50, 0, 0), summary
    assert p.rows("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM t") == [(50, 50)]


def through_pooler(pooled, workers):
    """How to reach the store, and what is to be closed then."""
    if not pooled:
        return None
    try:
        return pgbouncer.Pooler(postgres.shared(), "transaction", default_pool_size=workers + 1)
    except postgres.Missing as why:
        pytest.skip(f"missing: {why}")


@pytest.mark.parametrize("pooled, ack", [(False, "after_effect"), (True, "after_effect"), (False, "after_accept")], ids=["direct", "pooled", "from the store"])
def test_f91_batches_that_take_turns_do_not_overlap(tmp_path, pooled, ack):
    config = f"""
key: "${{/id}}"
ack: {ack}
batch: {{max: 10}}
handler: {{sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT pg_sleep(0.001)"]}}
"""
    tables = "CREATE TABLE t(id text, tx bigint DEFAULT txid_current(), at timestamptz DEFAULT clock_timestamp());"
    pooler = through_pooler(pooled, 3)
    try:
        pipelines = shares(tmp_path, config, tables, [], 3, pooler.url if pooler else None)
        p = pipelines[0]
        p.run(status=0)  # makes the store
        p.execute(TURNS)
        for i, each in enumerate(pipelines):
            each.write(*[{"id": f"{i}/{n}"} for n in range(200)])
        assert total(run_all(pipelines), "done") == 600
        together = """WITH batch AS (SELECT tx, min(at) AS first, max(at) AS last FROM t GROUP BY tx)
            SELECT count(*) FROM batch a JOIN batch b ON a.tx < b.tx AND a.first < b.last AND b.first < a.last"""
        assert p.value(together) == 0
    finally:
        if pooler:
            pooler.close()


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_f91_workers_on_the_same_rows(tmp_path, pooled):
    """Each payment is one attempt, and each has its effect once. After the first deadlocks there are turns, and then hardly any more."""
    messages, workers = payments(4000, 91), 4
    pooler = through_pooler(pooled, workers)
    try:
        pipelines = shares(tmp_path, PAYMENTS, TABLES, messages, workers, pooler.url if pooler else None)
        summaries = run_all(pipelines)
    finally:
        if pooler:
            pooler.close()
    p = pipelines[0]
    assert total(summaries, "done") == len(messages) and total(summaries, "dead") == total(summaries, "retries") == 0, summaries
    assert p.letters() == []
    assert p.rows("SELECT id, n, moves FROM account ORDER BY id") == balances(messages)
    assert deadlocks(p) <= 3 * len(pipelines), "each may have one when it begins, and when turns are over"


def test_f91_names_of_rows_are_locked_in_one_order(tmp_path):
    """Who names what its messages touch never waits for a row: no deadlock, and no turns are needed. Effects stay in source order."""
    config = PAYMENTS.replace("handler:", 'locks: ["account/${/from}", "account/${/to}", "${/not there}"]\nhandler:') + \
        "    - INSERT INTO log(worker, id) VALUES (:worker, :id)\n"
    tables = TABLES + "CREATE TABLE log(n bigint GENERATED ALWAYS AS IDENTITY, worker int, id text);"
    messages, workers = payments(4000, 92), 4
    for i, m in enumerate(messages):
        m["worker"] = i % workers
    pipelines = shares(tmp_path, config, tables, messages, workers)
    summaries = run_all(pipelines)
    p = pipelines[0]
    assert total(summaries, "done") == len(messages) and total(summaries, "dead") == total(summaries, "retries") == 0, summaries
    assert p.rows("SELECT id, n, moves FROM account ORDER BY id") == balances(messages)
    assert deadlocks(p) == 0 and p.value("SELECT count(*) FROM once_fact WHERE name = 'turns/c'") == 0
    for i in range(workers):
        assert [int(id) for id, in p.rows(f"SELECT id FROM log WHERE worker = {i} ORDER BY n")] == list(range(i, len(messages), workers))


def test_f91_a_batch_ends_before_it_has_too_many_names(tmp_path):
    """A server has room for some thousand locks, of all that want some."""
    config = """
key: "${/id}"
locks: ["${/id}", "other ${/id}"]
batch: {max: 4096}
handler: {sql: ["INSERT INTO t(id) VALUES (:id)", "INSERT INTO held SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"]}
"""
    p = PostgresPipeline(str(tmp_path), config, "CREATE TABLE t(id text); CREATE TABLE held(n int);")
    p.write(*[{"id": str(i)} for i in range(1000)])
    summary = p.run(status=0)
    assert summary["done"] == 1000
    assert p.value("SELECT max(n) FROM held") == 256
    p.configure(config + "ack: after_accept\n")
    p.write(*[{"id": f"from the store {i}"} for i in range(1000)])
    summary = p.run(status=0)
    assert summary["done"] == 1000
    assert p.value("SELECT max(n) FROM held") == 256
    assert p.value("SELECT count(DISTINCT id) FROM t") == p.value("SELECT count(*) FROM t") == 2000


@pytest.mark.parametrize("config, why", [
    ('locks: ["${/a}"]\nhandler: {exec: [cat]}\n', "'locks' is for 'sql' in the store's own database, and no handler has that; remove it"),
    ('handler: {exec: [cat], locks: ["${/a}"]}\n', "'locks' is for 'sql' in the store's own database; remove it"),
    ('handler: {sql: {url: "env:OTHER", do: ["SELECT 1"]}, locks: ["${/a}"]}\n', "and this one has a 'url'; remove it"),
    ('locks: "${/a}"\nhandler: {sql: ["SELECT 1"]}\n', "'locks' must be a list of 1 to 16 templates"),
], ids=["no sql", "a command", "another database", "no list"])
def test_locks_where_they_mean_nothing_are_refused(tmp_path, config, why):
    p = PostgresPipeline(str(tmp_path), 'key: "${/id}"\n' + config)
    ended = p.once("check", p.name)
    assert ended.status == 2 and why in ended.err, ended


def test_f91_lanes_with_passing_failures_do_not_deadlock(tmp_path):
    """Lanes are locked before entries, by batches and by takes: none of our own locks is ever in a cycle."""
    config = """
key: "${/id}"
order: "${/lane}"
retry: {attempts: 100, backoff: 1ms..5ms, on: [P0001]}
batch: {max: 64}
handler:
  sql:
    - INSERT INTO t(id, lane) VALUES (:id, :lane)
    - SELECT fail_sometimes() WHERE :bad = 1
"""
    tables = """CREATE TABLE t(n bigint GENERATED ALWAYS AS IDENTITY, id text, lane int); CREATE SEQUENCE tries;
CREATE FUNCTION fail_sometimes() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
  IF nextval('tries') % 2 = 1 THEN RAISE EXCEPTION 'passing'; END IF;
  RETURN 1;
END $$;"""
    rng = random.Random(91)
    messages = [{"id": str(i), "lane": rng.randrange(100), "bad": int(rng.random() < 0.05)} for i in range(3000)]
    pipelines = shares(tmp_path, config, tables, messages, 4)
    summaries = run_all(pipelines)
    p = pipelines[0]
    assert total(summaries, "dead") == 0, summaries
    assert p.rows("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM t") == [(3000, 3000)]
    assert p.letters() == [] and p.value("SELECT count(*) FROM once_live") == 0
    assert deadlocks(p) == 0


WAITS = """CREATE TABLE t(n bigint GENERATED ALWAYS AS IDENTITY, id text, tx bigint DEFAULT txid_current());
CREATE FUNCTION fail() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'passing'; END $$;"""


@pytest.mark.parametrize("ack", ["after_effect", "after_accept"])
def test_f91_what_waits_in_a_lane_runs_in_few_transactions(tmp_path, ack):
    """All stand behind the first one, which fails once. One after the other does not mean one transaction after the other."""
    p = PostgresPipeline(str(tmp_path), f"""
key: "${{/id}}"
order: "${{/lane}}"
ack: {ack}
retry: {{backoff: 300ms..300ms, on: [P0001]}}
batch: {{max: 50}}
handler:
  sql:
    - INSERT INTO t(id) VALUES (:id)
    - SELECT fail() WHERE :id = '0' AND :once_attempt < 2
""", WAITS)
    p.write(*[{"id": str(i), "lane": 1} for i in range(200)])
    summary = p.run(status=0)
    assert (summary["done"], summary["retries"], summary["attempts"], summary["waiting"]) == (200, 1, 201, 0), summary
    assert [int(id) for id, in p.rows("SELECT id FROM t ORDER BY n")] == list(range(200))
    assert p.value("SELECT count(DISTINCT tx) FROM t") <= 20
    assert p.value("SELECT count(*) FROM once_live") == p.value("SELECT count(*) FROM once_body") == 0


def test_f91_workers_do_not_count_what_others_bring_to_an_end(tmp_path):
    """What fails once is tried once more, whoever comes to its lane first; nothing else is tried twice."""
    config = """
key: "${/id}"
order: "${/lane}"
retry: {backoff: 1ms..20ms, on: [P0001]}
batch: {max: 64}
handler:
  sql:
    - INSERT INTO t(id) VALUES (:id)
    - SELECT fail() WHERE :bad = 1 AND :once_attempt < 2
"""
    rng = random.Random(7)
    messages = [{"id": str(i), "lane": rng.randrange(50), "bad": int(rng.random() < 0.05)} for i in range(2000)]
    bad = sum(m["bad"] for m in messages)
    pipelines = shares(tmp_path, config, WAITS, messages, 4)
    summaries = run_all(pipelines)
    p = pipelines[0]
    assert (total(summaries, "done"), total(summaries, "retries"), total(summaries, "attempts")) == (2000, bad, 2000 + bad), summaries
    assert total(summaries, "duplicates") == total(summaries, "dead") == 0, summaries
    assert p.rows("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM t") == [(2000, 2000)]
    assert p.value("SELECT count(*) FROM once_live") == 0 and deadlocks(p) == 0


GATE = """CREATE TABLE gate(open int);
CREATE FUNCTION pass_the_gate() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
  WHILE NOT EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
  RETURN 1;
END $$;"""
OURS = "datname = current_database() AND application_name = 'once:c'"
AT_THE_GATE = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND state = 'active' AND query LIKE '%pass_the_gate%'"


@pytest.mark.parametrize("named", [False, True], ids=["turns", "names"])
def test_f91_who_queues_holds_no_snapshot(tmp_path, named):
    """Old versions of hot rows are kept for whoever waits with a snapshot. The head of the queue alone waits for the one at work; nobody
    waits outside."""
    config = 'key: "${/id}"\nbatch: {max: 1}\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT pass_the_gate()"]}\n' + ('locks: ["one"]\n' if named else "")
    pipelines = shares(tmp_path, config, "CREATE TABLE t(id text);" + GATE, [], 4)
    p = pipelines[0]
    p.run(status=0)  # makes the store
    if not named:
        p.execute(TURNS)
    for i, each in enumerate(pipelines):
        each.write({"id": f"{i} first"}, {"id": f"{i} next"})
    queue = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND wait_event = 'relation' AND query LIKE 'LOCK TABLE%' AND backend_xmin IS NULL AND backend_xid IS NULL"
    head = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND wait_event = 'advisory'"
    with ExitStack() as stack:
        first = stack.enter_context(p.start())
        until(lambda: p.value(AT_THE_GATE) == 1, 60, "the first one is at the gate")
        others = [stack.enter_context(each.start()) for each in pipelines[1:]]
        until(lambda: (p.value(head), p.value(queue)) == (1, 2), 60, "the head waits for the first one, and two for the head")
        since = f"SELECT coalesce(max(xact_start)::text, '') FROM pg_stat_activity WHERE {OURS} AND wait_event = 'advisory'"
        begun = p.value(since)
        until(lambda: p.value(since) not in ("", begun), 60, "nobody is the head for ever")
        p.execute("INSERT INTO gate VALUES (1)")
        ended = [running.end(60) for running in [first, *others]]
    assert [e.status for e in ended] == [0] * 4, ended
    assert sorted(p.rows("SELECT id FROM t")) == [(f"{i} {which}",) for i in range(4) for which in ("first", "next")]
    assert p.value("SELECT count(*) FROM once_fact WHERE name = 'turns/c'") == (0 if named else 1), "a wait in the queue is no reason for turns"


@pytest.mark.parametrize("named", [False, True], ids=["turns", "names"])
def test_f91_a_consumer_does_not_wait_for_the_queue_of_another(tmp_path, named):
    """All consumers of a store have one queue. Another one is at its head for long; whoever waits behind it tries its own turn in between."""
    config = 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT pass_the_gate()"]}\n' + ('locks: ["one"]\n' if named else "")
    first, second = shares(tmp_path, config, "CREATE TABLE t(id text);" + GATE, [], 2)
    first.run(status=0)  # makes the store
    if not named:
        first.execute(TURNS)
    first.write({"id": "first"})
    second.write({"id": "second"})
    queues = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND wait_event = 'relation' AND query LIKE 'LOCK TABLE%'"
    with Session(first.url, "BEGIN; LOCK TABLE once_meta IN SHARE UPDATE EXCLUSIVE MODE"):
        until(lambda: first.value("SELECT count(*) FROM pg_locks WHERE relation = 'once_meta'::regclass AND mode = 'ShareUpdateExclusiveLock'") == 1, what="another one has the queue")
        with first.start() as one:
            until(lambda: first.value(AT_THE_GATE) == 1, 60, "the first one did not have to queue")
            with second.start() as two:
                until(lambda: first.value(queues) == 1, 60, "the second one queues behind the other consumer")
                first.execute("INSERT INTO gate VALUES (1)")
                ended = [one.end(60), two.end(60)]
    assert [e.status for e in ended] == [0, 0], ended
    assert sorted(first.rows("SELECT id FROM t")) == [("first",), ("second",)]


@pytest.mark.parametrize("what", ["an effect outside", "its lease"])
def test_f91_who_runs_no_effect_here_needs_no_turn(tmp_path, what):
    """What ran outside is settled, and leases are extended, while another worker has a long turn: otherwise a healthy worker would lose its
    claims, and nobody would know what came of them."""
    config = """
key: "${/id}"
type: "${/type}"
lease: 1s
handlers:
  inside: {sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT pass_the_gate()"]}
  outside: {exec: [sh, -c, COMMAND]}
""".replace("COMMAND", "exit 0" if what == "an effect outside" else '"sleep 4"')
    first, second = shares(tmp_path, config, "CREATE TABLE t(id text);" + GATE, [], 2)
    first.run(status=0)  # makes the store
    first.execute(TURNS)
    first.write({"id": "first", "type": "inside"})
    second.write({"id": "second", "type": "outside"})
    with first.start() as one:
        until(lambda: first.value(AT_THE_GATE) == 1, 60, "the first one has its turn")
        with second.start() as two:
            ended = two.end(60)
        assert first.value(AT_THE_GATE) == 1
        first.execute("INSERT INTO gate VALUES (1)")
        assert one.end(60).status == 0
    assert ended.status == 0 and (ended.json["done"], ended.json["attempts"], ended.json["unknown"]) == (1, 1, 0), ended


QUEUE_IS_HELD = "BEGIN; LOCK TABLE once_meta IN SHARE UPDATE EXCLUSIVE MODE"
HOLDS_QUEUE = "SELECT count(*) FROM pg_locks WHERE relation = 'once_meta'::regclass AND mode = 'ShareUpdateExclusiveLock' AND granted"
QUEUED_FOR = f"SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity WHERE {OURS} AND wait_event = 'relation' AND query LIKE 'LOCK TABLE%'"


def test_f91_who_has_queued_in_vain_tries_first_and_then_queues_for_longer(tmp_path):
    """Another consumer is in the queue for long. Whoever gets its turn without the queue does not ask for a place there with each batch. And
    whoever does not get it has its place in the queue for longer and longer: it is not overtaken for ever by those who were served."""
    config = 'key: "${/id}"\nbatch: {max: 1}\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT pass_the_gate()"]}\n'
    first, second = shares(tmp_path, config, "CREATE TABLE t(id text);" + GATE, [], 2)
    first.run(status=0)  # makes the store
    first.execute(TURNS)
    first.write({"id": "first"})
    second.write(*[{"id": str(i)} for i in range(40)])
    rolled_back = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    with Session(first.url, QUEUE_IS_HELD):
        until(lambda: first.value(HOLDS_QUEUE) == 1, what="another one has the queue")
        with first.start() as one:
            until(lambda: first.value(AT_THE_GATE) == 1, 60, "the first one has its turn")
            with second.start() as two:
                until(lambda: first.value(QUEUED_FOR) > 2.5, 60, "the second one queues for 4 s, after 1 s and 2 s")
                before = first.value(rolled_back)
                first.execute("INSERT INTO gate VALUES (1)")
                ended = [one.end(60), two.end(60)]
    assert [e.status for e in ended] == [0, 0], ended
    assert first.value("SELECT count(*) FROM t") == 41
    first.execute("SELECT pg_stat_clear_snapshot()")
    assert first.value(rolled_back) - before < 20, "it does not queue in vain with each batch"


@pytest.mark.parametrize("named", [False, True], ids=["turns", "names"])
def test_f91_a_statement_timeout_is_not_for_the_queue(tmp_path, named):
    """The time that a statement may take, as the database's owner says, is not for batches that wait for their turn."""
    config = """
key: "${/id}"
handler: {sql: ["INSERT INTO t(id, patience) VALUES (:id, current_setting('statement_timeout'))", "SELECT pass_the_gate()"]}
""" + ('locks: ["one"]\n' if named else "")
    first, second = shares(tmp_path, config, "CREATE TABLE t(id text, patience text);" + GATE, [], 2)
    first.run(status=0)  # makes the store
    if not named:
        first.execute(TURNS)
    first.write({"id": "first"})
    second.write({"id": "second"})
    waits = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND wait_event = 'advisory' AND clock_timestamp() - xact_start > '1500ms'"
    with first.start() as one:
        until(lambda: first.value(AT_THE_GATE) == 1, 60, "the first one has its turn")
        first.execute(f"ALTER DATABASE {first.value('SELECT quote_ident(current_database())')} SET statement_timeout = '1s'")
        with Session(first.url, QUEUE_IS_HELD) as other:
            until(lambda: first.value(HOLDS_QUEUE) == 1, what="another one has the queue")
            with second.start() as two:
                until(lambda: first.value(QUEUED_FOR) > 1.5, 60, "the second one queues")
                other.end()
                until(lambda: first.value(waits) == 1, 60, "it waits for its turn")
                first.execute("INSERT INTO gate VALUES (1)")
                ended = [one.end(60), two.end(60)]
    assert [e.status for e in ended] == [0, 0], ended
    assert "store_failed" not in ended[1].err, ended
    assert first.rows("SELECT id, patience FROM t ORDER BY id") == [("first", "0"), ("second", "1s")]


def wait_by_default(p, how_long):
    """What the database's owner says about waiting for locks."""
    p.execute(f"ALTER DATABASE {p.value('SELECT quote_ident(current_database())')} SET lock_timeout = '{how_long}'")


@pytest.mark.parametrize("own", [False, True], ids=["nothing set", "set"])
@pytest.mark.parametrize("named", [False, True], ids=["turns", "names"])
def test_f91_a_users_statement_waits_for_locks_as_long_as_he_says(tmp_path, named, own):
    """Who has waited in the server for its turn, or for a name, has it, and is then as patient as whoever got it at once: for ever in its turn,
    where nobody of ours is in the way; otherwise for a short while; and as long as the database's owner says, if he does."""
    config = """
key: "${/id}"
handler:
  sql:
    - INSERT INTO t(id, patience, held) SELECT :id, current_setting('lock_timeout'), count(*) FROM pg_locks
      WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid = pg_backend_pid()
    - SELECT pass_the_gate()
""" + ('locks: ["one"]\n' if named else "")
    first, second = shares(tmp_path, config, "CREATE TABLE t(id text, patience text, held int);" + GATE, [], 2)
    first.run(status=0)  # makes the store
    if not named:
        first.execute(TURNS)
    if own:
        wait_by_default(first, "1min")
    first.write({"id": "first"})
    second.write({"id": "second"})
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND NOT granted"
    with first.start() as one:
        until(lambda: first.value(AT_THE_GATE) == 1, 60, "the first one has its turn, or the name")
        with second.start() as two:
            until(lambda: first.value(waits) == 1, 60, "the second one waits for it")
            assert first.value(AT_THE_GATE) == 1
            first.execute("INSERT INTO gate VALUES (1)")
            ended = [one.end(60), two.end(60)]
    assert [e.status for e in ended] == [0, 0], ended
    short = [f"{ms}ms" for ms in range(20, 41)]
    patience = ["1min"] if own else short if named else ["0"]
    assert sorted(first.rows("SELECT id, held FROM t")) == [("first", 1), ("second", 1)]
    assert all(said in patience for said, in first.rows("SELECT patience FROM t"))


@pytest.mark.parametrize("what", ["a new message", "one again", "a letter", "a key"])
def test_f91_a_lane_is_locked_before_its_entries(tmp_path, what):
    """Whoever waits for a lane has no entry that the lane's holder might want: claims that come with their lane, and operators who come with
    nothing but a letter or a key."""
    p = PostgresPipeline(str(tmp_path), """
key: "${/id}"
order: "${/lane}"
retry: {attempts: 1}
handler: {sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT fail() WHERE :id = 'bad'"]}
""", WAITS)
    p.write({"id": "good", "lane": 1}, {"id": "bad", "lane": 1})
    summary = p.run(status=1)
    assert (summary["done"], summary["dead"]) == (1, 1), summary
    wait_by_default(p, "5min")  # a batch of ours, too
    p.write({"id": "bad" if what == "one again" else "new", "lane": 1})
    held = "SELECT count(*) FROM pg_locks WHERE relation = 'once_lane'::regclass AND mode = 'RowShareLock' AND granted"
    waits = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    locked = """SELECT DISTINCT relation::regclass::text AS name FROM pg_locks WHERE mode IN ('RowShareLock', 'RowExclusiveLock')
        AND relation IN ('once_entry'::regclass, 'once_lane'::regclass) AND pid = """
    with Session(p.url, "BEGIN; SELECT FROM once_lane FOR UPDATE") as holder:
        until(lambda: p.value(held) == 1, what="the lane is held")
        arguments = {"a letter": ["replay", "--all", p.name], "a key": ["forget", p.name, "bad"]}.get(what)
        with Running(arguments, p.folder) if arguments else p.start() as running:
            (pid,), = until(lambda: p.rows(waits), 60, "somebody waits for the lane")
            assert p.rows(locked + str(pid)) == [("once_lane",)]
            holder.end()
            ended = running.end(60)
    assert ended.status in (0, 1), ended


def test_f93_what_is_found_in_a_lane_and_has_no_handler_any_more_becomes_a_letter(tmp_path):
    config = """
key: "${/id}"
order: "${/lane}"
retry: {attempts: 100, backoff: 100ms..200ms, on: [P0001]}
handler:
  operation: OPERATION
  sql: ["INSERT INTO t(id) VALUES (:id)", "SELECT fail() WHERE :id = '0'"]
"""
    p = PostgresPipeline(str(tmp_path), config.replace("OPERATION", "ship"), WAITS)
    p.write(*[{"id": str(i), "lane": 1} for i in range(3)])
    with p.start() as running:
        until(lambda: p.has_table("once_live") and p.value("SELECT count(*) FROM once_live") == 3, what="they wait")
        running.send(signal.SIGTERM)
        running.end()
    p.configure(config.replace("OPERATION", "deliver"))
    p.write()
    ended = p.try_run("--confirm-scope-change")
    assert ended.status == 1 and (ended.json["resumed"], ended.json["dead"]) == (3, 3), ended
    assert [reason for _, reason in p.letters()] == ["operation 'ship' no longer has a handler"] * 3
