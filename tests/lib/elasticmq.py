#!/usr/bin/python3
"""ElasticMQ for tests: a server that speaks SQS's JSON protocol, one Java process on loopback.

    tests/lib/elasticmq.py serve    starts one, prints its URL, and stops it at the end of standard input
    tests/lib/elasticmq.py jars     copies it into the cache by Maven, unless it is there (tools/setup calls it)

`tools/check` starts one for a whole run and names it in ONCE_TEST_SQS (http://HOST:PORT); a test that is run alone starts its own. Every
test makes queues of its own in it. A test that harms a server starts another one, which keeps its messages in a file:

    with Server(keeps=True) as server:
        queue = server.queue(visibility=2)
        server.kill()
        server.start()

How it differs from Amazon SQS: it verifies no signature, has no rights, does not know a retention period, and answers
ReceiptHandleIsInvalid for a delete that comes too late, where a standard queue of Amazon says that it has been done."""

import atexit
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.parse

import jars
from harness import until
from jars import Missing

STARTS_S = 90
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m", "-Xmx512m", "-Xshare:auto",
        f"-Dlogback.configurationFile={jars.fixtures('elasticmq')}/logback.xml"]
CONFIG = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = relaxed }}
rest-stats {{ enabled = false }}
generate-node-address = false
messages-storage {{ enabled = {keeps}, driver-class = "org.h2.Driver", uri = "jdbc:h2:{folder}/messages;WRITE_DELAY=0", username = "", password = "" }}
"""
KEYS = {"AWS_ACCESS_KEY_ID": "anyone", "AWS_SECRET_ACCESS_KEY": "anything", "AWS_REGION": "elasticmq"}  # for `once`
_numbers = itertools.count(1)


class Refused(Exception):
    """An answer with an error."""

    def __init__(self, status, answer):
        super().__init__(f"{status}: {answer}")
        self.status, self.code = status, json.loads(answer)["__type"].rpartition("#")[2] if answer.startswith("{") else ""


def new_name(fifo=False):
    return f"q{os.getpid()}-{random.randrange(1 << 32):08x}-{next(_numbers)}" + (".fifo" if fifo else "")


class Client:
    """Speaks to a server independently of the product. A queue is named by its URL."""

    def __init__(self, address):
        self.address = address  # http://HOST:PORT

    def call(self, action, **parameters):
        server = urllib.parse.urlsplit(self.address)
        connection = http.client.HTTPConnection(server.hostname, server.port, timeout=30)
        try:
            connection.request("POST", "/", json.dumps(parameters), {"Content-Type": "application/x-amz-json-1.0",
                                                                     "X-Amz-Target": f"AmazonSQS.{action}"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise Refused(answer.status, text)
        return json.loads(text) if text else {}

    def queue(self, name=None, fifo=False, visibility=30, dead_letters=None, deliveries=3, **attributes):
        """A new queue; `dead_letters`: the queue that gets what was received `deliveries` times."""
        attributes["VisibilityTimeout"] = str(visibility)
        if fifo:
            attributes.update(FifoQueue="true", ContentBasedDeduplication="false")
        if dead_letters:
            arn = self.attributes(dead_letters)["QueueArn"]
            attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": deliveries})
        return self.call("CreateQueue", QueueName=name or new_name(fifo), Attributes=attributes)["QueueUrl"]

    def send(self, queue, *bodies, group=None, attributes=None, delay=0):
        """In order. With `group` (a text, or a function of the number and the body) the queue is a FIFO queue. Returns the ids."""
        ids = []
        for n, body in enumerate(bodies):
            text = body if isinstance(body, str) else json.dumps(body)
            more = {"DelaySeconds": delay} if delay else {}
            if group:
                more.update(MessageGroupId=group(n, body) if callable(group) else group, MessageDeduplicationId=f"{os.getpid()}-{next(_numbers)}")
            if attributes:
                more["MessageAttributes"] = {name: {"DataType": "String", "StringValue": value} if isinstance(value, str) else value
                                             for name, value in attributes.items()}
            ids.append(self.call("SendMessage", QueueUrl=queue, MessageBody=text, **more)["MessageId"])
        return ids

    def receive(self, queue, n=10, visibility=30):
        return self.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=n, VisibilityTimeout=visibility,
                         AttributeNames=["All"]).get("Messages", [])

    def attributes(self, queue):
        return self.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=["All"])["Attributes"]

    def counts(self, queue):
        """How many messages are ready, in flight and delayed."""
        told = self.attributes(queue)
        return tuple(int(told["ApproximateNumberOfMessages" + which]) for which in ("", "NotVisible", "Delayed"))

    def is_empty(self, queue):
        return self.counts(queue) == (0, 0, 0)


class Server(Client):
    """A Java process. It is ended with its parent, whatever happens to that."""

    def __init__(self, keeps=False):
        jars.need("elasticmq")
        self.folder = tempfile.mkdtemp(prefix="once-elasticmq-")
        self.process = None
        port = jars.free_ports(1)
        super().__init__(f"http://127.0.0.1:{port}")
        atexit.register(self.close)
        with open(os.path.join(self.folder, "elasticmq.conf"), "w") as file:
            file.write(CONFIG.format(port=port, keeps=str(keeps).lower(), folder=self.folder))
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *JAVA, f"-Dconfig.file={self.folder}/elasticmq.conf", "-cp",
                                             f"{jars.folder('elasticmq')}/*", "org.elasticmq.server.Main"], cwd=self.folder,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        until(self._is_up, STARTS_S, "ElasticMQ answers")

    def _is_up(self):
        if self.process.poll() is not None:
            with open(os.path.join(self.folder, "log")) as file:
                raise Missing(f"ElasticMQ ended with {self.process.returncode}: {file.read()[-1500:]}")
        try:
            self.call("ListQueues")
            return True
        except (OSError, http.client.HTTPException, Refused):
            return False

    def kill(self):
        """As by kill -9."""
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    def pause(self, paused):
        """Connections stay, and nobody answers."""
        self.process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        atexit.unregister(self.close)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


_shared = None


def shared():
    """The server of the whole run, or one of this process that ends with it."""
    global _shared
    if not _shared:
        given = os.environ.get("ONCE_TEST_SQS")
        _shared = Client(given) if given else Server()
    return _shared


def serve():
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with Server() as server:
        print(server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:] not in (["serve"], ["jars"]):
        sys.exit("usage: tests/lib/elasticmq.py serve|jars")
    try:
        jars.copy("elasticmq") if sys.argv[1] == "jars" else serve()
    except Missing as why:
        sys.exit(f"elasticmq: {why}")
