"""source: kafka, killed at every step between receive and ack: the next run has the rest, and each message has its one effect."""

import pytest

import kafka
from crashes import at_once
from harness import once
from kafkapipeline import CONFIG, KafkaPipeline, need_kafka, numbered

need_kafka()

# Steps that an atomic effect of a message from a log comes by; in each of the two ways to keep offsets.
POINTS = ("fetch_after", "claim_before", "claim_after", "effect_before", "effect_after", "settle_before", "settle_after", "commit_before",
          "commit_after", "ack_before", "ack_after")


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


def killed_at(folder, client, point, hit, more):
    topic = client.topic(partitions=2)
    p = KafkaPipeline(folder, client, topic, f"batch: {{max: 10}}\nlease: 1s\n{CONFIG}", more=more, properties={"session.timeout.ms": 2000})
    client.produce(topic, *numbered(60), *numbered(5), key=lambda n, message: message["id"])
    with p.start(failpoint=f"{point}:kill:{hit}") as running:
        ended = running.end()
        assert ended.killed, f"{point} {hit} was not reached: {ended} {p.said(running)}"
    assert len(p.ids()) == len(set(p.ids())), point
    client.produce(topic, *numbered(1, 60))  # there is something to do, wherever it had got to
    p.run_until(lambda: p.count() == 61 and p.lag() == 0, what=f"the rest after {point}")
    p.check(61)


@pytest.mark.parametrize("more", ["", "cursor: true"])
def test_killed_at_every_step(tmp_path, client, more):
    known = {point["name"] for point in once("version", "--json").json["failpoints"]}
    assert known.issuperset(POINTS)
    cases = [(point, hit) for point in POINTS for hit in ((1,) if point.startswith("ack") else (1, 3))]  # an ack is of several batches
    at_once(lambda case: killed_at(tmp_path / f"{case[0]}-{case[1]}", client, *case, more), cases)
