"""The Kafka that other tests use (tests/lib/kafka.py): what they take from it is so."""

import confluent_kafka
import pytest

import kafka
from harness import until
from kafkaclient import new_name

MECHANISMS = ["PLAIN", "SCRAM-SHA-256"]


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


def values(messages):
    return [message.value() for message in messages]


def test_messages_have_all_that_they_were_given(client):
    topic = client.topic(partitions=2)
    client.produce(topic, {"n": 1}, b"", None, key=lambda n, _: f"k{n}", partition=1, headers=[("h", b"\0")], timestamp=1700000000000)
    found = client.read(topic)
    assert [(m.value(), m.key(), m.partition(), m.offset(), m.headers(), m.timestamp()[1]) for m in found] == [
        (b'{"n": 1}', b"k0", 1, 0, [("h", b"\0")], 1700000000000),
        (b"", b"k1", 1, 1, [("h", b"\0")], 1700000000000),
        (None, b"k2", 1, 2, [("h", b"\0")], 1700000000000)]


def test_what_is_aborted_is_read_by_nobody_who_asks_for_committed_messages(client):
    topic = client.topic()
    client.transaction(topic, b"aborted", commit=False)
    client.transaction(topic, b"committed")
    assert values(client.read(topic)) == [b"committed"]
    assert values(client.read(topic, "read_uncommitted")) == [b"aborted", b"committed"]
    assert client.ends(topic) == {0: (0, 4)}, "each transaction has its marker"


def test_topics_grow_lose_their_start_and_are_made_anew(client):
    topic = client.topic(retention_ms=3600000)
    client.produce(topic, b"a", b"b", b"c")
    assert client.delete_records(topic, 0, 2) == 2
    assert client.ends(topic) == {0: (2, 3)}
    client.grow(topic, 3)
    assert set(client.leaders(topic)) == {0, 1, 2}
    client.delete(topic)
    assert client.leaders(topic) == {}
    client.topic(topic)
    assert client.ends(topic) == {0: (0, 0)}


def test_offsets_and_members_of_a_group(client):
    topic, group = client.topic(partitions=2), new_name("group")
    client.produce(topic, b"a", b"b", partition=0)
    assert client.committed(group, topic) == {} and client.lag(group, topic) == 2
    client.commit(group, topic, {0: 1})
    assert client.committed(group, topic) == {0: 1} and client.lag(group, topic) == 1
    consumer = confluent_kafka.Consumer({**client.config, "group.id": group, "group.instance.id": "i1", "client.id": "someone"})
    consumer.subscribe([topic])
    try:
        until(lambda: consumer.poll(0.1) or client.is_stable(group, 1), what="it is a member")
        assert [(member.instance, member.client) for member in client.members(group)] == [("i1", "someone")]
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_names_and_passwords(client, mechanism):
    topic = client.topic()
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "alice"}
    alice = kafka.Client(kafka.sasl(client), **settings, **{"sasl.password": kafka.USERS["alice"]})
    alice.produce(topic, b"from alice")
    assert values(client.read(topic)) == [b"from alice"]
    client.allow(topic, "User:*", "all")
    client.deny(topic, "User:alice", "write")
    with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
        alice.produce(topic, b"denied")
    errors = []
    stranger = kafka.Client(kafka.sasl(client), **settings, **{"sasl.password": "wrong", "error_cb": errors.append})
    until(lambda: stranger.producer.poll(0.1) or errors, what="it is refused")
    until(lambda: stranger.producer.poll(0.1) or any(e.code() == confluent_kafka.KafkaError._AUTHENTICATION for e in errors), what="for its password")


def test_tokens(client):
    topic = client.topic()
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "enable.sasl.oauthbearer.unsecure.jwt": "true",
                "sasl.oauthbearer.config": "principal=alice"}
    kafka.Client(kafka.sasl(client), **settings).produce(topic, b"with a token")
    assert values(client.read(topic)) == [b"with a token"]


def test_tls(client):
    topic = client.topic()
    kafka.Client(kafka.tls(client), **{"security.protocol": "SSL", "ssl.ca.location": client.ca}).produce(topic, b"sealed")
    assert values(client.read(topic)) == [b"sealed"]
