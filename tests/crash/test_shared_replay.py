"""Replay of dead letters on the stores of servers: killed anywhere, it loses nothing and doubles nothing, and the next one goes on."""

import os

import pytest

import postgres
from fenced import CONFIG, Fenced
from harness import counts
from pgpipeline import need_postgres, new_name
from redisserver import RedisServer, has_redis

# As Fenced's, but it fails until there is a file 'open'.
SCRIPT = """#!/bin/sh
read -r body
[ -f open ] || exit 75
echo "$ONCE_KEY $ONCE_ATTEMPT $ONCE_MAYBE_DONE" >> effects
"""
N = 300


@pytest.fixture(params=["postgres", "redis"])
def store(request, tmp_path):
    if request.param == "postgres":
        need_postgres()
        yield postgres.shared().schema(new_name())
    else:
        if not has_redis():
            pytest.skip("missing: redis-server, or hiredis in the build")
        with RedisServer(tmp_path) as server:
            yield server.url()


@pytest.mark.parametrize("point", ["replay_before:kill:1", "replay_between:kill:1", "replay_between:kill:200"])
def test_f35_killed_during_replay(tmp_path, store, point):
    work = Fenced(str(tmp_path), n=N, workers=4, batch=64, attempts=1, script=SCRIPT, config=CONFIG + "breaker: off\ndead_limit: off\n", store=store)
    p = work.p
    counts(p.run(status=1), received=N, dead=N)
    open(os.path.join(p.folder, "open"), "w").close()
    assert p.once("replay", p.name, "--all", failpoint=point).killed
    now = p.once("status", "--json", p.name).json
    assert now["dead"] + now["waiting"] == N, "a letter or a waiting message, never both or none"
    again = p.once("replay", p.name, "--all", "--json")
    assert again.status in (0, 1) and again.json["counts"]["run"] == now["dead"], again
    p.write()
    counts(p.run(status=0), received=0, resumed=N, done=N)
    assert len(work.effects()) == N and work.real_repeats() == 0
    assert p.once("status", "--json", p.name).json["dead"] == 0
