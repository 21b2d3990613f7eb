"""source: rabbitmq, with a server that is harmed: short of memory, impatient with consumers. It is one of its own."""

import json
import os
import random
import signal
import time

import pytest

import rabbitmq
from brokerpipeline import CONFIG, let_go, lines, numbered
from rabbitmqpipeline import RabbitPipeline, need_rabbitmq

need_rabbitmq()

TIMEOUT_MS = 4000


@pytest.fixture(scope="module")
def own():
    with rabbitmq.Server(consumer_timeout_ms=TIMEOUT_MS) as server:
        yield server


def test_an_alarm_for_memory_stops_producers_and_not_consumers(tmp_path, own):
    queue = own.queue()
    p = RabbitPipeline(tmp_path, own, queue, f"batch: {{max: 10}}\n{CONFIG}", more="prefetch: 10")
    own.publish(queue, *numbered(200))
    try:
        own.control("set_vm_memory_high_watermark", "0")
        with p.start() as running:
            p.wait(running, lambda: p.count() == 200, what="all are read and acked")
            p.stop(running)
    finally:
        own.control("set_vm_memory_high_watermark", "absolute", "4GB")
    p.check(200)


def test_what_would_outlive_the_consumer_timeout_is_given_to_the_store(tmp_path, own):
    """Ten messages for a handler that does one at a time, and needs longer for all of them than the broker waits."""
    queue = own.queue()
    p = RabbitPipeline(tmp_path, own, queue, """
key: "${/id}"
workers: 1
handler: {exec: [sh, -c, 'sleep 0.5; cat >>%s/ran; echo >>%s/ran']}
""" % (tmp_path, tmp_path), more=f"consumer_timeout: {TIMEOUT_MS}ms, prefetch: 20")
    own.publish(queue, *numbered(10))
    began = time.monotonic()
    with p.start() as running:
        p.wait(running, lambda: len(lines(tmp_path, "ran")) == 10, what="all have run")
        assert time.monotonic() - began > TIMEOUT_MS / 1000
        p.stop(running)
        assert "rabbitmq_lost" not in p.said(running)
    assert len(set(lines(tmp_path, "ran"))) == 10


def test_a_handler_that_outlives_the_consumer_timeout_runs_once(tmp_path, own):
    """The broker closes the channel and delivers again; the effect in flight goes on, and what comes again waits for it."""
    queue = own.queue()
    p = RabbitPipeline(tmp_path, own, queue, """
key: "${/id}"
timeout: 5m
handler: {exec: [sh, -c, 'cat >>%s/ran; while [ ! -e %s/go ]; do sleep 0.05; done']}
""" % (tmp_path, tmp_path), more=f"consumer_timeout: {TIMEOUT_MS}ms")
    own.publish(queue, {"id": "slow"})
    with p.start() as running:
        p.wait(running, lambda: "PRECONDITION_FAILED" in p.said(running), what="the broker closes the channel")
        let_go(tmp_path)
        own.publish(queue, {"id": "next"})  # stands behind the one that comes again
        p.wait(running, lambda: p.ready() == 0 and all(each["state"] == "done" for key in ("slow", "next") for each in p.explain(key) or [{"state": "none"}]),
               what="both are settled")
        p.stop(running)
    assert lines(tmp_path, "ran") == ['{"id": "slow"}{"id": "next"}'], "bodies have no line ends"


def test_workers_that_are_killed_and_paused_at_random(tmp_path, own):
    """Under load, in a queue that counts deliveries."""
    queue, rng = rabbitmq.new_name(), random.Random(2)
    own.declare(queue, rabbitmq.QUORUM)
    p = RabbitPipeline(tmp_path, own, queue, f"batch: {{max: 20}}\nlease: 1s\n{CONFIG}", heartbeat="1s", more="prefetch: 50")
    running = p.start()
    try:
        for turn in range(4):
            own.publish(queue, *numbered(50, 50 * turn))
            time.sleep(rng.random() / 3)  # a moment, whichever
            if turn == 2:
                running.send(signal.SIGSTOP)
                time.sleep(2.5)  # longer than two heartbeats: the broker has given up on it
                running.send(signal.SIGCONT)
            else:
                p.kill(running)
                running = p.start()
        own.publish(queue, *numbered(1, 200))  # stands behind those that come again: they were received when it is done
        p.wait(running, lambda: p.count() == 201 and p.ready() == 0, 40, "every effect and every ack")
        p.stop(running)
    finally:
        p.kill(running)
    p.check(201)


# ---- messages that nobody wants for now ----

PAUSED = """
key: "${/id}"
workers: 2
waiting_max: 5
handler: {exec: [FOLDER/handler]}
"""


def put_handler(folder):
    path = os.path.join(folder, "handler.new")
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\necho "$(cat)" >>{folder}/ran\n')
    os.chmod(path, 0o755)
    os.rename(path, os.path.join(folder, "handler"))


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_is_not_wanted_for_longer_than_the_consumer_timeout_is_given_back(tmp_path, own, kind):
    """Its command is gone, and a few messages fill the store, so the rest of what was delivered waits: for several times as long as the broker allows.
    A quorum queue counts what is given back, and drops what is given back twice."""
    queue = rabbitmq.new_name()
    own.declare(queue, {"x-queue-type": kind, **({"x-delivery-limit": 1} if kind == "quorum" else {})})
    p = RabbitPipeline(tmp_path, own, queue, PAUSED.replace("FOLDER", str(tmp_path)), more=f"consumer_timeout: {TIMEOUT_MS}ms, prefetch: 20")
    put_handler(tmp_path)
    with p.start("--log-level", "info") as running:
        p.wait(running, lambda: "event=rabbitmq_connected" in p.said(running), what="it consumes")
        os.remove(tmp_path / "handler")
        own.publish(queue, *numbered(80))
        p.wait(running, lambda: "event=rabbitmq_given_back" in p.said(running), what="it gives back what it cannot work on")
        time.sleep(3 * TIMEOUT_MS / 1000)
        assert p.said(running).count("event=rabbitmq_given_back") == 1, "nothing was delivered any more"
        assert own.consumers(queue) == 0 and p.ready() > 0
        put_handler(tmp_path)
        p.wait(running, lambda: len(lines(tmp_path, "ran")) == 80 and p.ready() == 0, what="all have run")
        p.stop(running)
        assert "event=rabbitmq_lost" not in p.said(running), p.said(running)
    assert sorted(lines(tmp_path, "ran")) == sorted(json.dumps(each) for each in numbered(80))
