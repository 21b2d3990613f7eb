"""Mistakes in the pipeline file: `file:line: what; what to do`, status 2, and nothing was consumed."""

import os

import pytest

from harness import Pipeline, counts, once

HANDLER = 'handler: {sql: ["INSERT INTO t VALUES (:id)"]}\n'
LANE = 'order: "${/id}"\n'
KEY = 'key: "${/id}"\n'


def refused(p, line, *told):
    """Both verbs say so, at this line, and nothing happened."""
    before = sorted(os.listdir(p.folder))
    for arguments in (["run", p.name], ["check", p.name], ["run", "--json", p.name], ["explain", p.name, "k"]):
        ended = once(*arguments, cwd=p.folder)
        assert ended.status == 2, (arguments, ended)
        if "--json" in arguments:
            assert list(ended.json) == ["error"] and ended.json["error"] in ended.err, ended
        else:
            assert ended.out == "", ended
        place = f"once: {p.name}:{line}: " if line else f"once: {p.name}: "
        assert place in ended.err, ended
        assert all("; " in told for told in ended.err.splitlines()), f"says what to do: {ended}"
        for part in told:
            assert part in ended.err, ended
    assert sorted(os.listdir(p.folder)) == before, "nothing was opened or made"


@pytest.mark.parametrize("config, line, told", [
    # typos, unknown and doubled fields
    (KEY + "handlr: {dead: x}\n", 5, "did you mean 'handler'"), (KEY + HANDLER + "rember: 7d\n", 6, "did you mean 'remember'"),
    (KEY + HANDLER + "nonsense: 1\n", 6, "unknown field 'nonsense'"), (KEY + HANDLER + KEY, 6, "'key'"),
    (KEY + HANDLER + "consumer: again\n", 6, "'consumer'"),
    (KEY + "handler:\n  sql: [SELECT 1]\n  retrys: 1\n", 7, "did you mean 'retry'"), (HANDLER, 4, "key"),
    # durations
    (KEY + HANDLER + "remember: 7\n", 6, "without a unit"), (KEY + HANDLER + "remember: 7days\n", 6, "unknown unit"),
    (KEY + HANDLER + "lease: -1s\n", 6, "negative"),
    (KEY + HANDLER + "lease: 0s\n", 6, "cannot be 0"), (KEY + HANDLER + "remember: 99999999999999999999d\n", 6, "remember"),
    (KEY + HANDLER + "remember: 9223372036854775807ms\n", 6, "remember"), (KEY + HANDLER + "lease: 1.5s\n", 6, "whole number"),
    (KEY + HANDLER + "lease: forever\n", 6, "forever"), (KEY + HANDLER + "retry: {backoff: 1m..1s}\n", 6, "backwards"),
    (KEY + HANDLER + "retry: {attempts: 0}\n", 6, "attempts"), (KEY + HANDLER + "retry: {attempts: -1}\n", 6, "attempts"),
    (KEY + HANDLER + "message_max: 5\n", 6, "unit"),
    # templates and pointers
    ('key: "${id}"\n' + HANDLER, 4, "${/id}"), ('key: "${/id"\n' + HANDLER, 4, "key"),
    ('key: "${/a~4}"\n' + HANDLER, 4, "~"), ('key: constant\n' + HANDLER, 4, "key"),
    ('key: ""\n' + HANDLER, 4, "key"), (KEY + HANDLER + "fingerprint: [amount]\n", 6, "/amount"),
    (KEY + HANDLER + "fingerprint: bdy\n", 6, "body"),
    ('key: "${time:/ts:0s}"\n' + HANDLER, 4, "key"), ('key: "${nothing:x}"\n' + HANDLER, 4, "key"),
    # structure
    (KEY + HANDLER + "handlers: {a: {dead: x}}\n", None, "handlers"), (KEY + "handlers: {a: {dead: x}}\n", None, "type"),
    (KEY, None, "handler"),
    (KEY + HANDLER + 'version: "${/v}"\n', 6, "order"), (KEY + HANDLER + LANE + "gap: {wait: 1s}\n", 7, "version"),
    (KEY + HANDLER + LANE + 'version: "${/v}"\ngap: {wait: 1s, then: maybe}\n', 8, "maybe"),
    (KEY + "handler: {dead: x, sql: [SELECT 1]}\n", None, "sql"),
    (KEY + "handler: {}\n", 5, "effect"), (KEY + "handler: {sql: []}\n", 5, "sql"),
    (KEY + 'handler: {sql: [{do: "SELECT 1", rows: 1, else: retri}]}\n', 5, "retry"),
    (KEY + 'handler: {sql: [{do: "SELECT 1", else: stale}]}\n', 5, "rows"), (KEY + 'handler: {sql: ["SELECT ?"]}\n', 5, "?"),
    # another database
    (KEY + 'handler:\n  sql:\n    url: "sqlite:x.db"\n', 7, "missing field 'do'"),
    (KEY + 'handler:\n  sql:\n    url: "mysql://me:hush@h/d"\n    do: [SELECT 1]\n', 7, "no database 'mysql:' is known; write postgres://"),
    (KEY + "handler:\n  sql:\n    url: memory\n    do: [SELECT 1]\n", 7, "not the URL of a database"),
    (KEY + 'handler:\n  sql:\n    url: "sqlite:"\n    do: [SELECT 1]\n', 7, "names no file"),
    (KEY + 'handler:\n  sql:\n    url: "env:"\n    do: [SELECT 1]\n', 7, "write env:NAME"),
    (KEY + "handler:\n  sql:\n    url: [a]\n    do: [SELECT 1]\n", 7, "url"),
    (KEY + 'handler:\n  sql:\n    url: "sqlite:x.db"\n    do: [SELECT :once_id]\n', 8, "write ':{/once_id}' for a field"),
    (KEY + 'handler:\n  sql:\n    url: "sqlite:x.db"\n    do: [SELECT 1]\n  lease: 1ms\n', 9, "too short to be extended"),
    (KEY + "handler:\n  sql: [SELECT 1]\n  unknown: retry\n", 7, "never unknown"),
    # YAML
    (KEY + "handler:\n\tdead: x\n", 6, "tab"), (KEY + HANDLER + "remember: [7d\n", None, ""),
    (KEY + HANDLER + "---\na: 1\n", None, ""),
    (KEY + HANDLER + "operation: &a x\n", 6, ""), (KEY + HANDLER + "operation: \xff\n", None, ""),
    (KEY + HANDLER + "timeout: !!str 1s\n", 6, ""),
])
def test_f21_f67_mistakes_are_refused_with_their_line(tmp_path, config, line, told):
    p = Pipeline(tmp_path, config, "CREATE TABLE t(id);")
    if "\xff" in config:
        with open(tmp_path / p.name, "wb") as file:
            file.write(b"consumer: c\nstore: sqlite:store.db\nsource: {file: {path: in.ndjson}}\n" + config.encode("latin-1"))
    p.write({"id": 1})
    if line is None:
        ended = p.once("run", p.name)
        assert ended.status == 2 and ended.err.startswith(f"once: {p.name}:") and told in ended.err, ended
    else:
        refused(p, line, told)


def test_f67_several_mistakes_at_once(tmp_path):
    p = Pipeline(tmp_path, KEY + HANDLER + "lease: 1\nremember: 2\nnonsense: 3\n")
    ended = p.once("run", p.name)
    assert ended.status == 2 and [line.split(":")[2] for line in ended.err.splitlines()] == ["6", "7", "8"], ended


@pytest.mark.parametrize("config, named", [
    (KEY + "handler: {forward: x}\n", "forward"),
    (KEY + HANDLER + "sinks: {a: {kafka: {}}}\n", "sinks"),
    (KEY + "handler: {sql: [SELECT 1], emit: []}\n", "emit"),
    (KEY + HANDLER + "admin: {}\n", "admin")])
def test_parts_that_come_later_are_refused_by_name(tmp_path, config, named):
    p = Pipeline(tmp_path, config)
    ended = p.once("run", p.name)
    assert ended.status == 2 and named in ended.err and "build" in ended.err, ended


@pytest.mark.parametrize("source", ["kafka", "sqs", "servicebus", "redis", "nats", "http"])
def test_sources_that_come_later_are_refused_by_name(tmp_path, source):
    with open(tmp_path / "p.yaml", "w") as file:
        file.write(f"consumer: c\nstore: sqlite:store.db\nsource: {{{source}: {{}}}}\n" + KEY + HANDLER)
    ended = once("run", "p.yaml", cwd=tmp_path)
    assert ended.status == 2 and source in ended.err and "p.yaml:3:" in ended.err, ended


@pytest.mark.parametrize("store", ["dynamodb://r/t", "ledger:dir"])
def test_stores_that_come_later_are_refused_by_name(tmp_path, store):
    p = Pipeline(tmp_path, KEY + HANDLER)
    p.configure(KEY + HANDLER, store=store)
    ended = p.once("run", p.name)
    assert ended.status == 2 and store.partition(":")[0] in ended.err and "p.yaml:2:" in ended.err, ended


def test_f67_missing_pipeline_file(tmp_path):
    ended = once("run", "absent.yaml", cwd=tmp_path)
    assert ended.status == 2 and ended.err.startswith("once: absent.yaml: ") and "; " in ended.err


def test_f67_missing_source_file(tmp_path):
    p = Pipeline(tmp_path, KEY + HANDLER, "CREATE TABLE t(id);", source="{path: absent.ndjson}")
    ended = p.once("run", p.name)
    assert ended.status == 2 and "p.yaml:3: " in ended.err and "absent.ndjson" in ended.err, ended
    os.mkdir(tmp_path / "folder")
    p.configure(KEY + HANDLER, source="{path: folder}")
    ended = p.once("run", p.name)
    assert ended.status == 2 and "p.yaml:3: " in ended.err and "directory" in ended.err, ended


def test_f67_coordinates_of_stdin(tmp_path):
    p = Pipeline(tmp_path, 'key: "${coordinates}"\n' + HANDLER, source='{path: "-"}')
    ended = p.once("run", p.name)
    assert ended.status == 2 and "coordinates" in ended.err, ended


def test_f67_sql_needs_a_database(tmp_path):
    p = Pipeline(tmp_path, KEY + HANDLER, store="memory")
    p.write({"id": 1})
    ended = p.once("run", p.name)
    assert ended.status == 2 and "p.yaml:2: " in ended.err and "sqlite:" in ended.err, ended


def test_f67_unknown_failpoint(tmp_path):
    p = Pipeline(tmp_path, KEY + HANDLER, "CREATE TABLE t(id);")
    p.write({"id": 1})
    for wrong in ("nothing:kill", "effect_before", "effect_before:maybe", "effect_before:kill:0", "effect_before:kill:x"):
        ended = p.once("run", p.name, failpoint=wrong)
        assert ended.status == 2 and "failpoint" in ended.err, ended
    counts(p.run(status=0), received=1, done=1)
