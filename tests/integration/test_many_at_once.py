"""Many dead letters or unknowns: seen in groups, discarded and resolved by what they have in common, with a dry run and an audit."""

import os

import pytest

from harness import Pipeline

CONFIG = """
key: "${/id}"
type: "${/type}"
retry: {attempts: 1}
handlers:
  pay: {sql: "INSERT INTO t VALUES (:id, :n)"}
  call: {exec: [./effect]}
"""


@pytest.fixture
def p(tmp_path):
    """3 letters of a constraint, 2 of a type that nobody handles, 2 malformed; 3 unknowns, with two reasons."""
    with open(tmp_path / "effect", "w") as file:
        file.write('#!/bin/sh\nread -r b\ncase "$b" in *slow*) echo "timeout after 5 s" >&2;; *) echo "reset" >&2;; esac\nexit 70\n')
    os.chmod(tmp_path / "effect", 0o755)
    p = Pipeline(tmp_path, CONFIG, "CREATE TABLE t(id, n CHECK (n > 0))")
    p.write(*[{"id": f"p{i}", "type": "pay", "n": -i} for i in (1, 2, 3)], *[{"id": f"o{i}", "type": "other"} for i in (1, 2)], '{"id": 1', '{"id": 22, ',
            *[{"id": f"c{i}", "type": "call", "how": "slow" if i < 2 else "fast"} for i in range(3)])
    p.run(status=1)
    return p


def groups(p, what, by):
    ended = p.once("list", "--json", what, "--by", by, p.name)
    assert ended.status == 0, ended
    return {group[by]: group for group in ended.json["groups"]}


def test_letters_in_groups(p):
    by_reason = groups(p, "--dead", "reason")
    assert {name: group["count"] for name, group in by_reason.items()}["CHECK constraint failed: n > #"] == 3, by_reason
    assert sorted(group["count"] for group in by_reason.values()) == [2, 2, 3], by_reason
    assert by_reason["CHECK constraint failed: n > #"]["example"]["key"] in ("p1", "p2", "p3")
    assert {name: group["count"] for name, group in groups(p, "--dead", "type").items()} == {"pay": 3, "other": 2, "(none)": 2}
    assert groups(p, "--dead", "handler")["pay"]["count"] == 3
    assert sum(group["count"] for group in groups(p, "--dead", "hour").values()) == 7
    unknown = {name.rpartition(": ")[2]: group["count"] for name, group in groups(p, "--unknown", "reason").items()}
    assert unknown == {"timeout after # s": 2, "reset": 1}, unknown
    text = p.once("list", "--dead", "--by", "reason", p.name)
    assert "       3  dead     CHECK constraint failed: n > #" in text.out, text
    ended = p.once("list", "--by", "colour", p.name)
    assert ended.status == 2 and "none of reason, type, handler, hour" in ended.err, ended


T = 1767323045000  # 2026-01-02 03:04:05 UTC


def letters(folder, *rows):
    """Dead letters, each with a reason, a type and a time."""
    p = Pipeline(folder, 'key: "${/id}"\nhandler: {dead: "no"}\n')
    p.write(*[{"id": i} for i in range(len(rows))])
    p.run(status=1)
    quoted = [(reason.replace("'", "''"), kind, at) for reason, kind, at in rows]
    p.edit(";".join(f"UPDATE once_letter SET reason = CAST('{reason}' AS BLOB), type = CAST('{kind}' AS BLOB), buried_ms = {at} WHERE id = {i + 1}"
                    for i, (reason, kind, at) in enumerate(quoted)))
    return p


def test_groups_are_of_what_reasons_have_in_common(tmp_path):
    long = "x" + "\u00e9" * 150
    p = letters(tmp_path, ("b is lost", "t", T), ("c broke 1 of 'x'", "t", T + 5000), ("c broke 22 of ''", "t", T), ("c broke 3 of 'yy'", "t", T + 9000),
                ("c broke 4 of \"it's\"", "t", T + 1), ("a isn't there", "t", T), ("conflict: other content; the first one came from in.ndjson:3", "t", T),
                ("conflict: other content; the first one came from elsewhere:9", "t", T), (long, "t", T))
    found = p.once("list", "--dead", "--by", "reason", "--json", p.name).json["groups"]
    assert [(group["reason"], group["count"]) for group in found] == [
        ("c broke # of ...", 3), ("conflict: other content", 2), ("a isn't there", 1), ("b is lost", 1), ("c broke # of ..", 1), ("x" + "\u00e9" * 99, 1)], found
    assert (found[0]["first_ms"], found[0]["last_ms"], found[0]["example"]) == (T + 1, T + 9000, {"letter": 2, "key": "1"}), found
    assert [(group["hour"], group["count"]) for group in p.once("list", "--by", "hour", "--json", p.name).json["groups"]] == [("2026-01-02 03:00 UTC", 9)]


def test_groups_are_of_one_state(p):
    p.edit("UPDATE once_letter SET type = CAST('call' AS BLOB) WHERE type = CAST('other' AS BLOB)")
    found = p.once("list", "--by", "type", "--json", p.name).json["groups"]
    assert [(g["type"], g["state"], g["count"]) for g in found if g["type"] == "call"] == [("call", "unknown", 3), ("call", "dead", 2)], found


def test_of_very_many_groups_the_rest_is_one(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\ntype: "${/type}"\nhandlers: {none: {dead: "no"}}\n')
    p.write(*[{"id": i, "type": f"t{i % 1500}"} for i in range(1600)])
    p.run(status=1)
    found = p.once("list", "--dead", "--by", "type", "--json", p.name).json["groups"]
    assert len(found) == 1001 and sum(group["count"] for group in found) == 1600, len(found)
    assert (found[0]["type"], found[0]["state"], found[0]["count"]) == ("(others)", "any", 500), found[0]


@pytest.mark.parametrize("arguments, count", [
    (["--since", T], 2), (["--until", T], 1), (["--since", T, "--until", T + 1], 1), (["--type", "pay"], 1), (["--reason", "slow"], 2), (["--reason", "slow", "--since", T], 1)])
def test_a_choice_ends_where_it_says(tmp_path, arguments, count):
    p = letters(tmp_path, ("slow", "pa", T - 1), ("too slow", "pay", T), ("fast", "payment", T + 1))
    ended = p.once("discard", "--json", "--dry-run", *arguments, p.name)
    assert ended.status == 0 and ended.json["count"] == count, ended


def test_discard_by_reason_type_and_all(p):
    def dead():
        return p.once("status", "--json", p.name).json["dead"]

    ended = p.once("discard", "--json", "--dry-run", "--reason", "CHECK", p.name)
    assert ended.status == 0 and ended.json["count"] == 3 and dead() == 7, ended
    ended = p.once("discard", "--reason", "CHECK", p.name)
    assert ended.status == 0 and ended.out.endswith("3 letters discarded\n") and dead() == 4, ended
    assert p.explain("p1")[0]["state"] == "rejected"
    ended = p.once("discard", "--json", "--type", "other", p.name)
    assert ended.json["count"] == 2 and dead() == 2, ended
    ended = p.once("discard", "--json", "--since", "2999-01-01T00:00:00Z", p.name)
    assert ended.json["count"] == 0 and dead() == 2, ended
    ended = p.once("discard", "--json", "--all", p.name)
    assert ended.json["count"] == 2 and dead() == 0, ended
    audit = p.once("list", "--audit", "--json", p.name).json["audit"]
    assert len([a for a in audit if a["what"] == "discard"]) == 7, audit


@pytest.mark.parametrize("arguments", [["discard"], ["discard", "--all", "--reason", "x"], ["discard", "--all", "1"], ["resolve", "done"], ["resolve", "k", "done", "--all"]])
def test_what_is_meant_must_be_said(p, arguments):
    ended = p.once(arguments[0], p.name, *arguments[1:])
    assert ended.status == 2 and "say which" in ended.err, ended


def test_resolve_by_reason_and_all(p):
    def unknown():
        return p.once("status", "--json", p.name).json["unknown"]

    assert unknown() == 3
    ended = p.once("resolve", "--dry-run", "--json", "--reason", "timeout", p.name, "done")
    assert ended.status == 0 and sorted(m["key"] for m in ended.json["messages"]) == ["c0", "c1"] and unknown() == 3, ended
    ended = p.once("resolve", "--reason", "timeout", p.name, "done")
    assert ended.status == 0 and ended.out.endswith("2 messages resolved as done\n") and unknown() == 1, ended
    assert p.explain("c0")[0]["state"] == "done" and p.explain("c2")[0]["state"] == "unknown"
    ended = p.once("resolve", "--all", "--json", p.name, "dead")
    assert ended.json["count"] == 1 and len(ended.json["messages"][0]["idempotency_key"]) == 32 and unknown() == 0, ended
    audit = p.once("list", "--audit", "--json", p.name).json["audit"]
    assert len([a for a in audit if a["what"] == "resolve"]) == 3, audit


@pytest.mark.parametrize("verb", [["explain"], ["forget"], ["resolve", "done"]])
def test_keys_of_tenants_are_asked_for_with_their_tenant(tmp_path, verb):
    p = Pipeline(tmp_path, 'key: "${/id}"\ntenant: "${/who}"\nhandler: {sql: "INSERT INTO t VALUES (:id)"}\n', "CREATE TABLE t(id)")
    p.write({"id": "k", "who": "ann"})
    p.run(status=0)
    ended = p.once(verb[0], p.name, "k", *verb[1:])
    assert ended.status == 2 and "--tenant NAME" in ended.err, ended
    told = p.once("explain", "--json", "--tenant", "ann", p.name, "k").json
    assert told["entries"][0]["state"] == "done", told
