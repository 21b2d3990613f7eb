"""What `once` asks a queue without receiving from it: `check` and `status`. What ElasticMQ does not know (retention, rights) is asked of the
fake server."""

import json
import time

import pytest

import elasticmq
from brokerpipeline import CONFIG, numbered
from fakesqs import FakeSqs
from sqspipeline import SqsPipeline, need_sqs
from terminal import Terminal

need_sqs()


@pytest.fixture(scope="module")
def client():
    return elasticmq.shared()


def findings(p, status=0):
    ended = p.once("check", p.name)
    assert ended.status == status, ended
    return ended.out + ended.err


def test_check_takes_no_message_and_says_what_the_queue_is(tmp_path, client):
    letters = client.queue()
    queue = client.queue(visibility=45, dead_letters=letters, deliveries=2)
    p = SqsPipeline(tmp_path, client, queue)
    client.send(queue, *numbered(3))
    said = findings(p)
    name = queue.rpartition("/")[2]
    for words in (f"queue '{name}' is a standard queue", "come again after 45s", "could not read MessageRetentionPeriod",
                  f"queue '{name}': maxReceiveCount 2", "a crash or a restart of a worker spends one",
                  f"how long the dead-letter queue '{letters.rpartition('/')[2]}' keeps messages"):
        assert words in said, f"{words}\n{said}"
    assert client.counts(queue) == (3, 0, 0)


def test_check_of_a_fifo_queue_and_of_keys(tmp_path, client):
    queue = client.queue(fifo=True)
    p = SqsPipeline(tmp_path, client, queue, CONFIG.replace("${/id}", "${source:message_id}"))
    said = findings(p)
    assert "is a FIFO queue" in said and "has no dead-letter queue" in said, said
    assert "it does not catch a second send by the producer" in said, said


def test_a_queue_that_does_not_exist_and_a_server_that_is_away(tmp_path, client):
    p = SqsPipeline(tmp_path, client, client.address + "/000000000000/none")
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status not in (0, 1) and "QueueDoesNotExist" in ended.err and "p.yaml" in ended.err, ended
    p = SqsPipeline(tmp_path / "away", client, "http://127.0.0.1:1/1/q", endpoint="http://127.0.0.1:1")
    ended = p.once("check", p.name)
    assert ended.status != 0 and "no answer from 'http://127.0.0.1:1/'" in ended.err, ended


def test_without_credentials_and_without_a_region_it_says_so(tmp_path, client):
    queue = client.queue()
    nothing = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    p = SqsPipeline(tmp_path, client, queue, env=nothing)
    ended = p.once("check", p.name)
    assert ended.status != 0 and "redential" in ended.err, ended
    p = SqsPipeline(tmp_path / "no-region", client, queue, env={"AWS_REGION": "", "HOME": str(tmp_path)})
    ended = p.once("check", p.name)
    assert ended.status == 2 and "no region is known" in ended.err and "p.yaml:3" in ended.err, ended


def test_status_counts_what_is_ready_in_flight_and_delayed(tmp_path, client):
    queue = client.queue()
    p = SqsPipeline(tmp_path, client, queue)
    client.send(queue, *numbered(5))
    client.send(queue, *numbered(2, 5), delay=900)
    client.receive(queue, 3)
    p.once("check", p.name)
    name = queue.rpartition("/")[2]
    status = p.once("status", "--json", p.name).json
    assert status["lag"]["streams"] == [{"name": name, "left": 2}, {"name": f"{name} (in flight)", "left": 3},
                                        {"name": f"{name} (delayed)", "left": 2}], status
    assert status["lag"]["left"] == 7


def test_status_does_not_wait_for_a_server_that_does_not_answer(tmp_path, sqs):
    p = asking(tmp_path, sqs, "mute")
    p.once("check", p.name)
    p.configure(CONFIG, source=f'{{queue: mute, endpoint: "{sqs.address}"}}')  # by its name: its URL must be asked for
    sqs.fault("GetQueueUrl", hang=True)
    began = time.monotonic()
    ended = p.once("status", p.name)
    assert ended.status == 0 and "could not be read: GetQueueUrl: no answer from" in ended.out, ended
    assert time.monotonic() - began < 4


# ---- the progress line ----

WAITS = 'key: "${/id}"\nhandler: {exec: [sh, -c, "while ! test -e go; do sleep 0.05; done"]}\n'


def test_the_progress_line_shows_what_is_ready_in_flight_and_delayed(tmp_path, client):
    queue = client.queue()
    p = SqsPipeline(tmp_path, client, queue, WAITS)
    client.send(queue, *numbered(4))
    client.send(queue, *numbered(2, 4), delay=900)
    with Terminal(p, env=p.env) as terminal:
        terminal.see(rf"lag 6 \({queue.rpartition('/')[2]}: 0 ready, 4 in flight, 2 delayed\)")
        (tmp_path / "go").touch()
        terminal.see(r"4 done.*lag 2 .*: 0 ready, 0 in flight, 2 delayed\)")
    assert terminal.status == 0


def test_a_run_counts_only_while_somebody_looks(tmp_path, sqs):
    """Each request costs. Where the right to ask is missing, nothing is shown, and all the rest works."""
    p = asking(tmp_path, sqs, "unseen")
    sqs.send("unseen", *numbered(5))
    before = len(sqs.calls("GetQueueAttributes"))
    p.run_until(lambda: p.count() == 5 and not sqs.messages("unseen"))
    assert len(sqs.calls("GetQueueAttributes")) == before + 1, "the visibility timeout alone is asked for"
    sqs.fault("GetQueueAttributes", error=(403, "com.amazon.coral.service#AccessDeniedException", "no"), times=1000)
    sqs.send("unseen", *numbered(5, 5))
    with Terminal(p, env=p.env) as terminal:
        terminal.see(r"5 done")
    sqs.control(do="set", faults=[])
    assert terminal.status == 0 and "lag" not in terminal.seen, terminal.seen
    assert len(sqs.calls("GetQueueAttributes")) <= before + 4, "it asks again and again"


# ---- what Amazon SQS tells ----

DAY_S = 86400


@pytest.fixture(scope="module")
def sqs():
    with FakeSqs() as server:
        yield server


def asking(folder, sqs, name, remember="15d", env=None, **attributes):
    """A pipeline on a new queue of the fake."""
    queue = sqs.create(name, **attributes)
    return SqsPipeline(folder, sqs, queue, f"remember: {remember}\n{CONFIG}", env={**sqs.env(), **(env or {})})


def policy(name, deliveries):
    return json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:eu-central-1:000000000000:{name}", "maxReceiveCount": deliveries})


def test_retention_is_compared_with_remember(tmp_path, sqs):
    p = asking(tmp_path, sqs, "long", remember="7d", MessageRetentionPeriod=14 * DAY_S)
    ended = p.once("check", p.name)
    assert ended.status == 2 and "p.yaml:4: 'remember' (7d) is shorter than queue 'long' keeps messages (14d, MessageRetentionPeriod)" in ended.err, ended
    p = asking(tmp_path / "fits", sqs, "short", remember="7d", MessageRetentionPeriod=4 * DAY_S)
    assert "queue 'short': MessageRetentionPeriod 4d" in findings(p)


def test_the_dead_letter_queue_must_keep_messages_for_longer(tmp_path, sqs):
    sqs.create("letters", MessageRetentionPeriod=4 * DAY_S)
    p = asking(tmp_path, sqs, "with-letters", MessageRetentionPeriod=4 * DAY_S, RedrivePolicy=policy("letters", 5))
    said = findings(p)
    assert "after 5 deliveries a message goes to the dead-letter queue 'letters', which keeps it for 4d" in said, said
    assert "the dead-letter queue 'letters' keeps messages for 4d, not longer than the queue (4d)" in said, said
    assert "spends one" not in said, "five are enough"
    sqs.ok("SetQueueAttributes", QueueUrl=sqs.url("letters"), Attributes={"MessageRetentionPeriod": str(14 * DAY_S)})
    assert "not longer than the queue" not in findings(p)
    p = asking(tmp_path / "gone", sqs, "without-letters", RedrivePolicy=policy("none", 5))
    assert "could not ask how long the dead-letter queue 'none' keeps messages" in findings(p)


def test_rights_that_are_missing_are_named(tmp_path, sqs):
    p = asking(tmp_path, sqs, "denied")
    denied = (403, "com.amazon.coral.service#AccessDeniedException", "User is not authorized to perform: sqs:getqueueattributes")
    sqs.fault("GetQueueAttributes", error=denied, times=2)
    said = findings(p)
    assert "could not read MessageRetentionPeriod of queue 'denied'" in said and "sqs:getqueueattributes" in said, said
    sqs.fault("GetQueueAttributes", error=denied, times=1)
    sqs.send("denied", *numbered(3))
    p.run_until(lambda: p.count() == 3 and not sqs.messages("denied"))  # a run does not need that right
    p.check(3)


def test_the_key_after_a_redrive(tmp_path, sqs):
    """A message that is moved back from the dead-letter queue has a new id: a business key knows it, its id does not."""
    sqs.create("dead")
    for number, (key, times) in enumerate((("${/id}", 1), ("${source:message_id}", 2))):
        name = f"live{number}"
        p = SqsPipeline(tmp_path / name, sqs, sqs.create(name), CONFIG.replace("${/id}", key), env=sqs.env())
        sqs.send(name, {"id": "m0", "n": 0})
        with p.start() as running:
            p.wait(running, lambda: p.count() == 1 and not sqs.messages(name), what="the first one is deleted")
            sqs.send("dead", {"id": "m0", "n": 0})
            sqs.control(do="redrive", source="dead", to=name)
            p.wait(running, lambda: not sqs.messages(name), what="the one that came back is deleted")
            assert p.stop(running)["received"] == 2
        assert p.count() == times, key
