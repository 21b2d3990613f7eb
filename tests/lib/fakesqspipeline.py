"""A pipeline whose source is a queue of the fake SQS.

    with FakeSqs() as sqs:
        p = FakeSqsPipeline(tmp_path, sqs, visibility="30s")
        sqs.send(p.queue, *numbered(100))
        p.run_until(p.is_empty)
        p.check(100)"""

import itertools

import pytest

from brokerpipeline import CONFIG, TABLE, OnBroker
from harness import Pipeline, once

_numbers = itertools.count()


def need_sqs():
    """Skips loudly what cannot be tested here."""
    if not any(each["name"] == "sqs" and not each.get("error") for each in once("version", "--json").json["sources"]):
        pytest.skip("missing: libcurl in the build", allow_module_level=True)


class FakeSqsPipeline(OnBroker, Pipeline):
    """With a queue of its own. `env`: variables besides those of the fake, or None for one that is not set; `settings`: of the source."""
    kind = "sqs"

    def __init__(self, folder, sqs, config=CONFIG, tables=TABLE, env=None, wait="1s", fifo=False, **settings):
        self.sqs, self.queue = sqs, f"q{next(_numbers)}{'.fifo' if fifo else ''}"
        self.env = {name: value for name, value in sqs.env(**(env or {})).items() if value is not None}
        sqs.create(self.queue)
        fields = {"queue": self.queue, "endpoint": f'"{sqs.address}"', "wait": wait, **settings}
        super().__init__(str(folder), config, tables, source="{" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}")

    def start(self, *arguments, **more):
        return super().start(*arguments, env=self.env, **more)

    def once(self, verb, *arguments, **more):
        return super().once(verb, *arguments, env=self.env, **more)

    def is_empty(self):
        return not self.sqs.messages(self.queue)
