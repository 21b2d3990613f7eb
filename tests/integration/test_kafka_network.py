"""source: kafka, and what becomes of its connections: cut in the middle of commits, half open, a broker that is killed and comes back, a
store that is away. Each effect is counted in the user's table."""

import contextlib
import random
import signal
import time

import confluent_kafka
import pytest

import kafka
import postgres
from harness import until
from kafkapipeline import CONFIG, KafkaPipeline, KafkaPostgresPipeline, need_kafka, numbered
from kafkaproxy import COMMIT, KafkaProxy
from pgpipeline import Session, need_postgres, new_name, socket_of
from tcpproxy import Proxy

need_kafka()
need_postgres()

SOON = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500, "socket.timeout.ms": 3000}


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


@pytest.fixture(scope="module")
def own():
    """A broker that these tests may kill."""
    with kafka.Cluster(session_ms=1500) as cluster:
        yield cluster


# ---- connections ----

@pytest.mark.parametrize("fault", ["lose_reply_to", "cut_at"])
def test_f08_a_commit_whose_connection_is_cut(tmp_path, client, fault):
    """The broker has the offset and its answer is lost, or it never got it: both times it is committed later, and nothing runs again."""
    topic = client.topic(partitions=2)
    with KafkaProxy(client) as proxy:
        p = KafkaPipeline(tmp_path, client, topic, f"batch: {{max: 20}}\n{CONFIG}", brokers=proxy.address, properties=SOON)
        with p.start() as running:
            setattr(proxy, fault, COMMIT)
            client.produce(topic, *numbered(200), key=lambda n, _: f"k{n}")
            p.wait(running, lambda: p.count() == 200 and proxy.lost == 1, what="every effect, and a commit that was cut")
            p.wait(running, lambda: p.lag() == 0, what="the offsets are committed after all")
            p.stop(running)
    p.check(200)


def test_f08_killed_before_a_commit_has_an_answer(tmp_path, client):
    topic = client.topic(partitions=2)
    with KafkaProxy(client) as proxy:
        p = KafkaPipeline(tmp_path, client, topic, f"batch: {{max: 20}}\nlease: 1s\n{CONFIG}", brokers=proxy.address, properties=SOON)
        proxy.hush_after = COMMIT
        client.commit(p.group, topic, {0: 0, 1: 0})  # otherwise the first commit says where the group begins
        client.produce(topic, *numbered(200), key=lambda n, _: f"k{n}")
        with p.start() as running:
            p.wait(running, lambda: proxy.lost == 1, what="a commit without an answer")
            p.kill(running)
        assert p.count() > 0
        p.run_until(lambda: p.count() == 200 and p.lag() == 0)
    p.check(200)


def test_connections_that_are_cut_all_the_time(tmp_path, client):
    """At any byte, in either direction, while messages come."""
    topic, rng = client.topic(partitions=3), random.Random(1)
    with KafkaProxy(client) as proxy:
        p = KafkaPipeline(tmp_path, client, topic, f"batch: {{max: 20}}\n{CONFIG}", brokers=proxy.address,
                          properties={**SOON, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100})
        with p.start() as running:
            for turn in range(10):
                client.produce(topic, *numbered(40, 40 * turn), key=lambda n, message: message["id"])
                lost = proxy.lost
                setattr(proxy, rng.choice(["cut_after_sent", "cut_after_received"]), rng.randrange(1, 3000))
                p.wait(running, lambda: proxy.lost > lost, what="a cut")
            p.wait(running, lambda: p.count() == 400 and p.lag() == 0, what="every effect and every offset")
            p.stop(running)
    p.check(400)


@pytest.mark.parametrize("killed", [False, True])
def test_f49_a_connection_that_is_half_open(tmp_path, client, killed):
    """Nothing comes through it and nobody is told: it is noticed, and another one is made. Killed before that, it has settled messages of
    which the broker knows nothing."""
    topic = client.topic(partitions=2)
    with KafkaProxy(client) as proxy:
        p = KafkaPipeline(tmp_path, client, topic, f"batch: {{max: 10}}\nlease: 1s\n{CONFIG}", brokers=proxy.address, properties=SOON)
        client.commit(p.group, topic, {0: 0, 1: 0})  # otherwise the first commit says where the group begins
        client.produce(topic, *numbered(50), key=lambda n, _: f"k{n}")
        if killed:
            proxy.hush_after = COMMIT
        with p.start() as running:
            p.wait(running, lambda: p.count() == 50)
            if killed:
                p.wait(running, lambda: proxy.lost == 1, what="a commit without an answer")
            proxy.hush_all()
            client.produce(topic, *numbered(50, 50), key=lambda n, _: f"k{n}")
            if killed:
                p.kill(running)
            else:
                p.wait(running, lambda: p.count() == 100 and p.lag() == 0, what="it goes on")
                p.stop(running)
        if killed:
            p.run_until(lambda: p.count() == 100 and p.lag() == 0)
    p.check(100)


# ---- the store ----

def test_f46_without_its_store_it_acks_nothing_and_stays_a_member(tmp_path, client):
    topic, server = client.topic(partitions=2), postgres.shared()
    direct = server.database(new_name())
    with Proxy(socket_of(server)) as proxy:
        url = f"postgres://postgres@127.0.0.1:{proxy.port}/{direct.split('/')[3].split('?')[0]}"
        p = KafkaPostgresPipeline(tmp_path, client, topic, url=direct, properties={**SOON, "session.timeout.ms": 4000, "max.poll.interval.ms": 4000})
        p.configure(f"batch: {{max: 20}}\nlease: 1s\n{CONFIG}", store=url, source=p.text)
        client.produce(topic, *numbered(50), key=lambda n, _: f"k{n}")
        with p.start() as running:
            p.wait(running, lambda: p.count() == 50 and p.lag() == 0)
            proxy.refuse = True
            proxy.cut_all()
            client.produce(topic, *numbered(500, 50), key=lambda n, _: f"k{n}")
            member, done, committed = client.members(p.group)[0].id, p.count(), p.committed()
            p.wait(running, lambda: "store" in p.said(running), what="it says so")
            end = time.monotonic() + 5  # longer than the session, and than it may go without a poll
            p.wait(running, lambda: time.monotonic() > end)
            assert (p.count(), p.committed()) == (done, committed), "acked without a store"
            assert [each.id for each in client.members(p.group)] == [member], "heartbeats or polls have stopped"
            proxy.refuse = False
            p.wait(running, lambda: p.count() == 550 and p.lag() == 0, what="it goes on")
            p.stop(running)
    p.check(550)


# ---- the broker ----

def test_a_broker_that_is_killed_and_comes_back(tmp_path, own):
    topic = own.topic(partitions=3)
    p = KafkaPipeline(tmp_path, own, topic, f"batch: {{max: 20}}\n{CONFIG}", properties=SOON)
    own.produce(topic, *numbered(200), key=lambda n, _: f"k{n}")
    with p.start() as running:
        p.wait(running, lambda: p.count() > 0)
        own.brokers[0].kill()
        own.start()
        own.produce(topic, *numbered(200, 200), key=lambda n, _: f"k{n}")
        p.wait(running, lambda: p.count() == 400 and p.lag() == 0, what="it goes on")
        p.stop(running)
    p.check(400)
    assert len(own.read(topic)) == 400


@pytest.mark.parametrize("how", ["paused", "away"])
def test_f59_a_stop_while_the_broker_does_not_answer(tmp_path, own, how):
    """It ends when `drain` is over, whether it has something to commit or not, and also if it still looks for its partitions. What could not
    be committed, by one that is killed as well, comes again to workers that were started before the broker is back, and runs no second time."""
    config = f"drain: 1s\nbatch: {{max: 20}}\nlease: 1s\n{CONFIG}"
    properties = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500}  # librdkafka itself would wait for a minute
    pipelines = [KafkaPipeline(tmp_path / name, own, own.topic(partitions=2), config, properties=properties)
                 for name in ("idle", "at_work", "killed", "starts")]
    idle, at_work, killed, starts = pipelines
    broker, took = own.brokers[0], {}
    with contextlib.ExitStack() as stack:
        running = {p: stack.enter_context(p.start()) for p in pipelines[:3]}
        for p in pipelines[:3]:
            p.wait(running[p], lambda: len(p.committed()) == 2, what="it reads")
        for p in pipelines:
            own.produce(p.topic, *numbered(1000), key=lambda n, _: f"k{n}")
            if p == idle:
                p.wait(running[p], lambda: p.count() == 1000 and p.lag() == 0)
            elif p != starts:
                p.wait(running[p], lambda: p.count() > 0)
        broker.send(signal.SIGSTOP) if how == "paused" else broker.stop()
        killed.kill(running[killed])
        running[starts] = stack.enter_context(starts.start())
        starts.wait(running[starts], starts.is_running, what="it listens to signals")
        for p in (at_work, idle, starts):
            began = time.monotonic()
            p.stop(running[p])
            took[p.folder] = time.monotonic() - began
        assert max(took.values()) < 8, f"a second of `drain`, one for each request, and time for a busy machine: {took}"
        running = {p: stack.enter_context(p.start()) for p in pipelines}
        broker.send(signal.SIGCONT)
        own.start()
        for p in pipelines:
            p.wait(running[p], lambda: p.count() >= 1000 and p.lag() == 0, what="it goes on")
            p.stop(running[p])
    for p in pipelines:
        p.check(1000)
        until(lambda: not own.members(p.group), what="they have left")


GATE = 29  # an advisory lock that effects need
GATED = f'key: "${{/id}}"\ntimeout: 5m\nbatch: {{max: 100, wait: 10s}}\nhandler: {{sql: "INSERT INTO t(id, n) SELECT :id, :n FROM pg_advisory_xact_lock_shared({GATE})"}}\n'


def test_f29_the_broker_is_killed_and_comes_back_while_a_revoke_waits(tmp_path, own):
    """The worker holds back its answer to the group, because a transaction has messages of the partitions. The broker that asked is gone
    meanwhile, and the one that comes back knows nothing of the question."""
    topic = own.topic(partitions=4)
    p = KafkaPostgresPipeline(tmp_path, own, topic, GATED, properties=SOON)
    p.execute(f"ALTER DATABASE {p.value('SELECT current_database()')} SET lock_timeout = '60s'")  # without it they would not wait for so long
    at_the_gate = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {GATE} AND granted = "
    guest = confluent_kafka.Consumer({**own.config, "group.id": p.group, "partition.assignment.strategy": "cooperative-sticky",
                                      "enable.auto.commit": False, "session.timeout.ms": 3000, "heartbeat.interval.ms": 500})
    with p.start("--log-level=info") as running:
        p.wait(running, lambda: len(p.committed()) == 4, what="it has all partitions")
        with Session(p.url, f"SELECT pg_advisory_lock({GATE})") as gate:
            until(lambda: p.value(at_the_gate + "true"), what="the gate is closed")
            own.produce(topic, *numbered(100), partition=lambda n, _: n % 4)  # one batch has all of them
            p.wait(running, lambda: p.value(at_the_gate + "false"), what="a transaction that waits")
            guest.subscribe([topic])
            p.wait(running, lambda: guest.poll(0.1) or "stream_revoked" in p.said(running), what="partitions are revoked")
            assert "stream_released" not in p.said(running), "released with messages in a transaction"
            own.brokers[0].kill()
            own.start()
            gate.end()
        guest.close()
        p.wait(running, lambda: p.count() == 100 and p.lag() == 0, 60, what="it goes on")
        p.stop(running)
    p.check(100)
