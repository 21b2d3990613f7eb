"""`lookup`: a second command is asked what became of an attempt whose outcome is unknown, from the pipeline file to the settled outcome."""

import os
import re

import pytest

from harness import Pipeline, counts, once

# Each real effect is a line; then its answer is lost.
CHARGE = """#!/bin/sh
[ -e unheard ] || echo "$ONCE_IDEMPOTENCY_KEY" >> ledger
echo "$ONCE_ATTEMPT" >> attempts
[ -e works ] && exit 0
exit 70
"""
# The other side, asked by the idempotency key.
STATUS = """#!/bin/sh
echo "$1 $ONCE_ATTEMPT $ONCE_MAYBE_DONE $(cat)" >> questions
[ -e away ] && { echo "no route" >&2; exit "$(cat away)"; }
grep -q "$ONCE_IDEMPOTENCY_KEY" ledger 2>/dev/null && { printf charged; exit 0; }
touch works; rm -f unheard
exit 75
"""
CONFIG = """
key: "${/id}"
retry: {attempts: 5, backoff: 1ms..20ms}
unknown: %s
handler:
  exec: [./charge]
  lookup: {exec: [./status, "--id=${/id}"], after: 1ms, for: %s}
"""


class Asked(Pipeline):
    def __init__(self, folder, unknown="hold", how_long="1h", status=STATUS):
        super().__init__(folder, CONFIG % (unknown, how_long))
        for name, text in (("charge", CHARGE), ("status", status)):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        self.write({"id": "a"})

    def put(self, name, text=""):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def lines(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()


@pytest.mark.parametrize("unknown", ["hold", "retry"])
def test_f69_an_effect_that_happened_is_found_and_not_repeated(tmp_path, unknown):
    p = Asked(tmp_path, unknown)
    summary = p.run(status=0)
    counts(summary, received=1, done=1, attempts=1)
    assert len(p.lines("ledger")) == 1 and len(p.lines("questions")) == 1
    assert p.lines("questions")[0].replace(" ", "") == '--id=a11{"id":"a"}', "its arguments, the attempt in question, which may be done, the body"
    shown = p.explain("a")[0]
    assert (shown["state"], shown["result"]) == ("done", "charged"), shown
    counts(p.run(status=0), received=1, duplicates=1)


def test_what_did_not_happen_is_tried_again(tmp_path):
    p = Asked(tmp_path)
    p.put("unheard")
    counts(p.run(status=0), received=1, done=1, attempts=2)
    assert len(p.lines("ledger")) == 1 and p.lines("attempts") == ["1", "2"] and len(p.lines("questions")) == 1


@pytest.mark.parametrize("code", [1, 69, 127], ids=["1", "69", "127"])
def test_f81_an_answer_that_nobody_listed_is_not_known_and_held_in_the_end(tmp_path, code):
    p = Asked(tmp_path, how_long="300ms")
    p.put("away", str(code))
    counts(p.run(status=1), received=1, unknown=1, attempts=1)
    assert len(p.lines("ledger")) == 1 and len(p.lines("questions")) > 1
    shown = p.explain("a")[0]
    assert shown["state"] == "unknown" and f"lookup: exit status {code}: no route" in shown["reason"], shown
    asked = len(p.lines("questions"))
    p.run(status=1)
    assert len(p.lines("questions")) == asked, "nobody is asked any more"


@pytest.mark.parametrize("code,state", [(64, "rejected"), (65, "dead"), (66, "already"), (67, "stale")])
def test_each_answer_settles_as_the_exit_codes_say(tmp_path, code, state):
    p = Asked(tmp_path)
    p.put("away", str(code))
    counts(p.run(status=1 if state == "dead" else 0), received=1, attempts=1, **{state: 1})
    assert len(p.lines("ledger")) == 1 and len(p.lines("questions")) == 1
    shown = p.explain("a")[0]
    assert shown["state"] == state and shown["reason"] == f"lookup: exit status {code}: no route", shown


def test_f81_exit_is_about_the_handler_and_not_about_its_lookup(tmp_path):
    p = Asked(tmp_path, how_long="300ms")
    p.configure((CONFIG % ("hold", "300ms")).replace("  lookup:", "  exit: {28: retry}\n  lookup:"))
    p.put("away", "28")
    counts(p.run(status=1), received=1, unknown=1, attempts=1)
    assert p.lines("attempts") == ["1"] and len(p.lines("questions")) > 1


def test_f81_a_lookup_that_can_never_start_has_found_out_nothing(tmp_path):
    p = Asked(tmp_path)
    many = ", ".join(['"${/big}"'] * 60)  # more than the arguments of any command may be together
    p.configure((CONFIG % ("hold", "300ms")).replace('"--id=${/id}"', many))
    p.write({"id": "a", "big": "x" * 125000})
    counts(p.run(status=1), received=1, unknown=1, attempts=1)
    assert len(p.lines("ledger")) == 1 and not p.lines("questions")
    shown = p.explain("a")[0]
    assert shown["state"] == "unknown" and "lookup: cannot run './status': " in shown["reason"], shown


def test_a_field_that_only_the_lookup_lacks_is_named_with_it(tmp_path):
    p = Asked(tmp_path)
    p.configure((CONFIG % ("hold", "1h")).replace("--id=${/id}", "--id=${/other}"))
    counts(p.run(status=1), received=1, dead=1)
    letter = p.once("list", "--json", p.name).json["messages"][0]
    assert letter["reason"].startswith("lookup: ") and "/other" in letter["reason"], letter


def test_explain_says_who_decides_next_about_an_unknown(tmp_path):
    p = Asked(tmp_path)
    p.put("away", "1")
    p.configure((CONFIG % ("hold", "1h")).replace("after: 1ms", "after: 1h"))
    operator = "It is kept until an operator decides"
    with p.start() as running:  # it has nothing to do but to wait for the lookup, and says so
        assert re.search("waiting for a lookup, which asks in (59m|1h)", running.hear("event=waiting"))
        told = p.once("explain", p.name, "a").out
        running.send(15)
        running.end()
    assert "The next lookup is not before" in told and operator not in told, told
    assert "next lookup not before" in p.once("list", "--unknown", p.name).out
    p.configure((CONFIG % ("hold", "1h")).replace("  lookup:", "  #"))
    told = p.once("explain", p.name, "a").out
    assert "lookup" not in told and operator in told, told


def test_nothing_found_out_is_tried_again_where_unknowns_are(tmp_path):
    p = Asked(tmp_path, unknown="retry", how_long="100ms", status=STATUS.replace("exit \"$(cat away)\"", "touch works; exit 1"))
    p.put("away")
    counts(p.run(status=0), received=1, done=1, attempts=2)
    assert len(p.lines("ledger")) == 2, "its user has chosen a repeat"


def test_a_lookup_that_hangs_is_killed_and_asked_again(tmp_path):
    p = Asked(tmp_path, status='#!/bin/sh\n[ -e asked ] && exit 0\ntouch asked\nsleep 60\n')
    p.configure((CONFIG % ("hold", "1h")).replace("handler:\n", "timeout: 200ms\nhandler:\n"))
    counts(p.run(status=0), received=1, done=1, attempts=1)
    assert len(p.lines("ledger")) == 1


def test_the_other_command_must_be_there(tmp_path):
    p = Asked(tmp_path)
    os.remove(tmp_path / "status")
    ended = p.try_run()
    assert ended.status == 2 and "'./status'" in ended.err and p.name in ended.err, ended
    assert not p.lines("ledger")


@pytest.mark.parametrize("handler,words", [
    ("exec: [./charge]\n  lookup: {after: 1s}", "missing field 'exec' in 'lookup'"),
    ("exec: [./charge]\n  lookup: {exec: [sh, -c, \"${/id}\"]}", "'exec'"),
    ("exec: [./charge]\n  mode: stream\n  lookup: {exec: [./status]}", "'lookup' is for 'mode: message'"),
    ("sql: [SELECT 1]\n  lookup: {exec: [./status]}", "'lookup' is for 'exec'; remove it"),
    ("exec: [./charge]\n  for: 1h", "unknown field 'for'; it belongs inside 'lookup' or 'retry'"),
    ("exec: [./charge]\n  lookup: {exec: [./status], for: 0s}", "'for' cannot be 0"),
], ids=["command", "program", "stream", "sql", "misplaced", "zero"])
def test_f67_mistakes_in_lookup_are_refused(tmp_path, handler, words):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler:\n  ' + handler + "\n")
    ended = once("check", p.name, cwd=tmp_path)
    assert ended.status == 2 and words in ended.err + ended.out, ended


def test_check_shows_that_the_other_side_is_asked(tmp_path):
    p = Asked(tmp_path)
    ended = p.once("check", p.name)
    assert "unless the lookup finds its effect" in ended.out + ended.err, ended
    assert "'lookup': argument 1, '--id=${/id}', carries text of the message" in ended.out + ended.err, ended
