"""source: kafka, and topics that change while it runs."""

import pytest

import kafka
from harness import until
from kafkapipeline import KafkaPipeline, need_kafka, numbered

need_kafka()


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_partitions_that_are_added_begin_at_their_start(tmp_path, client, start):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more=f"start: {start}")
    client.commit(p.group, topic, {0: 0})
    client.produce(topic, *numbered(10))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 10)
        client.grow(topic, 4)
        for number in range(1, 4):
            client.produce(topic, *numbered(10, 10 * number), partition=number)
        p.wait(running, lambda: p.count() == 40 and p.lag() == 0, what="the new partitions")
        p.stop(running)
    p.check(40)


def test_partitions_that_are_added_while_nobody_runs_begin_at_their_start(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more="start: latest")
    client.commit(p.group, topic, {0: 0})
    client.produce(topic, *numbered(10))
    p.run_until(lambda: p.count() == 10 and p.lag() == 0)
    client.grow(topic, 2)
    client.produce(topic, *numbered(10, 10), partition=1)
    p.run_until(lambda: p.count() == 20)
    p.check(20)


def test_a_topic_that_is_deleted_and_made_anew(tmp_path, client):
    """Its offsets begin at 0 again. The run goes on or ends with an error; no message of the new one is left out, none runs twice."""
    topic = client.topic(partitions=2)
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(40), key=lambda n, _: f"k{n}")
    with p.start() as running:
        p.wait(running, lambda: p.count() == 40 and p.lag() == 0)
        client.delete(topic)
        client.topic(topic, partitions=2)
        client.produce(topic, *numbered(10, 40), key=lambda n, _: f"k{n}")
        until(lambda: running.process.poll() is not None or p.count() == 50, what="it goes on, or says that it cannot")
        if running.process.poll() is not None:
            assert running.process.returncode == 3 and topic in p.said(running), p.said(running)
        else:
            p.stop(running)
    client.produce(topic, *numbered(10, 50), key=lambda n, _: f"k{n}")
    p.run_until(lambda: p.count() == 60)
    p.check(60)


def test_a_topic_that_is_not_there_yet(tmp_path, client):
    topic = client.topic()
    client.delete(topic)
    p = KafkaPipeline(tmp_path, client, topic)
    with p.start() as running:
        until(lambda: running.process.poll() is not None or topic in p.said(running), what="it says what is missing")
        if running.process.poll() is None:
            client.topic(topic)
            client.produce(topic, *numbered(5))
            p.wait(running, lambda: p.count() == 5, what="the topic was made")
            p.stop(running)
        else:
            assert running.process.returncode in (2, 3) and topic in p.said(running), p.said(running)
