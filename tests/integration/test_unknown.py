"""`unknown` in the summary of a run and in `once status`: keys, each once."""

import json
import os
import signal

import pytest

from anystore import Any, behind, server_of, store  # noqa: F401
from harness import Running, counts, stopped, until
from tcpproxy import Proxy

SCRIPT = """#!/bin/sh
echo "$ONCE_KEY" >> started
[ -e wait ] && sleep 30
[ -e works ] && exit 0
exit 70
"""
CONFIG = """
key: "${/id}"
lease: 1s
handler: {exec: [./effect]}
"""


class Held(Any):
    def __init__(self, folder, store, config=CONFIG):
        super().__init__(folder, store, config)
        with open(os.path.join(folder, "effect"), "w") as file:
            file.write(SCRIPT)
        os.chmod(os.path.join(folder, "effect"), 0o755)

    def touch(self, name):
        open(os.path.join(self.folder, name), "w").close()

    def started(self):
        path = os.path.join(self.folder, "started")
        return open(path).read().split() if os.path.exists(path) else []

    def unknown(self):
        return self.ask("status")["unknown"]


TWICE = [{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": "b"}]


def test_a_key_is_unknown_once_however_often_it_comes(tmp_path, store):
    p = Held(tmp_path, store)
    p.write(*TWICE)
    for _ in range(2):  # the second time all four meet what the first run left
        summary = p.run(status=1)
        counts(summary, received=4, unknown=2, duplicates=2)
        assert summary["store_unknown"] == p.unknown() == 2
    assert p.once("resolve", p.name, "a", "done").status == 0
    summary = p.run(status=1)
    counts(summary, received=4, unknown=1, duplicates=3)
    assert summary["store_unknown"] == p.unknown() == 1


def test_what_is_tried_again_is_no_longer_unknown(tmp_path, store):
    p = Held(tmp_path, store)
    p.write(*TWICE)
    p.run(status=1)
    p.touch("works")
    for key in "a", "b":
        assert p.once("resolve", p.name, key, "retry").status == 0
    summary = p.run(status=0)
    assert (summary["done"], summary["unknown"], summary["store_unknown"], p.unknown()) == (2, 0, 0, 0), summary


@pytest.mark.parametrize("again", [False, True])
def test_a_person_decides_while_it_runs(tmp_path, store, again):
    """Counted by where it stands at the end: not as unknown and as done."""
    p = Held(tmp_path, store)
    p.configure(CONFIG, source="{path: in.ndjson, follow: true}")
    p.append({"id": "a"})
    with p.start() as running:
        until(lambda: os.path.exists(os.path.join(tmp_path, "started")) and p.unknown() == 1, what="the unknown")
        p.touch("works")
        if again:
            p.append({"id": "a"})
        assert p.once("resolve", p.name, "a", "retry").status == 0
        until(lambda: len(p.started()) == 2 and p.explain("a")[0]["state"] == "done", what="the second try")
        if again:
            p.append({"id": "last"})
            until(lambda: "last" in p.started() and p.explain("last")[0]["state"] == "done", what="the last one")
        running.send(signal.SIGTERM)
        ended = running.end()
    summary = ended.json
    assert ended.status == 0, ended
    assert (summary["unknown"], summary["store_unknown"], summary["done"]) == (0, 0, 1 + again), summary
    assert summary["received"] + summary["resumed"] == summary["done"] + summary["duplicates"], summary
    assert summary["received"] == 1 + 2 * again and summary["resumed"] == 0, summary


def test_an_attempt_that_died_is_counted_alike(tmp_path, store):
    p = Held(tmp_path, store)
    p.touch("wait")
    p.write({"id": "a"}, {"id": "a"})
    with p.start() as running:
        until(lambda: p.started() == ["a"], what="the effect")
        running.send(signal.SIGKILL)
        running.end()
    until(lambda: p.unknown() == 1, what="the end of the lease")
    summary = p.run(status=1)
    counts(summary, received=2, unknown=1, duplicates=1)
    assert summary["store_unknown"] == p.unknown() == 1


def test_since_when_it_is_unknown(tmp_path, store):
    p = Held(tmp_path, store)
    p.write({"id": "a"})
    p.run(status=1)
    p.once("resolve", p.name, "a", "retry")
    p.run(status=1)
    (listed,) = p.ask("list", "--unknown")["messages"]
    assert p.ask("status")["oldest_unknown_ms"] == listed["changed_ms"] > listed["seen_ms"]


def test_resolved_and_unknown_again_is_one_key(tmp_path, store):
    p = Held(tmp_path, store)
    p.write({"id": "a"}, {"id": "b"}, {"id": "c"})
    counts(p.run(status=1), received=3, unknown=3)
    assert p.once("resolve", "--all", p.name, "retry").status == 0
    summary = p.run(status=1)
    assert (summary["unknown"], summary["store_unknown"], p.unknown()) == (3, 3, 3), summary


def test_what_a_run_did_not_meet_is_told_apart(tmp_path, store):
    p = Held(tmp_path, store)
    p.configure(CONFIG, source="{path: in.ndjson, cursor: true}")
    p.write({"id": "a"}, {"id": "b"})
    text = p.once("run", p.name)
    assert text.status == 1 and "unknown               2  keys whose effect may have happened, met by this run" in text.out and "in the store" not in text.out, text
    summary = p.run(status=1)
    counts(summary, received=0)
    assert summary["store_unknown"] == p.unknown() == 2
    text = p.once("run", p.name)
    assert text.status == 1 and "2 keys of this consumer with an unknown outcome are in the store" in text.out, text


@pytest.mark.parametrize("how", ["unknown", "dead"])
def test_the_text_says_that_a_person_decided_meanwhile(tmp_path, how):
    p = Held(tmp_path, "sqlite:store.db")
    p.run(status=0)
    with open(os.path.join(tmp_path, "effect"), "w") as file:
        file.write(f"#!/bin/sh\nexit {70 if how == 'unknown' else 65}\n")
    p.configure(CONFIG, source="{path: in.ndjson, follow: true}")
    p.append({"id": "a"})
    with Running(["run", p.name], p.folder) as running:
        until(lambda: p.ask("status")[how] == 1, what="the message")
        assert (p.once("resolve", p.name, "a", "done") if how == "unknown" else p.once("discard", p.name, "--all")).status == 0
        running.send(signal.SIGTERM)
        ended = running.end()
    what = "keys of this consumer with an unknown outcome" if how == "unknown" else "dead letters of this consumer"
    assert ended.status == 0 and f"\n  0 {what} are in the store\n" in ended.out, ended


# ---- whoever finds it says it ----

def unknowns(text):
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [(line["level"], line["key"], line["attempt"], line["at"]) for line in found if line["event"] == "unknown"]


def killed(p):
    p.touch("wait")
    p.write({"id": "a"})
    with p.start() as running:
        until(lambda: p.started() == ["a"], what="the effect")
        running.send(signal.SIGKILL)
        running.end()


WARNED = [("warn", "a", 1, "in.ndjson:1")]


@pytest.mark.parametrize("over", [False, True])
def test_f99_an_attempt_that_was_killed_is_told_once(tmp_path, store, over):
    """By the next run, which starts before its lease is over, or after: one line, and never again."""
    p = Held(tmp_path, store)
    killed(p)
    if over:
        until(lambda: p.unknown() == 1, what="the end of the lease")
    ended = p.try_run("--log-format", "json")
    assert ended.status == 1 and unknowns(ended.err) == WARNED and p.unknown() == 1, ended
    assert "it may have had its effect; worker " in ended.err, ended
    again = p.try_run("--log-format", "json")
    assert again.status == 1 and unknowns(again.err) == [] and again.json["unknown"] == 1, again


def test_f99_an_attempt_that_was_killed_is_told_although_nothing_comes(tmp_path, store):
    """Neither its message nor any other: the source is empty."""
    p = Held(tmp_path, store)
    killed(p)
    until(lambda: p.unknown() == 1, what="the end of the lease")
    p.write()
    ended = p.try_run("--log-format", "json")
    assert ended.status == 1 and unknowns(ended.err) == WARNED, ended
    assert "worker" not in p.explain("a")[0], "it is written"
    assert unknowns(p.try_run("--log-format", "json").err) == []


def test_f100_a_worker_whose_claim_has_run_out_is_late(tmp_path, store):
    """Its own lease is longer than that of its claim, but it has said nothing in time for that. Somebody else writes that down: it is late all the
    same. When it goes on, it is alive again."""
    def worker():
        (seen,) = [w for w in p.once("status", "--json", p.name).json["workers"] if w["who"].endswith(f":{running.process.pid}")]
        return seen["state"], seen["holds"], seen["lapsed"]

    p = Held(tmp_path, store)
    p.touch("wait")
    p.touch("works")
    p.touch("none.ndjson")
    p.write({"id": "a"})
    text = open(os.path.join(tmp_path, p.name)).read()
    for name, source in (p.name, "in"), ("beside.yaml", "none"):
        with open(os.path.join(tmp_path, name), "w") as file:
            file.write(text.replace("{path: in.ndjson}", f"{{path: {source}.ndjson, follow: true}}"))
    with p.start() as running:
        until(lambda: p.started() == ["a"], what="the effect")
        assert worker() == ("alive", 1, 0)
        running.send(signal.SIGSTOP)
        until(lambda: stopped(running), what="it has stopped")
        until(lambda: worker() == ("late", 0, 1), what="the end of its lease")
        assert f":{running.process.pid}, late, since " in p.once("status", p.name).out
        assert "; holds 0 claims; 1 further claim has expired\n" in p.once("status", p.name).out
        own, p.name = p.name, "beside.yaml"
        with p.start() as beside:
            until(lambda: "worker" not in p.explain("a")[0], what="somebody writes it down")
            assert worker() == ("late", 0, 1)
            beside.send(signal.SIGTERM)
            beside.end()
        p.name = own
        running.send(signal.SIGCONT)
        until(lambda: worker() == ("alive", 0, 0), what="it goes on")
        running.send(signal.SIGTERM)
        assert running.end().status in (0, 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_f99_a_worker_beside_tells_of_it(tmp_path, store, number):
    """One that has another source, and is alive while the other one dies, or is late. It is late only: what it says in the end counts, and nothing
    was fenced off."""
    p = Held(tmp_path, store)
    text = open(os.path.join(tmp_path, p.name)).read()
    with open(os.path.join(tmp_path, "beside.yaml"), "w") as file:
        file.write(text.replace("{path: in.ndjson}", "{path: other.ndjson, follow: true}"))
    p.touch("other.ndjson")
    p.touch("wait")
    p.touch("works")
    p.write({"id": "a"})
    with p.start("--log-format", "json") as running:
        until(lambda: p.started() == ["a"], what="the effect")
        running.send(number)
        until(lambda: running.process.poll() is not None or stopped(running), what="its end")
        p.name = "beside.yaml"
        with p.start("--log-format", "json") as beside:
            until(lambda: p.explain("a")[0]["state"] == "unknown" and "worker" not in p.explain("a")[0], what="somebody writes it down")
            beside.send(signal.SIGTERM)
            told = beside.end()
        assert unknowns(told.err) == WARNED, told
        if number == signal.SIGSTOP:
            running.send(signal.SIGCONT)
            ended = running.end()
            assert unknowns(ended.err) == [], ended  # it has been told, by the one beside it
            assert ended.json["fenced"] == 0 and ended.json["attempts"] == 1 and '"event":"fenced"' not in ended.err, ended


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("store", ["postgres", "redis"], indirect=True)
def test_f06_f99_an_unknown_is_told_once_whichever_reply_is_lost(tmp_path, store, over):
    """Its claim is found to be over by somebody whose commit happens, and who is not told so: one line, never none."""
    redis = store.startswith("redis")
    p = Held(tmp_path, store)

    def run(skip):
        killed(p)
        if over:
            until(lambda: p.unknown() == 1, what="the end of the lease")
        with Proxy(server_of(store)) as proxy:
            p.configure(CONFIG, store=behind(proxy, store))
            proxy.reply_ends = b"" if redis else b"Z\0\0\0\5I"
            proxy.skip, proxy.lose_reply_to = skip, b"EVALSHA" if redis else b"COMMIT\0"
            ended = p.try_run("--log-format", "json")
            p.configure(CONFIG)
        assert ended.status == 1 and unknowns(ended.err) == WARNED and p.unknown() == 1, (skip, ended)
        assert p.once("forget", p.name, "a").status == 0
        os.remove(os.path.join(tmp_path, "started"))
        return proxy

    commits = 1000 - run(1000).skip
    lost = [run(skip).lost for skip in range(max(0, commits - 8), commits)]  # before them it starts
    assert sum(lost) >= 3, (commits, lost)


# ---- a letter of one that may have had its effect ----

def test_f81_a_letter_says_that_its_effect_may_have_happened(tmp_path, store):
    """`unknown: retry`, and its budget is spent: whoever replays it is told that it may repeat an effect. Not of one that failed before it did anything."""
    p = Held(tmp_path, store, CONFIG + "unknown: retry\nretry: {attempts: 2, backoff: 1ms..5ms}\n")
    with open(os.path.join(tmp_path, "effect"), "w") as file:
        file.write('#!/bin/sh\n[ "$ONCE_KEY" = sure ] && exit 65\nexit 70\n')
    p.write({"id": "maybe"}, {"id": "sure"})
    p.run(status=1)
    assert {m["key"]: m.get("maybe_done", False) for m in p.dead()} == {"maybe": True, "sure": False}
    assert [p.explain(key)[0]["maybe_done"] for key in ("maybe", "sure")] == [True, False]
    for line in p.once("list", "--dead", p.name).out.splitlines():
        assert ("may have had its effect" in line) == ("'maybe'" in line), line
    assert "An attempt may have had its effect; another attempt may repeat it." in p.once("explain", p.name, "maybe").out
    assert "may repeat" not in p.once("explain", p.name, "sure").out
    for dry in ("--dry-run",), ():
        ended = p.once("replay", "--json", *dry, "--all", p.name).json
        assert {m["key"]: m.get("maybe_done", False) for m in ended["letters"]} == {"maybe": True, "sure": False}, ended
        assert ended["maybe_done"] == 1, ended
        if dry:
            text = p.once("replay", *dry, "--all", p.name).out
            assert text.count("; it may repeat an effect") == 1 and "1 of these may repeat an effect" in text, text
    assert p.explain("maybe")[0]["state"] == "waiting" and p.explain("maybe")[0]["maybe_done"]
