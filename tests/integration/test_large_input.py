"""Input that is larger than every buffer: batches are bounded in bytes, and a message over message_max is a dead letter of which the
beginning is kept."""

import json
import os
import resource
import signal
import subprocess

import pytest

from fenced import Fenced
from harness import ONCE, Pipeline, counts, environment, until
from redisserver import RedisServer, needs_redis

SANITIZED = b"__asan_init" in open(ONCE, "rb").read()

CONFIG = 'key: "${/id}"\nhandler: {sql: "INSERT INTO t(id, v) VALUES (:id, length(:{/v?}))"}\n'
MIB = 1 << 20


def pipeline(folder, config=CONFIG, **more):
    return Pipeline(folder, config, "CREATE TABLE t(id INTEGER, v INTEGER);", **more)


def write_line(file, total, message_id, tail=b""):
    """One JSON line of `total` bytes, newline not counted, written in pieces."""
    head = b'{"id": %d, "v": "' % message_id
    end = b'"%s}' % tail
    left = total - len(head) - len(end)
    file.write(head)
    piece = b"x" * MIB
    while left > 0:
        file.write(piece[:left])
        left -= len(piece)
    file.write(end + b"\n")


def letters(p):
    return p.once("list", p.name, "--dead", "--body", "--json").json["messages"]


def run_in(limit, p):
    """With so much memory; but AddressSanitizer takes terabytes of addresses at its start."""
    bound = None if SANITIZED else lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return subprocess.run([ONCE, "run", "--json", p.name], cwd=p.folder, capture_output=True, timeout=120, env=environment(), preexec_fn=bound)


def test_f84_a_batch_of_large_messages_at_the_default(tmp_path):
    p = pipeline(tmp_path)
    with open(p.source, "wb") as file:
        for i in range(2000):
            write_line(file, 100000, i)
    # Reading all of a batch of 1024 before handing it out would take more than that.
    run = run_in(400 * MIB, p)
    assert run.returncode == 0, run
    counts(json.loads(run.stdout), received=2000, done=2000)


@pytest.mark.parametrize("source", ["file", "stdin"])
@pytest.mark.parametrize("total", [MIB + 1, 70 * MIB])
def test_f84_a_line_over_message_max_is_a_dead_letter(tmp_path, total, source):
    p = pipeline(tmp_path, source='{path: "-"}' if source == "stdin" else "{path: in.ndjson}")
    with open(p.source, "wb") as file:
        write_line(file, 100, 1)
        write_line(file, total, 2)
        write_line(file, MIB, 3)
    with open(p.source, "rb") as file:
        run = subprocess.run([ONCE, "run", "--json", p.name], cwd=tmp_path, capture_output=True, timeout=120, env=environment(),
                             stdin=file if source == "stdin" else subprocess.DEVNULL)
    assert run.returncode == 1, run
    counts(json.loads(run.stdout), received=3, done=2, dead=1)
    assert p.rows("SELECT id FROM t ORDER BY id") == [(1,), (3,)]
    [letter] = letters(p)
    assert letter["kind"] == "cut" and letter["point"] == "2", letter
    assert f"message of {total} bytes is longer than message_max" in letter["reason"], letter["reason"]
    assert len(letter["body"]) == MIB and letter["body"].startswith('{"id": 2, "v": "xxx')


def test_f84_what_was_cut_is_not_replayed(tmp_path):
    """Its first bytes are a good message, but not the one that was sent."""
    whole = '{"id": 7, "v": "a"}'
    config = CONFIG + f"message_max: {len(whole)}B\n"
    p = pipeline(tmp_path, config)
    p.write(whole + " " * 50)
    counts(p.run(status=1), received=1, dead=1)
    [letter] = letters(p)
    assert letter["body"] == whole and letter["kind"] == "cut"
    for more in ([], ["--force"]):
        replay = p.once("replay", p.name, str(letter["letter"]), "--json", *more)
        assert "only its beginning was kept" in replay.out, replay
    p.configure(CONFIG)
    replay = p.once("replay", p.name, "--all", "--json")
    assert "only its beginning was kept" in replay.out, replay
    assert len(letters(p)) == 1 and p.rows("SELECT * FROM t") == []
    # With room for it, its source brings it whole.
    counts(p.run(status=1), received=1, done=1)
    assert p.rows("SELECT id FROM t") == [(7,)]


@pytest.mark.parametrize("config", [CONFIG, CONFIG + "ack: after_accept\n"])
def test_f84_a_line_of_a_gigabyte_in_little_memory(tmp_path, config):
    p = pipeline(tmp_path, config)
    with open(p.source, "wb") as file:
        file.write(b'{"id": 1, "v": "')
        file.truncate(1 << 30)  # a hole: bytes that are there and cost nothing
        file.seek(1 << 30)
        file.write(b'"}\n{"id": 2}\n')
    run = run_in(300 * MIB, p)
    assert run.returncode == 1, run
    counts(json.loads(run.stdout), received=2, done=1, dead=1)
    assert p.rows("SELECT id FROM t") == [(2,)]
    assert f"message of {(1 << 30) + 2} bytes" in letters(p)[0]["reason"]


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer cannot live with a bound of memory")
def test_f84_no_memory_for_a_line_ends_a_finite_run(tmp_path):
    p = pipeline(tmp_path, CONFIG + "message_max: 1GiB\npatience: 200ms\n")
    with open(p.source, "wb") as file:
        write_line(file, 100, 1)
        write_line(file, 600 * MIB, 2)
    run = run_in(400 * MIB, p)  # the line cannot grow from 256 to 512 MiB, and what is left is enough for the store
    assert run.returncode == 3 and b"out of memory for a line of 'in.ndjson'" in run.stdout + run.stderr, run
    assert p.rows("SELECT id FROM t") == [(1,)]


@needs_redis
@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer keeps what was freed")
def test_f55_large_messages_of_a_redis_store_are_not_read_all_at_once(tmp_path):
    """Eighty that wait, of 900 kB each, are 72 MB."""
    with RedisServer(tmp_path) as server:
        work = Fenced(tmp_path, store=server.url(), config='key: "${/id}"\nretry: {attempts: 9, backoff: 30d..30d}\nhandler: {exec: [./effect]}\n', script="#!/bin/sh\nexit 75\n")
        p = work.p
        p.write(*[{"id": i, "body": "x" * 900_000} for i in range(80)])
        with p.start() as running:
            until(lambda: server.call("ZCARD", "{once}iWc") == 80, what="they wait")
            running.send(signal.SIGTERM)
            running.end()

        def most_mb(*words):
            process = subprocess.Popen([ONCE, "check", *words, p.name], cwd=p.folder, env=environment(folder=p.folder), stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            return used.ru_maxrss // 1024

        few = most_mb()  # of the test itself, from which it is forked
        assert most_mb("--deep") < few + 20
        server.call("DEL", "{once}iWc")
        assert most_mb("--repair") < few + 20
        assert server.call("ZCARD", "{once}iWc") == 80
