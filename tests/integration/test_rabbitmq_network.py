"""source: rabbitmq, and what becomes of its connections: cut in the middle of acks, half open, closed by the broker, a store that is
away. Each effect is counted in the user's table."""

import os
import random
import re
import time

import pytest

import postgres
import rabbitmq
from harness import until
from brokerpipeline import CONFIG, numbered
from pgpipeline import need_postgres, new_name, socket_of
from rabbitmqpipeline import RabbitPipeline, RabbitPostgresPipeline, need_rabbitmq
from tcpproxy import Proxy

need_rabbitmq()
need_postgres()

ACK = bytes.fromhex("010001 0000000d 003c0050")  # the beginning of its frame, on channel 1


@pytest.fixture(scope="module")
def client():
    return rabbitmq.shared()


# ---- connections ----

@pytest.mark.parametrize("fault", ["cut_at", "hush_after"])
def test_f08_an_ack_that_is_lost(tmp_path, client, fault):
    """The broker never gets it, or gets it and cannot say anything any more: messages come again, and nothing runs again."""
    queue = client.queue()
    with Proxy(client.port) as proxy:
        p = RabbitPipeline(tmp_path, client, queue, f"batch: {{max: 20}}\n{CONFIG}", port=proxy.port, heartbeat="1s")
        setattr(proxy, fault, ACK)
        client.publish(queue, *numbered(200))
        with p.start() as running:
            p.wait(running, lambda: p.count() == 200 and proxy.lost == 1, what="every effect, and an ack that was lost")
            p.wait(running, lambda: "event=rabbitmq_lost" in p.said(running), what="it notices")
            client.publish(queue, *numbered(1, 200))
            p.wait(running, lambda: p.count() == 201, what="it goes on")
            assert p.stop(running)["duplicates"] > 0 or fault == "hush_after"
    p.check(201)


def test_connections_that_are_cut_all_the_time(tmp_path, client):
    """At any byte, in either direction, while messages come."""
    queue, rng = client.queue(), random.Random(1)
    with Proxy(client.port) as proxy:
        p = RabbitPipeline(tmp_path, client, queue, f"batch: {{max: 20}}\n{CONFIG}", port=proxy.port)
        with p.start() as running:
            for turn in range(10):
                client.publish(queue, *numbered(40, 40 * turn))
                lost = proxy.lost
                setattr(proxy, rng.choice(["cut_after_sent", "cut_after_received"]), rng.randrange(1, 3000))
                p.wait(running, lambda: proxy.lost > lost or p.count() == 40 * (turn + 1), what="a cut, or nothing to cut")
            proxy.cut_after_sent = proxy.cut_after_received = None
            p.wait(running, lambda: p.count() == 400, what="every effect and every ack")
            p.stop(running)
    assert proxy.lost > 0
    p.check(400)


def test_f49_a_connection_that_is_half_open(tmp_path, client):
    """Nothing comes through it and nobody is told: heartbeats are missed, and another one is made."""
    queue = client.queue()
    with Proxy(client.port) as proxy:
        p = RabbitPipeline(tmp_path, client, queue, port=proxy.port, heartbeat="1s")
        client.publish(queue, *numbered(50))
        with p.start() as running:
            p.wait(running, lambda: p.count() == 50)
            proxy.hush_all()
            client.publish(queue, *numbered(50, 50))
            p.wait(running, lambda: p.count() == 100, what="it goes on")
            p.stop(running)
            assert "nothing came for two heartbeats" in p.said(running)
    p.check(100)


def test_heartbeats_while_a_handler_runs_and_nothing_is_fetched(tmp_path, client):
    """One message takes many heartbeats, and its connection stays."""
    queue = client.queue()
    with Proxy(client.port) as proxy:
        p = RabbitPipeline(tmp_path, client, queue, 'key: "${/id}"\nhandler: {exec: [sh, -c, "sleep 4; cat >>%s/ran; echo >>%s/ran"]}\n'
                           % (tmp_path, tmp_path), port=proxy.port, heartbeat="1s", more="prefetch: 1")
        client.publish(queue, {"id": "slow"})
        with p.start() as running:
            p.wait(running, lambda: os.path.exists(tmp_path / "ran"), what="its effect")
            p.stop(running)
        assert proxy.accepted == 1, p.said(running)
    assert (tmp_path / "ran").read_text() == '{"id": "slow"}\n'


def test_a_connection_that_the_broker_closes(tmp_path, client):
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue)
    client.publish(queue, *numbered(10))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 10)
        client.close_connections(queue)
        p.wait(running, lambda: "CONNECTION_FORCED" in p.said(running), what="it says why")
        client.publish(queue, *numbered(10, 10))
        p.wait(running, lambda: p.count() == 20, what="it goes on")
        p.stop(running)
    p.check(20)


def test_f59_a_stop_while_the_broker_does_not_answer(tmp_path, client):
    """It is connected to, and says nothing: the run tries again and again, and ends when it is asked to."""
    with Proxy(client.port) as proxy:
        proxy.silent = True
        p = RabbitPipeline(tmp_path, client, client.queue(), port=proxy.port, heartbeat="1s")
        with p.start() as running:
            p.wait(running, lambda: proxy.accepted > 0, what="a try")
            began = time.monotonic()
            p.stop(running)
            assert time.monotonic() - began < 20, "it ends after the try that is under way"


# ---- the queue ----

def test_a_queue_that_is_deleted_and_declared_again(tmp_path, client):
    """The consumer is cancelled. It says what is missing, and goes on when it is there again."""
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue)
    client.publish(queue, *numbered(10))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 10)
        client.delete(queue)
        p.wait(running, lambda: f"there is no queue '{queue}' in the virtual host '/'" in p.said(running), what="it names the queue")
        assert "the broker cancelled the consumer" in p.said(running)
        client.declare(queue)
        client.publish(queue, *numbered(10, 10))
        p.wait(running, lambda: p.count() == 20, what="it goes on")
        p.stop(running)
    p.check(20)


# ---- TLS ----

def tls_source(client, host, queue, more=""):
    return f'{{url: "amqps://{host}:{client.tls_port}", queue: {queue}{more}}}'


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_tls_with_the_right_name(tmp_path, client, host):
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue)
    p.configure(CONFIG, source=tls_source(client, host, queue, f", tls: {{ca: {client.ca}}}"))
    client.publish(queue, *numbered(300), {"id": "large", "n": -1, "text": "x" * 500000})
    p.run_until(lambda: p.count() == 301)


@pytest.mark.parametrize("host, ca, why", [
    ("127.1", True, "hostname mismatch"),  # the same address under another name
    ("localhost", False, "self-signed certificate in certificate chain|unable to get local issuer certificate")])
def test_tls_with_a_certificate_that_does_not_fit_is_refused(tmp_path, client, host, ca, why):
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue)
    p.configure(CONFIG, source=tls_source(client, host, queue, f", tls: {{ca: {client.ca}}}" if ca else ""))
    ended = p.once("check", p.name)
    assert ended.status == 3 and re.search(f"the certificate of '{host}:{client.tls_port}' is not accepted: ({why})", ended.err), ended


def test_a_certificate_that_logs_in(tmp_path, client):
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue)
    files = client.certificate("alice")
    mine = f", login: certificate, tls: {{ca: {client.ca}, certificate: {files}.crt, key: {files}.key}}"
    p.configure(CONFIG, source=tls_source(client, "localhost", queue, mine))
    client.publish(queue, *numbered(10))
    p.run_until(lambda: p.count() == 10)
    broker = client.certificate("broker")  # of the same authority, but nobody's
    p.configure(CONFIG, source=tls_source(client, "localhost", queue, mine.replace(files, broker)))
    ended = p.once("check", p.name)
    assert ended.status == 3 and "by certificate to the virtual host '/': the broker says: ACCESS_REFUSED" in ended.err, ended


# ---- the store ----

def test_f46_without_its_store_it_acks_nothing_and_stays_connected(tmp_path, client):
    queue, server = client.queue(), postgres.shared()
    direct = server.database(new_name())
    with Proxy(socket_of(server)) as proxy, Proxy(client.port) as broker:
        url = f"postgres://postgres@127.0.0.1:{proxy.port}/{direct.split('/')[3].split('?')[0]}"
        p = RabbitPostgresPipeline(tmp_path, client, queue, url=direct, port=broker.port, heartbeat="1s")
        p.configure(f"batch: {{max: 20}}\nlease: 1s\n{CONFIG}", store=url, source=p.text)
        client.publish(queue, *numbered(50))
        with p.start() as running:
            p.wait(running, lambda: p.count() == 50)
            proxy.refuse = True
            proxy.cut_all()
            client.publish(queue, *numbered(200, 50))
            done = p.count()
            p.wait(running, lambda: "store" in p.said(running), what="it says so")
            end = time.monotonic() + 3  # longer than it may go without a heartbeat
            p.wait(running, lambda: time.monotonic() > end)
            assert p.count() == done
            assert broker.accepted == 1, "heartbeats have stopped"
            p.kill(running)
        until(lambda: p.ready() == 200, 20, "everything is back, since nothing was acked without a store")
        proxy.refuse = False
        p.run_until(lambda: p.count() == 250)
    p.check(250)
