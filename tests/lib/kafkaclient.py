"""What a test does with the topics and groups of a Kafka, beside the product.

    topic = client.topic(partitions=3)                    # a new one, with a name of its own
    client.produce(topic, {"id": 1}, {"id": 2}, key="a")  # dicts become JSON; None is a tombstone
    until(lambda: client.lag("group", topic) == 0)"""

import itertools
import os
import random
import threading
import time

import confluent_kafka
import confluent_kafka.admin

import kafkawire as wire
from harness import encode, until

_numbers = itertools.count()


def new_name(kind="topic"):
    return f"{kind}-{os.getpid()}-{random.randrange(1 << 32):08x}-{next(_numbers)}"


def patiently(ask, *arguments):
    """Asks again while a broker that has just started is not ready."""
    def answered():
        try:
            return [ask(*arguments)]
        except wire.Refused as why:
            if why.code not in wire.SOON:
                raise
            return None

    return until(answered, what="an answer")[0]


def _once_a_broker_is_there(ask):
    """One that has just started, or that is very busy, is taken for gone, and no partition can be placed."""
    def done():
        try:
            ask().result(30)
            return True
        except confluent_kafka.KafkaException as why:
            if why.args[0].code() != confluent_kafka.KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            return False

    until(done, what="a broker that can be used")


class Client:
    def __init__(self, address, **config):
        self.address = address
        self.config = {"bootstrap.servers": address, "log_level": 0, **config}
        self._admin = self._producer = None  # their truth is how many messages they have
        self._lock = threading.Lock()

    @property
    def admin(self):
        with self._lock:
            if self._admin is None:
                self._admin = confluent_kafka.admin.AdminClient(self.config)
            return self._admin

    # ---- topics ----

    def topic(self, name=None, partitions=1, replicas=1, **config):
        """Makes one that can be written to at once; `max_message_bytes=100` sets max.message.bytes."""
        name = name or new_name()
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = confluent_kafka.admin.NewTopic(name, partitions, replicas, config=settings)
        _once_a_broker_is_there(lambda: self.admin.create_topics([new])[name])
        until(lambda: len(self.leaders(name)) == partitions, what=f"{name} has leaders")
        return name

    def grow(self, topic, partitions):
        _once_a_broker_is_there(lambda: self.admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, partitions)])[topic])
        until(lambda: len(self.leaders(topic)) == partitions, what=f"{topic} has {partitions} leaders")
        self._producer = None  # it would not know of them for minutes

    def delete(self, topic):
        self.admin.delete_topics([topic], operation_timeout=30)[topic].result(40)
        until(lambda: not self.leaders(topic), what=f"{topic} is gone")
        self._producer = None  # it would take one that is made anew for this one

    def configure(self, topic, **config):
        """Sets these, and all others to their defaults."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        resource = confluent_kafka.admin.ConfigResource("topic", topic, set_config=settings)
        self.admin.alter_configs([resource])[resource].result(30)

    def _partitions(self, topic):
        """{partition: node}; -1: it has no leader, as for a moment after its broker was paused."""
        return wire.metadata(self.address, topic)[1].get(topic, {})

    def leaders(self, topic):
        """{partition: node} of those that have one."""
        return {number: leader for number, leader in self._partitions(topic).items() if leader >= 0}

    def _leader(self, topic, number):
        nodes, topics = wire.metadata(self.address, topic)
        if topics[topic][number] not in nodes:
            raise wire.Refused(f"the leader of {topic}/{number}", wire.NO_LEADER)
        return nodes[topics[topic][number]]

    def ends(self, topic):
        """{partition: (offset of the first message, offset behind the last)}."""
        return {number: tuple(patiently(self._offset_at, topic, number, time) for time in (-2, -1)) for number in self._partitions(topic)}

    def _offset_at(self, topic, number, time):
        return wire.offset_at(self._leader(topic, number), topic, number, time)

    def delete_records(self, topic, partition, before):
        return wire.delete_records(self._leader(topic, partition), topic, partition, before)

    def allow(self, topic, principal, operation):
        """A topic with rules is closed for everybody whom they do not allow."""
        wire.create_acl(self.address, topic, principal, operation, True)

    def deny(self, topic, principal, operation):
        wire.create_acl(self.address, topic, principal, operation, False)

    def deny_no_longer(self, topic, principal, operation):
        wire.delete_acl(self.address, topic, principal, operation, False)

    def deny_group(self, group, principal, operation):
        wire.create_acl(self.address, group, principal, operation, False, wire.GROUP)

    # ---- messages ----

    @property
    def producer(self):
        with self._lock:
            if self._producer is None:
                self._producer = confluent_kafka.Producer({**self.config, "acks": "all", "message.max.bytes": 20000000})
            return self._producer

    def produce(self, topic, *messages, producer=None, flush=True, **more):
        """`key`, `partition`, `headers` and `timestamp` go to each message; a function of (number, message) gives one for each."""
        producer = self.producer if producer is None else producer
        failed = []

        def told(error, message):
            if error:
                failed.append(error)

        for number, message in enumerate(messages):
            own = {name: value(number, message) if callable(value) else value for name, value in more.items()}
            value = None if message is None else encode(message)
            while True:
                try:
                    producer.produce(topic, value, on_delivery=told, **own)
                    break
                except BufferError:
                    producer.poll(0.1)
        if flush:
            left = producer.flush(60)
            assert not failed and left == 0, f"{failed[:3]}, {left} are left"

    def produce_raw(self, topic, message, headers, key=b"", partition=0):
        """With headers whose names are any bytes."""
        wire.produce(self._leader(topic, partition), topic, partition, key, encode(message), headers, int(time.time() * 1000))

    def transaction(self, topic, *messages, commit=True, **more):
        """All of them or none, as a transactional producer. Returns when the markers are in the topic."""
        config = {**self.config, "transactional.id": new_name("producer")}
        producer = confluent_kafka.Producer(config)
        producer.init_transactions(30)
        producer.begin_transaction()
        self.produce(topic, *messages, producer=producer, **more)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
        confluent_kafka.Producer(config).init_transactions(30)  # the broker answers its successor when the markers are written

    def read(self, topic, isolation="read_committed"):
        """Every message that a new group would get, as confluent_kafka has them."""
        consumer = confluent_kafka.Consumer({**self.config, "group.id": new_name("reader"), "isolation.level": isolation,
                                             "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 100})
        try:
            partitions = sorted(self.leaders(topic))
            consumer.assign([confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING) for number in partitions])
            found, ended = [], set()
            while len(ended) < len(partitions):
                message = consumer.poll(30)
                assert message is not None, f"{topic} does not answer"
                if message.error():
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                    ended.add(message.partition())
                else:
                    found.append(message)
            return found
        finally:
            consumer.close()

    # ---- groups ----

    def committed(self, group, topic):
        """{partition: offset} of those that have one."""
        return patiently(wire.committed, self.address, group, topic, sorted(self._partitions(topic)))

    def commit(self, group, topic, offsets):
        """Of a group without members."""
        patiently(wire.commit, self.address, group, topic, offsets)

    def forget(self, group):
        wire.delete_group(self.address, group)

    def members(self, group):
        """With id, instance, client, host; one that has died is a member until its session has timed out."""
        return patiently(wire.group, self.address, group)[1]

    def is_stable(self, group, members):
        state, found = patiently(wire.group, self.address, group)
        return state == "Stable" and len(found) == members

    def lag(self, group, topic):
        """Messages and holes behind what is committed, over all partitions."""
        done = self.committed(group, topic)
        return sum(high - done.get(number, low) for number, (low, high) in self.ends(topic).items())
