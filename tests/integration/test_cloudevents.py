"""`preset: cloudevents`, as a user meets it."""

import os
import stat

from harness import Pipeline, counts


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
