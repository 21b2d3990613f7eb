"""The SQS source against a fake that fails on demand. Effects are counted in a table, and messages in the fake."""

import collections
import contextlib
import json
import re
import subprocess
import time

import pytest

from brokerpipeline import CONFIG, numbered
from fakesqs import KEY, SECRET, FakeSqs
from fakesqspipeline import FakeSqsPipeline, need_sqs
from harness import until

need_sqs()

THROTTLED = (403, "RequestThrottled", "The request was denied due to request throttling.")


@pytest.fixture(scope="module")
def shared():
    with FakeSqs() as sqs:
        yield sqs


@pytest.fixture
def sqs(shared):
    """The same server for all tests, as if it were new."""
    shared.control(do="set", faults=[], log=[], ahead=0.0, skew=0.0, lifetime=3600.0)
    return shared


def deletes(sqs):
    return sqs.calls("DeleteMessageBatch")


# ---- acks ----

def test_f10_a_delete_that_fails_for_three_of_ten(tmp_path, sqs):
    """The seven are not deleted again, the three are."""
    p = FakeSqsPipeline(tmp_path, sqs, f"batch: {{max: 10}}\n{CONFIG}", visibility="30s")
    sqs.send(p.queue, *numbered(30))
    sqs.fault("DeleteMessageBatch", entries=3, times=2)
    summary = p.run_until(p.is_empty)
    assert summary["acked"] == 30, summary
    assert sum(each["n"] - each["failed"] for each in deletes(sqs)) == 30, deletes(sqs)
    assert sum(each["failed"] for each in deletes(sqs)) >= 4, deletes(sqs)
    p.check(30)


@pytest.mark.parametrize("done", [True, False])
def test_f08_a_connection_that_is_cut_in_the_middle_of_deletes(tmp_path, sqs, done):
    """At any byte of the answer, whether the messages were deleted or not."""
    p = FakeSqsPipeline(tmp_path, sqs, f"batch: {{max: 10}}\n{CONFIG}", visibility="30s")
    sqs.send(p.queue, *numbered(60))
    for cut in (0, 1, 17, 90, 160, 250):
        sqs.fault("DeleteMessageBatch", cut=cut, done=done)
    p.run_until(p.is_empty)
    assert sqs.state()["faults"] == 0
    p.check(60)


def test_receives_that_are_cut_or_make_no_sense(tmp_path, sqs):
    """What was given out and never arrived comes again after its time."""
    p = FakeSqsPipeline(tmp_path, sqs, visibility="2s")
    sqs.send(p.queue, *numbered(20))
    for how in ({"cut": 0}, {"cut": 150, "done": False}, {"cut": 400}, {"garbage": "{\"Messages\": 7}"}, {"garbage": "not JSON"},
                {"error": (500, "InternalFailure", "")}, {"error": (503, "ServiceUnavailable", "")}):
        sqs.fault("ReceiveMessage", **how)
    p.run_until(p.is_empty)
    assert sqs.state()["faults"] == 0
    p.check(20)


def test_a_receive_from_a_fifo_queue_that_is_repeated_gets_the_same_messages(tmp_path, sqs):
    """They are not hidden for their time, although the answer never arrived. A receive that has arrived is not repeated."""
    p = FakeSqsPipeline(tmp_path, sqs, f"batch: {{max: 10}}\n{CONFIG}", fifo=True, visibility="600s")
    sqs.send(p.queue, *numbered(30), group=lambda message: f"g{message['n'] % 3}")
    sqs.fault("ReceiveMessage", cut=200)
    sqs.fault("ReceiveMessage", skip=1, cut=0)
    summary = p.run_until(p.is_empty)
    assert sqs.state()["faults"] == 0 and summary["received"] == 30, summary
    p.check(30)


def test_a_message_that_cannot_be_deleted_holds_up_no_other(tmp_path, sqs):
    """Its receipt handle does not fit into a request. The others of its answer are handled and deleted."""
    p = FakeSqsPipeline(tmp_path, sqs, visibility="30s")
    sqs.send(p.queue, *numbered(5))
    strange = {"MessageId": "strange", "ReceiptHandle": "H" * 2000000, "Body": json.dumps(numbered(1, 5)[0])}
    ready = {**strange, "MessageId": "ready", "ReceiptHandle": "a" * 32, "Body": json.dumps(numbered(1, 6)[0])}
    sqs.fault("ReceiveMessage", garbage=json.dumps({"Messages": [strange, ready]}), done=False)
    with p.start() as running:
        p.wait(running, lambda: p.is_empty() and p.count() == 6)
        summary = p.stop(running)
    assert summary["acked"] == summary["received"] == 6, summary
    assert "cannot be used: it is cut or no JSON, or a message in it has no MessageId" in p.said(running)
    assert sorted(p.ids()) == ["m0", "m1", "m2", "m3", "m4", "m6"]


def test_throttled_calls_are_repeated_after_pauses(tmp_path, sqs):
    p = FakeSqsPipeline(tmp_path, sqs, visibility="30s")
    sqs.send(p.queue, *numbered(20))
    sqs.fault("ReceiveMessage", error=THROTTLED, times=3)
    sqs.fault("DeleteMessageBatch", error=THROTTLED, times=3)
    p.run_until(p.is_empty)
    received = [each["at"] for each in sqs.calls("ReceiveMessage")]
    assert received[3] - received[0] > 0.15, "no pauses"
    p.check(20)


def test_a_long_poll_delays_neither_deletes_nor_the_end(tmp_path, sqs):
    p = FakeSqsPipeline(tmp_path, sqs, wait="20s", visibility="60s")
    with p.start() as running:
        p.wait(running, lambda: sqs.waiting(p.queue), what="a poll waits")
        for i in range(3):
            sqs.send(p.queue, *numbered(1, i))
            p.wait(running, p.is_empty, deadline_s=5, what="it is deleted")
            p.wait(running, lambda: sqs.waiting(p.queue), what="the next poll waits")
        polls, began = sqs.calls("ReceiveMessage"), time.monotonic()
        assert len(polls) <= 6, "polls do not wait"
        p.stop(running)
        assert time.monotonic() - began < 5
    late = [delete["at"] - max(poll["until"] for poll in polls if poll.get("until", delete["at"] + 1) <= delete["at"]) for delete in deletes(sqs)]
    assert max(late) < 2, late
    p.check(3)


# ---- connections ----

def test_f59_a_stop_while_the_queue_is_looked_for(tmp_path, sqs):
    p = FakeSqsPipeline(tmp_path, sqs)
    sqs.fault("GetQueueUrl", hang=True, times=100)
    with p.start() as running:
        p.wait(running, lambda: sqs.calls("GetQueueUrl"), what="it asks for the queue")
        summary = p.stop(running)
        assert summary["stopped"] and "GetQueueUrl: stopped while waiting for an answer; nothing was lost" in p.said(running), p.said(running)


def test_f49_connections_that_are_half_open(tmp_path, sqs):
    """Nothing comes through them and nobody is told. Each thread notices it once, and then uses none of them again."""
    p = FakeSqsPipeline(tmp_path, sqs, visibility="10s")
    sqs.send(p.queue, *numbered(10))
    with p.start() as running:
        p.wait(running, p.is_empty)
        sqs.freeze()
        p.wait(running, lambda: not sqs.waiting(p.queue), what="the poll that waits has ended")
        sqs.send(p.queue, *numbered(10, 10))
        p.wait(running, p.is_empty, what="it goes on")
        p.stop(running)
    assert 1 <= len(sqs.calls("frozen")) <= 2, sqs.calls("frozen")
    p.check(20)


def test_f49_a_delete_without_an_answer_is_repeated(tmp_path, sqs):
    p = FakeSqsPipeline(tmp_path, sqs, visibility="10s")
    sqs.send(p.queue, *numbered(10))
    sqs.fault("DeleteMessageBatch", hang=True, done=False)
    p.run_until(p.is_empty)
    p.check(10)


# ---- receipts ----

def test_f08_a_receipt_that_has_expired(tmp_path, sqs):
    """The message is delivered a second time while its effect runs: the effect happens once, and the message is deleted."""
    mark = tmp_path / "effects"
    mark.touch()
    p = FakeSqsPipeline(tmp_path, sqs, f'key: "${{/id}}"\nhandler: {{exec: [sh, -c, "echo >>{mark}; while [ -e {mark}.wait ]; do sleep 0.05; done"]}}\n',
                    visibility="30s")
    (tmp_path / "effects.wait").touch()
    sqs.send(p.queue, *numbered(1))
    with p.start() as running:
        p.wait(running, lambda: mark.stat().st_size == 1, what="the effect begins")
        sqs.advance(31)
        p.wait(running, lambda: sqs.messages(p.queue)[0]["receives"] == 2, what="it is delivered again")
        (tmp_path / "effects.wait").unlink()
        p.wait(running, p.is_empty, what="it is deleted")
        p.stop(running)
    assert mark.stat().st_size == 1, "the effect happened twice"


def test_messages_of_a_queue_that_is_deleted_need_no_delete(tmp_path, sqs):
    """They are gone with it. Their effects have happened, and nobody tries to delete them again and again."""
    wait, begun = tmp_path / "wait", tmp_path / "begun"
    wait.touch()
    p = FakeSqsPipeline(tmp_path, sqs, f'workers: 3\nkey: "${{/id}}"\n'
                        f'handler: {{exec: [sh, -c, "echo >>{begun}; while [ -e {wait} ]; do sleep 0.05; done"]}}\n', visibility="30s")
    sqs.send(p.queue, *numbered(3))
    with p.start() as running:
        p.wait(running, lambda: begun.exists() and begun.stat().st_size == 3, what="the effects begin")
        sqs.ok("DeleteQueue", QueueUrl=sqs.url(p.queue))
        wait.unlink()
        p.wait(running, lambda: deletes(sqs), what="it tries to delete")
        assert p.stop(running)["done"] == 3
    assert "ack: " not in p.said(running), p.said(running)
    assert len(deletes(sqs)) <= 3, deletes(sqs)


@contextlib.contextmanager
def locked(p):
    """Somebody else holds the write lock of the store."""
    connection = p.connect()
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def received(p):
    return all(each["receives"] for each in p.sqs.messages(p.queue))


def test_what_waits_for_the_rest_of_its_batch_is_extended(tmp_path, sqs):
    p = FakeSqsPipeline(tmp_path, sqs, config=CONFIG + "batch: {wait: 6s}\n", visibility="2s")
    sqs.send(p.queue, *numbered(3))
    with p.start() as running:
        until(lambda: all(each["receives"] == 1 for each in sqs.messages(p.queue)), what="they were received")
        for _ in range(40):  # longer than their visibility
            assert all(each["receives"] == 1 and each["hidden"] > 0 for each in sqs.messages(p.queue)), "not extended"
            time.sleep(0.1)
        p.wait(running, p.is_empty, what="they are done")
        p.stop(running)
    p.check(3)


def test_f46_without_its_store_it_deletes_nothing(tmp_path, sqs):
    """Messages that are here stay hidden, and nothing is deleted."""
    p = FakeSqsPipeline(tmp_path, sqs, f"batch: {{max: 10}}\n{CONFIG}", visibility="2s")
    sqs.send(p.queue, *numbered(1))
    with p.start() as running:
        p.wait(running, p.is_empty)
        with locked(p):
            sqs.send(p.queue, *numbered(10, 1))
            p.wait(running, lambda: received(p), what="it has received")
            before, end = len(deletes(sqs)), time.monotonic() + 3  # longer than the visibility timeout
            p.wait(running, lambda: time.monotonic() > end)
            left = sqs.messages(p.queue)
            assert len(deletes(sqs)) == before and len(left) == 10, "deleted without a store"
            assert all(each["receives"] == 1 and each["hidden"] > 0 for each in left), "not extended"
        p.wait(running, p.is_empty, what="it goes on")
        p.stop(running)
    p.check(11)


def test_f36_what_cannot_be_buried_is_not_deleted(tmp_path, sqs):
    """Dead letters are in the store: as long as it is locked, a message that can never be handled stays in the queue."""
    p = FakeSqsPipeline(tmp_path, sqs, visibility="30s")
    sqs.send(p.queue, *numbered(1))
    with p.start() as running:
        p.wait(running, p.is_empty)
        with locked(p):
            sqs.send(p.queue, "not JSON")
            p.wait(running, lambda: received(p), what="it has received")
            end = time.monotonic() + 1
            p.wait(running, lambda: time.monotonic() > end)
            assert len(sqs.messages(p.queue)) == 1, "deleted without a letter"
        p.wait(running, p.is_empty, what="it is buried")
        p.stop(running, status=1)
    assert p.bodies() == [b"not JSON"]
    p.check(1)


def test_f59_a_stop_returns_what_was_not_begun(tmp_path, sqs):
    """Others get it when no receive of ours is left at the server, and do not wait for the visibility timeout. What had begun has happened."""
    wait = tmp_path / "wait"
    wait.touch()
    p = FakeSqsPipeline(tmp_path, sqs, f'drain: 10s\nworkers: 1\nkey: "${{/id}}"\n'
                    f'handler: {{exec: [sh, -c, "cat >>{tmp_path}/effects; while [ -e {wait} ]; do sleep 0.05; done"]}}\n', visibility="600s")
    sqs.send(p.queue, *numbered(10))
    with p.start() as running:
        p.wait(running, lambda: (tmp_path / "effects").exists() and all(each["receives"] for each in sqs.messages(p.queue)), what="all are here")
        running.send(15)
        wait.unlink()
        assert running.end().status == 0
    left = sqs.messages(p.queue)
    begun = (tmp_path / "effects").read_text().count("{")
    assert len(left) + begun == 10 and begun >= 1, (left, begun)
    assert all(each["hidden"] <= 1 for each in left), left
    p.run_until(p.is_empty)
    found = collections.Counter(re.findall(r"m\d+", (tmp_path / "effects").read_text()))
    assert found == {f"m{i}": 1 for i in range(10)}, "effects that happened twice, or not at all"


@pytest.mark.parametrize("when", ["receive", "delete"])
def test_f59_killed_it_loses_nothing(tmp_path, sqs, when):
    p = FakeSqsPipeline(tmp_path, sqs, f"batch: {{max: 10}}\n{CONFIG}", visibility="30s")
    sqs.send(p.queue, *numbered(40))
    if when == "delete":
        sqs.fault("DeleteMessageBatch", skip=1, hang=True, done=False)  # others may be deleted beside it
    else:
        sqs.fault("ReceiveMessage", skip=1, hang=True)
    with p.start() as running:
        until(lambda: sqs.state()["faults"] == 0, what="the call hangs")
        running.process.kill()
        running.end()
    assert not p.is_empty()
    until(lambda: not sqs.waiting(p.queue), what="receives of the dead process end")
    sqs.advance(31)
    p.run_until(p.is_empty)
    p.check(40)


# ---- credentials and signatures ----

def container(sqs):
    return {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{sqs.address}/container"}


def web_identity(folder, sqs):
    (folder / "identity").write_text("a-token\n")
    return {"AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "identity"), "AWS_ROLE_ARN": "arn:aws:iam::0:role/r", "AWS_ENDPOINT_URL_STS": sqs.address}


def role_of_a_profile(folder, sqs):
    (folder / "config").write_text(f"[profile p]\nrole_arn = arn:aws:iam::0:role/r\nsource_profile = base\n"
                                   f"[profile base]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    return {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_PROFILE": "p", "AWS_ENDPOINT_URL_STS": sqs.address}


def instance(_, sqs):
    return {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": sqs.address}


@pytest.mark.parametrize("provider", [web_identity, role_of_a_profile, lambda _, sqs: container(sqs), instance],
                         ids=["web_identity", "role", "container", "instance"])
def test_credentials_of_each_provider(tmp_path, sqs, provider):
    env = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, **provider(tmp_path, sqs)}
    p = FakeSqsPipeline(tmp_path, sqs, env=env, visibility="30s")
    sqs.send(p.queue, *numbered(10))
    p.run_until(p.is_empty)
    assert {each["key"][:8] for each in sqs.calls("DeleteMessageBatch")} == {"ASIAFAKE"}
    p.check(10)


def test_credentials_that_are_refused_in_the_middle(tmp_path, sqs):
    p = FakeSqsPipeline(tmp_path, sqs, env=container(sqs), visibility="30s")
    sqs.send(p.queue, *numbered(20))
    with p.start() as running:
        p.wait(running, p.is_empty)
        time.sleep(1)  # credentials that are new are not fetched again
        sqs.control(do="expire")
        sqs.send(p.queue, *numbered(20, 20))
        p.wait(running, p.is_empty, what="it goes on with new credentials")
        p.stop(running)
    ids = [each["key"] for each in sqs.calls() if str(each.get("key")).startswith("ASIA") and each["status"] == 200]
    assert len(set(ids)) == 2, set(ids)
    p.check(40)


def test_credentials_that_end_again_and_again(tmp_path, sqs):
    """They live for two seconds: the next ones are fetched when they end."""
    sqs.control(do="set", lifetime=2.0)
    p = FakeSqsPipeline(tmp_path, sqs, env=container(sqs), visibility="30s")
    with p.start() as running:
        end = time.monotonic() + 4.5
        for i in range(1000):
            sqs.send(p.queue, *numbered(2, 2 * i))
            p.wait(running, p.is_empty)
            if time.monotonic() > end:
                break
        p.stop(running)
    assert len(sqs.calls("GET /container")) >= 3
    p.check(2 * i + 2)


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_a_clock_that_differs_from_that_of_the_server(tmp_path, sqs, ahead_s):
    """Also when it is set while the run goes on. Nothing fails for it: each request is repeated at once."""
    p = FakeSqsPipeline(tmp_path, sqs, visibility="30s")
    sqs.skew(ahead_s)
    with p.start() as running:
        for number, skew_s in enumerate((ahead_s, -ahead_s, 0)):
            sqs.skew(skew_s)
            (message,) = numbered(1, number)
            status, _ = sqs.call("SendMessage", stamp=stamp(skew_s), QueueUrl=sqs.url(p.queue), MessageBody=json.dumps(message))
            assert status == 200
            p.wait(running, lambda n=number + 1: p.count() == n and p.is_empty())
        p.stop(running)
    assert "source_failed" not in p.said(running)
    p.check(3)


def stamp(ahead_s):
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + ahead_s))


@pytest.mark.parametrize("change", [{"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, {"AWS_ACCESS_KEY_ID": "AKUNKNOWN"}, {"AWS_SESSION_TOKEN": "wrong-token"}])
def test_a_wrong_signature_is_said(tmp_path, sqs, change):
    p = FakeSqsPipeline(tmp_path, sqs, env=change)
    sqs.send(p.queue, *numbered(1))
    ended = p.once("check", p.name)
    assert ended.status not in (0, 1), ended
    for secret in (SECRET, "wrong-secret", "wrong-token"):
        assert secret not in ended.out + ended.err, ended
    with p.start(stdin=subprocess.DEVNULL) as running:
        until(lambda: "signature" in p.said(running).lower() or "security token" in p.said(running).lower(), what="it says so")
        running.process.kill()
    assert SECRET not in p.said(running) and "wrong-" not in p.said(running)
    assert len(sqs.messages(p.queue)) == 1


def test_no_credentials_names_all_places(tmp_path, sqs):
    p = FakeSqsPipeline(tmp_path, sqs, env={"AWS_ACCESS_KEY_ID": None, "HOME": str(tmp_path)})
    ended = p.once("check", p.name)
    assert ended.status != 0
    for word in ("environment: AWS_ACCESS_KEY_ID is not set", "web identity", "profile", "container", "instance metadata"):
        assert word in ended.out + ended.err, ended


# ---- TLS ----

def make_certificate(folder, name):
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", certificate,
                    "-days", "2", "-subj", "/CN=fake", "-addext", f"subjectAltName={name}"], check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize("name, trusted, works", [("IP:127.0.0.1", True, True), ("IP:127.0.0.1", False, False), ("DNS:elsewhere", True, False)])
def test_the_certificate_is_verified(tmp_path, name, trusted, works):
    certificate, key = make_certificate(tmp_path, name)
    with FakeSqs(tls=(certificate, key)) as sqs:
        p = FakeSqsPipeline(tmp_path, sqs, env={"AWS_CA_BUNDLE": certificate} if trusted else None)
        sqs.send(p.queue, *numbered(5))
        if works:
            p.run_until(p.is_empty)
            p.check(5)
        else:
            ended = p.once("check", p.name)
            assert ended.status != 0 and "certificate" in (ended.out + ended.err).lower(), ended
            assert [each for each in sqs.calls() if each.get("key") == KEY and each["action"] not in ("CreateQueue", "SendMessageBatch")] == []
