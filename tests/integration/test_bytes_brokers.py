"""`body: bytes` from every broker to every effect: a bound :once_body, standard input of a command, base64 for a process that is kept."""

import collections
import hashlib
import os
import sys

import elasticmq
import kafka
import rabbitmq
from harness import counts
from kafkapipeline import KafkaPipeline, need_kafka
from rabbitmqpipeline import RabbitPipeline, need_rabbitmq
from sqspipeline import SqsPipeline, need_sqs

need_kafka()
need_rabbitmq()
need_sqs()

KINDS = ("bound", "command", "kept")
CONFIG = f"""
key: "${{hash}}"
type: "${{header:kind}}"
handlers:
  bound: {{sql: "INSERT INTO b(body) VALUES (:once_body)"}}
  command: {{exec: [sh, -c, 'cat >>"command.$ONCE_KEY"']}}
  kept: {{exec: [{sys.executable}, kept.py], mode: stream}}
"""
KEPT = """
import base64, json, sys
for line in sys.stdin.buffer:
    m = json.loads(line)
    with open("kept." + m["key"], "ab") as file:
        file.write(base64.b64decode(m["body_base64"], validate=True))
    print(json.dumps({"id": m["id"], "outcome": "done"}), flush=True)
"""
TEXTS = ["{", " \t\r\n", "'; DROP TABLE b; --", "\\x41</Body>&amp;", '{"a": 1}', '{"a":1}', "\u0080\ufffdü😀"]
LAST = b"last"
BODIES = [b"\0", b"\0\xff\xfe\x80", b"", bytes(range(256)), *(text.encode() for text in TEXTS)]


def hashed(bodies):
    return {hashlib.sha256(body).hexdigest()[:32]: body for body in bodies}


def prepare(folder):
    (folder / "kept.py").write_text(KEPT)
    return {"config": CONFIG, "tables": "CREATE TABLE b(body BLOB);", "beside": "body: bytes"}


def taken(p, folder):
    """What took effect, in each way, as many times as it did."""
    found = {"bound": [bytes(body) for body, in p.rows("SELECT body FROM b WHERE typeof(body) = 'blob'")]}
    for kind in KINDS[1:]:
        names = [name for name in os.listdir(folder) if name.startswith(f"{kind}.") and name != "kept.py"]
        found[kind] = {name.partition(".")[2]: (folder / name).read_bytes() for name in names}
    return found


def run(p, folder, send, bodies, is_over=lambda: True):
    """Each is sent twice, in each way, and takes effect once, as it was sent. Behind them comes a last one: a queue keeps its order."""
    for kind in KINDS:
        send(kind, *bodies, *bodies)
    for kind in KINDS:
        send(kind, LAST)
    wanted = {"bound": collections.Counter([*bodies, LAST]), **dict.fromkeys(KINDS[1:], hashed([*bodies, LAST]))}

    def is_taken():
        found = taken(p, folder)
        return {**found, "bound": collections.Counter(found["bound"])} == wanted and is_over()

    n = len(KINDS) * len(bodies)
    counts(p.run_until(is_taken, what="all bodies as they were sent"), received=2 * n + len(KINDS), done=n + len(KINDS), duplicates=n)
    assert is_taken()


def test_bytes_from_kafka(tmp_path):
    client = kafka.shared()
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, **prepare(tmp_path))
    run(p, tmp_path, lambda kind, *bodies: client.produce(topic, *bodies, headers=[("kind", kind.encode())]), BODIES, lambda: p.lag() == 0)


def test_bytes_from_rabbitmq(tmp_path):
    client = rabbitmq.shared()
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, **prepare(tmp_path))
    run(p, tmp_path, lambda kind, *bodies: client.publish(queue, *bodies, headers={"kind": kind}, content_type="application/octet-stream"), BODIES)


def test_bytes_from_sqs(tmp_path):
    """Bodies of SQS are text, and not empty; they need not be JSON."""
    client = elasticmq.shared()
    queue = client.queue()
    p = SqsPipeline(tmp_path, client, queue, **prepare(tmp_path))
    run(p, tmp_path, lambda kind, *bodies: client.send(queue, *(body.decode() for body in bodies), attributes={"kind": kind}),
        [text.encode() for text in TEXTS], lambda: client.is_empty(queue))
