"""A pipeline whose source is a queue of SQS.

    queue = client.queue()
    p = SqsPipeline(tmp_path, client, queue)
    client.send(queue, *numbered(100))
    p.run_until(lambda: p.count() == 100)
    p.check(100)"""

import os

import pytest

import elasticmq
import jars
from brokerpipeline import CONFIG, TABLE, OnBroker
from harness import Pipeline, once


def need_sqs():
    """Skips loudly what cannot be tested here."""
    if not any(each["name"] == "sqs" and not each.get("error") for each in once("version", "--json").json["sources"]):
        pytest.skip("missing: libcurl in the build", allow_module_level=True)
    try:
        jars.need("elasticmq")
    except jars.Missing as why:
        pytest.skip(f"missing: {why}", allow_module_level=True)


class SqsPipeline(OnBroker, Pipeline):
    kind = "sqs"

    def __init__(self, folder, client, queue, config=CONFIG, tables=TABLE, more="", endpoint=None, beside="", name="p.yaml", env=None):
        os.makedirs(folder, exist_ok=True)
        self.client, self.queue = client, queue
        self.env = {**elasticmq.KEYS, **(env or {})}
        source = f'{{queue: "{queue}", endpoint: "{endpoint or client.address}", wait: 2s{", " if more else ""}{more}}}' + (f", {beside}" if beside else "")
        super().__init__(str(folder), config, tables, source=source, name=name)

    def start(self, *arguments, **more):
        return super().start(*arguments, env={**self.env, **more.pop("env", {})}, **more)

    def once(self, verb, *arguments, **more):
        return super().once(verb, *arguments, env={**self.env, **more.pop("env", {})}, **more)

    def is_done(self, n):
        """All effects have happened, and the queue knows it."""
        return self.count() == n and self.client.is_empty(self.queue)
