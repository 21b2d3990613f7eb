"""What list and explain show of lanes: which one, and which messages are before a message in it; on every store."""

import os
import signal

from anystore import Any, store  # noqa: F401
from harness import until

EFFECT = """#!/bin/sh
read -r body
echo "$ONCE_KEY" >> started
case "$body" in
*'"fail"'*) exit 75;;
*'"die"'*) exit 65;;
*'"lost"'*) exit 70;;
*'"slow"'*) while [ ! -e go ]; do sleep 0.05; done;;
*'"say"'*) echo said;;
esac
exit 0
"""
CONFIG = """
key: "${/id}"
order: "${/o}"
retry: {attempts: 5, backoff: 30d..30d}
on_dead: block
handler: {exec: [./effect]}
"""


class Lanes(Any):
    def __init__(self, folder, store, config=CONFIG):
        super().__init__(folder, store, config)
        with open(os.path.join(folder, "effect"), "w") as file:
            file.write(EFFECT)
        os.chmod(os.path.join(folder, "effect"), 0o755)
        self.run(status=0)  # makes the store
        self.follow(config)

    def follow(self, config):
        """A run of a finite source would wait for the retries."""
        self.configure(config, source="{path: in.ndjson, follow: true}")

    def run_until(self, condition):
        with self.start() as running:
            until(condition, what="what the test waits for")
            running.send(signal.SIGTERM)
            ended = running.end()
        assert ended.status in (0, 1), ended

    def listed(self):
        return {message["key"]: message for message in self.ask("list")["messages"]}

    def text(self, key):
        """The line of a key, and those that belong to it."""
        lines = self.once("list", self.name).out.splitlines()
        first = next(i for i, line in enumerate(lines) if f"key '{key}'" in line and not line.startswith(" "))
        return lines[first:next((i for i in range(first + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))]

    def explained(self, key):
        ended = self.once("explain", self.name, key)
        assert ended.status == 0, ended
        return ended.out


def do(id, lane, what="", **more):
    return {"id": id, "o": lane, "do": what, **more}


def test_what_a_message_waits_for(tmp_path, store):
    p = Lanes(tmp_path, store)
    p.write(do("a", "one", "fail"), do("b", "one"), do("c", "one"), do("d", "two", "die"), do("e", "two"), do("f", "three", "lost"), do("g", "three"))
    p.run_until(lambda: len(p.listed()) == 7 and all(p.listed()[key]["state"] != "busy" for key in "adf"))
    found = p.listed()
    assert [found[key]["lane"] for key in "abcdefg"] == ["one"] * 3 + ["two"] * 2 + ["three"] * 2
    assert len({found[key]["lane_id"] for key in "abc"}) == 1 and len({message["lane_id"] for message in found.values()}) == 3
    assert [found[key]["all_before"] for key in "abcdefg"] == [0, 1, 2, 0, 1, 0, 1]

    (a,) = found["b"]["before"]
    assert (a["key"], a["state"], a["due_ms"], a["operation"]) == ("a", "waiting", found["a"]["due_ms"], "handler"), a
    assert [one["key"] for one in found["c"]["before"]] == ["a", "b"] and "due_ms" not in found["c"]["before"][1], "it waits for another one itself"
    (d,) = found["e"]["before"]
    assert (d["key"], d["state"], d["letter"]) == ("d", "dead", found["d"]["letter"]), d
    (f,) = found["g"]["before"]
    assert (f["key"], f["state"], f["changed_ms"]) == ("f", "unknown", found["f"]["changed_ms"]), f

    head, behind = p.text("c")
    assert "  lane 'one'  " in head and behind.startswith("    behind key 'a', waiting, not before 20") and behind.endswith("; and 1 more"), (head, behind)
    assert p.text("e")[1] == f"    behind key 'd', dead letter {found['d']['letter']}"
    assert p.text("g")[1].startswith("    behind key 'f', unknown since 20")
    assert len(p.text("a")) == 1

    told = p.explained("c")
    assert "  It is in lane 'one'.\n    behind key 'a', waiting, not before 20" in told and "\n    behind key 'b', waiting\n" in told, told
    assert "  It is in lane 'two'.\n" in p.explained("d")
    (entry,) = p.explain("e")
    assert (entry["lane"], entry["before"][0]["letter"], entry["all_before"]) == ("two", found["d"]["letter"], 1), entry


def test_somebody_is_at_work_before_it(tmp_path, store):
    p = Lanes(tmp_path, store, CONFIG + "ack: after_accept\ntimeout: 1m\n")
    p.write(do("a", "one", "slow"), do("b", "one"))
    with p.start() as running:
        until(lambda: "a" in p.listed() and p.listed()["a"]["state"] == "busy" and "b" in p.listed(), what="both")
        (a,) = p.listed()["b"]["before"]
        assert (a["key"], a["state"]) == ("a", "busy") and f":{running.process.pid}" in a["worker"] and a["due_ms"] > 0, a
        assert f"    behind key 'a', being processed by {a['worker']} until 20" in p.text("b")[1]
        open(tmp_path / "go", "w").close()
        until(lambda: not p.listed(), what="the end")
        running.send(signal.SIGTERM)
        assert running.end().status == 0
    (entry,) = p.explain("b")
    assert entry["state"] == "done" and "lane" not in entry, "what has finished waits for nobody"


def test_versions_and_what_is_missing(tmp_path, store):
    p = Lanes(tmp_path, store, CONFIG + 'version: {from: "${/v}", first: 1}\ngap: {wait: 1h}\n')
    p.write(do("one", "x", v=1), do("four", "x", v=4), do("five", "x", v=5))
    p.run_until(lambda: set(p.listed()) == {"four", "five"})
    found = p.listed()
    assert (found["four"]["version"], found["four"]["missing"], found["four"]["before"]) == (4, [2, 3], []), found
    assert "missing" not in found["five"] and [(one["key"], one["version"]) for one in found["five"]["before"]] == [("four", 4)], found
    assert "lane 'x', version 4  " in p.text("four")[0] and "versions 2 to 3 are missing" in p.text("four")[0], p.text("four")
    assert p.text("five")[1].startswith("    behind key 'four', version 4, waiting"), p.text("five")
    assert "  It is in lane 'x', version 4.\n  It waits for versions 2 to 3.\n" in p.explained("four")


def test_a_lane_whose_value_is_not_known(tmp_path, store):
    """`order` is another one now: what it gives is not the lane that the message stands in."""
    p = Lanes(tmp_path, store)
    p.write(do("a", "one\x1b[2J", "fail"), do("b", "one\x1b[2J"))
    p.run_until(lambda: len(p.listed()) == 2 and p.listed()["a"]["state"] == "waiting")
    assert p.listed()["a"]["lane"] == "one\x1b[2J"
    assert "lane 'one?[2J'" in p.text("a")[0] and "\x1b" not in p.once("list", p.name).out
    p.follow(CONFIG.replace("${/o}", "${/id}"))
    found = p.listed()
    assert found["a"]["lane"] is None and found["a"]["lane_id"] == found["b"]["lane_id"] and found["b"]["before"][0]["key"] == "a", found
    assert f"  lane #{found['a']['lane_id'][:8]}  " in p.text("a")[0]


def test_a_letter_that_has_no_place_shows_what_its_message_says(tmp_path, store):
    p = Lanes(tmp_path, store)
    p.write(do("a", "one"), do("a", "two"))
    p.run_until(lambda: p.dead())
    (letter,) = p.dead()
    assert letter["kind"] == "conflict" and letter["lane"] == "two" and letter["before"] == [], letter


def test_a_dead_key_stands_in_the_lane_of_its_own_letter(tmp_path, store):
    """A letter of a conflict with it is a later one of the same key, with another lane."""
    p = Lanes(tmp_path, store)
    p.write(do("a", "one", "die"))
    p.run_until(lambda: p.dead())
    p.append(do("a", "two", "die"))
    p.run_until(lambda: len(p.dead()) == 2)
    (entry,) = p.explain("a")
    assert [letter["kind"] for letter in entry["letters"]] == ["dead", "conflict"], entry
    assert entry["state"] == "dead" and entry["lane"] == "one", entry


def test_results_and_idempotency_keys_of_letters(tmp_path, store):
    p = Lanes(tmp_path, store, CONFIG.replace('order: "${/o}"\n', "").replace("on_dead: block\n", ""))
    p.write(do("a", "", "die"))
    p.run_until(lambda: p.dead())
    (letter,) = p.dead()
    assert p.once("forget", p.name, "a").status == 0
    (absent,) = p.explain("a")
    assert absent["state"] == "absent" and absent["letters"][0]["idempotency_key"] == letter["idempotency_key"], absent
    assert f"; idempotency key {letter['idempotency_key']}.\n" in p.explained("a")
    with open(os.path.join(p.folder, "effect"), "w") as file:
        file.write("#!/bin/sh\necho said\n")
    p.append(do("a", "", "die"))
    p.run_until(lambda: p.explain("a")[0]["state"] == "done")
    replayed = p.once("replay", "--dry-run", "--json", p.name, "--all").json["letters"][0]
    assert (replayed["verdict"], replayed["result"]) == ("duplicate", "said\n"), replayed
    assert "  its result is 'said'\n" in p.once("replay", "--dry-run", p.name, "--all").out
