"""source: kafka, several workers in one group: partitions move while work goes on, members are stopped, killed and paused. Effects are
counted in PostgreSQL, which all of them share, or in a file outside of it."""

import random
import signal
import time

import pytest

import kafka
import postgres
from harness import counts, stopped, until
from kafkapipeline import CONFIG, KafkaPipeline, KafkaPostgresPipeline, need_kafka, numbered
from brokerpipeline import TABLE, let_go, lines, slow_config
from pgpipeline import need_postgres, new_name

need_kafka()
need_postgres()

SOON = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


# ---- a slow message ----

def test_10000_messages_behind_one_slow_one(tmp_path, client):
    """Their work is done, and the offset stays before the slow one, which may run longer than max.poll.interval. Killed there, nothing is
    lost and nothing is done twice."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, slow_config(tmp_path), properties={"session.timeout.ms": 4000, "heartbeat.interval.ms": 500, "max.poll.interval.ms": 4000})
    quick = [dict(message, type="quick") for message in numbered(10000)]
    client.produce(topic, {"id": "slow", "type": "slow"}, *quick)
    with p.start() as running:
        p.wait(running, lambda: p.count() == 10000, what="the others")
        [member] = client.members(p.group)
        end = time.monotonic() + 5
        p.wait(running, lambda: time.monotonic() > end)
        assert [each.id for each in client.members(p.group)] == [member.id], "it does not poll while a handler runs"
        assert p.committed().get(0, 0) == 0, "an offset passed a message that is not settled"
        p.kill(running)
    assert len(lines(tmp_path, "began")) == 1 and not lines(tmp_path, "slow")
    let_go(tmp_path)
    summary = p.run_until(lambda: p.lag() == 0 and lines(tmp_path, "slow"))
    assert summary["duplicates"] >= 10000 and summary["attempts"] == 1, summary
    p.check(10000)


def test_f10_offsets_never_pass_the_first_gap(tmp_path, client):
    topic = client.topic(partitions=2)
    p = KafkaPipeline(tmp_path, client, topic, slow_config(tmp_path, "batch: {max: 10}\n"), properties=SOON)
    quick = [dict(message, type="quick") for message in numbered(100)]
    client.produce(topic, *quick[:35], {"id": "slow", "type": "slow"}, *quick[35:60], partition=0)  # in the middle of a batch
    client.produce(topic, *quick[60:], partition=1)
    with p.start() as running:
        p.wait(running, lambda: p.count() == 100 and p.committed() == {0: 35, 1: 40}, what="the other partition, and all before the gap")
        let_go(tmp_path)
        p.wait(running, lambda: p.lag() == 0, what="the rest")
        p.stop(running)
    p.check(100)
    assert lines(tmp_path, "slow") == ["slow"]


FAILING = """
key: "${/id}"
type: "${/type}"
batch: {max: 10}
retry: {attempts: 3, backoff: 20ms..50ms}
handlers:
  late: {sql: [{do: "INSERT INTO t(id, n) SELECT :id, :n FROM open", rows: 1, else: retry}], retry: {attempts: 100000}}
  never: {sql: [{do: "INSERT INTO t(id, n) SELECT :id, :n WHERE 1 = 0", rows: 1, else: retry}]}
  "*": {sql: "INSERT INTO t(id, n) VALUES (:id, :n)"}
"""


def test_f10_a_message_that_fails_in_the_middle_of_a_batch(tmp_path, client):
    """One fails until its table has a row, one fails for good. The store has both before an offset passes them, and the others go on."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, FAILING, TABLE + "CREATE TABLE open(x INTEGER);", properties=SOON)
    messages = [dict(message, type={25: "late", 26: "never"}.get(message["n"], "quick")) for message in numbered(60)]
    client.produce(topic, *messages)
    with p.start(failpoint="commit_before:kill:3") as running:  # the batch in which they fail
        assert running.end().killed
    assert p.count() < 25 and p.committed()[0] <= 25, "an offset passed a failure that is not in the store"
    with p.start() as running:
        p.wait(running, lambda: p.count() == 58 and p.lag() == 0 and p.letters(), what="all others, and the offset behind them")
        p.kill(running)
    assert sorted({message["id"] for message in messages} - set(p.ids())) == ["m25", "m26"]
    p.execute("INSERT INTO open(x) VALUES (1)")
    counts(p.run_until(lambda: p.count() == 59, status=1), received=0, resumed=1, done=1)
    assert sorted(p.ids()) == sorted(message["id"] for message in messages if message["id"] != "m26"), "each once"
    assert [point for point, _ in p.letters()] == [26], "one letter"
    assert p.explain("m26")[0]["failures"] == 3


# ---- a group that changes ----

def leave(p, member, how):
    member.send(how)
    ended = member.end()
    assert ended.status == (0 if how == signal.SIGTERM else -how), (how, ended, p.said(member)[-2000:])


def test_f29_a_rebalance_storm_under_load(tmp_path, client):
    """Members come, are stopped and are killed while messages arrive."""
    topic = client.topic(partitions=6)
    p = KafkaPostgresPipeline(tmp_path, client, topic, f"batch: {{max: 50}}\nlease: 1s\n{CONFIG}", properties=SOON)
    rng, total, sent, members = random.Random(1), 4500, 0, []
    ways = 3 * [signal.SIGTERM, signal.SIGKILL]
    rng.shuffle(ways)
    try:
        while sent < total:
            client.produce(topic, *numbered(300, sent), key=lambda n, message: message["id"])
            sent += 300
            if len(members) < 3:
                members.append(p.start())
            elif ways:
                leave(p, members.pop(rng.randrange(2)), ways.pop())  # not the last one, which may not hear a signal yet
            before = p.count()
            until(lambda: p.count() > min(before + 100, sent - 1), what="the group goes on")
        assert not ways, "not all have left"
        until(lambda: p.count() == total, 60, "every message")
        p.check(total)
        until(lambda: p.lag() == 0, what="every offset")
    finally:
        for member in members:
            member.__exit__()
    p.check(total)


def test_f29_a_member_that_was_paused_is_fenced(tmp_path, client):
    """It comes back after its session has ended, in the middle of a batch: another one has its partitions and has done the work."""
    topic = client.topic(partitions=2)
    sql = "INSERT INTO t(id, n) SELECT :id, :n FROM pg_sleep(0.002)"
    config = f'lease: 1s\nkey: "${{/id}}"\nbatch: {{max: 100}}\nhandler: {{sql: "{sql}"}}\n'
    url = postgres.shared().database(new_name()) + "&options=-cidle_in_transaction_session_timeout%3D1s"  # its locks end with that
    p = KafkaPostgresPipeline(tmp_path, client, topic, config, properties=SOON, url=url)
    client.produce(topic, *numbered(1000), key=lambda n, _: f"k{n}")
    with p.start() as first:
        p.wait(first, lambda: p.count() > 0, what="the first batch")
        first.send(signal.SIGSTOP)
        until(lambda: stopped(first))
        with p.start() as second:
            p.wait(second, lambda: p.count() >= 900, what="another one does the work")
            committed = p.committed()
            first.send(signal.SIGCONT)
            p.wait(second, lambda: p.count() == 1000 and p.lag() == 0, what="the rest")
            assert all(p.committed()[number] >= offset for number, offset in committed.items()), "an old offset was committed"
            p.wait(first, lambda: client.is_stable(p.group, 2), what="it is a member again")
            client.produce(topic, *numbered(100, 1000), key=lambda n, _: f"k{n}")
            p.wait(second, lambda: p.count() == 1100, what="both go on")
            p.stop(second)
        p.stop(first)
    p.check(1100)


def test_a_new_member_gets_its_share_and_work_goes_on_meanwhile(tmp_path, client):
    """Handlers run for long; a member comes meanwhile and gets partitions, nothing runs twice, and polling goes on."""
    topic = client.topic(partitions=4)
    handler = "exec: [sh, -c, 'cat >/dev/null; sleep 0.3; echo \"$1\" >>%s/ledger', sh, \"${/id}\"]" % tmp_path
    p = KafkaPostgresPipeline(tmp_path, client, topic, f'key: "${{/id}}"\nlease: 2s\nworkers: 8\nhandler: {{{handler}}}\n', properties=SOON)
    for number in range(4):
        client.produce(topic, *numbered(10, 10 * number), partition=number)
    with p.start() as first:
        p.wait(first, lambda: lines(tmp_path, "ledger"), what="the first message")
        with p.start() as second:
            p.wait(first, lambda: client.is_stable(p.group, 2), what="two members")
            p.wait(first, lambda: len(lines(tmp_path, "ledger")) == 40 and p.lag() == 0, what="all")
            p.stop(second)
        p.stop(first)
    assert sorted(lines(tmp_path, "ledger")) == sorted(message["id"] for message in numbered(40))


# ---- the end of a member ----

def test_f59_a_stop_drains_and_leaves_the_group(tmp_path, client):
    """What flies ends within `drain`, its offset is committed, and others get the partitions at once, not after the session."""
    topic = client.topic()
    p = KafkaPostgresPipeline(tmp_path, client, topic, slow_config(tmp_path, "drain: 20s\n"), properties={"session.timeout.ms": 60000})
    client.produce(topic, {"id": "slow", "type": "slow"})
    with p.start() as first:
        p.wait(first, lambda: lines(tmp_path, "began"), what="a message in flight")
        first.send(signal.SIGTERM)
        client.produce(topic, *[dict(message, type="quick") for message in numbered(50)])
        let_go(tmp_path)
        ended = first.end()
        assert ended.status == 0, (ended, p.said(first))
    assert lines(tmp_path, "slow") == ["slow"] and p.committed()[0] >= 1
    begun = time.monotonic()
    p.run_until(lambda: p.lag() == 0)
    assert time.monotonic() - begun < 20, "the partition was not given back"
    p.check(50)
    assert lines(tmp_path, "slow") == ["slow"]


def test_f59_a_stop_and_then_sigkill_loses_nothing(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, slow_config(tmp_path, "drain: 1m\n"), properties=SOON)
    client.produce(topic, {"id": "slow", "type": "slow"}, *[dict(message, type="quick") for message in numbered(50)])
    with p.start() as running:
        p.wait(running, lambda: lines(tmp_path, "began") and p.count() == 50, what="a message in flight")
        running.send(signal.SIGTERM)
        time.sleep(0.3)  # a moment of the drain, whichever
        p.kill(running)
    assert p.committed().get(0, 0) == 0
    let_go(tmp_path)
    p.run_until(lambda: p.lag() == 0 and lines(tmp_path, "slow"))
    p.check(50)


# ---- static membership ----

def test_a_static_member_comes_back_without_a_rebalance(tmp_path, client):
    """A killed member would block its partitions for a minute; one with an instance has them again at once."""
    topic = client.topic(partitions=2)
    p = KafkaPipeline(tmp_path, client, topic, f"lease: 1s\n{CONFIG}", more='instance: "w-${env:WORKER}"', properties={"session.timeout.ms": 60000})
    client.produce(topic, *numbered(10), key=lambda n, _: f"k{n}")
    with p.start(env={"WORKER": "1"}) as running:
        p.wait(running, lambda: p.count() == 10)
        assert [member.instance for member in client.members(p.group)] == ["w-1"]
        p.kill(running)
    client.produce(topic, *numbered(10, 10), key=lambda n, _: f"k{n}")
    begun = time.monotonic()
    with p.start(env={"WORKER": "1"}) as running:
        p.wait(running, lambda: p.count() == 20, what="it is back")
        assert time.monotonic() - begun < 20
        assert [member.instance for member in client.members(p.group)] == ["w-1"]
        p.stop(running)
    assert [member.instance for member in client.members(p.group)] == ["w-1"], "a stop is no leave"
    p.check(20)


def test_two_workers_with_one_instance_do_not_both_run(tmp_path, client):
    topic = client.topic()
    p = KafkaPostgresPipeline(tmp_path, client, topic, more='instance: "w-${env:WORKER}"')
    client.produce(topic, *numbered(10))
    with p.start(env={"WORKER": "1"}) as first:
        p.wait(first, lambda: p.count() == 10)
        with p.start(env={"WORKER": "1"}) as second:
            until(lambda: first.process.poll() is not None, what="the older one is fenced off")
            ended = first.end()
            assert ended.status == 2 and "another worker has the same 'instance'" in p.said(first), (ended, p.said(first))
            client.produce(topic, *numbered(10, 10))
            p.wait(second, lambda: p.count() == 20)
            p.stop(second)
    p.check(20)
