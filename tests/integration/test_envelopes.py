"""`preset: sns` and `preset: eventbridge`, and fields of JSON in a text, as a user meets them."""

import json

import pytest

import elasticmq
import kafka
import rabbitmq
from harness import Pipeline, counts
from kafkapipeline import KafkaPipeline, need_kafka
from pgpipeline import PostgresPipeline, need_postgres
from rabbitmqpipeline import RabbitPipeline, need_rabbitmq
from sqspipeline import SqsPipeline, need_sqs

need_kafka()
need_postgres()
need_rabbitmq()
need_sqs()

TOPIC = "arn:aws:sns:eu-west-1:123456789012:orders"
TABLE = "CREATE TABLE t(key, id, n, subject);"
SNS = """preset: sns
handler:
  sql: ["INSERT INTO t VALUES (:once_key, :{event:id}, :n, :{event:subject?})"]
"""


def notification(number, message, **more):
    text = message if isinstance(message, str) else json.dumps(message)
    return {"Type": "Notification", "MessageId": f"m{number}", "TopicArn": TOPIC, "Message": text, "Timestamp": "2026-01-31T12:00:00.000Z", **more}


def event(number, **more):
    return {"version": "0", "id": f"e{number}", "detail-type": "Placed", "source": "shop", "account": "1", "time": "2026-01-31T12:00:00Z",
            "region": "eu-west-1", "resources": [], "detail": {"n": number}, **more}


def test_wrapped_and_raw_messages_of_a_topic(tmp_path):
    p = Pipeline(tmp_path, SNS + "remember: forever\n", TABLE)
    p.write(notification(1, {"n": 1}, Subject="hello"), notification(2, {"n": 2}), {"n": 3}, notification(1, {"n": 1}, Subject="hello"),
            notification(4, "no JSON"), {"Type": "SubscriptionConfirmation", "MessageId": "m9", "TopicArn": TOPIC, "SubscribeURL": "https://x"})
    counts(p.run(status=1), received=6, done=3, duplicates=1, dead=2)
    assert p.rows("SELECT * FROM t ORDER BY n") == [(f"{TOPIC}#m1", "m1", 1, "hello"), (f"{TOPIC}#m2", "m2", 2, None), ("in.ndjson#3", "3", 3, None)]
    assert p.letters() == [(5, "malformed JSON at byte 1: unknown word"),
                           (6, "SNS asks to confirm a subscription (SubscriptionConfirmation), which is no event and which once never does: if you want the "
                               "subscription, open the SubscribeURL in this letter; then discard the letter")]


def test_a_retry_and_a_replay_see_the_opened_message(tmp_path):
    """What waits in the store and in a letter has no envelope any more, and its templates give the same."""
    p = Pipeline(tmp_path, """preset: sns
remember: forever
ack: after_accept
retry: {attempts: 2, backoff: 1ms..1ms}
handler:
  exec: [sh, -c, 'cat >>seen; echo " $1 $2" >>seen; test -e good || exit 75', sh, "${event:id}", "${header:kind}"]
""")
    p.write(notification(1, {"n": 1}, MessageAttributes={"kind": {"Type": "String", "Value": "k"}}))
    counts(p.run(status=1), received=1, dead=1)
    (tmp_path / "good").write_text("")
    assert p.once("replay", p.name, "--all").status == 0
    counts(p.run(status=0), received=1, resumed=1, done=1, duplicates=1)
    assert (tmp_path / "seen").read_text() == '{"n": 1} m1 k\n' * 3


def test_a_message_of_sns_that_is_no_json(tmp_path):
    p = Pipeline(tmp_path, 'preset: sns\nhandler: {sql: ["INSERT INTO t(key, n) VALUES (:once_key, :once_body)"]}\nremember: forever\n', TABLE)
    (tmp_path / p.name).write_text((tmp_path / p.name).read_text().replace("in.ndjson}", "in.ndjson}, body: bytes"))
    p.write(notification(1, "hello"))
    counts(p.run(status=0), received=1, done=1)
    assert p.rows("SELECT key, n FROM t") == [(f"{TOPIC}#m1", b"hello")]


def test_events_of_eventbridge(tmp_path):
    p = Pipeline(tmp_path, 'preset: eventbridge\nremember: forever\nhandlers: {Placed: {sql: ["INSERT INTO t(key, id, n) VALUES (:once_key, :{event:type}, :{/detail/n})"]}}\n', TABLE)
    p.write(event(1), event(2), event(1), event(2, **{"replay-name": "r"}), event(1, detail={"n": 9}), {"n": 1})
    counts(p.run(status=1), received=6, done=2, duplicates=2, conflicts=1, dead=2)
    assert p.rows("SELECT key, id, n FROM t ORDER BY n") == [("shop#e1", "Placed", 1), ("shop#e2", "Placed", 2)]


def test_eventbridge_through_sns(tmp_path):
    """With the preset, and with templates that go into the text: the same event has the same key."""
    p = Pipeline(tmp_path, """preset: sns
key: "${/source}#${/id}"
type: "${/detail-type}"
remember: forever
handlers: {Placed: {sql: ["INSERT INTO t(key, n) VALUES (:once_key, :{/detail/n})"]}}
""", TABLE)
    p.write(notification(1, event(1)), notification(2, event(1)), event(2))  # a second notification of the event, and a raw one
    counts(p.run(status=0), received=3, done=2, duplicates=1)
    assert p.rows("SELECT key, n FROM t ORDER BY n") == [("shop#e1", 1), ("shop#e2", 2)]
    (tmp_path / "other").mkdir()
    p = Pipeline(tmp_path / "other", """key: "${json:/Message:/source}#${json:/Message:/id}"
type: "${json:/Message:/detail-type}"
fingerprint: ["json:/Message:/detail"]
remember: forever
handlers: {Placed: {sql: ["INSERT INTO t(key, n) VALUES (:once_key, :{json:/Message:/detail/n})"]}}
""", TABLE)
    p.write(notification(3, event(3)), notification(4, event(3, **{"replay-name": "r"})))
    counts(p.run(status=0), received=2, done=1, duplicates=1)
    assert p.rows("SELECT key, n FROM t") == [("shop#e3", 3)]


def test_check_says_what_is_caught(tmp_path):
    p = Pipeline(tmp_path, SNS, TABLE)
    said = p.once("check", p.name).out
    assert 'preset sns: key: "${event:source}#${event:id}" (write it in the file to change it)' in said, said
    assert "also a second delivery by SNS, which has the same MessageId" in said and "raw delivery" in said, said
    p.configure('preset: eventbridge\nhandler: {dead: no}\n')
    assert "preset eventbridge: fingerprint: [/detail-type, /detail] (write it" in p.once("check", p.name).out


def test_another_preset_needs_a_word(tmp_path):
    """The key is written in the same way, and means something else."""
    p = Pipeline(tmp_path, 'preset: eventbridge\nfingerprint: body\nhandler: {dead: no}\n')
    p.write(event(1))
    p.run(status=1)
    p.configure('preset: sns\nfingerprint: body\nhandler: {dead: no}\n')
    ended = p.try_run()
    assert ended.status == 2 and "--confirm-scope-change" in ended.err, ended


def test_json_in_a_text_is_a_key_an_order_a_version_a_fingerprint_and_a_parameter(tmp_path):
    inner = {"o": "a", "v": 1, "amount": "12345678901234567.89", "note": json.dumps({"who": "x"})}
    p = Pipeline(tmp_path, """key: "${json:/text:/o}-${json:/text:/v}"
order: "${json:/text:/o}"
version: {from: "${json:/text:/v}", first: 1}
type: "${json:/text:/note:/who}"
fingerprint: ["json:/text:/amount"]
remember: forever
handlers:
  x: {sql: ["INSERT INTO t VALUES (:{json:/text:/o}, :{json:/text:/v}, :{json:/text:/amount as text}, :{json:/text:/none?})"]}
""", TABLE)
    p.write({"text": json.dumps(inner)}, {"text": json.dumps({**inner, "more": 1})}, {"text": json.dumps({**inner, "amount": 2})}, {"text": "{"}, {"text": 7}, {})
    counts(p.run(status=1), received=6, done=1, duplicates=1, conflicts=1, dead=4)
    assert p.rows("SELECT * FROM t") == [("a", 1, "12345678901234567.89", None)]
    assert [reason for _, reason in p.letters()[1:]] == [
        "the text in field '/text' is not JSON, so it has no 'json:/text:/note:/who': byte 2: text ends inside a value",
        "field '/text' is not a text, so there is no JSON in it for 'json:/text:/note:/who'", "missing field 'json:/text:/note:/who'"]


# ---- parameters of statements ----

BOUND = """key: "${/id}"
remember: forever
handler:
  sql: ["INSERT INTO t VALUES (:{header:h}, :{header:none?}, :{coordinates}, :{json:/text:/n}, :{header:n as text})"]
"""
SENT = {"id": "a", "headers": {"h": "it's", "n": 12345678901234567.89}, "text": '{"n": 9007199254740993}'}


def test_statements_bind_what_templates_name(tmp_path):
    p = Pipeline(tmp_path, BOUND, "CREATE TABLE t(h, none, at, n, exact);", source="{path: in.ndjson, headers: /headers}")
    p.write(json.dumps(SENT).replace("1.2345678901234568e+16", "12345678901234567.89").encode(), {"id": "b", "text": "{}"})
    counts(p.run(status=1), received=2, done=1, dead=1)
    assert p.rows("SELECT * FROM t") == [("it's", None, "in.ndjson:1", 9007199254740993, "12345678901234567.89")]
    assert p.letters() == [(2, "missing header 'h'")]


def test_statements_of_postgres_bind_what_templates_name(tmp_path):
    p = PostgresPipeline(tmp_path, BOUND, "CREATE TABLE t(h text, none text, at text, n bigint, exact numeric);", source="{path: in.ndjson, headers: /headers}")
    p.write(json.dumps(SENT).replace("1.2345678901234568e+16", "12345678901234567.89").encode())
    counts(p.run(status=0), received=1, done=1)
    assert p.rows("SELECT h, none, at, n, exact::text FROM t") == [("it's", None, "in.ndjson:1", 9007199254740993, "12345678901234567.89")]


# ---- brokers ----

def brokered(*more):
    """What is seen of a message: the id of its event, a header, and more."""
    words = " || ' ' || ".join((":{event:id}", ":{header:h}", *more))
    return f'preset: sns\nremember: forever\nhandler: {{sql: ["INSERT INTO t(n, id) VALUES (:n, {words})"]}}\n'


def with_header(number):
    return notification(number, {"n": number}, MessageAttributes={"h": {"Type": "String", "Value": "attribute"}})


def test_envelopes_from_kafka(tmp_path):
    """A header that looks like one of ours changes nothing."""
    client = kafka.shared()
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, brokered(":{source:partition}"))
    client.produce(topic, with_header(1), with_header(1), {"n": 2}, headers=[("h", "x"), ("once:event", b"\xff")])
    counts(p.run_until(lambda: p.count() == 2), received=3, done=2, duplicates=1)
    assert p.rows("SELECT n, id FROM t ORDER BY n") == [(1, "m1 attribute 0"), (2, "2 x 0")]


def test_envelopes_from_sqs(tmp_path):
    """Raw delivery makes message attributes of SQS of those of SNS."""
    client = elasticmq.shared()
    queue = client.queue()
    p = SqsPipeline(tmp_path, client, queue, brokered())
    client.send(queue, with_header(1), with_header(1))
    raw, = client.send(queue, {"n": 2}, attributes={"h": "attribute"})
    counts(p.run_until(lambda: p.is_done(2)), received=3, done=2, duplicates=1)
    assert p.rows("SELECT n, id FROM t ORDER BY n") == [(1, "m1 attribute"), (2, f"{raw} attribute")]
    assert p.explain(f"{TOPIC}#m1")[0]["state"] == "done"


def test_envelopes_from_rabbitmq(tmp_path):
    """Without an envelope there is no id: a queue of RabbitMQ has no coordinates that last."""
    client = rabbitmq.shared()
    queue = client.queue()
    p = RabbitPipeline(tmp_path, client, queue, brokered())
    client.publish(queue, with_header(1), with_header(1), {"n": 2})
    counts(p.run_until(lambda: p.count() == 1 and p.has_table("once_letter") and p.value("SELECT count(*) FROM once_letter") == 1, status=1),
           received=3, done=1, duplicates=1, dead=1)
    assert p.value("SELECT CAST(reason AS TEXT) FROM once_letter") == "missing attribute 'source'"
    assert "raw delivery) has no id, and becomes a dead letter" in p.once("check", p.name).out
