"""source: kafka, and rights on topics that are missing, taken away and given back while it runs."""

import pytest

import kafka
from kafkapipeline import KafkaPipeline, need_kafka, numbered

need_kafka()

LIMITED = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "limited", "sasl.password": "env:SECRET"}
SECRET = {"SECRET": kafka.USERS["limited"]}


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


@pytest.mark.parametrize("describe", [True, False])
def test_the_right_to_read_one_of_two_topics_is_taken_away_and_given_back(tmp_path, client, describe):
    """The other one is read meanwhile."""
    kept, closed = client.topic(), client.topic()
    if describe:
        client.allow(closed, "User:*", "all")
    p = KafkaPipeline(tmp_path, client, [kept, closed], brokers=kafka.sasl(client), properties=LIMITED)
    client.produce(kept, *numbered(5))
    client.produce(closed, *numbered(5, 5))
    with p.start(env=SECRET) as running:
        p.wait(running, lambda: p.count() == 10)
        client.deny(closed, "User:limited", "read")
        p.wait(running, lambda: "kafka_topic_failed" in p.said(running) and closed in p.said(running), what="it says so")
        client.produce(closed, *numbered(5, 10))
        client.produce(kept, *numbered(5, 15))
        p.wait(running, lambda: p.count() == 15, what="the other topic")
        client.deny_no_longer(closed, "User:limited", "read")
        if not describe:
            client.allow(closed, "User:*", "all")
        p.wait(running, lambda: p.count() == 20, what="it is read again")
        p.stop(running)
    p.check(20)


def test_the_only_topic_may_not_be_read_for_a_while_in_which_nothing_comes(tmp_path, client):
    """The end of a topic shows that it can be read, without a message."""
    topic = client.topic()
    client.allow(topic, "User:*", "all")
    p = KafkaPipeline(tmp_path, client, topic, brokers=kafka.sasl(client), properties=LIMITED)
    client.produce(topic, *numbered(5))
    with p.start(env=SECRET) as running:
        p.wait(running, lambda: p.count() == 5 and p.lag() == 0)
        client.deny(topic, "User:limited", "read")
        p.wait(running, lambda: "source_failed" in p.said(running) and "uthorization failed" in p.said(running), what="it says so")
        assert "source_works" not in p.said(running)
        client.deny_no_longer(topic, "User:limited", "read")
        p.wait(running, lambda: "source_works" in p.said(running), what="it works again")
        p.stop(running)


def test_acks_that_are_refused_for_one_topic_hold_up_no_other(tmp_path, client):
    """librdkafka says of all topics of a commit what the broker says of one."""
    kept, closed = client.topic(), client.topic()
    client.allow(closed, "User:*", "all")
    waits = "exec: [sh, -c, 'cat >/dev/null; : >began; while [ ! -e go ]; do sleep 0.05; done']"
    p = KafkaPipeline(tmp_path, client, [kept, closed], f"""batch: {{max: 10}}
type: "${{/type}}"
key: "${{/id}}"
handlers:
  wait: {{{waits}, timeout: 5m}}
  "*": {{sql: "INSERT INTO t(id, n) VALUES (:id, :n)"}}
""", brokers=kafka.sasl(client), properties=LIMITED)
    client.produce(closed, {"id": "waits", "type": "wait"})
    with p.start(env=SECRET) as running:
        p.wait(running, lambda: (tmp_path / "began").exists(), what="a message of that topic is in flight")
        client.deny(closed, "User:limited", "read")
        p.wait(running, lambda: "kafka_topic_failed" in p.said(running), what="it says so")
        (tmp_path / "go").touch()
        p.wait(running, lambda: "cannot commit offsets" in p.said(running), what="an ack is refused")
        for start in range(0, 1500, 100):
            client.produce(kept, *[dict(message, type="any") for message in numbered(100, start)])
        p.wait(running, lambda: p.count() == 1500 and client.lag(p.group, kept) == 0, what="the other topic is read and acked")
        client.deny_no_longer(closed, "User:limited", "read")
        p.wait(running, lambda: client.lag(p.group, closed) == 0, what="the ack comes after all")
        p.stop(running)
    p.check(1500)


def test_a_topic_that_may_not_be_read_yet_begins_where_it_was_when_it_was_found(tmp_path, client):
    """`latest`, and the place cannot be committed before the right is there."""
    kept, closed = client.topic(), client.topic()
    client.allow(closed, "User:limited", "describe")
    p = KafkaPipeline(tmp_path, client, [kept, closed], brokers=kafka.sasl(client), properties=LIMITED, more="start: latest")
    client.produce(closed, *numbered(5, 1000))
    with p.start(env=SECRET) as running:
        p.wait(running, lambda: "kafka_topic_failed" in p.said(running) and client.committed(p.group, kept) == {0: 0}, what="it says so")
        client.produce(closed, *numbered(5))
        client.produce(kept, *numbered(5, 5))
        p.wait(running, lambda: p.count() == 5, what="the other topic")
        client.allow(closed, "User:limited", "read")
        p.wait(running, lambda: p.count() == 10, what="it is read")
        p.stop(running)
    p.check(10)
