"""source: kafka, and what a run relied on is gone: topics, messages, offsets of the group. Each message that the broker still has
takes effect once; what is lost is said."""

import signal
import time

import pytest

import kafka
from brokerpipeline import lines
from harness import counts, stopped, until
from kafkapipeline import CONFIG, KafkaPipeline, need_kafka, numbered, source

need_kafka()

# Messages with "wait" end when the file `go` is there.
WAITING = """
key: "${/id}"
timeout: 5m
lease: 1s
unknown: retry
retry: {attempts: 100, backoff: 10ms..50ms}
handler: {exec: [sh, -c, 'read l; : >FOLDER/began; case "$l" in *wait*) while [ ! -e FOLDER/go ]; do sleep 0.05; done;; esac; echo "$1" >>FOLDER/ledger', sh, "${/id}"]}
"""
SOON = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}  # a killed member is soon none


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


def waiting(folder):
    return WAITING.replace("FOLDER", str(folder)).lstrip("\n")


def ledger(folder):
    return sorted(lines(folder, "ledger"))


def ids(messages):
    return sorted(message["id"] for message in messages)


# ---- topics ----

@pytest.mark.parametrize("standby", [False, True])
def test_a_topic_that_was_gone_for_a_while_begins_at_its_first_message(tmp_path, client, standby):
    """Also with `latest`, and in a worker that had no partition of it before."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more="start: latest")
    with p.start("--log-level=info") as first:
        p.wait(first, lambda: p.committed() == {0: 0})
        client.produce(topic, *numbered(5))
        p.wait(first, lambda: p.count() == 5 and p.lag() == 0)
        second = p.start() if standby else None
        try:
            p.wait(first, lambda: client.is_stable(p.group, 2 if standby else 1), what="all are members")
            client.delete(topic)
            p.wait(first, lambda: "is released" in p.said(first) or "is lost" in p.said(first), what="it notices that")
            if standby:
                p.wait(second, lambda: "not available" in p.said(second), what="the other one notices it, too")
                p.stop(first)
            client.topic(topic)
            client.produce(topic, *numbered(20, 5))
            p.wait(second or first, lambda: p.count() == 25, what="every message of the new topic")
            p.stop(second or first)
            assert "belongs to another worker" not in p.said(first)
        finally:
            if second:
                second.__exit__()
    p.check(25)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_made_anew_with_other_partitions_while_it_is_read(tmp_path, client, partitions):
    """It had two."""
    topic = client.topic(partitions=2)
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(40), partition=lambda n, _: n % 2)
    with p.start() as running:
        p.wait(running, lambda: p.count() == 40 and p.lag() == 0)
        client.delete(topic)
        client.topic(topic, partitions=partitions)
        client.produce(topic, *numbered(60, 40), partition=lambda n, _: n % partitions)
        until(lambda: running.process.poll() is not None or p.count() == 100, what="it ends, or goes on")
        if running.process.poll() is None:
            p.stop(running)
    if p.count() < 100:
        p.run_until(lambda: p.count() == 100 and p.lag() == 0)
    p.check(100)


@pytest.mark.parametrize("new", [10, 100])
def test_with_a_cursor_it_is_killed_before_it_has_settled_anything_of_the_new_topic(tmp_path, client, new):
    """The store still has the cursor of the old topic, and the group has an offset again."""
    topic, messages = client.topic(), numbered(40)
    more = "cursor: true, out_of_range: earliest"
    p = KafkaPipeline(tmp_path, client, topic, waiting(tmp_path), more=more, properties=SOON)
    client.produce(topic, *messages)
    p.run_until(lambda: ledger(tmp_path) == ids(messages) and p.lag() == 0)
    client.delete(topic)
    client.topic(topic)
    later = [dict(message, type="wait") for message in numbered(new, 40)]
    client.produce(topic, *later)
    with p.start() as running:
        p.wait(running, lambda: p.committed() == {0: 0}, what="it begins at the first message")
        p.kill(running)
    client.produce(topic, *numbered(100, 40 + new))
    (tmp_path / "go").touch()
    p.run_until(lambda: p.lag() == 0)
    assert ledger(tmp_path) == ids(numbered(140 + new))


def test_with_a_cursor_a_topic_made_anew_while_it_is_read(tmp_path, client):
    """As above, and the run itself has noticed that the broker's offsets went back."""
    topic, messages = client.topic(), numbered(40)
    p = KafkaPipeline(tmp_path, client, topic, waiting(tmp_path), more="cursor: true, out_of_range: earliest", properties=SOON)
    client.produce(topic, *messages)
    with p.start() as running:
        p.wait(running, lambda: ledger(tmp_path) == ids(messages) and p.lag() == 0)
        client.delete(topic)
        client.topic(topic)
        client.produce(topic, *[dict(message, type="wait") for message in numbered(10, 40)])
        p.wait(running, lambda: "kafka_out_of_range" in p.said(running) and p.committed() == {0: 0}, what="it notices that")
        p.kill(running)
    client.produce(topic, *numbered(100, 50))
    (tmp_path / "go").touch()
    p.run_until(lambda: p.lag() == 0)
    assert ledger(tmp_path) == ids(numbered(150))


def test_a_cursor_of_earlier_runs_does_not_count_after_runs_without_one(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more="cursor: true")
    client.produce(topic, *numbered(10))
    p.run_until(lambda: p.count() == 10 and p.lag() == 0)
    for n, more in ((30, ""), (40, "cursor: true"), (50, "cursor: true")):
        p.configure(CONFIG, source=source(client, topic, p.group, more))
        before = p.count()
        client.produce(topic, *numbered(n - before, before))
        counts(p.run_until(lambda: p.count() == n and p.lag() == 0), received=n - before, done=n - before)
    p.check(50)


# ---- messages ----

def test_messages_that_were_read_take_effect_although_the_broker_has_deleted_them(tmp_path, client):
    """Only what was deleted before it was read is lost, and the log says how much."""
    topic, messages = client.topic(), [dict(message, type="wait") for message in numbered(60)]
    p = KafkaPipeline(tmp_path, client, topic, "workers: 2\n" + waiting(tmp_path), more="out_of_range: earliest",
                      properties={"session.timeout.ms": 20000, "fetch.message.max.bytes": 1000})
    client.produce(topic, *messages[:20])
    with p.start() as running:
        p.wait(running, lambda: (tmp_path / "began").exists(), what="it has begun")
        time.sleep(0.3)  # it has read the others; if not, this test says less
        running.send(signal.SIGSTOP)
        until(lambda: stopped(running))
        for message in messages[20:]:
            client.produce(topic, message)  # each in a batch of its own: the fetch that is under way gets few
        client.delete_records(topic, 0, 55)
        running.send(signal.SIGCONT)
        p.wait(running, lambda: "kafka_out_of_range" in p.said(running), what="it finds that out")
        (tmp_path / "go").touch()
        p.wait(running, lambda: p.lag() == 0, what="it goes on behind them")
        p.stop(running)
        told = p.said(running)
    read = int(told.partition("goes on at offset 55 instead of ")[2].partition(";")[0])
    assert 0 < read < 55 and f"{55 - read} messages or fewer are lost" in told, told
    assert ledger(tmp_path) == ids(messages[:read] + messages[55:])


@pytest.mark.parametrize("more", ["", "cursor: true"])
def test_markers_at_the_end_are_no_lost_messages(tmp_path, client, more):
    """The broker deletes all that is old, also the marker behind the last message: the group is behind it."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more=more)
    client.transaction(topic, *numbered(5))
    client.transaction(topic, *numbered(5, 1000), commit=False)
    [(_, end)] = client.ends(topic).values()
    p.run_until(lambda: p.count() == 5 and p.committed() == {0: end}, what="the markers are passed")
    client.delete_records(topic, 0, end)
    client.produce(topic, *numbered(5, 5))
    p.run_until(lambda: p.count() == 10)
    p.check(10)


# ---- the group ----

def test_a_group_that_is_deleted_while_its_worker_is_stopped(tmp_path, client):
    """As an operator may do it: all was handled, so all of it is a duplicate; with `latest`, nothing is left out."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more="start: latest", properties=SOON)
    with p.start() as running:
        p.wait(running, lambda: p.committed() == {0: 0})
        client.produce(topic, *numbered(10))
        p.wait(running, lambda: p.count() == 10 and p.lag() == 0)
        running.send(signal.SIGSTOP)
        until(lambda: not client.members(p.group), what="its session has ended")
        client.forget(p.group)
        client.produce(topic, *numbered(10, 10))
        running.send(signal.SIGCONT)
        p.wait(running, lambda: p.count() == 20 and p.lag() == 0, what="it goes on")
        p.stop(running)
    p.check(20)
