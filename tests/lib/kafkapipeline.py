"""A pipeline whose source is topics of a Kafka, with a table that shows every effect: nothing in it stops a second one.

    topic = client.topic(partitions=3)
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(100))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 100)
        p.stop(running)
    p.check(100)"""

import os

import pytest

import jars
import kafka
from brokerpipeline import CONFIG, INSERT, TABLE, OnBroker, numbered  # noqa: F401: for tests, too
from harness import Pipeline, once
from kafkaclient import new_name
from pgpipeline import PostgresPipeline

# Short, so that a test does not wait for what a worker does rarely; not so short that a busy machine does not keep them.
PROPERTIES = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "topic.metadata.refresh.interval.ms": 500, "reconnect.backoff.max.ms": 500}


def need_kafka():
    """Skips loudly what cannot be tested here."""
    if not any(each["name"] == "kafka" and not each.get("error") for each in once("version", "--json").json["sources"]):
        pytest.skip("missing: librdkafka in the build", allow_module_level=True)
    try:
        jars.need("kafka")
    except kafka.Missing as why:
        pytest.skip(f"missing: {why}", allow_module_level=True)


def source(client, topics, group, more="", properties=None, brokers=None, beside=""):
    """The map of the source, as a pipeline file has it. `brokers`: instead of the client's, as a proxy; `beside`: fields of every source."""
    names = ", ".join([topics] if isinstance(topics, str) else topics)
    config = ", ".join(f"{name}: {value}" for name, value in {**PROPERTIES, **(properties or {})}.items())
    addresses = ", ".join(f'"{address}"' for address in (brokers or client.address).split(","))
    return f"{{brokers: [{addresses}], topics: [{names}], group: {group}, config: {{{config}}}{', ' if more else ''}{more}}}" \
        + (f", {beside}" if beside else "")


class OnKafka(OnBroker):
    kind = "kafka"


class KafkaPipeline(OnKafka, Pipeline):
    def __init__(self, folder, client, topics, config=CONFIG, tables=TABLE, group=None, store="sqlite:store.db", more="", properties=None,
                 brokers=None, beside="", name="p.yaml"):
        os.makedirs(folder, exist_ok=True)
        self.client, self.topic, self.group = client, topics, group or new_name("group")
        self.text = source(client, topics, self.group, more, properties, brokers, beside)
        super().__init__(str(folder), config, tables, store=store, source=self.text, name=name)

    def committed(self):
        return self.client.committed(self.group, self.topic)

    def lag(self):
        return self.client.lag(self.group, self.topic)


class KafkaPostgresPipeline(OnKafka, PostgresPipeline):
    def __init__(self, folder, client, topics, config=CONFIG, tables=TABLE, group=None, url=None, more="", properties=None, brokers=None,
                 server=None, name="p.yaml"):
        self.client, self.topic, self.group = client, topics, group or new_name("group")
        self.text = source(client, topics, self.group, more, properties, brokers)
        super().__init__(str(folder), config, tables, url=url, server=server, source=self.text, name=name)

    committed = KafkaPipeline.committed
    lag = KafkaPipeline.lag
