"""source: rabbitmq, killed at every step between receive and ack: the next run has the rest, and each message has its one effect."""

import pytest

import rabbitmq
from crashes import at_once
from harness import once
from brokerpipeline import CONFIG, numbered
from rabbitmqpipeline import RabbitPipeline, need_rabbitmq

need_rabbitmq()

POINTS = ("fetch_after", "claim_before", "claim_after", "effect_before", "effect_after", "settle_before", "settle_after", "commit_before",
          "commit_after", "ack_before", "ack_after")


@pytest.fixture(scope="module")
def client():
    return rabbitmq.shared()


def killed_at(folder, client, point, hit):
    queue = client.queue()
    p = RabbitPipeline(folder, client, queue, f"batch: {{max: 10}}\nlease: 1s\n{CONFIG}")
    client.publish(queue, *numbered(60), *numbered(5))
    with p.start(failpoint=f"{point}:kill:{hit}") as running:
        ended = running.end()
        assert ended.killed, f"{point} {hit} was not reached: {ended} {p.said(running)}"
    assert len(p.ids()) == len(set(p.ids())), point
    client.publish(queue, *numbered(1, 60))  # there is something to do, wherever it had got to
    p.run_until(lambda: p.count() == 61, what=f"the rest after {point}")
    p.check(61)


def test_killed_at_every_step(tmp_path, client):
    known = {point["name"] for point in once("version", "--json").json["failpoints"]}
    assert known.issuperset(POINTS)
    at_once(lambda case: killed_at(tmp_path / f"{case[0]}-{case[1]}", client, *case), [(point, 1) for point in POINTS])
