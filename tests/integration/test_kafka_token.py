"""SASL OAUTHBEARER: a command writes the tokens (`token`)."""

import stat
import time

import pytest

import kafka
from harness import until
from kafkapipeline import KafkaPipeline, need_kafka, numbered

need_kafka()

COMMAND = """#!/usr/bin/python3
import base64, json, time
with open("asked", "a") as file:
    file.write("x")
now = int(time.time())
parts = [{"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + SECONDS}]
print(".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + ".")
"""


@pytest.fixture
def client():
    return kafka.shared()


def pipeline(folder, client, command):
    script = folder / "token"
    script.write_text(command)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    topic = client.topic()
    client.produce(topic, *numbered(3))
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    return topic, KafkaPipeline(folder, client, topic, properties=properties, brokers=kafka.sasl(client), more="token: [./token]")


def test_a_command_writes_tokens_and_is_asked_again_before_they_expire(tmp_path, client):
    topic, p = pipeline(tmp_path, client, COMMAND.replace("SECONDS", "5"))
    with p.start() as running:
        p.wait(running, lambda: p.count() == 3)
        before = (tmp_path / "asked").stat().st_size
        p.wait(running, lambda: (tmp_path / "asked").stat().st_size >= before + 2, what="each client asks for the next token")
        client.produce(topic, *numbered(3, 3))
        p.wait(running, lambda: p.count() == 6)
        p.stop(running)
    p.check(6)


@pytest.mark.parametrize("command,told", [
    ("#!/bin/sh\necho secret >&2\nexit 3\n", "'token': './token' ended with exit status 3; run it by hand to see why"),
    ("#!/bin/sh\nkill -9 $$\n", "'token': './token' ended with signal 9"),
    ("#!/bin/sh\necho secret\n", "'token': './token' wrote no JSON Web Token with 'exp' and 'sub'"),
    ("#!/bin/sh\nhead -c 100000 /dev/zero\n", "'token': './token' took longer than 30 s, or wrote more than 64 KiB"),
    ("#!/nowhere\n", "'token': cannot run './token'"),
])
def test_a_command_that_writes_no_token_is_told(tmp_path, client, command, told):
    _, p = pipeline(tmp_path, client, command)
    with p.start() as running:
        p.wait(running, lambda: told in p.said(running), what="it says why")
        assert "secret" not in p.said(running)
        p.stop(running)
    assert p.count() == 0


@pytest.mark.parametrize("command", ["sleep 1000", "exec >&-; exec sleep 1000"])
def test_a_command_that_does_not_end_does_not_hold_up_a_stop(tmp_path, client, command):
    _, p = pipeline(tmp_path, client, f"#!/bin/sh\ntouch asked\n{command}\n")
    with p.start() as running:
        until(lambda: (tmp_path / "asked").exists(), 20, "the command runs")
        stopped = time.monotonic()
        p.stop(running)
        assert time.monotonic() - stopped < 15  # not the 30 s that the command may take
