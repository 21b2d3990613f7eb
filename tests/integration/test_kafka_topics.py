"""source: kafka, and topics that change while it runs."""

import pytest

import kafka
from harness import until
from kafkapipeline import CONFIG, KafkaPipeline, need_kafka, numbered, source

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


@pytest.mark.parametrize("new, more", [(10, ""), (100, ""), (100, "cursor: true")])
def test_a_topic_that_is_deleted_and_made_anew_while_it_is_read(tmp_path, client, new, more):
    """Its offsets begin at 0 again, so those that were read are of other messages now. The run ends and says so, whether the new topic
    reaches the old offset or not; then every message of it takes effect."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more=more)
    client.produce(topic, *numbered(40))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 40 and p.lag() == 0)
        client.delete(topic)
        client.topic(topic)
        client.produce(topic, *numbered(new, 40))
        ended = running.end()
        assert ended.status == 3 and f"{topic}/0" in p.said(running) and "made anew" in p.said(running), (ended, p.said(running))
    assert p.committed() == {}, "the old offset is no offset of the new topic"
    if more:
        p.configure(CONFIG, source=source(client, topic, p.group, f"{more}, out_of_range: earliest"))
    p.run_until(lambda: p.count() == 40 + new)
    p.check(40 + new)


def test_a_topic_that_was_made_anew_while_nobody_ran(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more="cursor: true")
    client.produce(topic, *numbered(40))
    p.run_until(lambda: p.count() == 40 and p.lag() == 0)
    client.delete(topic)
    client.topic(topic)
    client.produce(topic, *numbered(100, 40))
    with p.start() as running:
        ended = running.end()
        assert ended.status == 3 and f"{topic}/0" in p.said(running) and "40" in p.said(running), (ended, p.said(running))
    assert p.count() == 40
    p.configure(CONFIG, source=source(client, topic, p.group, "cursor: true, out_of_range: earliest"))
    p.run_until(lambda: p.count() == 140)
    p.check(140)


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
