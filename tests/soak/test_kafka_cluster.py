"""source: kafka on three brokers, for `make soak`: leaders change because brokers are stopped, killed and paused, while workers come, are
stopped and are killed. Each message has its one effect in PostgreSQL."""

import random
import signal

import confluent_kafka
import pytest

import kafka
from deadline import SOAK_S
from fleet import rounds
from harness import until
from kafkapipeline import CONFIG, KafkaPostgresPipeline, need_kafka, numbered
from pgpipeline import need_postgres

need_kafka()
need_postgres()

WORKERS = 3
MESSAGES = 20000 if SOAK_S else 5000
AT_ONCE = 500
PROPERTIES = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500, "socket.timeout.ms": 5000}


@pytest.fixture(scope="module")
def cluster():
    with kafka.Cluster(brokers=3, session_ms=2000) as brokers:
        yield brokers


class Broken:
    """One broker at a time does not work, so that each partition has a leader soon."""

    def __init__(self, cluster, rng):
        self.cluster, self.rng, self.broker, self.leaders = cluster, rng, None, set()

    def change(self, topic):
        self.leaders.add(tuple(sorted(self.cluster.leaders(topic).items())))
        if self.broker:
            self.mend()
            return
        self.broker = self.rng.choice(self.cluster.brokers)
        how = self.rng.choice(["kill", "stop", "pause"])
        if how == "pause":
            self.broker.send(signal.SIGSTOP)
        else:
            getattr(self.broker, how)()

    def mend(self):
        if self.broker:
            if self.broker.process.poll() is None:
                self.broker.send(signal.SIGCONT)
            self.cluster.start()
            self.broker = None


def change_workers(p, workers, rng):
    if len(workers) < WORKERS:
        workers.append(p.start())
        return
    leaver = workers.pop(rng.randrange(len(workers)))
    assert leaver.process.poll() is None, f"a worker ended by itself: {leaver.end()} {p.said(leaver)[-2000:]}"
    leaver.send(rng.choice([signal.SIGTERM, signal.SIGKILL]))
    leaver.end()


def test_f29_leaders_change_and_workers_come_and_go(tmp_path, cluster):
    for seed in rounds():
        rng = random.Random(seed)
        topic = cluster.topic(partitions=6, replicas=3)
        p = KafkaPostgresPipeline(tmp_path / str(seed), cluster, topic, f"batch: {{max: 100}}\nlease: 2s\n{CONFIG}", properties=PROPERTIES)
        producer = confluent_kafka.Producer({**cluster.config, "enable.idempotence": True, "socket.timeout.ms": 5000})  # a broker may be paused
        broken, workers = Broken(cluster, rng), [p.start() for _ in range(WORKERS)]
        try:
            for sent in range(0, MESSAGES, AT_ONCE):
                cluster.produce(topic, *numbered(AT_ONCE, sent), producer=producer, key=lambda n, message: message["id"])
                if rng.random() < 0.4:
                    broken.change(topic)
                if rng.random() < 0.4:
                    change_workers(p, workers, rng)
                until(lambda: p.count() > sent - 5 * AT_ONCE, 90, "the group goes on")
            broken.mend()
            until(lambda: p.count() >= MESSAGES, 120, "every effect")
            until(lambda: p.lag() == 0, 60, "every offset")
        finally:
            broken.mend()
            for worker in workers:
                worker.__exit__()
        p.check(MESSAGES)
        assert len(broken.leaders) > 1, "no leader has changed"


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_partition_without_a_leader_holds_up_no_other(tmp_path, cluster, start):
    """A group without offsets begins with the others, and with that one when its broker is back."""
    topic = cluster.topic(partitions=6, replicas=1, min_insync_replicas=1)
    leaders = cluster.leaders(topic)
    p = KafkaPostgresPipeline(tmp_path, cluster, topic, CONFIG, properties=PROPERTIES, more=f"start: {start}")
    away = cluster.brokers[0]
    missing = [number for number, leader in leaders.items() if leader == away.node]
    assert 0 < len(missing) < 6
    away.kill()
    try:
        until(lambda: sorted(set(leaders) - set(cluster.leaders(topic))) == missing, 60, "its partitions have no leader")
        with p.start() as running:
            p.wait(running, lambda: len(p.committed()) == 6 - len(missing), 60, what="the others have begun")
            there = [number for number in leaders if number not in missing]
            cluster.produce(topic, *numbered(60), partition=lambda n, _: there[n % len(there)])
            p.wait(running, lambda: p.count() == 60, 30, what="the others are read")
            p.wait(running, lambda: "has no leader now" in p.said(running), what="it says so")
            cluster.start()
            p.wait(running, lambda: len(p.committed()) == 6, 60, what="all have begun")
            cluster.produce(topic, *numbered(60, 60), partition=lambda n, _: missing[n % len(missing)])
            p.wait(running, lambda: p.count() == 120, 30, what="all are read")
            p.stop(running)
    finally:
        cluster.start()
    p.check(120)
