"""A pipeline whose source is a queue of a RabbitMQ, with a table that shows every effect: nothing in it stops a second one.

    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue)
    client.publish(queue, *numbered(100))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 100)
        p.stop(running)
    p.check(100)"""

import os

import pytest

import rabbitmq
from harness import Pipeline, once
from brokerpipeline import CONFIG, TABLE, OnBroker
from pgpipeline import PostgresPipeline


def need_rabbitmq():
    """Skips loudly what cannot be tested here."""
    if not any(each["name"] == "rabbitmq" and not each.get("error") for each in once("version", "--json").json["sources"]):
        pytest.skip("missing: librabbitmq in the build", allow_module_level=True)
    try:
        rabbitmq.need()
    except rabbitmq.Missing as why:
        pytest.skip(f"missing: {why}", allow_module_level=True)


def source(client, queue, more="", port=None, heartbeat="2s"):
    """The map of the source, as a pipeline file has it. `port`: instead of the client's, as a proxy."""
    url = f"amqp://127.0.0.1:{port or client.port}"
    return f'{{url: "{url}", queue: {queue}, heartbeat: {heartbeat}{", " if more else ""}{more}}}'


class OnRabbit(OnBroker):
    kind = "rabbitmq"

    def ready(self):
        return self.client.ready(self.queue)

    def unacked(self):
        """What is delivered and not acked. The server counts that every five seconds, so it may be late."""
        return self.client.about(self.queue).get("messages_unacknowledged")

    def stop(self, running, status=0, left=0):
        """What it has not acked is back in the queue then."""
        summary = super().stop(running, status)
        assert self.ready() == left, f"{self.ready()} are left: {summary}\n{self.said(running)[-3000:]}"
        return summary


class RabbitPipeline(OnRabbit, Pipeline):
    def __init__(self, folder, client, queue, config=CONFIG, tables=TABLE, store="sqlite:store.db", more="", port=None, heartbeat="2s", beside="",
                 name="p.yaml"):
        os.makedirs(folder, exist_ok=True)
        self.client, self.queue = client, queue
        self.text = source(client, queue, more, port, heartbeat) + (f", {beside}" if beside else "")
        super().__init__(str(folder), config, tables, store=store, source=self.text, name=name)


class RabbitPostgresPipeline(OnRabbit, PostgresPipeline):
    def __init__(self, folder, client, queue, config=CONFIG, tables=TABLE, url=None, more="", port=None, server=None, heartbeat="2s", name="p.yaml"):
        self.client, self.queue = client, queue
        self.text = source(client, queue, more, port, heartbeat)
        super().__init__(str(folder), config, tables, url=url, server=server, source=self.text, name=name)
