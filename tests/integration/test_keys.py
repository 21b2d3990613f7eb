"""What makes two messages the same: keys, fingerprints, scopes, and for how long."""

import datetime
import time

import pytest

from harness import Pipeline, counts

LOG = "CREATE TABLE log(n INTEGER PRIMARY KEY, x);"


def pipeline(folder, config, tables=LOG, x="/x?", **more):
    """Every effect leaves a row, so the table tells how often something ran."""
    return Pipeline(folder, config + f'\nhandler: {{sql: ["INSERT INTO log(x) VALUES (:{{{x}}})"]}}\n', tables, **more)


def ran(p):
    return [x for (x,) in p.rows("SELECT x FROM log ORDER BY n")]


def ms(moment):
    return int(moment * 1000)


# ---- forms of keys ----

@pytest.mark.parametrize("key, same, other", [
    ('"${/id}"', [{"id": "a"}, {"id": "a"}], [{"id": "b"}, {"id": "A"}, {"id": "a "}]),
    ('"${/id}"', [{"id": 1}, {"id": "1"}, {"id": 1.0}, {"id": 10e-1}], [{"id": 2}, {"id": 1.5}]),
    ('"${/id}"', [{"id": True}, {"id": "true"}], [{"id": False}]),
    ('"${/id}"', [{"id": "\u00e4"}], [{"id": "a\u0308"}, {"id": "\u00c4"}]),
    ('"${/id}"', [{"id": "a\u0000b"}], [{"id": "a"}, {"id": "ab"}, {"id": "a\u0000"}]),
    ('"${/a/b/0/c}"', [{"a": {"b": [{"c": "x"}]}}], [{"a": {"b": [{"c": "y"}]}}]),
    ('"${/a~1b/~0}"', [{"a/b": {"~": 5}}], [{"a/b": {"~": 6}}]),
    ('"${/}"', [{"": 5}], [{"": 6}]),
    ('"${/a}-${/b}"', [{"a": "x", "b": "y"}], [{"a": "x-y", "b": ""}, {"a": "", "b": "x-y"}, {"a": "x-", "b": "y"},
    {"a": "x", "b": "-y"}]),
    ('"${/a}${/b}"', [{"a": "x", "b": "y"}], [{"a": "xy", "b": ""}, {"a": "", "b": "xy"}, {"a": "x,", "b": "y"},
    {"a": "x", "b": ",y"}]),
    ('"${/a}%2D${/b}"', [{"a": "x", "b": "y"}], [{"a": "x%2D", "b": "y"}, {"a": "x", "b": "%2Dy"}, {"a": "x%2Dy", "b": ""}]),
    ('"order:${/a}:$${lit}"', [{"a": "x"}], [{"a": "x:"}, {"a": "${lit}"}]),
])
def test_key_forms(tmp_path, key, same, other):
    p = pipeline(tmp_path, f"key: {key}\nfingerprint: none")
    messages = same + other
    p.write(*messages, *messages)
    summary = p.run(status=0)
    counts(summary, received=2 * len(messages), done=1 + len(other), duplicates=2 * len(messages) - 1 - len(other))


def test_key_from_headers(tmp_path):
    p = pipeline(tmp_path, 'key: "${header:id}"', source="{path: in.ndjson, headers: /meta}")
    p.write({"x": 1, "meta": {"id": "a"}}, {"x": 1, "meta": {"id": "a"}}, {"x": 1, "meta": {"id": "b"}}, {"x": 1, "meta": {}},
            {"x": 1}, {"x": 1, "meta": 7})
    counts(p.run(status=1), received=6, done=2, duplicates=1, dead=3)
    assert [line for line, _ in p.letters()] == [4, 5, 6]


def test_key_from_coordinates(tmp_path):
    p = pipeline(tmp_path, 'key: "${coordinates}"')
    p.write({"x": 1}, {"x": 1}, "", {"x": 1})
    counts(p.run(), received=3, done=3)
    counts(p.run(), received=3, duplicates=3)
    p.append({"x": 1})
    counts(p.run(), received=4, done=1, duplicates=3)
    assert {e["point"] for e in p.explain("in.ndjson:4")} == {"4"}


def test_key_from_hash(tmp_path):
    p = pipeline(tmp_path, 'key: "${hash}"')
    p.write('{"x": 1, "y": [1, {"a": null, "b": "\\u0041"}]}', '{ "y":[1,{"b":"A","a":null}],"x":1.0 }', '{"x": 1, "y": [1, {"a": null, "b": "B"}]}',
            '{"x": 1, "y": [{"a": null, "b": "A"}, 1]}')
    counts(p.run(), received=4, done=3, duplicates=1)


def test_key_from_time_windows(tmp_path):
    p = pipeline(tmp_path, 'key: "${/u}/${time:/ts:5m}"\nfingerprint: none')
    p.write({"u": "a", "ts": "2026-01-01T10:00:00Z", "x": 1}, {"u": "a", "ts": "2026-01-01T10:04:59.999Z", "x": 2},
            {"u": "a", "ts": "2026-01-01T11:02:00+01:00", "x": 3}, {"u": "a", "ts": "2026-01-01T10:05:00Z", "x": 4},
            {"u": "b", "ts": 1767261600000, "x": 5}, {"u": "a", "ts": 1767261600000, "x": 6}, {"u": "a", "ts": "yesterday", "x": 7})
    counts(p.run(status=1), received=7, done=3, duplicates=3, dead=1)
    assert ran(p) == [1, 4, 5]


def test_f63_long_keys(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\nfingerprint: none')
    long = "k" * 1024
    keys = [long, long + "k", long + "kk", "k" * 200000, "sha256:" + "0" * 64]
    p.write(*[{"id": key} for key in keys + keys])
    counts(p.run(), received=10, done=5, duplicates=5)
    assert [e["state"] for key in (long, long + "k") for e in p.explain(key)] == ["done", "done"]


def test_keys_of_one_operation_shared_by_two_types(tmp_path):
    config = 'key: "${/id}"\ntype: "${/type}"\nfingerprint: [/id]\nhandlers:\n' \
             '  paid: {operation: pay, sql: ["INSERT INTO log(x) VALUES (:type)"]}\n' \
             '  charged: {operation: pay, sql: ["INSERT INTO log(x) VALUES (:type)"]}\n' \
             '  seen: {sql: ["INSERT INTO log(x) VALUES (:type)"]}\n'
    p = Pipeline(tmp_path, config, LOG)
    p.write({"id": 1, "type": "paid"}, {"id": 1, "type": "charged"}, {"id": 1, "type": "seen"}, {"id": 2, "type": "charged"},
            {"id": 2, "type": "paid"})
    counts(p.run(), received=5, done=3, duplicates=2)
    assert ran(p) == ["paid", "seen", "charged"]
    assert [e["operation"] for e in p.explain("1")] == ["pay", "seen"]


def test_handler_key_instead_of_the_pipelines(tmp_path):
    config = 'key: "${/id}"\ntype: "${/type}"\nfingerprint: none\nhandlers:\n' \
             '  a: {sql: ["INSERT INTO log(x) VALUES (:x)"]}\n' \
             '  b: {key: "${/other}", sql: ["INSERT INTO log(x) VALUES (:x)"]}\n'
    p = Pipeline(tmp_path, config, LOG)
    p.write({"id": 1, "type": "a", "x": 1}, {"id": 1, "type": "b", "other": 1, "x": 2}, {"id": 2, "type": "b", "other": 1, "x": 3},
            {"id": 1, "type": "b", "other": 2, "x": 4})
    counts(p.run(), received=4, done=3, duplicates=1)
    assert ran(p) == [1, 2, 4]


# ---- scopes ----

def test_f27_tenants_do_not_see_each_other(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\ntenant: "${header:tenant}"', source="{path: in.ndjson, headers: /h}")
    p.write({"id": 1, "x": 1, "h": {"tenant": "a"}}, {"id": 1, "x": 2, "h": {"tenant": "b"}}, {"id": 1, "x": 1, "h": {"tenant": "a"}},
            {"id": 1, "x": 3})
    counts(p.run(status=1), received=4, done=2, duplicates=1, dead=1)
    assert ran(p) == [1, 2]
    assert [e["state"] for e in p.explain("1", "--tenant", "a")] == ["done"]
    assert [e["state"] for e in p.explain("1", "--tenant", "c")] == ["absent"]


def test_f27_consumers_do_not_see_each_other(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"')
    p.write({"id": 1, "x": 1}, {"id": 2, "x": 2})
    counts(p.run(), received=2, done=2)
    # Another source path: the same file under another consumer would be a changed scope.
    q = pipeline(tmp_path, 'key: "${/id}"', tables="", consumer="other", name="q.yaml", source="{path: ./in.ndjson}")
    counts(q.run(), received=2, done=2)
    counts(p.run(), received=2, duplicates=2)
    counts(q.run(), received=2, duplicates=2)
    assert ran(p) == [1, 2, 1, 2]


def test_f27_tenant_and_key_are_not_glued(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\ntenant: "${/t}"\nfingerprint: none')
    p.write({"t": "a", "id": "bc"}, {"t": "ab", "id": "c"}, {"t": "abc", "id": "d"}, {"t": "a", "id": "bcd"})
    counts(p.run(), received=4, done=4)


# ---- fingerprints ----

def test_f26_same_key_other_content_is_a_conflict(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"')
    p.write({"id": 1, "x": 10}, {"id": 1, "x": 99}, {"id": 1, "x": 10})
    counts(p.run(status=1), received=3, done=1, dead=1, conflicts=1, duplicates=1)
    assert ran(p) == [10]
    ((line, reason),) = p.letters()
    assert line == 2 and reason.startswith("conflict")
    counts(p.run(status=1), received=3, duplicates=3)
    assert len(p.letters()) == 1


def test_f26_conflict_against_an_earlier_run(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"')
    p.write({"id": 1, "x": 10})
    p.run()
    p.write({"id": 1, "x": 11}, {"id": 2, "x": 1})
    counts(p.run(status=1), received=2, done=1, dead=1, conflicts=1)
    assert ran(p) == [10, 1]


def test_f26_two_thousand_conflicts_of_one_key_are_one_letter(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"')
    p.write({"id": 1, "x": 10}, *[{"id": 1, "x": 99}] * 2000, {"id": 1, "x": 100})
    counts(p.run(status=1), received=2002, done=1, dead=2, conflicts=2, duplicates=1999)
    assert p.letters()[0][0] == 2001
    listed = p.once("list", "--dead", "--json", p.name).json["messages"]
    assert [(e["count"], e["point"]) for e in listed] == [(2000, "2001"), (1, "2002")]
    assert "delivered 2000 times, last " in p.once("list", "--dead", p.name).out
    for line in (2, 2001): # also of the first one, where the letter does not say that it came from
        told = p.once("explain", p.name, "--message", f"in.ndjson:{line}").out
        assert f"letter {listed[0]['letter']}, delivered 2000 times" in told, told


@pytest.mark.parametrize("variant", [
    '{"x":10,"id":1,"m":{"b":[1,2],"a":"\\u00e9"}}',
    ' { "m" : { "a":"é" , "b":[ 1,2 ] } ,\t"id":1, "x":10 } ',
    '{"id":1,"x":10.0,"m":{"a":"\\u00E9","b":[1.0,2e0]}}',
])
def test_f26_spelling_of_the_same_content_does_not_matter(tmp_path, variant):
    p = pipeline(tmp_path, 'key: "${/id}"')
    p.write('{"id": 1, "x": 10, "m": {"a": "é", "b": [1, 2]}}', variant)
    counts(p.run(status=0), received=2, done=1, duplicates=1)


@pytest.mark.parametrize("variant", [
    '{"id": 1, "x": "10", "m": [1, 2]}', '{"id": 1, "x": 10, "m": [2, 1]}', '{"id": 1, "x": 10}', '{"id": 1, "x": 10, "m": [1, 2], "n": null}',
    '{"id": 1, "x": 10.000000000000001, "m": [1, 2]}', '{"id": 1, "x": true, "m": [1, 2]}', '{"id": 1, "m": {"x": 10}, "x": [1, 2]}',
])
def test_f26_other_content_is_found(tmp_path, variant):
    p = pipeline(tmp_path, 'key: "${/id}"')
    p.write('{"id": 1, "x": 10, "m": [1, 2]}', variant)
    counts(p.run(status=1), received=2, done=1, dead=1, conflicts=1)


def test_f26_numbers_are_compared_exactly(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"', x="/id")
    p.write('{"id": 1, "x": 9007199254740993}', '{"id": 1, "x": 9007199254740992}', '{"id": 2, "x": 0.1}', '{"id": 2, "x": 0.10000000000000000001}',
            '{"id": 3, "x": 1e400}', '{"id": 3, "x": 10e399}', '{"id": 3, "x": 1e401}')
    counts(p.run(status=1), received=7, done=3, duplicates=1, dead=3, conflicts=3)


def test_f26_fingerprint_none(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\nfingerprint: none')
    p.write({"id": 1, "x": 10}, {"id": 1, "x": 99})
    counts(p.run(status=0), received=2, done=1, duplicates=1)


def test_f26_fingerprint_of_fields(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\nfingerprint: [/x, /m/deep]')
    p.write({"id": 1, "x": 10, "m": {"deep": 1}, "sent": 1}, {"id": 1, "x": 10, "m": {"deep": 1, "more": 2}, "sent": 2},
            {"id": 1, "x": 10, "m": {"deep": 2}, "sent": 1}, {"id": 1, "x": 10, "sent": 1},
            {"id": 1, "x": 11, "m": {"deep": 1}, "sent": 1})
    counts(p.run(status=1), received=5, done=1, duplicates=1, dead=3, conflicts=3)
    assert ran(p) == [10]


# ---- how long ----

def test_f71_too_old_by_its_own_time(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\nremember: 1h\ntime: "${/ts}"')
    now = time.time()
    text = datetime.datetime.fromtimestamp(now - 2 * 3600, datetime.timezone.utc).isoformat()
    p.write({"id": 1, "x": 1, "ts": ms(now)}, {"id": 2, "x": 2, "ts": ms(now - 3600 - 60)}, {"id": 3, "x": 3, "ts": ms(now - 3500)},
            {"id": 4, "x": 4, "ts": text}, {"id": 5, "x": 5, "ts": ms(now + 3600)}, {"id": 6, "x": 6, "ts": "noon"},
            {"id": 7, "x": 7})
    counts(p.run(status=1), received=7, done=3, dead=4, too_old=2)
    assert ran(p) == [1, 3, 5]
    assert [line for line, reason in p.letters() if reason.startswith("too old")] == [2, 4]
    counts(p.run(status=1), received=7, duplicates=7)


def test_f71_comes_back_after_its_entry_expired(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\nremember: 500ms\ntime: "${/ts}"')
    p.write({"id": 1, "x": 1, "ts": ms(time.time())})
    counts(p.run(), received=1, done=1)
    time.sleep(0.6)
    counts(p.run(status=1), received=1, dead=1, too_old=1)
    assert ran(p) == [1]


def test_f23_forgotten_after_remember(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\nremember: 1s')
    p.write({"id": 1, "x": 1})
    counts(p.run(), received=1, done=1)
    counts(p.run(), received=1, duplicates=1)
    time.sleep(1.1)
    assert [e["state"] for e in p.explain("1")] == ["absent"]
    counts(p.run(), received=1, done=1)
    assert ran(p) == [1, 1]


def test_f23_a_dead_message_is_not_forgotten(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\nremember: 300ms', x="/x")
    p.write({"id": 1}, {"id": 2, "x": 1})
    counts(p.run(), received=2, done=1, dead=1)
    time.sleep(0.4)
    counts(p.run(), received=2, done=1, duplicates=1, store_dead=1)
    assert len(p.letters()) == 1


def test_remember_forever(tmp_path):
    p = pipeline(tmp_path, 'key: "${/id}"\nremember: forever\ntime: "${/ts}"')
    p.write({"id": 1, "x": 1, "ts": "1970-01-01T00:00:00Z"})
    counts(p.run(status=0), received=1, done=1)
    counts(p.run(status=0), received=1, duplicates=1)
    (entry,) = p.explain("1")
    assert entry["expires_ms"] is None


def test_remember_per_handler(tmp_path):
    config = 'key: "${/id}"\ntype: "${/type}"\nremember: 1d\nhandlers:\n' \
             '  short: {remember: 1ms, sql: ["INSERT INTO log(x) VALUES (:type)"]}\n' \
             '  long: {sql: ["INSERT INTO log(x) VALUES (:type)"]}\n'
    p = Pipeline(tmp_path, config, LOG)
    p.write({"id": 1, "type": "short"}, {"id": 1, "type": "long"})
    p.run()
    time.sleep(0.02)
    counts(p.run(), received=2, done=1, duplicates=1)
    assert ran(p) == ["short", "long", "short"]


# ---- a changed scope ----

CONFIG = 'key: "${/id}"\ntype: "${/type}"\nhandlers:\n  a: {sql: ["INSERT INTO log(x) VALUES (:x)"]}\n'


@pytest.mark.parametrize("change", [
    ("${/id}", "${/x}", {}), ("{sql:", "{operation: other, sql:", {}), ("key:", "fingerprint: none\nkey:", {}),
    ("{sql:", "{fingerprint: [/x], sql:", {}), ("", "", {"consumer": "renamed"})])
def test_f75_changed_scope_is_refused_until_confirmed(tmp_path, change):
    before, after, more = change
    p = Pipeline(tmp_path, CONFIG, LOG)
    p.write({"id": 1, "type": "a", "x": 5})
    counts(p.run(), received=1, done=1)
    p.configure(CONFIG.replace(before, after, 1) if before else CONFIG, **more)
    for verb in ("check", "run"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "--confirm-scope-change" in ended.err, ended
        assert ended.err.startswith("once: p.yaml")
    assert ran(p) == [5]
    p.configure(CONFIG)
    counts(p.run(), received=1, duplicates=1)
    p.configure(CONFIG.replace(before, after, 1) if before else CONFIG, **more)
    p.append({"id": 2, "type": "a", "x": 6})
    p.run("--confirm-scope-change")
    assert 6 in ran(p)
    p.run()  # and from then on it is the known one


def test_f75_a_confirmed_fingerprint_does_not_run_old_messages_again(tmp_path):
    p = Pipeline(tmp_path, CONFIG, LOG)
    p.write({"id": 1, "type": "a", "x": 5})
    p.run()
    p.configure("fingerprint: [/x]\n" + CONFIG)
    p.run("--confirm-scope-change")
    assert ran(p) == [5]


def test_f75_other_changes_are_free(tmp_path):
    p = Pipeline(tmp_path, CONFIG, LOG)
    p.write({"id": 1, "type": "a", "x": 5})
    p.run()
    p.configure(CONFIG.replace("INSERT", "INSERT OR IGNORE") + "  b: {dead: later}\nlease: 10s\nremember: 9d\nretry: {attempts: 9}\n")
    counts(p.run(), received=1, duplicates=1)
