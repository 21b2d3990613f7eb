"""Many dead letters or unknowns: seen in groups, discarded and resolved by what they have in common, with a dry run and an audit."""

import os
import re
import subprocess

import pytest

from anystore import Any, store  # noqa: F401
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
    assert {name: group["count"] for name, group in by_reason.items()}["CHECK constraint failed: n > 0"] == 3, by_reason
    assert sorted(group["count"] for group in by_reason.values()) == [2, 2, 3], by_reason
    assert by_reason["CHECK constraint failed: n > 0"]["example"]["key"] in ("p1", "p2", "p3")
    assert {name: group["count"] for name, group in groups(p, "--dead", "type").items()} == {"pay": 3, "other": 2, "(none)": 2}
    assert groups(p, "--dead", "handler")["pay"]["count"] == 3
    assert sum(group["count"] for group in groups(p, "--dead", "hour").values()) == 7
    unknown = {name.rpartition(": ")[2]: group["count"] for name, group in groups(p, "--unknown", "reason").items()}
    assert unknown == {"timeout after 5 s": 2, "reset": 1}, unknown
    text = p.once("list", "--dead", "--by", "reason", p.name)
    assert "       3  dead     CHECK constraint failed: n > 0" in text.out, text
    ended = p.once("list", "--by", "colour", p.name)
    assert ended.status == 2 and "must be reason, type, handler or hour" in ended.err, ended


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
    p = letters(tmp_path, ("b is lost", "t", T), ("c broke 1111 of 'x'", "t", T + 5000), ("c broke 22222 of ''", "t", T), ("c broke 3333 of 'yy'", "t", T + 9000),
                ("c broke 4444 of \"it's\"", "t", T + 1), ("a isn't there", "t", T), ("conflict: other content; the first one came from in.ndjson:3", "t", T),
                ("conflict: other content; the first one came from elsewhere:9", "t", T), (long, "t", T))
    found = p.once("list", "--dead", "--by", "reason", "--json", p.name).json["groups"]
    assert [(group["reason"], group["count"]) for group in found] == [
        ("c broke # of ...", 4), ("conflict: other content", 2), ("a isn't there", 1), ("b is lost", 1), ("x" + "\u00e9" * 99, 1)], found
    assert (found[0]["first_ms"], found[0]["last_ms"], found[0]["example"]) == (T, T + 9000, {"letter": 2, "tenant": "", "operation": "handler", "key": "1"}), found
    assert [(group["hour"], group["count"]) for group in p.once("list", "--by", "hour", "--json", p.name).json["groups"]] == [("2026-01-02 03:00 UTC", 9)]


def test_filters_of_groups(tmp_path):
    long = "y" * 250  # it is shown cut, and nothing is called so
    p = letters(tmp_path, ("", "", T), ("no", "t", T + 1), ("no", long, T + 2))

    def filters(by):
        return sorted(group["filter"] for group in p.once("list", "--by", by, "--json", p.name).json["groups"])

    assert filters("hour") == [["--since", "2026-01-02T03:00:00Z", "--until", "2026-01-02T04:00:00Z"]]
    assert filters("type") == [[], [], ["--type", "t"]]
    assert filters("reason") == [["--group", "(none)"], ["--group", "no"]]


def test_no_filter_is_shown_that_would_choose_others(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\ntype: "${/type}"\nhandlers: {none: {dead: "no"}}\n')
    p.write({"id": 1, "type": "x"}, {"id": 2, "type": "x\0y"}, {"id": 3, "type": "x\u202ey"})
    p.run(status=1)
    found = {group["type"]: group for group in p.once("list", "--by", "type", "--json", p.name).json["groups"]}
    assert {name: group["count"] for name, group in found.items()} == {"x": 1, "x?y": 1, "x\u202ey": 1}, found
    assert found["x"]["filter"] == ["--type", "x"] and found["x\u202ey"]["filter"] == [], found
    text = p.once("list", "--by", "type", p.name).out
    assert text.count(" --type ") == 2 and "\u202e" not in text, text


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
    did = p.once("discard", "--all", "--json", p.name)  # in several transactions
    assert did.status == 0 and did.json["count"] == 1600 and len({letter["letter"] for letter in did.json["letters"]}) == 1600, did
    assert p.once("status", "--json", p.name).json["dead"] == 0


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


@pytest.mark.parametrize("arguments, said", [
    (["discard"], "give letter ids, --all, or one or more of --tenant"),
    (["resolve", "done"], "give a key, --all, or one or more of --tenant"),
    (["discard", "--all", "1"], "--all and ids exclude each other"),
    (["replay", "--all", "1"], "--all and ids exclude each other"),
    (["discard", "--reason", "x", "1"], "--reason and ids exclude each other"),
    (["replay", "--tenant", "x", "1"], "--tenant and ids exclude each other"),
    (["discard", "--operation", "x", "1"], "--operation and ids exclude each other"),
    (["resolve", "k", "done", "--all"], "--all and a key exclude each other"),
    (["resolve", "k", "done", "--group", "x"], "--group and a key exclude each other"),
    (["resolve", "k", "done", "--operation", ""], "--operation has an empty value"),
    (["forget", "k", "--operation", ""], "--operation has an empty value"),
])
def test_what_is_meant_must_be_said(p, arguments, said):
    ended = p.once(arguments[0], p.name, *arguments[1:])
    assert ended.status == 2 and said in ended.err, ended


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


# ---- tenants and operations ----

TENANTS = """
key: "${/id}"
type: "${/type}"
tenant: "${/who}"
retry: {attempts: 1}
handlers:
  charge: {exec: [./effect]}
  mail: {exec: [./effect]}
  note: {sql: "INSERT INTO t VALUES (:id, :n)"}
"""
FILTERS = ("--tenant", "--operation", "--reason", "--group", "--type", "--since", "--until")


@pytest.fixture
def shop(tmp_path):
    """An unknown of each of two operations, and a letter, with key 1, for each of three tenants."""
    with open(tmp_path / "effect", "w") as file:
        file.write("#!/bin/sh\ncat >> effects\nexit 70\n")
    os.chmod(tmp_path / "effect", 0o755)
    p = Pipeline(tmp_path, TENANTS, "CREATE TABLE t(id, n CHECK (n > 0))")
    p.write(*[{"id": "1", "type": type, "who": who, "n": 0} for who in ("berlin", "paris", "rome") for type in ("charge", "mail", "note")])
    p.run(status=1)
    assert p.once("status", "--json", p.name).json["unknown"] == 6 and p.once("status", "--json", p.name).json["dead"] == 3
    return p


def whose(items):
    return sorted((item["tenant"], item["operation"]) for item in items)


@pytest.mark.parametrize("all", [[], ["--all"]])
def test_resolve_of_a_tenant_and_an_operation_leaves_the_others(shop, all):
    p = shop
    one = ["--tenant", "berlin", "--operation", "charge", *all, p.name, "retry"]
    dry = p.once("resolve", "--json", "--dry-run", *one).json
    assert dry["count"] == 1 and dry["dry_run"] and whose(dry["messages"]) == [("berlin", "charge")], dry
    told = p.once("resolve", "--dry-run", *one)
    assert "key '1' of tenant 'berlin', operation 'charge': would be resolved as retry" in told.out and "1 message would be" in told.out, told
    done = p.once("resolve", "--json", *one)
    assert done.status == 0 and whose(done.json["messages"]) == [("berlin", "charge")], done
    left = p.once("list", "--unknown", "--json", p.name).json["messages"]
    assert len(left) == 5 and ("berlin", "charge") not in whose(left)
    of_tenant = p.once("resolve", "--json", "--tenant", "paris", p.name, "done").json
    assert whose(of_tenant["messages"]) == [("paris", "charge"), ("paris", "mail")], of_tenant
    audit = p.once("list", "--audit", "--json", p.name).json["audit"]
    assert whose(audit) == [("berlin", "charge"), ("paris", "charge"), ("paris", "mail")], audit
    assert {a["idempotency_key"] for a in audit} == {m["idempotency_key"] for m in done.json["messages"] + of_tenant["messages"]}
    assert {a["note"] for a in audit} == {"resolved as retry by an operator", "resolved as done by an operator"}, audit
    text = p.once("list", "--audit", p.name).out
    assert f"key '1' of tenant 'berlin', operation 'charge' ({done.json['messages'][0]['idempotency_key']})  resolved as retry" in text, text


@pytest.mark.parametrize("verb", ["discard", "replay"])
def test_letters_of_a_tenant_and_an_operation_leave_the_others(shop, verb):
    p = shop
    for filters, tenants in ((["--tenant", "rome"], ["rome"]), (["--tenant", "rome", "--operation", "charge"], []), (["--operation", "note", "--all"], ["berlin", "paris", "rome"])):
        dry = p.once(verb, "--json", "--dry-run", *filters, p.name).json
        assert whose(dry["letters"]) == [(tenant, "note") for tenant in tenants] and dry["dry_run"], dry
    text = p.once(verb, "--dry-run", "--tenant", "rome", p.name).out
    assert "key '1' of tenant 'rome', operation 'note'" in text and "in.ndjson:9" in text and "(CHECK constraint failed: n > 0)" in text, text
    assert "no letter matches\n" == p.once(verb, "--tenant", "nowhere", p.name).out
    assert p.once(verb, "--tenant", "rome", p.name).status == 0
    assert whose(p.once("list", "--dead", "--json", p.name).json["messages"]) == [("berlin", "note"), ("paris", "note")]
    assert [(a["what"], a["tenant"], a["operation"]) for a in p.once("list", "--audit", "--json", p.name).json["audit"]] == [(verb, "rome", "note")]


@pytest.mark.parametrize("verb", ["discard", "replay", "resolve"])
@pytest.mark.parametrize("option", FILTERS)
def test_an_empty_filter_does_not_mean_everything(shop, verb, option):
    for value in ([option, ""], [option + "="]):
        ended = shop.once(verb, *value, shop.name, *["retry"] * (verb == "resolve"))
        assert ended.status == 2 and f"{option} has an empty value" in ended.err, ended
    assert (lambda s: (s["unknown"], s["dead"]))(shop.once("status", "--json", shop.name).json) == (6, 3)


def test_a_filter_that_matches_nothing_says_so(shop):
    assert shop.once("resolve", "--reason", "nothing like it", shop.name, "done").out == "no unknown message matches\n"
    assert shop.once("resolve", "--json", "--group", "#", shop.name, "done").json["count"] == 0


def test_a_dry_run_answers_as_the_real_one(shop):
    p = shop
    for id, status in (("999", 1), (str(p.once("list", "--dead", "--json", p.name).json["messages"][0]["letter"]), 0)):
        dry, real = (p.once("discard", *dry, p.name, id) for dry in (["--dry-run"], []))
        assert dry.status == real.status == status and dry.out == real.out.replace(": discarded", ": would be discarded"), (dry, real)
    for key, status in (("2", 2), ("1", 0)):
        named = ["--tenant", "rome", "--operation", "mail", p.name, key, "done"]
        dry, real = (p.once("resolve", *dry, *named) for dry in (["--dry-run"], []))
        assert dry.status == real.status == status and dry.err == real.err and dry.out == real.out.replace(": resolved", ": would be resolved"), (dry, real)


def test_examples_of_groups_can_be_explained(shop):
    p = shop
    for by in ("reason", "type", "handler", "hour"):
        for group in p.once("list", "--by", by, "--json", p.name).json["groups"]:
            example = group["example"]
            entries = p.once("explain", "--json", "--tenant", example["tenant"], p.name, example["key"]).json["entries"]
            assert example["operation"] in [entry["operation"] for entry in entries], (group, entries)
    assert "key '1' of tenant 'berlin', operation 'note'" in p.once("list", "--dead", "--by", "reason", p.name).out
    listed = p.once("list", p.name).out.splitlines()
    assert len({line.split(" (")[0] for line in listed if line.startswith("unknown")}) == 6, listed


# ---- groups of reasons ----

CODES = """
key: "${/id}"
retry: {attempts: 1}
handler: {exec: [./effect], exit: {7: dead, 8: dead}}
"""
SAID = {
    "a": "HTTP 401 from 10.0.0.1", "b": "HTTP 404 from 10.0.0.2", "c": "HTTP 500 from 10.11.12.13", "d": "HTTP 503 from 10.0.0.1",
    "e": "HTTP 503 from 10.9.8.7", "f": "no order 123456 of 'ann'", "g": "no order 98765 of 'bob'", "h": "can't: 550e8400-e29b-41d4-a716-446655440000 at 10:11:12.5",
    "i": "can't: 650e8400-e29b-41d4-a716-446655440001 at 20:01:02",
}


def test_groups_of_reasons_keep_codes_and_choose_exactly_what_they_count(tmp_path):
    with open(tmp_path / "effect", "w") as file:
        file.write("#!/bin/sh\nread -r b\n" + "".join(f"""case "$b" in *'"{id}"'*) echo "{said}" >&2;; esac\n""" for id, said in SAID.items()) +
                   "case \"$b\" in *'\"e\"'*) exit 8;; esac\nexit 7\n")
    os.chmod(tmp_path / "effect", 0o755)
    p = Pipeline(tmp_path, CODES, "CREATE TABLE t(n)")
    p.write(*[{"id": id} for id in SAID])
    p.run(status=1)
    by_reason = groups(p, "--dead", "reason")
    codes = {re.search(r"status (\d).*HTTP (\d+) from #", name).groups() for name in by_reason if "HTTP" in name}
    assert codes == {("7", "401"), ("7", "404"), ("7", "500"), ("7", "503"), ("8", "503")}, by_reason
    assert sorted(group["count"] for group in by_reason.values()) == [1, 1, 1, 1, 1, 2, 2], by_reason
    assert any(name.endswith("no order # of ...") for name in by_reason) and any(name.endswith("can't: # at #") for name in by_reason), by_reason
    chosen = {}
    for name, group in by_reason.items():
        dry = p.once("discard", "--dry-run", "--json", *group["filter"], p.name).json
        assert dry["count"] == group["count"], (group, dry)
        chosen.update({letter["letter"]: name for letter in dry["letters"]})
    assert len(chosen) == len(SAID)
    text = p.once("list", "--dead", "--by", "reason", p.name).out.splitlines()
    for line, under in zip(text[::2], text[1::2]):
        options = subprocess.run(f"printf '%s\\0' {under.strip()}", shell=True, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
        ended = p.once("replay", "--dry-run", "--json", *options, p.name)
        assert sum(ended.json["counts"].values()) == int(line.split()[0]), (line, under, ended)
    for by in ("handler", "hour"):
        for group in groups(p, "--dead", by).values():
            assert p.once("replay", "--dry-run", "--json", *group["filter"], p.name).json["counts"]["run"] == group["count"] == len(SAID), group


def test_filters_audits_and_dry_runs_are_the_same_on_every_store(tmp_path, store):
    (tmp_path / "effect").write_text("#!/bin/sh\nexit 70\n")
    (tmp_path / "effect").chmod(0o755)
    p = Any(tmp_path, store, 'key: "${/id}"\ntype: "${/type}"\ntenant: "${/who}"\nretry: {attempts: 1}\nhandlers: {charge: {exec: [./effect]}, note: {dead: "HTTP 404 of 123456"}}\n')
    p.write(*[{"id": "1", "type": type, "who": who} for who in ("berlin", "paris") for type in ("charge", "note")])
    p.run(status=1)
    for verb, end, items in (("resolve", ["done"], "messages"), ("discard", [], "letters")):
        for dry in (["--dry-run"], []):
            told = p.once(verb, "--json", "--tenant", "berlin", *dry, p.name, *end).json
            assert (told["dry_run"], told["count"], whose(told[items])) == (bool(dry), 1, [("berlin", "charge" if end else "note")]), told
        assert p.once(verb, "--json", "--tenant", "berlin", p.name, *end).json["count"] == 0
    (group,) = p.ask("list", "--dead", "--by", "reason")["groups"]
    assert group["reason"] == "HTTP 404 of #" and group["count"] == 1, group
    assert [letter["verdict"] for letter in p.once("replay", "--json", "--dry-run", *group["filter"], p.name).json["letters"]] == ["still_dead"]
    assert [(a["what"], a["tenant"], a["operation"], len(a["idempotency_key"])) for a in p.ask("list", "--audit")["audit"]] == [
        ("resolve", "berlin", "charge", 32), ("discard", "berlin", "note", 32)]
    given_up = [e for e in p.explain("1", "--tenant", "berlin") if e["operation"] == "note"]
    assert [(e["state"], e["discarded"], bool(e["discarded_by"])) for e in given_up] == [("rejected", True, True)], given_up
