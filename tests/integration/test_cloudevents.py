"""`preset: cloudevents`, as a user meets it."""

import json
import os
import stat

import kafka
from harness import Pipeline, counts
from kafkapipeline import KafkaPipeline, need_kafka

need_kafka()


def structured(number, kind="t", source="/s", **more):
    return {"specversion": "1.0", "id": str(number), "source": source, "type": kind, **more}


def binary(number, source="/s", mark="_"):
    names = {"specversion": "1.0", "id": str(number), "source": source, "type": "t", "subject": "s7"}
    return {"n": number, "headers": {f"ce{mark}{name}": value for name, value in names.items()}}


def test_structured_and_binary_events_have_the_same_keys(tmp_path):
    script = tmp_path / "effect"
    script.write_text('#!/bin/sh\necho "$ONCE_KEY $ONCE_TYPE $1" >> done\n')
    os.chmod(script, script.stat().st_mode | stat.S_IXUSR)
    p = Pipeline(tmp_path, 'preset: cloudevents\nhandlers: {t: {exec: [./effect, "s=${event:subject}"]}}\n',
                 source="{path: in.ndjson, headers: /headers}")
    p.write(structured(1, subject="s7"), binary(2), binary(3, mark="-"), structured(1, source="/other", subject="s8"), structured(1, subject="s7"),
            {"id": "1", "type": "t"})
    counts(p.run(status=1), received=6, done=4, duplicates=1, dead=1)
    assert sorted((tmp_path / "done").read_text().splitlines()) == ["/other#1 t s=s8", "/s#1 t s=s7", "/s#2 t s=s7", "/s#3 t s=s7"]
    assert p.letters() == [(6, "not a CloudEvent: there is neither a header 'ce_specversion' nor a field 'specversion'")]


def test_an_old_event_is_too_old(tmp_path):
    p = Pipeline(tmp_path, 'preset: cloudevents\nremember: 1h\nhandler: {sql: ["INSERT INTO t VALUES (:id)"]}\n', "CREATE TABLE t(id);")
    p.write(structured(1, time="2001-01-01T00:00:00.123456789Z"), structured(2))
    counts(p.run(status=1), received=2, done=1, dead=1, too_old=1)


def test_check_prints_what_the_preset_sets(tmp_path):
    p = Pipeline(tmp_path, 'preset: cloudevents\nhandlers: {t: {dead: no}}\n')
    said = p.once("check", p.name)
    assert said.status == 0
    for line in ('key: "${event:source}#${event:id}"', 'type: "${event:type}"', 'time: {from: "${event:time}", optional: true}'):
        assert f"preset cloudevents: {line} (write it in the file to change it)" in said.out, said.out
    p.configure('preset: cloudevents\nkey: "${event:id}"\nhandlers: {t: {dead: no}}\n')
    said = p.once("check", p.name).out
    assert 'preset cloudevents: key is set in the file; without that it would be key: "${event:source}#${event:id}"' in said, said


def test_another_key_than_the_presets_needs_a_word(tmp_path):
    p = Pipeline(tmp_path, 'preset: cloudevents\nhandler: {sql: ["INSERT INTO t VALUES (:id)"]}\n', "CREATE TABLE t(id);")
    p.write(structured(1))
    p.run(status=0)
    p.configure('preset: cloudevents\nkey: "${event:id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id)"]}\n')
    ended = p.try_run()
    assert ended.status == 2 and "--confirm-scope-change" in ended.err, ended


# ---- records of Kafka, as its protocol binding for CloudEvents has them ----

def headers_of(number, kind="t", content="application/json", source="/s", **more):
    attributes = {"specversion": "1.0", "id": str(number), "source": source, "type": kind, **more}
    return [("content-type", content.encode()), *((f"ce_{name}", value.encode()) for name, value in attributes.items())]


def letter(p):
    return p.value("SELECT CAST(reason AS TEXT) FROM once_letter")


def test_records_of_kafka_are_events(tmp_path):
    """The headers of a binary one are its attributes; the media type says which form it is, also if a record has the headers of both."""
    client = kafka.shared()
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, """
        preset: cloudevents
        remember: 1h
        handlers:
          t: {sql: "INSERT INTO t(id, n) VALUES (:{event:source} || '#' || :{event:id} || ' ' || :{event:subject}, :{/data/n})"}
          b: {sql: "INSERT INTO t(id, n) VALUES (:{event:source} || '#' || :{event:id} || ' ' || :{event:subject}, :n)"}
        """.replace("\n        ", "\n"))
    media = [("content-type", b"application/cloudevents+json; charset=UTF-8")]
    client.produce(topic, structured(1, subject="x", data={"n": 10}), headers=media)
    client.produce(topic, structured(1, source="/other", subject="x", data={"n": 11}))
    client.produce(topic, structured(2, subject="x", data={"n": 12}), headers=[*media, *headers_of(1, "b")[1:]])
    client.produce(topic, {"n": 13}, {"n": 13}, headers=headers_of(3, "b", subject="ü"))
    client.produce(topic, {"n": 14}, headers=headers_of(4, "b", subject="x", time="2001-01-01T00:00:00Z"))
    client.produce(topic, {"n": 15}, headers=headers_of(5, "b")[:-1])
    client.produce(topic, {"n": 16}, headers=[("content-type", b"application/json")])
    counts(p.run_until(lambda: p.committed() == {0: 8}, status=1), received=8, done=4, duplicates=1, dead=3, too_old=1)
    assert sorted(p.rows("SELECT id, n FROM t")) == [("/other#1 x", 11), ("/s#1 x", 10), ("/s#2 x", 12), ("/s#3 ü", 13)]
    reasons = [text for text, in p.rows("SELECT CAST(reason AS TEXT) FROM once_letter ORDER BY id")]
    assert reasons[1:] == ["a CloudEvent without 'ce_type'",
                           "not a CloudEvent: there is neither a header 'ce_specversion' nor a field 'specversion'"], reasons


def test_binary_records_of_kafka_have_any_data(tmp_path):
    """With `body: bytes` the attributes alone are read; a structured event has none that could be."""
    client = kafka.shared()
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, 'preset: cloudevents\nhandlers: {t: {sql: "INSERT INTO b VALUES (:once_key, :once_body)"}}\n',
                      tables="CREATE TABLE b(k TEXT, body BLOB);", beside="body: bytes")
    odd = [b"\0\xff{", b"", b'{"specversion": 2}']
    for number, body in enumerate(odd):
        client.produce(topic, body, body, headers=headers_of(number, content="application/octet-stream"))
    client.produce(topic, json.dumps(structured(9)).encode(), headers=[("content-type", b"application/cloudevents+json")])
    counts(p.run_until(lambda: p.committed() == {0: 7}, status=1), received=7, done=3, duplicates=3, dead=1)
    assert sorted(p.rows("SELECT k, body FROM b")) == [(f"/s#{number}", body) for number, body in enumerate(odd)]
    assert letter(p) == "a structured CloudEvent: its attributes are in the body, which is not read as JSON here"
