"""A Redis store and kill -9 of once at every failpoint, of several at random, of the server; and each reply that can be lost."""

import itertools
import os
import random
import signal

import pytest

from crashes import at_once
from fenced import Fenced
from harness import check_sum, counts, until
from fleet import rounds
from redisserver import RedisServer, needs_redis
from tcpproxy import Proxy

pytestmark = needs_redis

POINTS = {
    "fetch_after": "f01", "claim_after": "f02", "commit_before": "f02", "commit_after": "f02_f05", "effect_before": "f02",
    "effect_after": "f04", "settle_before": "f05", "settle_after": "f05", "ack_before": "f07",
}
INBOX = """
key: "${/id}"
ack: after_accept
lease: %(lease)s
unknown: %(unknown)s
workers: %(workers)d
retry: {attempts: %(attempts)d, backoff: 1ms..5ms}
batch: {max: %(batch)d}
handler: {exec: [./effect]}
"""


@pytest.fixture
def redis(tmp_path):
    with RedisServer(tmp_path) as server:
        yield server


@pytest.mark.parametrize("unknown", ["retry", "hold"])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{POINTS[point]}_{point}")
def test_killed_at(tmp_path, redis, point, unknown):
    def one(case):
        hit, workers = case
        name = f"{hit}-{workers}"
        work = Fenced(str(tmp_path / name), unknown=unknown, workers=workers, lease="1s", store=redis.url(name))
        ended = work.p.try_run(failpoint=f"{point}:kill:{hit}")
        assert ended.killed, f"{point} was not reached: {ended}"
        work.p.run()
        work.check_end(lost=workers)
        again = work.p.run()
        counts(again, received=work.n, duplicates=work.n - again["unknown"], unknown=again["unknown"], attempts=0)

    at_once(one, [(1, 1), (2, 4)])


# ---- each commit that has no reply, and each that does not arrive ----

EVENTFUL = """#!/bin/sh
read -r body
echo "$ONCE_KEY $ONCE_ATTEMPT $ONCE_MAYBE_DONE" >> effects
case $ONCE_KEY-$ONCE_ATTEMPT in later-1|never-*) exit 75;; esac
"""


def eventful(folder, url, config):
    """All that can happen to a message: done, done later, dead, a letter without a key, a duplicate."""
    work = Fenced(folder, lease="30s", attempts=2, batch=2, script=EVENTFUL, store=url, **({"config": config} if config else {}))
    work.p.write({"id": "plain"}, {"id": "later"}, "{bad", {"id": "never"}, {"id": "plain"})
    return work


def went_well(work, summary):
    counts(summary, received=5, done=2, dead=2, duplicates=1, attempts=5, retries=2, repeats=0)
    assert sorted(work.effects()) == [("later", 1, 0), ("later", 2, 0), ("never", 1, 0), ("never", 2, 0), ("plain", 1, 0)]
    listed = work.p.once("list", "--dead", "--json", work.p.name).json["messages"]
    assert len(listed) == 2
    status = work.p.once("status", "--json", work.p.name).json
    assert status["waiting"] == 0 and status["busy"] == 0 and status["unknown"] == 0, status


@pytest.mark.parametrize("harm", ["lose_reply_to", "cut_at"], ids=["f06_f76_reply_lost", "f46_request_lost"])
@pytest.mark.parametrize("config", [None, INBOX], ids=["ack_after_effect", "inbox"])
def test_every_commit_once(tmp_path, redis, config, harm):
    """claim, settle, accept, take, bury: whichever loses its reply is repeated, and everything is as if nothing had happened."""
    with Proxy(redis.port) as proxy:
        proxy.skip, proxy.lose_reply_to = 1000, b"EVALSHA"
        work = eventful(str(tmp_path / "calm"), redis.url("calm", port=proxy.port), config)
        went_well(work, work.p.run(status=1))
        commits = 1000 - proxy.skip
    assert commits > 6

    def one(number):
        with Proxy(redis.port) as proxy:
            proxy.skip = number
            setattr(proxy, harm, b"EVALSHA")
            work = eventful(str(tmp_path / str(number)), redis.url(str(number), port=proxy.port), config)
            ended = work.p.try_run()
            if ended.status == 3:  # before the first message: a run that cannot begin does not
                assert ended.json["received"] == 0 and not work.effects(), ended
                ended = work.p.try_run()
            assert ended.status == 1, ended
            went_well(work, ended.json)
            assert proxy.lost == 1 or number >= commits - 3, "rounds differ a little with their timing"

    for some in range(0, commits, 4):
        at_once(one, range(some, min(some + 4, commits)))


# ---- many, killed at random ----

@pytest.mark.parametrize("unknown", ["retry", "hold"])
def test_f25_f57_f73_the_inbox_of_three_that_are_killed_at_random(tmp_path, redis, unknown):
    """Bodies are the store's alone. Nothing is lost, and nothing that was settled runs again; the server is killed, too."""
    for seed in rounds():
        work = Fenced(str(tmp_path / str(seed)), n=120, unknown=unknown, workers=2, lease="1s", batch=8, config=INBOX, store=redis.url(f"s{seed}"))
        kills = kill_some(work, redis, random.Random(seed))
        assert kills > 4
        work.p.run()
        work.check_end(lost=2 * kills)
        again = work.p.run()
        counts(again, received=120, duplicates=120 - again["unknown"], unknown=again["unknown"], attempts=0)


def kill_some(work, redis, rng):
    """Three runs until one of them has nothing left to do; how often one was killed."""
    running = [work.p.start() for _ in range(3)]
    kills = 0
    try:
        for step in itertools.count():
            seen = len(work.effects())
            until(lambda: len(work.effects()) > seen + 4 or any(r.process.poll() is not None for r in running), what="effects")
            if any(r.process.poll() is not None for r in running) or kills == 9:
                break
            if step == 4:
                redis.kill()
                redis.start()
            at = rng.randrange(3)
            running[at].send(signal.SIGKILL)
            running[at].end()
            kills += 1
            running[at] = work.p.start()
        ended = [r.end() for r in running]
    finally:
        for r in running:
            r.__exit__()
    for e in ended:
        assert e.status in (0, 1), e
        check_sum(e.json)
    return kills


def test_f31_f32_attempts_are_counted_across_kills(tmp_path, redis):
    """Each run dies in its first attempt; the last one that is allowed makes the letter, and a message that comes again none."""
    work = Fenced(str(tmp_path), n=1, attempts=4, script="#!/bin/sh\nread -r b\necho \"$ONCE_KEY $ONCE_ATTEMPT 0\" >> effects\nexit 75\n", store=redis.url())
    for _ in range(3):
        assert work.p.try_run(failpoint="effect_after:kill:1").killed
    work.p.run(status=1)
    work.p.run(status=1)
    assert [attempt for _, attempt, _ in work.effects()] == [1, 2, 3, 4]
    (letter,) = work.p.once("list", "--dead", "--json", work.p.name).json["messages"]
    assert letter["attempt"] == 4, letter


def test_f46_f53_bodies_survive_the_server(tmp_path, redis):
    """Accepted and acknowledged, then both sides are killed: the store has them."""
    work = Fenced(str(tmp_path), n=40, lease="1s", config=INBOX, store=redis.url())
    assert work.p.try_run(failpoint="effect_before:kill:3").killed
    redis.kill()
    redis.start()
    assert redis.call("ZCARD", "{once}iWc") > 0
    os.remove(work.p.source)
    work.p.write()
    work.p.run(status=0)
    reached = set(work.per_key())
    assert len(reached) > 3 and work.real_repeats() <= work.reported_repeats() <= 1
    work.p.write(*[{"id": f"k{i}"} for i in range(40)])
    work.p.run(status=0)
    assert set(work.per_key()) == {f"k{i}" for i in range(40)}
