"""source: kafka, and offsets of its group that somebody else sets: a tool (kafka-consumer-groups --reset-offsets) or another client."""

import signal

import pytest

import kafka
from harness import stopped, until
from kafkapipeline import KafkaPipeline, need_kafka, numbered
from kafkawire import Refused

need_kafka()

SOON = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}
UNKNOWN_MEMBER_ID = 25


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


def test_offsets_that_a_tool_sets_while_it_runs_are_refused_by_the_broker(tmp_path, client):
    """Only members of a group that has some may commit for it."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(10))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 10 and p.lag() == 0)
        for offset in (0, 7, 12):
            with pytest.raises(Refused) as why:
                client.commit(p.group, topic, {0: offset})
            assert why.value.code == UNKNOWN_MEMBER_ID
        client.produce(topic, *numbered(5, 10))
        p.wait(running, lambda: p.count() == 15 and p.lag() == 0)
        p.stop(running)
    p.check(15)


@pytest.mark.parametrize("offset, skipped", [(3, set()), (15, {f"m{n}" for n in range(10, 15)})])
def test_offsets_that_a_tool_sets_while_its_worker_hangs(tmp_path, client, offset, skipped):
    """The worker is no member then. When it goes on, it begins at that offset: before it, duplicates; behind it, what is left out."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, properties=SOON)
    client.produce(topic, *numbered(10))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 10 and p.lag() == 0)
        running.send(signal.SIGSTOP)
        until(lambda: stopped(running), what="it hangs")
        until(lambda: not client.members(p.group), what="it is no member")
        client.produce(topic, *numbered(10, 10))
        client.commit(p.group, topic, {0: offset})
        running.send(signal.SIGCONT)
        p.wait(running, lambda: p.count() == 20 - len(skipped) and p.lag() == 0, what="it goes on")
        summary = p.stop(running)
    assert summary["duplicates"] == max(0, 10 - offset), summary
    assert sorted(p.ids()) == sorted({message["id"] for message in numbered(20)} - skipped)
