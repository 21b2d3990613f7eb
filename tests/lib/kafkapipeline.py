"""A pipeline whose source is topics of a Kafka, with a table that shows every effect: nothing in it stops a second one.

    topic = client.topic(partitions=3)
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(100))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 100)
        p.stop(running)
    p.check(100)"""

import collections
import itertools
import os
import signal

import pytest

import kafka
from harness import Pipeline, check_sum, once, until
from kafkaclient import new_name
from pgpipeline import PostgresPipeline

TABLE = "CREATE TABLE t(id TEXT, n INTEGER);"
INSERT = "INSERT INTO t(id, n) VALUES (:id, :n)"
CONFIG = f'key: "${{/id}}"\nhandler: {{sql: "{INSERT}"}}\n'
# Short, so that a test does not wait for what a worker does rarely; not so short that a busy machine does not keep them.
PROPERTIES = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "topic.metadata.refresh.interval.ms": 500, "reconnect.backoff.max.ms": 500}


def need_kafka():
    """Skips loudly what cannot be tested here."""
    if not any(each["name"] == "kafka" and not each.get("error") for each in once("version", "--json").json["sources"]):
        pytest.skip("missing: librdkafka in the build", allow_module_level=True)
    try:
        kafka.need_jars()
    except kafka.Missing as why:
        pytest.skip(f"missing: {why}", allow_module_level=True)


def numbered(n, start=0):
    return [{"id": f"m{i}", "n": i} for i in range(start, start + n)]


def source(client, topics, group, more="", properties=None, brokers=None, beside=""):
    """The map of the source, as a pipeline file has it. `brokers`: instead of the client's, as a proxy; `beside`: fields of every source."""
    names = ", ".join([topics] if isinstance(topics, str) else topics)
    config = ", ".join(f"{name}: {value}" for name, value in {**PROPERTIES, **(properties or {})}.items())
    addresses = ", ".join(f'"{address}"' for address in (brokers or client.address).split(","))
    return f"{{brokers: [{addresses}], topics: [{names}], group: {group}, config: {{{config}}}{', ' if more else ''}{more}}}" \
        + (f", {beside}" if beside else "")


class OnKafka:
    kind = "kafka"
    logs = None

    def start(self, *arguments, **more):
        """Its log goes to a file: a run that says much is not held up by a pipe that nobody reads."""
        if "stderr" in more:
            return super().start(*arguments, **more)
        self.logs = self.logs or itertools.count()
        path = os.path.join(self.folder, f"{self.name}.{next(self.logs)}.log")
        with open(path, "wb") as log:
            running = super().start(*arguments, stderr=log, **more)
        running.log = path
        return running

    def said(self, running):
        with open(running.log, errors="replace") as file:
            return file.read()

    def wait(self, running, condition, deadline_s=30, what="the condition"):
        """Until it is true; one that ends meanwhile is told."""
        def holds():
            assert running.process.poll() is None, f"it ended before {what}: {running.end()}\n{self.said(running)[-3000:]}"
            return condition()

        try:
            return until(holds, deadline_s, what)
        except AssertionError as why:
            raise AssertionError(f"{why}\n--- log\n{self.said(running)[-3000:]}") from why

    def stop(self, running, status=0):
        """By SIGTERM; its summary."""
        running.send(signal.SIGTERM)
        ended = running.end()
        assert ended.status == status, f"{ended}\n{self.said(running)[-3000:]}"
        check_sum(ended.json)
        return ended.json

    def kill(self, running):
        running.send(signal.SIGKILL)
        running.end()

    def run_until(self, condition, status=0, what="the condition", **more):
        with self.start(**more) as running:
            self.wait(running, condition, what=what)
            return self.stop(running, status)

    # ---- what has happened ----

    def count(self):
        return self.value("SELECT count(*) FROM t")

    def ids(self):
        return [id for id, in self.rows("SELECT id FROM t")]

    def check(self, n):
        """m0 to m(n - 1), each of them once."""
        found = collections.Counter(self.ids())
        assert {id: times for id, times in found.items() if times > 1} == {}, "effects that happened twice"
        wanted = {message["id"] for message in numbered(n)}
        assert set(found) == wanted, f"lost: {sorted(wanted - set(found))[:5]}, not sent: {sorted(set(found) - wanted)[:5]}"


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
