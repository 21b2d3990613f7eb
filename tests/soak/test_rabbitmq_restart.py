"""source: rabbitmq with a server that is killed and started again, for `make soak`."""

import pytest

import rabbitmq
from brokerpipeline import CONFIG, numbered
from rabbitmqpipeline import RabbitPipeline, need_rabbitmq

need_rabbitmq()


@pytest.fixture
def own():
    with rabbitmq.Server() as server:
        yield server


def test_the_server_is_killed_and_comes_back(tmp_path, own):
    """With messages in both kinds of queues, while `once` is killed, too."""
    queues = [own.queue(), rabbitmq.new_name()]
    own.declare(queues[1], rabbitmq.QUORUM)
    own.keep_quorum_queues()
    pipelines = [RabbitPipeline(tmp_path / str(n), own, queue, f"batch: {{max: 20}}\nlease: 1s\n{CONFIG}", heartbeat="1s")
                 for n, queue in enumerate(queues)]
    running = [p.start() for p in pipelines]
    try:
        for queue in queues:
            own.publish(queue, *numbered(300))
        own.kill()
        pipelines[0].kill(running[0])
        running[0] = pipelines[0].start()
        own.start()
        own.publish(queues[0], *numbered(50, 300))  # the quorum queue may have no leader yet
        for p, each, n in zip(pipelines, running, (350, 300)):
            p.wait(each, lambda p=p, n=n: p.count() == n, 60, "every effect")
            p.wait(each, lambda p=p: p.ready() == 0, 60, "the broker knows: it may have lost acks, and delivers again")
            p.stop(each)
            p.check(n)
    finally:
        for p, each in zip(pipelines, running):
            p.kill(each)
