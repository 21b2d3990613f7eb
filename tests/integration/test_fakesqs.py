"""The fake SQS itself: what it accepts is what another implementation signs, and its queues behave as SQS documents."""

import http.client
import json
import time

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from fakesqs import KEY, SECRET, FakeSqs


@pytest.fixture(scope="module")
def sqs():
    with FakeSqs() as server:
        yield server


def signed(sqs, action, body, key=KEY, secret=SECRET, token=None):
    request = AWSRequest("POST", sqs.address + "/", data=json.dumps(body).encode(),
                         headers={"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}", "Host": f"127.0.0.1:{sqs.port}"})
    SigV4Auth(Credentials(key, secret, token), "sqs", "eu-central-1").add_auth(request)
    return dict(request.headers), request.data


def kind(answer):
    return json.loads(answer)["__type"].split("#")[-1]


def test_it_accepts_what_botocore_signs_and_nothing_else(sqs):
    headers, data = signed(sqs, "CreateQueue", {"QueueName": "signed"})
    assert sqs.request("POST", "/", data, headers)[0] == 200
    assert sqs.request("POST", "/", data.replace(b"signed", b"forged"), headers)[0] == 403
    assert sqs.request("POST", "/?x=1", data, headers)[0] == 403
    for change in ({"Content-Type": "text/plain"}, {"X-Amz-Target": "AmazonSQS.DeleteQueue"}, {"X-Amz-Security-Token": "x"}):
        status, answer = sqs.request("POST", "/", data, {**headers, **change})
        assert status == 403, answer
    status, answer = sqs.request("POST", "/", data, {name: value for name, value in headers.items() if name != "Authorization"})
    assert (status, kind(answer)) == (400, "MissingAuthenticationTokenException")
    for key, secret, expected in ((KEY, "wrong", "InvalidSignatureException"), ("AKOTHER", SECRET, "UnrecognizedClientException")):
        headers, data = signed(sqs, "CreateQueue", {"QueueName": "signed"}, key, secret)
        assert kind(sqs.request("POST", "/", data, headers)[1]) == expected
    status, answer = sqs.call("CreateQueue", stamp=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - 1000)), QueueName="signed")
    assert (status, answer["__type"].split("#")[-1]) == (403, "InvalidSignatureException") and "Signature expired" in answer["message"]
    assert set(sqs.state()["queues"]) == {"signed"}


def test_sessions_end(sqs):
    status, body = sqs.request("GET", "/container")
    keys = json.loads(body)
    key = (keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"])
    assert status == 200 and sqs.call("CreateQueue", key=key, QueueName="session")[0] == 200
    assert sqs.call("CreateQueue", key=(*key[:2], None), QueueName="session")[1]["__type"].endswith("UnrecognizedClientException")
    sqs.control(do="expire")
    assert sqs.call("CreateQueue", key=key, QueueName="session")[1]["__type"].endswith("ExpiredTokenException")


def receive(sqs, queue, n=10, **more):
    return sqs.ok("ReceiveMessage", QueueUrl=sqs.url(queue), MaxNumberOfMessages=n, MessageSystemAttributeNames=["All"], **more).get("Messages", [])


def test_a_standard_queue(sqs):
    sqs.create("standard", VisibilityTimeout=30)
    sqs.send("standard", *(f"b{i}" for i in range(12)))
    first = receive(sqs, "standard")
    assert [each["Body"] for each in first] == [f"b{i}" for i in range(10)]
    assert first[0]["Attributes"]["ApproximateReceiveCount"] == "1"
    answer = sqs.ok("DeleteMessageBatch", QueueUrl=sqs.url("standard"),
                    Entries=[{"Id": "a", "ReceiptHandle": first[0]["ReceiptHandle"]}, {"Id": "b", "ReceiptHandle": "nonsense"}])
    assert [each["Id"] for each in answer["Successful"]] == ["a"] and answer["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"
    assert len(receive(sqs, "standard")) == 2 and receive(sqs, "standard") == []
    sqs.advance(31)
    again = receive(sqs, "standard", 1)
    assert again[0]["MessageId"] == first[1]["MessageId"] and again[0]["ReceiptHandle"] != first[1]["ReceiptHandle"]
    sqs.ok("DeleteMessage", QueueUrl=sqs.url("standard"), ReceiptHandle=first[1]["ReceiptHandle"])  # an old receipt: nothing is deleted
    assert len(sqs.messages("standard")) == 11
    status, answer = sqs.call("ChangeMessageVisibility", QueueUrl=sqs.url("standard"), ReceiptHandle=first[1]["ReceiptHandle"], VisibilityTimeout=0)
    assert status == 400 and answer["__type"].endswith("MessageNotInflight")
    sqs.advance(0)


def test_a_fifo_queue(sqs):
    sqs.create("q.fifo", FifoQueue="true", VisibilityTimeout=30)
    sqs.send("q.fifo", "a1", "b1", "a2", "b2", group=lambda body: body[0])
    (one,) = receive(sqs, "q.fifo", 1)
    assert one["Body"] == "a1" and one["Attributes"]["MessageGroupId"] == "a"
    assert [each["Body"] for each in receive(sqs, "q.fifo")] == ["b1", "b2"], "a group with a message out gives no more"
    sqs.ok("DeleteMessage", QueueUrl=sqs.url("q.fifo"), ReceiptHandle=one["ReceiptHandle"])
    assert [each["Body"] for each in receive(sqs, "q.fifo")] == ["a2"]


def test_a_dead_letter_queue(sqs):
    sqs.create("dead")
    sqs.create("main", VisibilityTimeout=0, RedrivePolicy=json.dumps({"deadLetterTargetArn": "arn:aws:sqs:x:0:dead", "maxReceiveCount": 2}))
    (sent,) = sqs.send("main", "poison")
    assert [len(receive(sqs, "main")) for _ in range(3)] == [1, 1, 0]
    assert sqs.messages("main") == [] and [each["id"] for each in sqs.messages("dead")] == [sent]
    sqs.control(do="redrive", source="dead", to="main")
    assert [each["id"] != sent for each in sqs.messages("main")] == [True], "a message that is moved back has another id"


def test_faults(sqs):
    sqs.create("faults")
    sqs.send("faults", "x")
    sqs.fault("ReceiveMessage", error=(403, "RequestThrottled", "slow down"))
    status, answer = sqs.call("ReceiveMessage", QueueUrl=sqs.url("faults"))
    assert (status, answer["__type"]) == (403, "com.amazonaws.sqs#RequestThrottled")
    sqs.fault("ReceiveMessage", cut=30, done=False)
    with pytest.raises((OSError, http.client.HTTPException)):
        sqs.call("ReceiveMessage", QueueUrl=sqs.url("faults"))
    assert len(receive(sqs, "faults")) == 1
