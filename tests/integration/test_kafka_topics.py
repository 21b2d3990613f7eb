"""source: kafka, and topics that change while it runs."""

import time

import pytest

import kafka
from harness import until
from kafkaclient import new_name
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
    reaches the old offset or not; then every message of it takes effect. On a slow machine the run may look while there is no topic at all:
    then it goes on by itself."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more=more)
    client.produce(topic, *numbered(40))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 40 and p.lag() == 0)
        client.delete(topic)
        client.topic(topic)
        client.produce(topic, *numbered(new, 40))
        until(lambda: running.process.poll() is not None or (not more and p.count() == 40 + new), 60, "it ends, or goes on")
        if running.process.poll() is None:
            assert f"no offset for topic '{topic}' any more" in p.said(running), p.said(running)
            p.stop(running)
        else:
            ended = running.end()
            assert ended.status == 3 and f"{topic}/0" in p.said(running) and "made anew" in p.said(running), (ended, p.said(running))
            assert p.committed() in ({}, {0: 0}), "the old offset is no offset of the new topic"
    if more:
        p.configure(CONFIG, source=source(client, topic, p.group, f"{more}, out_of_range: earliest"))
    if p.count() < 40 + new:
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


def test_a_topic_made_anew_begins_at_its_first_message_also_with_latest(tmp_path, client):
    """A cursor is proof that the group had begun: `latest` is not for that."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more="cursor: true, start: latest, out_of_range: earliest")
    with p.start() as running:
        p.wait(running, lambda: p.committed() == {0: 0})
        client.produce(topic, *numbered(5))
        p.wait(running, lambda: p.count() == 5 and p.lag() == 0)
        p.stop(running)
    client.delete(topic)
    client.topic(topic)
    client.produce(topic, *numbered(10, 5))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 15)
        assert "it goes on at the first message" in p.said(running)
        p.stop(running)
    p.check(15)


def test_where_a_partition_begins_is_committed_before_it_is_read(tmp_path, client):
    """The first message is slow, so nothing is settled up to an offset. Without one, a topic that is made anew now would not be noticed."""
    topic = client.topic()
    slow = 'key: "${/id}"\nhandler: {exec: [sh, -c, \'read l; case "$l" in *m0*) sleep 100;; esac; echo "$l" >>out\'], timeout: 200s}\n'
    p = KafkaPipeline(tmp_path, client, topic, config=slow, properties={"topic.metadata.refresh.interval.ms": 60000})
    client.produce(topic, *numbered(6))
    with p.start() as running:
        p.wait(running, lambda: (tmp_path / "out").exists() and len((tmp_path / "out").read_text().splitlines()) == 5)
        assert p.committed() == {0: 0}
        p.kill(running)


@pytest.mark.parametrize("start,count", [("error", 0), ("latest", 20)])
def test_offsets_of_another_program_tell_nothing_about_other_partitions(tmp_path, client, start, count):
    topic = client.topic(partitions=3)
    p = KafkaPipeline(tmp_path, client, topic, more=f"start: {start}")
    client.produce(topic, *numbered(30), partition=lambda number, message: number % 3)
    client.commit(p.group, topic, {0: 10})
    with p.start() as running:
        if count:
            p.wait(running, lambda: p.count() == count)
            p.stop(running)
        else:
            ended = running.end()
            assert ended.status != 0 and "'start' is 'error'" in p.said(running), (ended, p.said(running))
    assert p.count() == count


def test_a_topic_that_appears_later_begins_at_its_first_message(tmp_path, client):
    """Also with `latest`: it is found some time after it was made."""
    base = new_name("appears")
    first = client.topic(base + "-1")
    client.produce(first, *numbered(3, 100))
    p = KafkaPipeline(tmp_path, client, f'"^{base}-.*"', more="start: latest", properties={"topic.metadata.refresh.interval.ms": 2000})
    with p.start() as running:
        p.wait(running, lambda: client.committed(p.group, first) == {0: 3})
        second = client.topic(base + "-2")
        client.produce(second, *numbered(20))
        p.wait(running, lambda: p.count() == 20, what="the messages of the new topic")
        p.stop(running)
    p.check(20)


@pytest.mark.parametrize("more", ["start: latest", "out_of_range: earliest", "start: latest, out_of_range: earliest"])
@pytest.mark.parametrize("new", [10, 100])
def test_no_message_of_a_topic_made_anew_is_passed_over(tmp_path, client, more, new):
    """The run ends and is started again, as systemd would do it, or goes on at the first message by itself."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more=more)
    client.commit(p.group, topic, {0: 0})
    client.produce(topic, *numbered(40))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 40 and p.lag() == 0)
        client.delete(topic)
        client.topic(topic)
        client.produce(topic, *numbered(new, 40))
        until(lambda: running.process.poll() is not None or p.count() == 40 + new, 30, "it ends, or goes on")
        if running.process.poll() is None:
            p.stop(running)
    if p.count() < 40 + new:
        p.run_until(lambda: p.count() == 40 + new and p.lag() == 0)
    p.check(40 + new)


def test_one_of_several_topics_that_is_missing_is_told(tmp_path, client):
    topic = client.topic()
    client.produce(topic, *numbered(3))
    p = KafkaPipeline(tmp_path, client, [topic, topic + "-typo"])
    with p.start() as running:
        p.wait(running, lambda: p.count() == 3 and "kafka_topic_failed" in p.said(running))
        assert topic + "-typo" in p.said(running)
        p.stop(running)


def test_with_a_cursor_an_offset_of_the_group_that_is_wrong_is_corrected(tmp_path, client):
    topic = client.topic()
    client.produce(topic, *numbered(10))
    p = KafkaPipeline(tmp_path, client, topic, more="cursor: true")
    p.run_until(lambda: p.count() == 10 and p.lag() == 0)
    client.commit(p.group, topic, {0: 5000})
    client.produce(topic, *numbered(5, 10))
    p.run_until(lambda: p.count() == 15 and p.committed() == {0: 15})
    p.check(15)


def test_a_stop_right_after_the_start(tmp_path, client):
    """Whatever the member of the group does at that moment."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic)
    for turn in range(20):
        with p.start() as running:
            time.sleep(0.02 + 0.005 * turn)
            running.process.terminate()
            assert running.process.wait(30) in (0, -15), p.said(running)
