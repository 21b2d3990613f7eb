"""source: sqs against ElasticMQ: what each kind of message becomes, and that each has its one effect when workers and the server are killed.
Effects are read in the user's table, or in a file that a command writes; what is left is asked of the queue."""

import collections
import threading

import pytest

import elasticmq
from brokerpipeline import CONFIG, INSERT, lines, numbered
from crashes import at_once
from harness import counts, until
from sqspipeline import SqsPipeline, need_sqs
from tcpproxy import Proxy

need_sqs()

# Each message is a line of a file outside of the store.
LEDGER = """
key: "${source:message_id}"
%s
handler:
  exec: [sh, -c, 'cat >/dev/null; printf "%%s\\n" "$*" >>%s/ledger; %s', sh, %s]
"""


@pytest.fixture(scope="module")
def client():
    return elasticmq.shared()


def ledger(folder):
    return lines(folder, "ledger")


# ---- the way of a message ----

def test_each_message_takes_effect_once_and_is_deleted(tmp_path, client):
    queue = client.queue(visibility=3)  # the last poll of the first run may hide messages for so long
    p = SqsPipeline(tmp_path, client, queue)
    client.send(queue, *numbered(150), *numbered(20))
    summary = p.run_until(lambda: p.is_done(150))
    counts(summary, received=170, done=150, duplicates=20)
    assert summary["acked"] == 170
    p.check(150)
    client.send(queue, *numbered(5, 150))
    counts(p.run_until(lambda: p.is_done(155)), received=5, done=5)
    p.check(155)


def test_templates_have_what_the_message_has(tmp_path, client):
    queue = client.queue(fifo=True)
    words = ["${source:group}", "${source:deduplication_id}", "${source:sent}", "${source:receive_count}", "${header:h}", "${header:n}", "${/id}"]
    p = SqsPipeline(tmp_path, client, queue, LEDGER % ("", tmp_path, "", ", ".join(f'"{word}"' for word in words)))
    binary = {"DataType": "Binary", "BinaryValue": "AAEC"}
    id, = client.send(queue, {"id": "a"}, group="ann", attributes={"h": "grüß", "n": {"DataType": "Number", "StringValue": "12.50"}, "b": binary})
    p.run_until(lambda: ledger(tmp_path) and client.is_empty(queue))
    group, deduplication, sent, received, header, number, body = ledger(tmp_path)[0].split()
    assert (group, received, header, number, body) == ("ann", "1", "grüß", "12.50", "a") and int(sent) > 1 << 40 and deduplication
    entry = p.explain(id)[0]
    assert (entry["state"], entry["place"], entry["point"]) == ("done", "000000000000/" + queue.rpartition("/")[2], id), entry


def test_a_message_whose_body_is_in_s3_is_a_letter_that_says_so(tmp_path, client):
    queue = client.queue()
    p = SqsPipeline(tmp_path, client, queue)
    client.send(queue, '["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"b","s3Key":"k"}]')
    client.send(queue, {"id": "large", "n": 1}, attributes={"ExtendedPayloadSize": {"DataType": "Number", "StringValue": "300000"}})
    client.send(queue, *numbered(1))
    counts(p.run_until(lambda: p.is_done(1), status=1), received=3, done=1, dead=2)
    reasons = [reason for reason, in p.rows("SELECT CAST(reason AS TEXT) FROM once_letter")]
    assert len(reasons) == 2 and all("is in S3" in reason for reason in reasons), reasons


def test_a_handler_may_take_longer_than_the_visibility_timeout(tmp_path, client):
    """Its message is extended, and so are those that wait behind it."""
    queue = client.queue(visibility=1)
    p = SqsPipeline(tmp_path, client, queue, LEDGER % ("workers: 1", tmp_path, "sleep 1.2", '"${source:receive_count}"'))
    client.send(queue, *numbered(3))
    summary = p.run_until(lambda: len(ledger(tmp_path)) == 3 and client.is_empty(queue))
    counts(summary, received=3, done=3)
    assert ledger(tmp_path) == ["1", "1", "1"], "it came a second time"


def test_f59_a_stop_gives_back_what_it_has_not_done(tmp_path, client):
    queue = client.queue(visibility=600)
    p = SqsPipeline(tmp_path, client, queue, LEDGER % ("workers: 1\ndrain: 0s", tmp_path, "sleep 600", '"${/id}"') + "  unknown: hold\n")
    client.send(queue, *numbered(12))
    with p.start() as running:
        p.wait(running, lambda: ledger(tmp_path) and client.counts(queue)[1] == 12, what="all are received")
        p.stop(running, status=1)
    until(lambda: client.counts(queue) == (11, 0, 0), what="all but the one that was begun are there again")


# ---- FIFO ----

def test_a_group_of_a_fifo_queue_runs_in_order_without_being_asked(tmp_path, client):
    queue = client.queue(fifo=True)
    p = SqsPipeline(tmp_path, client, queue, LEDGER % ("workers: 8", tmp_path, "", '"${source:group}", "${/n}"'))
    client.send(queue, *numbered(60), group=lambda n, _: f"g{n % 3}")
    p.run_until(lambda: len(ledger(tmp_path)) == 60 and client.is_empty(queue))
    for group in range(3):
        assert [int(line.split()[1]) for line in ledger(tmp_path) if line.startswith(f"g{group} ")] == list(range(group, 60, 3))


def test_a_poison_message_holds_up_its_group_and_no_other(tmp_path, client):
    """It is retried in the store, in front of the later ones of its group; when it is a letter, these run."""
    queue = client.queue(fifo=True, visibility=2)
    p = SqsPipeline(tmp_path, client, queue, """
key: "${/id}"
retry: {attempts: 3, backoff: 300ms..600ms}
handler:
  exec: [sh, -c, 'cat >/dev/null; [ $1 != m1 ] || exit 75; echo "$2 $3" >>%s/ledger', sh, "${/id}", "${source:group}", "${/n}"]
""" % tmp_path)
    client.send(queue, *numbered(20), group=lambda n, _: f"g{n % 2}")
    summary = p.run_until(lambda: len(ledger(tmp_path)) == 19 and client.is_empty(queue), status=1)
    assert summary["dead"] == 1 and summary["done"] == 19, summary
    order = [line.split()[0] for line in ledger(tmp_path)]
    assert [int(line.split()[1]) for line in ledger(tmp_path) if line.startswith("g1")] == list(range(3, 20, 2))
    assert [int(line.split()[1]) for line in ledger(tmp_path) if line.startswith("g0")] == list(range(0, 20, 2))
    assert order.index("g1") > 5, "the other group has not waited"


# ---- crashes ----

POINTS = ("fetch_after", "claim_after", "effect_after", "commit_before", "commit_after", "ack_before", "ack_after")


def killed_at(folder, client, point):
    queue = client.queue(visibility=2)
    p = SqsPipeline(folder, client, queue, f"batch: {{max: 10}}\nlease: 1s\n{CONFIG}")
    client.send(queue, *numbered(25), *numbered(3))
    with p.start(failpoint=f"{point}:kill:1") as running:
        ended = running.end()
        assert ended.killed, f"{point} was not reached: {ended} {p.said(running)}"
    assert len(p.ids()) == len(set(p.ids())), point
    p.run_until(lambda: p.is_done(25), what=f"the rest after {point}")
    p.check(25)


def test_f08_killed_at_every_step(tmp_path, client):
    at_once(lambda point: killed_at(tmp_path / point, client, point), POINTS)


def test_the_server_is_killed_under_load_and_comes_back(tmp_path):
    with elasticmq.Server(keeps=True) as server:
        queue = server.queue(visibility=3)
        p = SqsPipeline(tmp_path, server, queue, f"batch: {{max: 20}}\n{CONFIG}")
        server.send(queue, *numbered(200))
        with p.start() as running:
            p.wait(running, lambda: p.count() >= 20, what="some effects")
            server.kill()
            server.start()
            p.wait(running, lambda: p.is_done(200), 60, "the rest")
            p.kill(running)
        p.check(200)


def test_f49_a_connection_is_cut_in_the_middle_of_acks_and_one_is_half_open(tmp_path, client):
    queue = client.queue(visibility=4)
    with Proxy(int(client.address.rpartition(":")[2])) as proxy:
        p = SqsPipeline(tmp_path, client, queue, f"batch: {{max: 10}}\n{CONFIG}", endpoint=f"http://127.0.0.1:{proxy.port}")
        proxy.lose_reply_to = b"DeleteMessageBatch"
        client.send(queue, *numbered(60))
        with p.start() as running:
            p.wait(running, lambda: proxy.lost == 1, what="a lost reply")
            proxy.hush_after = b"DeleteMessageBatch"
            client.send(queue, *numbered(40, 60))
            p.wait(running, lambda: p.is_done(100), what="all are deleted")
            p.stop(running)
        p.check(100)


# ---- the queue ----

def test_a_queue_that_is_purged_and_one_that_is_deleted(tmp_path, client):
    queue = client.queue(visibility=2)
    p = SqsPipeline(tmp_path, client, queue, LEDGER % ("workers: 2", tmp_path, "sleep 0.5", '"${/n}"'))
    client.send(queue, *numbered(6))
    with p.start() as running:
        p.wait(running, lambda: len(ledger(tmp_path)) >= 2, what="two are begun")
        client.call("PurgeQueue", QueueUrl=queue)
        client.send(queue, *numbered(2, 6))
        p.wait(running, lambda: {"6", "7"} <= set(ledger(tmp_path)) and client.is_empty(queue), what="those after the purge")
        client.call("DeleteQueue", QueueUrl=queue)
        p.wait(running, lambda: "QueueDoesNotExist" in p.said(running), what="the log says that it is gone")
        client.queue(queue.rpartition("/")[2])
        client.send(queue, *numbered(2, 8))
        p.wait(running, lambda: {"8", "9"} <= set(ledger(tmp_path)) and client.is_empty(queue), what="those of the new queue")
        p.stop(running)
    assert max(collections.Counter(ledger(tmp_path)).values()) == 1


def test_a_dead_letter_queue_is_a_source(tmp_path, client):
    """Messages that another consumer gave up."""
    letters = client.queue()
    queue = client.queue(dead_letters=letters, deliveries=1)
    client.send(queue, *numbered(4))
    assert len(client.receive(queue, visibility=0)) == 4
    client.receive(queue)
    until(lambda: client.counts(letters)[0] == 4, what="they are dead letters there")
    p = SqsPipeline(tmp_path, client, letters, LEDGER % ("", tmp_path, "", '"${/n}", "${source:dead_letter_of}"'))
    p.run_until(lambda: len(ledger(tmp_path)) == 4 and client.is_empty(letters))
    name = queue.rpartition("/")[2]
    assert sorted(ledger(tmp_path)) == [f"{n} arn:aws:sqs:elasticmq:000000000000:{name}" for n in range(4)]


def test_two_workers_share_a_queue(tmp_path, client):
    queue = client.queue(visibility=3)
    first = SqsPipeline(tmp_path, client, queue, f"batch: {{max: 20}}\n{CONFIG}")
    sending = threading.Thread(target=lambda: client.send(queue, *numbered(200)))
    sending.start()
    with first.start() as one, first.start() as other:
        first.wait(one, lambda: first.count() >= 50, what="some effects")
        first.kill(other)
        sending.join()
        first.wait(one, lambda: first.is_done(200), what="the rest")
        first.stop(one)
    first.check(200)
