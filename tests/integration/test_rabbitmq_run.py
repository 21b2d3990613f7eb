"""source: rabbitmq, with a server that works: each message once, what templates have, acks, stops, several workers."""

import decimal
import os
import signal
import time

import pytest

import rabbitmq
from harness import counts, once, until
from brokerpipeline import CONFIG, let_go, lines, numbered, slow_config
from rabbitmqpipeline import RabbitPipeline, RabbitPostgresPipeline, need_rabbitmq

need_rabbitmq()

QUEUES = {"classic": {}, "quorum": rabbitmq.QUORUM}


@pytest.fixture(scope="module")
def client():
    return rabbitmq.shared()


def queue_of(client, kind, **more):
    name = rabbitmq.new_name()
    client.declare(name, {**QUEUES[kind], **more})
    return name


def letters(p):
    return p.value("SELECT count(*) FROM once_letter") if p.has_table("once_letter") else 0


# ---- each message once ----

@pytest.mark.parametrize("kind", QUEUES)
def test_each_message_takes_effect_once(tmp_path, client, kind):
    queue = queue_of(client, kind)
    p = RabbitPipeline(tmp_path, client, queue, f"batch: {{max: 50}}\n{CONFIG}")
    client.publish(queue, *numbered(490), *numbered(20), *numbered(10, 490))
    counts(p.run_until(lambda: p.count() == 500), received=520, done=500, duplicates=20)
    p.check(500)


def test_two_workers_share_a_queue(tmp_path, client):
    """And what one that is killed has not acked comes to the other."""
    queue = client.queue()
    p = RabbitPostgresPipeline(tmp_path, client, queue, f"batch: {{max: 10}}\nlease: 1s\n{CONFIG}", more="prefetch: 20")
    with p.start() as first, p.start() as second:
        p.wait(first, lambda: client.consumers(queue) == 2)
        client.publish(queue, *numbered(300))
        p.kill(first)
        client.publish(queue, *numbered(200, 300))
        p.wait(second, lambda: p.count() == 500, what="everything, by the other one")
        p.stop(second)
    p.check(500)


def test_a_broker_that_is_not_there_yet(tmp_path, client):
    """A run waits for it."""
    queue = client.queue()
    free = rabbitmq.free_ports(1)
    p = RabbitPipeline(tmp_path, client, queue, port=free)
    with p.start() as running:
        p.wait(running, lambda: f"cannot connect to '127.0.0.1:{free}'" in p.said(running), what="it says so")
        p.stop(running)


# ---- what templates have ----

FACTS = ("message_id", "correlation_id", "type", "app_id", "user_id", "reply_to", "content_type", "content_encoding", "expiration", "timestamp",
         "priority", "delivery_mode", "exchange", "routing_key", "queue", "redelivered")


def test_properties_and_headers_are_for_templates(tmp_path, client):
    queue = client.queue()
    words = ", ".join(f'"${{source:{name}}}"' for name in FACTS) + ', "${header:text}", "${header:number}", "${header:yes}", "${header:real}"'
    p = RabbitPipeline(tmp_path, client, queue, """
key: "${source:message_id}"
remember: forever
handler:
  exec: [sh, -c, 'cat >/dev/null; printf "%%s\\n" "$@" >>%s/ledger', sh, %s]
""" % (tmp_path, words))
    client.publish(queue, {"id": 1}, headers={"text": "grüß", "number": 7, "yes": True, "real": decimal.Decimal("0.5"), "table": {"a": [1, "b"]}, "none": None},
                   message_id="m1", correlation_id="c1", type="order.placed", app_id="shop", user_id="guest", reply_to="r", content_type="application/json",
                   content_encoding="utf-8", expiration="600000", timestamp=1700000000, priority=3)
    p.run_until(lambda: lines(tmp_path, "ledger"))
    assert lines(tmp_path, "ledger") == ["m1", "c1", "order.placed", "shop", "guest", "r", "application/json", "utf-8", "600000", "1700000000", "3", "2",
                                         "", queue, queue, "false", "grüß", "7", "true", "0.5"]


def test_headers_are_kept_as_json(tmp_path, client):
    """Of every kind; a dead letter shows them."""
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, 'key: "${/id}"\nhandler: {dead: "no reason"}\n')
    client.publish(queue, {"id": 1}, headers={"a": {"b": [1, -2, "x", {"c": False}], "n": None}, "big": 1 << 40, "bytes": b"\xff\x00", "once:source": "mine"})
    p.run_until(lambda: letters(p) == 1, status=1)
    (text,), = p.rows("SELECT CAST(headers AS TEXT) FROM once_letter")
    assert text == '{"a":{"b":[1,-2,"x",{"c":false}],"n":null},"big":1099511627776,"bytes":{"base64":"/wA="}}'


def test_redelivered_and_the_count_are_for_effects(tmp_path, client):
    """A quorum queue counts."""
    queue = queue_of(client, "quorum")
    p = RabbitPipeline(tmp_path, client, queue, """
key: "${/id}"
handler:
  exec: [sh, -c, 'cat >/dev/null; echo "$@" >>%s/ledger', sh, "${source:redelivered}", "${source:delivery_count}"]
""" % tmp_path)
    client.publish(queue, {"id": 1})
    with client.channel() as channel:
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=True)
    p.run_until(lambda: lines(tmp_path, "ledger"))
    assert lines(tmp_path, "ledger") == ["true 1"]


def test_the_count_is_no_header(tmp_path, client):
    """A template could not tell that it differs between deliveries."""
    queue = queue_of(client, "quorum")
    p = RabbitPipeline(tmp_path, client, queue, 'key: "${/id}"\nhandler: {dead: "no reason"}\n')
    client.publish(queue, {"id": 1}, headers={"own": "1"})
    with client.channel() as channel:
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=True)
    p.run_until(lambda: letters(p) == 1, status=1)
    (text,), = p.rows("SELECT CAST(headers AS TEXT) FROM once_letter")
    assert text == '{"own":"1"}'


@pytest.mark.parametrize("key, why", [
    ("${coordinates}", "'key' uses ${coordinates}, but RabbitMQ has none that stay the same; use an id of the message (${source:message_id}) or a business "
                       "key (${/payment_id})"),
    ("${/id}-${source:redelivered}", "'key' uses ${source:redelivered}, which is not the same at each delivery; only effects may use it"),
    ("${source:delivery_count}", "'key' uses ${source:delivery_count}, which is not the same at each delivery; only effects may use it")])
def test_a_key_that_differs_between_deliveries_is_refused(tmp_path, client, key, why):
    p = RabbitPipeline(tmp_path, client, "any", f'key: "{key}"\nhandler: {{dead: no}}\n')
    ended = p.once("check", p.name)
    assert ended.status == 2 and f"p.yaml:4: {why}" in ended.err, ended


# ---- acks ----

def test_f10_acks_never_pass_a_message_that_is_not_over(tmp_path, client):
    """One in the middle of a batch takes long: all others are acked, and it is not, until it is over."""
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, slow_config(tmp_path, "batch: {max: 10}\n"))
    quick = [dict(message, type="quick") for message in numbered(100)]
    client.publish(queue, *quick[:35], {"id": "slow", "type": "slow"}, *quick[35:])
    with p.start() as running:
        p.wait(running, lambda: p.count() == 100 and p.unacked() == 1, what="all others are acked")
        p.kill(running)
    until(lambda: client.ready(queue) == 1, 20, "it is back in the queue")
    let_go(tmp_path)
    p.run_until(lambda: lines(tmp_path, "slow") and p.count() >= 50)
    p.check(100)


def test_f36_a_dead_letter_that_cannot_be_kept_is_not_acked(tmp_path, client):
    """The store refuses the letter: the message stays in the queue, and is a letter later."""
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, 'key: "${/id}"\nhandler: {dead: "no reason"}\n')
    client.publish(queue, {"id": 1})
    assert p.once("check", p.name).status == 0  # makes the store
    p.execute("CREATE TRIGGER refuse BEFORE INSERT ON once_letter BEGIN SELECT RAISE(ABORT, 'refused'); END;")
    with p.start() as running:
        until(lambda: "refused" in p.said(running), 20, "the store refuses the letter")
        p.kill(running)
    until(lambda: p.ready() == 1, 20, "it is back in the queue")
    assert letters(p) == 0
    p.execute("DROP TRIGGER refuse;")
    p.run_until(lambda: letters(p) == 1, status=1)
    assert p.value("SELECT count(*) FROM once_letter") == 1


# ---- stops ----

def test_f59_a_stop_drains_and_gives_the_rest_back(tmp_path, client):
    """What flies ends within `drain` and is acked; what was not begun is in the queue at once."""
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, slow_config(tmp_path, "drain: 20s\n"))
    client.publish(queue, {"id": "slow", "type": "slow"})
    with p.start() as running:
        p.wait(running, lambda: lines(tmp_path, "began"), what="a message in flight")
        running.send(signal.SIGTERM)
        client.publish(queue, *[dict(message, type="quick") for message in numbered(50)])
        let_go(tmp_path)
        ended = running.end()
        assert ended.status == 0, (ended, p.said(running))
    assert lines(tmp_path, "slow") == ["slow"]
    assert client.ready(queue) == 50 - p.count()
    p.run_until(lambda: p.count() == 50)
    p.check(50)
    assert lines(tmp_path, "slow") == ["slow"]


def test_f59_a_stop_and_then_sigkill_loses_nothing(tmp_path, client):
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, slow_config(tmp_path, "drain: 1m\n"))
    client.publish(queue, {"id": "slow", "type": "slow"}, *[dict(message, type="quick") for message in numbered(50)])
    with p.start() as running:
        p.wait(running, lambda: lines(tmp_path, "began") and p.count() == 50, what="a message in flight")
        running.send(signal.SIGTERM)
        time.sleep(0.3)  # a moment of the drain, whichever
        p.kill(running)
    let_go(tmp_path)
    p.run_until(lambda: lines(tmp_path, "slow") and p.count() >= 50)
    p.check(50)


# ---- prefetch ----

def test_prefetch_bounds_what_a_worker_holds(tmp_path, client):
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, slow_config(tmp_path, "workers: 2\n"), more="prefetch: 3")
    client.publish(queue, *[{"id": f"s{n}", "type": "slow"} for n in range(10)])
    with p.start() as running:
        p.wait(running, lambda: p.ready() == 7, what="three are delivered")
        let_go(tmp_path)
        p.wait(running, lambda: len(lines(tmp_path, "slow")) == 10, what="all")
        p.stop(running)
    assert sorted(lines(tmp_path, "slow")) == sorted(f"s{n}" for n in range(10))


def test_effects_outside_take_no_more_than_they_can_run(tmp_path, client):
    """Without `prefetch`: 16 at least, so that other workers get the rest."""
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, 'key: "${/id}"\nworkers: 2\nhandler: {exec: [sh, -c, "while [ ! -e %s/go ]; do sleep 0.05; done; echo ran >>%s/ran"]}\n'
                       % (tmp_path, tmp_path))
    client.publish(queue, *numbered(50))
    with p.start() as running:
        p.wait(running, lambda: p.ready() == 34, what="sixteen are delivered")
        let_go(tmp_path)
        p.wait(running, lambda: len(lines(tmp_path, "ran")) == 50, what="all")
        p.stop(running)


# ---- dead letters of the broker ----

def killed_before_it_claims(p):
    with p.start(failpoint="claim_before:kill:1") as running:
        assert running.end().killed, p.said(running)


def test_a_poison_message_ends_in_our_letters_and_spends_nothing_of_the_limit(tmp_path, client):
    """Retries wait in the store, acked: the broker's delivery limit is for crashes."""
    dead, queue = client.queue(), rabbitmq.new_name()
    client.declare(queue, {**rabbitmq.QUORUM, "x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    p = RabbitPipeline(tmp_path, client, queue, 'retry: {attempts: 4, backoff: 10ms..20ms}\nkey: "${/id}"\nhandler: {exec: [sh, -c, "exit 75"]}\n')
    client.publish(queue, {"id": "poison"}, {"id": "other"})
    p.run_until(lambda: letters(p) == 2, status=1)
    assert client.ready(dead) == 0


def test_a_dead_letter_queue_of_the_broker_is_a_source(tmp_path, client):
    """A message whose worker is killed each time is given up by the broker; another pipeline reads its dead-letter queue."""
    dead, queue = client.queue(), rabbitmq.new_name()
    client.declare(queue, {**rabbitmq.QUORUM, "x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    p = RabbitPipeline(tmp_path / "a", client, queue)
    client.publish(queue, {"id": "poison", "n": 7}, message_id="m7")
    killed_before_it_claims(p)
    killed_before_it_claims(p)
    until(lambda: client.ready(dead) == 1, 20, "the broker gives it up")
    again = RabbitPipeline(tmp_path / "b", client, dead, 'key: "${source:message_id}"\nhandler: {sql: "INSERT INTO t(id, n) VALUES (:id, :n)"}\n')
    again.run_until(lambda: again.count() == 1)
    assert again.rows("SELECT id, n FROM t") == [("poison", 7)]


# ---- what cannot be a source ----

def test_a_stream_is_refused(tmp_path, client):
    """From a stream an ack removes nothing: the run ends at its first message."""
    queue = rabbitmq.new_name()
    client.declare(queue, {"x-queue-type": "stream"})
    p = RabbitPipeline(tmp_path, client, queue)
    with p.start() as running:
        until(lambda: client.publish(queue, *numbered(1)) or running.process.poll() is not None, 20, "it ends")  # it begins at the next message
        ended = running.end()
        assert ended.status == 2 and "it is a stream, from which an ack removes nothing" in ended.err + p.said(running), ended
    assert p.count() == 0


@pytest.mark.parametrize("kind", QUEUES)
def test_a_message_that_was_in_a_stream_is_one_like_any_other(tmp_path, client, kind):
    """A shovel, or any producer, may leave the header in it: that makes no stream of this queue."""
    queue = queue_of(client, kind)
    p = RabbitPipeline(tmp_path, client, queue)
    client.publish(queue, *numbered(5), headers={"x-stream-offset": 7})
    p.run_until(lambda: p.count() == 5)
    p.check(5)


def test_a_stream_is_refused_at_once_where_it_can_be_asked(tmp_path, client):
    queue = rabbitmq.new_name()
    client.declare(queue, {"x-queue-type": "stream"})
    p = RabbitPipeline(tmp_path, client, queue, more=f'management: "{client.management}"')
    ended = p.once("run", p.name)
    assert ended.status == 2 and f"queue '{queue}' is a stream, from which an ack removes nothing" in ended.err, ended


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_shorter_timeout_of_the_queue_is_found(tmp_path, client, when):
    """One message is in flight, the others wait for it: half of the queue's time later the store has them. Also if the queue has that limit only when it is
    consumed again."""
    queue = rabbitmq.new_name()
    client.declare(queue, {"x-consumer-timeout": 2000} if when == "before" else {})
    p = RabbitPipeline(tmp_path, client, queue, slow_config(tmp_path, "workers: 1\n"), more=f'management: "{client.management}"')
    with p.start("--log-level", "info") as running:
        if when == "meanwhile":
            p.wait(running, lambda: "event=rabbitmq_connected" in p.said(running), what="it consumes")
            client.delete(queue)
            client.declare(queue, {"x-consumer-timeout": 2000})
        client.publish(queue, *[{"id": f"s{n}", "type": "slow"} for n in range(5)])
        p.wait(running, lambda: p.has_table("once_entry") and p.value("SELECT count(*) FROM once_entry") == 4, what="the store has all that wait")
        p.wait(running, lambda: p.unacked() == 1, what="all that wait are acked")
        p.kill(running)
    until(lambda: p.ready() == 1, 20, "the one that was in flight is back in the queue")


def test_the_module_is_listed():
    (found,) = [each for each in once("version", "--json").json["sources"] if each["name"] == "rabbitmq"]
    assert not found.get("error") and os.path.basename(found.get("module") or "rabbitmq.so").startswith("rabbitmq")
