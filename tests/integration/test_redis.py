"""Pipelines on a Redis store: kills of either side, pauses, lost replies, several processes, durability, passwords, cluster."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from fenced import CONFIG as COMMANDS, Fenced
from harness import ONCE, ROOT, Pipeline, check_sum, counts, until
from redisserver import RedisServer, free_port, needs_redis
from tcpproxy import Proxy
from test_hardening import product

pytestmark = needs_redis

@pytest.fixture
def redis(tmp_path):
    with RedisServer(tmp_path) as server:
        yield server


def fenced(folder, redis, name="once", port=None, **more):
    return Fenced(folder, store=redis.url(name, port=port), **more)


# ---- the server is killed, paused, cut off ----

def test_f46_f53_the_server_is_killed_again_and_again(tmp_path, redis):
    """Nothing that was acknowledged is lost: nothing runs twice but what was in flight, and the run goes on."""
    work = fenced(tmp_path, redis, n=300, workers=2, lease="2s", batch=20)
    with work.p.start() as running:
        for done in (20, 80, 150):
            until(lambda: len(work.effects()) > done or running.process.poll() is not None, what="effects")
            redis.kill()
            time.sleep(0.1)
            redis.start()
        ended = running.end()
    assert ended.status == 0, ended
    check_sum(ended.json)
    assert len(work.per_key()) == 300
    assert work.real_repeats() <= work.reported_repeats() <= 3 * 2
    counts(work.p.run(status=0), received=300, duplicates=300, attempts=0)


def test_f46_f50_a_server_that_is_paused(tmp_path, redis):
    """Longer than we wait for it: no effect begins meanwhile, and the run comes back. What was on its way when the server stopped is
    done late, after we have asked again on another connection: nothing runs twice."""
    with Proxy(redis.port) as proxy:
        work = Fenced(tmp_path, n=60, workers=2, lease="30s", store=redis.url(port=proxy.port, more="&timeout=1"))
        with work.p.start() as running:
            until(lambda: len(work.effects()) > 10, what="effects")
            redis.send(signal.SIGSTOP)
            connections = proxy.accepted
            until(lambda: proxy.accepted > connections, what="the server is given up and asked again")
            before = len(work.effects())
            until(lambda: proxy.accepted > connections + 1, what="once more")
            assert len(work.effects()) == before, "no effect starts without the store"
            redis.send(signal.SIGCONT)
            ended = running.end()
        assert ended.status == 0, ended
        counts(ended.json, received=60, done=60)
        assert work.real_repeats() == 0


# Every second one takes three leases, the others keep the store busy.
LONG = """#!/bin/sh
read -r body
echo "$ONCE_KEY $ONCE_ATTEMPT 0" >> effects
case $ONCE_KEY in *[13579]) sleep 3;; esac
"""


def test_f95_the_shortest_lease_outlives_a_long_handler(tmp_path, redis):
    """Two processes that lose races against each other all the time. Nothing is killed, nothing is lost, nothing runs twice."""
    work = fenced(tmp_path, redis, n=40, workers=6, unknown="hold", script=LONG, batch=8)
    with work.p.start() as first, work.p.start() as second:
        ended = [first.end(), second.end()]
    assert [e.status for e in ended] == [0, 0], ended
    assert set(work.per_key().values()) == {1} and len(work.per_key()) == 40
    assert work.unknown_keys() == set()
    assert sum(e.json["done"] for e in ended) == 40


def test_f95_a_shorter_lease_is_refused(tmp_path, redis):
    work = fenced(tmp_path, redis, n=1, lease="999ms")
    ended = work.p.try_run()
    assert ended.status == 2 and "p.yaml:5: 'lease' is 999ms" in ended.err and "write 1s or more" in ended.err, ended


def test_f46_killed_while_the_server_is_paused(tmp_path, redis):
    work = fenced(tmp_path, redis, n=60, workers=2, lease="1s")
    with work.p.start() as running:
        until(lambda: len(work.effects()) > 10, what="effects")
        redis.send(signal.SIGSTOP)
        running.send(signal.SIGKILL)
        running.end()
    redis.send(signal.SIGCONT)
    work.p.run(status=0)
    work.check_end(lost=2)


@pytest.mark.parametrize("harm", ["delay", "silent"])
def test_f50_a_slow_network(tmp_path, redis, harm):
    with Proxy(redis.port) as proxy:
        work = Fenced(tmp_path, n=20, workers=2, lease="30s", store=redis.url(port=proxy.port, more="&timeout=1"))
        proxy.delay_s = 0.01 if harm == "delay" else 0
        with work.p.start() as running:
            if harm == "silent":
                until(work.effects, what="effects")
                proxy.silent, connections = True, proxy.accepted
                until(lambda: proxy.accepted > connections, what="nobody answers, and another connection is tried")
                proxy.silent = False
            ended = running.end()
        assert ended.status == 0, ended
        counts(ended.json, received=20, done=20)
        assert work.real_repeats() == 0


def test_f45_not_there_at_the_start(tmp_path, redis):
    work = fenced(tmp_path, redis, n=3, config=COMMANDS + "patience: 1s\n")
    redis.kill()
    ended = work.p.try_run()
    assert ended.status == 3 and "redis at '127.0.0.1:" in ended.err, ended
    assert work.effects() == []
    redis.start()
    counts(work.p.run(status=0), received=3, done=3)


def follow(p):
    path = os.path.join(p.folder, p.name)
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace("{path: in.ndjson}", "{path: in.ndjson, follow: true}"))


def test_f45_an_endless_source_waits_for_its_store(tmp_path, redis):
    work = fenced(tmp_path, redis, n=5)
    follow(work.p)
    redis.kill()
    said = open(tmp_path / "stderr", "w+")
    with work.p.start(stderr=said) as running:
        until(lambda: "store_away" in open(tmp_path / "stderr").read(), what="it says that it waits")
        assert work.effects() == []
        redis.start()
        until(lambda: len(work.effects()) == 5, what="the effects")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0, ended
    counts(ended.json, received=5, done=5)


@pytest.mark.parametrize("away", ["killed", "paused"])
def test_f46_f59_a_stop_ends_the_wait(tmp_path, redis, away):
    """Long before the server's own timeout."""
    work = Fenced(tmp_path, n=2000, store=redis.url(more="&timeout=60"), config=COMMANDS + "drain: 1s\n")
    follow(work.p)
    with work.p.start() as running:
        until(lambda: len(work.effects()) >= 3, what="effects")
        if away == "killed":
            redis.kill()
        else:
            redis.send(signal.SIGSTOP)
        begun = time.monotonic()
        running.send(signal.SIGTERM)
        ended = running.end()
        assert time.monotonic() - begun < 20
    if away == "paused":
        redis.send(signal.SIGCONT)
    else:
        redis.start()
    assert ended.status in (0, 1) and ended.json["stopped"], ended


def test_f06_cut_in_the_middle_of_anything(tmp_path, redis):
    with Proxy(redis.port) as proxy:
        work = fenced(tmp_path, redis, port=proxy.port, n=60, workers=2, lease="30s")
        with work.p.start() as running:
            until(lambda: work.effects(), what="effects")
            step = 1
            while running.process.poll() is None:
                if not proxy.pending():
                    proxy.cut_after_sent = 5000 + 777 * step
                    step += 1
                time.sleep(0.02)
            ended = running.end()
        assert ended.status == 0, ended
        counts(ended.json, received=60, done=60)
        assert work.real_repeats() == 0 and proxy.lost > 3


# ---- many ----

def test_f25_f57_five_processes_on_one_file(tmp_path, redis):
    work = fenced(tmp_path, redis, n=200, workers=2, lease="30s", batch=16)
    running = [work.p.start() for _ in range(5)]
    try:
        ended = [r.end() for r in running]
    finally:
        for r in running:
            r.__exit__()
    for e in ended:
        assert e.status == 0, e
        check_sum(e.json)
    assert sum(e.json["done"] for e in ended) == 200
    assert len(work.per_key()) == 200 and work.real_repeats() == 0


def test_f25_f33_lanes_among_processes_that_are_killed(tmp_path, redis):
    """Each lane keeps its order whoever works on it; killed at random, each real repeat is counted."""
    config = 'key: "${/id}"\norder: "${/lane}"\nlease: 1s\nunknown: retry\nworkers: 4\nretry: {attempts: 100, backoff: 1ms..20ms}\n' \
             'batch: {max: 20}\nhandler: {exec: [./effect]}\n'
    work = fenced(tmp_path, redis, config=config)
    work.p.write(*[{"id": f"{i % 10}-{i // 10:02}", "lane": i % 10} for i in range(120)])
    kills = 0
    for _ in range(4):
        with work.p.start() as one, work.p.start() as two:
            at = len(work.effects())
            until(lambda: len(work.effects()) > at + 8 or one.process.poll() is not None, what="effects")
            one.process.kill()
            two.process.kill()
            kills += 2
    assert work.p.run(status=0)["received"] == 120
    assert len(work.per_key()) == 120
    assert work.real_repeats() <= work.reported_repeats() <= kills * 4
    for lane in range(10):
        order = list(dict.fromkeys(key for key, _, _ in work.effects() if key.startswith(f"{lane}-")))
        assert order == sorted(order), f"lane {lane}"


def test_f27_two_consumers_and_two_names(tmp_path, redis):
    config = 'key: "${/id}"\nhandler: {exec: ["true"]}\n'
    pipelines = [Pipeline(tmp_path, config, consumer=consumer, store=redis.url(name), name=f"{consumer}-{name}.yaml", source="{path: ./%s-%s.ndjson}" % (consumer, name))
                 for consumer in ("a", "b") for name in ("one", "two")]
    for p in pipelines:
        p.source = os.path.join(tmp_path, p.name.replace(".yaml", ".ndjson"))
        p.write(*[{"id": i} for i in range(20)])
    for p in pipelines:
        counts(p.run(status=0), received=20, done=20)


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@product  # sanitizers keep memory that was freed
def test_a_list_of_large_messages_is_read_in_parts(tmp_path, redis):
    """An entry is one value with its message in it, so a page of them is as many as fit."""
    config = 'key: "${/id}"\nack: after_accept\nworkers: 2\nretry: {attempts: 2, backoff: 30d..30d}\nhandler: {exec: [./effect]}\n'
    work = fenced(tmp_path, redis, config=config, script="#!/bin/sh\ncat > /dev/null\nexit 75\n")
    work.p.write(*[{"id": i, "text": "x" * 900_000} for i in range(120)])
    with work.p.start() as running:
        until(lambda: work.p.once("status", "--json", work.p.name).json.get("waiting") == 120, what="all of them failed, and wait")
        running.process.send_signal(signal.SIGTERM)
        running.end()
    ended = subprocess.run([sys.executable, "-c", PEAK, ONCE, "list", "--waiting", work.p.name], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0 and int(ended.stdout) < 100 * 1024, ended


def test_inbox_retries_letters_and_operators(tmp_path, redis):
    config = 'key: "${/id}"\nack: after_accept\nworkers: 2\nretry: {attempts: 2, backoff: 1ms..5ms}\nhandler: {exec: [./effect]}\n'
    work = fenced(tmp_path, redis, config=config, script='#!/bin/sh\nread -r b\necho "$ONCE_KEY $ONCE_ATTEMPT 0" >> effects\ncase $ONCE_KEY in *7) [ -f mended ] || exit 75;; esac\n')
    work.p.write(*[{"id": i} for i in range(30)], "{bad")
    counts(work.p.run(status=1), received=31, done=27, dead=4, retries=3)
    listed = work.p.once("list", "--dead", "--json", work.p.name).json["messages"]
    assert len(listed) == 4
    open(os.path.join(tmp_path, "mended"), "w").close()
    replayed = work.p.once("replay", "--all", "--json", work.p.name)
    assert replayed.status in (0, 1), replayed
    summary = work.p.run(status=1)
    assert summary["dead"] <= 1 and summary["store_dead"] == 1, summary
    assert work.p.explain("7")[0]["state"] == "done"
    (left,) = work.p.once("list", "--dead", "--json", work.p.name).json["messages"]
    assert work.p.once("discard", work.p.name, left["letter"]).status == 0
    assert work.p.once("forget", work.p.name, "7").status == 0
    status = work.p.once("status", "--json", work.p.name)
    assert status.status == 0 and status.json["dead"] == 0, status


# ---- what the server promises ----

def refused(p, *told):
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 or ended.status == 3, ended
        for part in told:
            assert part in ended.err, ended


CONFIG = 'key: "${/id}"\nhandler: {exec: ["true"]}\n'


@pytest.mark.parametrize("settings, told", [
    ([], "appendonly no"), (["--appendonly", "yes", "--appendfsync", "everysec"], "appendfsync everysec"),
])
def test_f47_a_server_that_is_not_durable_is_refused(tmp_path, settings, told):
    with RedisServer(tmp_path, *settings, durable=False) as redis:
        refused(Pipeline(tmp_path, CONFIG, store=redis.url()), "p.yaml:2: ", "could lose messages", told, "appendfsync always")


def test_a_server_that_evicts_is_refused(tmp_path):
    with RedisServer(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as redis:
        refused(Pipeline(tmp_path, CONFIG, store=redis.url()), "p.yaml:2: ", "allkeys-lru", "noeviction")
    with RedisServer(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction", name="second") as redis:
        assert Pipeline(tmp_path, CONFIG, store=redis.url()).once("check", "p.yaml").status == 0


def test_f47_check_says_what_a_failover_can_lose(tmp_path, redis):
    p = Pipeline(tmp_path, CONFIG, store=redis.url())
    ended = p.once("check", p.name)
    assert ended.status == 0 and "appendfsync always" in ended.out and "failover" in ended.out, ended


def test_sql_effects_need_a_database(tmp_path, redis):
    refused(Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["SELECT 1"]}\n', store=redis.url()), "p.yaml:2: ", "no database", "sqlite:PATH")


def test_f47_a_store_that_was_emptied_is_noticed(tmp_path, redis):
    work = fenced(tmp_path, redis, n=40)
    with work.p.start() as running:
        until(lambda: len(work.effects()) > 5, what="effects")
        redis.cli("FLUSHALL")
        ended = running.end()
    assert ended.status == 4 and "emptied" in ended.err, ended


def test_f82_a_store_without_its_head_is_not_begun_anew(tmp_path, redis):
    """Its secret is gone, so that none of its keys would be found again; with no state file nothing else tells."""
    work = fenced(tmp_path, redis, n=3)
    work.p.run(status=0)
    redis.cli("DEL", "{once}head")
    for arguments in (["run", "--new-store"], ["check"]):
        ended = work.p.once(*arguments, work.p.name, env={"XDG_STATE_HOME": str(tmp_path / "other")})
        assert ended.status == 3 and "'{once}head'" in ended.err, ended
    assert len(work.effects()) == 3


def test_f47_a_failover_that_forgets_is_noticed(tmp_path, redis):
    """The replica was behind when it became the primary. Who saw more than it has stops before anything else happens."""
    redis.cli("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with RedisServer(tmp_path, "--replicaof", "127.0.0.1", str(redis.port), name="replica") as replica, Proxy(redis.port) as proxy:
        until(lambda: "master_link_status:up" in replica.cli("INFO", "replication"), what="the replica")
        work = fenced(tmp_path, redis, port=proxy.port)
        work.p.configure(CONFIG.replace('"true"', "./effect"), store=redis.url(port=proxy.port), source="{path: in.ndjson, follow: true}")
        work.p.write({"id": "a"})
        with work.p.start() as running:
            until(lambda: replica.count("{once}e*") == 1 and replica.call("ZCARD", "{once}icc") == 0, what="the replica has it")
            replica.cli("REPLICAOF", "NO", "ONE")
            work.p.append({"id": "b"})
            until(lambda: redis.count("{once}e*") == 2 and redis.call("ZCARD", "{once}icc") == 0, what="the primary alone has it")
            proxy.server = ("127.0.0.1", replica.port)
            proxy.cut_all()
            work.p.append({"id": "c"})
            ended = running.end()
        assert ended.status == 3 and "forgotten" in ended.err and "commits" in ended.err, ended
        assert set(work.per_key()) == {"a", "b"}, "nothing was begun on the new primary"


def test_f58_a_newer_store_is_refused(tmp_path, redis):
    p = Pipeline(tmp_path, CONFIG, store=redis.url())
    p.run(status=0)
    redis.cli("HSET", "{once}head", "format", "99")
    refused(p, "format 99", "newer")


def test_a_batch_has_a_bound(tmp_path, redis):
    refused(Pipeline(tmp_path, CONFIG + "batch: {max: 20000}\n", store=redis.url()), "p.yaml:2: ", "8192")


def fill_memory(redis):
    redis.cli("CONFIG", "SET", "maxmemory", "1")


def fill_disk(redis):
    """A snapshot that cannot be written: from then on redis refuses to write (MISCONF)."""
    os.mkdir(os.path.join(redis.folder, "dump.rdb"))  # in its place
    redis.cli("CONFIG", "SET", "save", "3600 1")
    redis.cli("BGSAVE")
    until(lambda: "rdb_last_bgsave_status:err" in redis.cli("INFO", "persistence"), what="a snapshot that failed")


def empty_memory(redis):
    redis.cli("CONFIG", "SET", "maxmemory", "0")


def empty_disk(redis):
    os.rmdir(os.path.join(redis.folder, "dump.rdb"))
    redis.cli("BGSAVE")


@pytest.mark.parametrize("fill, empty, said", [(fill_memory, empty_memory, "OOM"), (fill_disk, empty_disk, "MISCONF")])
@pytest.mark.parametrize("begun", [False, True])
def test_f52_redis_without_space_is_waited_for(tmp_path, fill, empty, said, begun):
    """At the start and later; no failure is counted by it."""
    with RedisServer(tmp_path) as redis:
        work = fenced(tmp_path, redis, n=10)
        follow(work.p)
        if not begun:
            fill(redis)
        with work.p.start() as running:
            if begun:
                until(lambda: len(work.effects()) == 10, what="effects")
                until(lambda: work.p.once("status", "--json", work.p.name).json["busy"] == 0, what="their settlements")
                fill(redis)
                work.p.append({"id": "later"})
            heard = running.hear(said)
            assert "give it more memory or disk space" in heard, heard
            assert len(work.effects()) == (10 if begun else 0)
            empty(redis)
            until(lambda: len(work.effects()) == 10 + begun, what="the rest")
            until(lambda: work.p.once("status", "--json", work.p.name).json["busy"] == 0, what="the last settlement")
            running.send(signal.SIGTERM)
            ended = running.end()
        assert ended.status == 0 and "works again" in heard + ended.err, (heard, ended)
        assert set(work.per_key().values()) == {1}
        assert {attempt for _, attempt, _ in work.effects()} == {1}


def test_f52_full_memory_ends_a_finite_run_after_its_patience(tmp_path):
    with RedisServer(tmp_path) as redis:
        work = fenced(tmp_path, redis, n=10, config=COMMANDS + "patience: 300ms\n")
        fill_memory(redis)
        ended = work.p.try_run()
        assert ended.status == 3 and "'patience' (300ms); 0 messages are acked; 0 were read but not acked" in ended.err, ended
        assert work.effects() == []
        empty_memory(redis)
        counts(work.p.run(status=0), received=10, done=10)


@pytest.mark.parametrize("setting, value, said", [("appendfsync", "everysec", "no longer keeps what it acknowledges"), ("maxmemory", "1", "OOM")])
def test_f59_a_stop_while_redis_refuses_exits_well(tmp_path, redis, setting, value, said):
    """Nothing is acked, so nothing is lost: a file is read again."""
    work = fenced(tmp_path, redis, n=3)
    follow(work.p)
    with work.p.start() as running:
        until(lambda: len(work.effects()) == 3, what="effects")
        until(lambda: work.p.once("status", "--json", work.p.name).json["busy"] == 0, what="their settlements")
        redis.cli("CONFIG", "SET", setting, value)
        work.p.append({"id": "later", "n": 1})
        running.hear(said)
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0 and ended.json["stopped"] and ended.json["acked"] == 3 and "nothing was lost" in ended.err, ended


def test_finished_entries_expire_by_themselves(tmp_path, redis):
    p = Pipeline(tmp_path, CONFIG + "remember: 1s\n", store=redis.url())
    p.write({"id": 1})
    p.run(status=0)
    assert redis.count("{once}e*") == 1
    until(lambda: redis.count("{once}e*") == 0, what="the entry is gone")
    counts(p.run(status=0), received=1, done=1)


def test_wait_for_a_replica(tmp_path, redis):
    redis.cli("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    p = Pipeline(tmp_path, CONFIG, store=redis.url(more="&wait=1"))
    p.write(*[{"id": i} for i in range(5)])
    with RedisServer(tmp_path, "--replicaof", "127.0.0.1", str(redis.port), name="replica") as replica:
        until(lambda: "master_link_status:up" in replica.cli("INFO", "replication"), what="the replica")
        counts(p.run(status=0), received=5, done=5)
        assert replica.count("{once}e*") == 5


# ---- who may ----

def test_passwords_are_references_and_never_shown(tmp_path):
    with RedisServer(tmp_path, "--requirepass", "admin-s3cret") as redis:
        redis.auth = ["AUTH", "admin-s3cret"]
        redis.cli("ACL", "SETUSER", "worker", "on", ">w0rker-s3cret", "~{once}*", "+@all", "-@dangerous", "+config|get", "+info")
        redis.cli("ACL", "SETUSER", "blind", "on", ">w0rker-s3cret", "~{once}*", "+@all", "-@dangerous")
        with open(os.path.join(tmp_path, "secret"), "w") as file:
            file.write("w0rker-s3cret\n")
        said = ""
        for number, (user, more, env, fine) in enumerate([
            ("worker@", "&password=env:REDIS_PASSWORD", {"REDIS_PASSWORD": "w0rker-s3cret"}, True),
            ("worker@", "&password=file:secret", {}, True),
            ("worker:w0rker-s3cret@", "", {}, True),
            ("worker:wr0ng-s3cret@", "", {}, False),
            ("worker@", "&password=env:NO_SUCH_VARIABLE", {}, False),
            ("worker@", "&password=literal-s3cret", {}, False),
            ("blind:w0rker-s3cret@", "", {}, False),
            ("", "", {}, False),
        ]):
            p = Pipeline(tmp_path, CONFIG, store=redis.url(user=user, more=more))
            p.write({"id": number})
            for verb in (["check"], ["run"], ["check", "--deep"], ["check", "--repair"], ["run", "--json"], ["status"]):
                ended = p.once(*verb, p.name, env=env)
                said += ended.out + ended.err
                assert verb == ["status"] or (ended.status == 0) == fine, (user, more, verb, ended)
        assert "s3cret" not in said, said
        assert "CONFIG GET" in said and "NO_SUCH_VARIABLE" in said and "WRONGPASS" in said


def make_certificates(folder, address="127.0.0.1"):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    with open(os.path.join(folder, "names"), "w") as file:
        file.write(f"subjectAltName=IP:{address}\n")
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.pem", "-extfile", "names")


def test_tls_and_certificates_that_do_not_fit(tmp_path):
    make_certificates(tmp_path)
    port = free_port()
    with RedisServer(tmp_path, "--tls-port", str(port), "--tls-cert-file", f"{tmp_path}/server.pem", "--tls-key-file", f"{tmp_path}/server.key",
                     "--tls-ca-cert-file", f"{tmp_path}/ca.pem") as redis:
        ours = "&cacert=ca.pem&cert=client.pem&key=client.key"

        def url(host="127.0.0.1", more=ours):
            return f"rediss://{host}:{port}/0?name=once{more}"

        work = Fenced(tmp_path, n=60, workers=2, lease="30s", store=url())
        with work.p.start() as running:
            until(lambda: len(work.effects()) > 10, what="effects")
            redis.kill()
            redis.start()
            ended = running.end()
        assert ended.status == 0, ended
        assert len(work.per_key()) == 60 and work.real_repeats() <= work.reported_repeats() <= 2
        for wrong, told in [(url(more="&cert=client.pem&key=client.key"), "certificate"), (url(host="localhost"), "mismatch"),
                            (url(more="&cacert=ca.pem"), ""), (url(more="&cacert=nothing.pem"), "certificates cannot be read"),
                            (redis.url(more="&cacert=ca.pem"), "rediss://")]:
            ended = Pipeline(tmp_path, CONFIG, store=wrong).once("check", "p.yaml")
            assert ended.status in (2, 3) and told in ended.err, (wrong, ended)


def test_tls_a_certificate_of_the_same_ca_for_another_address(tmp_path):
    """Whoever has any certificate of the authority must not pass for the server."""
    make_certificates(tmp_path, address="127.0.0.2")
    port = free_port()
    with RedisServer(tmp_path, "--tls-port", str(port), "--tls-cert-file", f"{tmp_path}/server.pem", "--tls-key-file", f"{tmp_path}/server.key",
                     "--tls-ca-cert-file", f"{tmp_path}/ca.pem", "--tls-auth-clients", "no", "--bind", "127.0.0.1 127.0.0.2"):
        for host, status in [("127.0.0.1", 3), ("127.0.0.2", 0)]:
            ended = Pipeline(tmp_path, CONFIG, store=f"rediss://{host}:{port}/0?name=once&cacert=ca.pem").once("check", "p.yaml")
            assert (ended.status, "IP address mismatch" in ended.err) == (status, status == 3), (host, ended)


def test_f90_a_command_that_is_not_allowed_is_found_before_the_first_commit(tmp_path, redis):
    """In the middle of one it would leave a half of it."""
    for command in ("zrem", "hdel", "rpush", "msetnx", "type"):
        redis.cli("ACL", "SETUSER", "worker", "reset", "on", "nopass", "~{once}*", "+@all", "-" + command)
        p = Pipeline(tmp_path, CONFIG, store=redis.url(user="worker@"))
        p.write({"id": 1})
        ended = p.once("run", "--json", p.name)
        assert ended.status == 3 and command.upper() in ended.err and "ACL SETUSER" in ended.err, ended
        assert redis.count("{once}e*") == 0 and redis.count("{once}trial") == 0
    redis.cli("ACL", "SETUSER", "worker", "reset", "on", "nopass", "~{once}*", "+@all")
    counts(p.run(status=0), received=1, done=1)


# ---- beside each other ----

def test_f90_the_rights_that_the_page_names_are_enough(tmp_path, redis):
    with open(os.path.join(ROOT, "docs", "redis.md"), encoding="utf-8") as page:
        line = re.search(r"^ACL SETUSER .*$", page.read(), re.M).group()
    redis.cli(*line.replace("PASSWORD", "secret").replace("NAME", "once").split())
    work = Fenced(tmp_path, store=redis.url("once", user="once:secret@"), n=12)
    for verb in (["check"], ["run"], ["status", "--finished"], ["list"], ["explain", "--json"], ["replay", "--all"], ["sweep"]):
        ended = work.p.once(verb[0], *verb[1:], work.p.name, *(["k1"] if verb[0] == "explain" else []))
        assert ended.status in (0, 1) and "NOPERM" not in ended.err, (verb, ended)
    assert len(work.effects()) == 12


def test_f48_losing_a_race_is_not_a_warning(tmp_path, redis):
    """Workers in the same lanes lose races all the time. It is in the log for whoever wants to know."""
    work = fenced(tmp_path, redis, n=400, workers=4, lease="30s", batch=8, config=COMMANDS + 'order: "${/lane}"\n')
    work.p.write(*[{"id": f"k{i}", "lane": f"l{i % 3}"} for i in range(400)])
    for level in ("warn", "debug"):
        running = [work.p.start("--log-level", level) for _ in range(4)]
        try:
            ended = [r.end() for r in running]
        finally:
            for r in running:
                r.__exit__()
        for e in ended:
            assert e.status == 0, e
        said = [line for e in ended for line in e.err.splitlines() if "event=unclean" not in line]
        if level == "warn":
            assert not said, said
            work.p.write(*[{"id": f"again{i}", "lane": f"l{i % 3}"} for i in range(400)])
        else:
            assert any("at the same time" in line and "level=debug" in line for line in said), "there were no races"


def test_f35_replay_moves_many_letters_in_few_round_trips(tmp_path, redis):
    """By what the server counts, so that it does not depend on how fast anything is. Letters with entries, and those without."""
    work = fenced(tmp_path, redis, n=0, workers=4, lease="30s", attempts=1, batch=100, script="#!/bin/sh\nexit 65\n",
                  config=COMMANDS + "dead_limit: off\n")
    work.p.write(*[{"id": f"k{i}"} for i in range(300)], *["{bad %d" % i for i in range(100)])
    counts(work.p.run(status=1), received=400, dead=400, attempts=300)
    redis.call("CONFIG", "RESETSTAT")
    replayed = work.p.once("replay", "--all", "--json", work.p.name).json["counts"]
    assert (replayed["run"], replayed["still_dead"]) == (300, 100), replayed
    calls = dict(re.findall(r"cmdstat_(\w+):calls=(\d+)", redis.call("INFO", "commandstats").decode()))
    assert sum(int(calls.get(name, 0)) for name in ("get", "mget", "hget", "evalsha", "zrangebyscore")) < 150, str(calls)  # 64 to find the last one
    assert redis.call("ZCARD", "{once}dc") == 100 and redis.call("ZCARD", "{once}iWc") == 300 and redis.call("LLEN", "{once}ac") == 300


# ---- cluster ----

def cluster_node(folder, name):
    return RedisServer(folder, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", str(free_port()), name=name)


def test_a_cluster_sends_us_to_the_right_node(tmp_path):
    """MOVED is followed, also when the slot moves while we run; ASK too."""
    with cluster_node(tmp_path, "a") as a, cluster_node(tmp_path, "b") as b:
        slot = int(a.cli("CLUSTER", "KEYSLOT", "{once}"))
        ids = {node: node.cli("CLUSTER", "MYID") for node in (a, b)}
        a.cli("CLUSTER", "MEET", "127.0.0.1", b.port, b.settings[-1])
        a.cli("CLUSTER", "ADDSLOTSRANGE", 0, slot - 1, slot + 1, 16383)
        b.cli("CLUSTER", "ADDSLOTSRANGE", slot, slot)
        until(lambda: all("cluster_state:ok" in node.cli("CLUSTER", "INFO") for node in (a, b)), what="the cluster")
        work = fenced(tmp_path, a, n=60, workers=2, lease="30s")
        with work.p.start() as running:
            until(lambda: len(work.effects()) > 5, what="effects")
            a.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[b])
            b.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[a])
            time.sleep(0.05)
            while keys := b.call("CLUSTER", "GETKEYSINSLOT", slot, 10):
                b.call("MIGRATE", "127.0.0.1", a.port, "", 0, 1000, "KEYS", *keys)
            a.cli("CLUSTER", "SETSLOT", slot, "NODE", ids[a])  # b has no slot left then, and learns it from a
            ended = running.end()
        assert ended.status == 0, ended
        assert work.real_repeats() == 0 and len(work.per_key()) == 60
        counts(work.p.run(status=0), received=60, duplicates=60, attempts=0)
