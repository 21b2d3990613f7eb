"""source: kafka with `cursor: true` and several workers: the offsets are in the store, which all of them share, so that a partition goes on
elsewhere where its last transaction ended. The handler is natural: nothing is remembered, and a message that is read twice is two rows."""

import pytest

import kafka
from harness import until
from kafkapipeline import INSERT, KafkaPostgresPipeline, need_kafka, numbered
from pgpipeline import need_postgres

need_kafka()
need_postgres()

PARTITIONS, EACH = 4, 60
NATURAL = f'batch: {{max: 20}}\nkey: "${{/id}}"\nhandler: {{natural: true, sql: "{INSERT}"}}\n'


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


def test_a_partition_moves_with_its_cursor(tmp_path, client):
    """First from a worker that was killed before it could tell the broker what it had settled, then to one that joins and from one that leaves
    while messages arrive."""
    topic = client.topic(partitions=PARTITIONS)
    p = KafkaPostgresPipeline(tmp_path, client, topic, NATURAL, more="cursor: true")
    sent = 0

    def send(each):
        nonlocal sent
        for number in range(PARTITIONS):
            client.produce(topic, *numbered(each, sent), partition=number)
            sent += each

    with p.start(failpoint="ack_before:kill") as doomed, p.start() as heir:
        p.wait(heir, lambda: client.is_stable(p.group, 2), what="both are members")
        send(EACH)
        until(lambda: doomed.process.poll() is not None, what="one has settled something, and dies")
        p.wait(heir, lambda: p.lag() == 0, what="the other one has the rest")
        p.check(sent)
        with p.start() as late:
            send(EACH)
            p.wait(late, lambda: client.is_stable(p.group, 2) and p.lag() == 0, what="both have read all")
            send(EACH)
            summary = p.stop(heir)
            p.wait(late, lambda: p.lag() == 0, what="the last one has the rest")
            other = p.stop(late)
    p.check(sent)
    settled = sent - summary["done"] - other["done"]
    assert 0 < settled < PARTITIONS * EACH, "what the first one had settled was not read again"
    assert other["done"] > 0
