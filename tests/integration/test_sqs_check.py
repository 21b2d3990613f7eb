"""What `once` asks a queue without receiving from it: `check` and `status`. What ElasticMQ does not know (retention, rights) is asked of the
fake server in other tests."""

import pytest

import elasticmq
from brokerpipeline import CONFIG, numbered
from sqspipeline import SqsPipeline, need_sqs

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
