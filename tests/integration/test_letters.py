"""What is shown of letters that have no key, and that they stay discarded; on every store."""

import base64

from anystore import Any, store  # noqa: F401
from harness import counts

CONFIG = 'key: "${/id}"\nremember: 7d\nhandler: {exec: ["true"]}\n'

BAD = ['{"id": "a"', "not JSON", '{"other": 1}']


def test_a_discarded_malformed_letter_stays_discarded(tmp_path, store):
    p = Any(tmp_path, store, CONFIG)
    p.write(*BAD, {"id": "good"})
    counts(p.run(status=1), received=4, dead=3, done=1)
    first = p.dead()[0]
    assert p.once("discard", p.name, first["letter"]).status == 0
    assert p.fate(1)["fate"] == "discarded" and "its letter was discarded 20" in p.fate(1)["reason"], p.fate(1)
    assert "further deliveries are duplicates" in p.once("explain", p.name, "--message", "in.ndjson:1").out
    assert p.fate(2)["fate"] == "letter"
    counts(p.run(status=1), received=4, duplicates=4)
    assert [letter["point"] for letter in p.dead()] == ["2", "3"]
    assert p.once("discard", p.name, "--all").status == 0
    for _ in range(2):
        counts(p.run(status=0), received=4, duplicates=4)
    assert p.dead() == []
    assert p.once("status", "--json", "--finished", p.name).json["rejected"] == 3

    p.append(BAD[0])  # the same bytes elsewhere are another message
    counts(p.run(status=1), received=5, duplicates=4, dead=1)
    assert [letter["point"] for letter in p.dead()] == ["5"]
    p.write("other bytes", *BAD[1:])  # and so are other bytes there
    counts(p.run(status=1), received=3, duplicates=2, dead=1)


def test_a_discarded_letter_that_is_no_longer_malformed_runs(tmp_path, store):
    p = Any(tmp_path, store, CONFIG)
    p.write({"other": "x"})
    counts(p.run(status=1), received=1, dead=1)
    p.once("discard", p.name, "--all")
    p.configure(CONFIG.replace("/id", "/other"))
    counts(p.run("--confirm-scope-change", status=0), received=1, done=1)


def test_too_old_and_conflicts_stay_discarded(tmp_path, store):
    p = Any(tmp_path, store, CONFIG + 'time: {from: "${/at}", unit: s}\n')
    p.write({"id": "old", "at": 1}, {"id": "a", "n": 1, "at": "2999-01-01T00:00:00Z"}, {"id": "a", "n": 2, "at": "2999-01-01T00:00:00Z"})
    counts(p.run(status=1), received=3, done=1, dead=2, too_old=1, conflicts=1)
    assert p.once("discard", p.name, "--all").status == 0
    assert [p.fate(line)["fate"] for line in (1, 2, 3)] == ["discarded", "first", "discarded"]
    counts(p.run(status=0), received=3, duplicates=3)


def test_a_malformed_letter_that_was_corrected_does_not_come_again(tmp_path, store):
    p = Any(tmp_path, store, CONFIG)
    p.write(*BAD)
    p.run(status=1)
    for letter in p.dead():
        assert p.once("replay", p.name, letter["letter"], "--body", "-", stdin=b'{"other": 2}').status == 1  # still without a key: it stays
    fixed = [p.once("replay", "--json", p.name, letter["letter"], "--body", "-", stdin=b'{"id": "fixed"}').json for letter in p.dead()]
    assert [answer["letters"][0]["verdict"] for answer in fixed] == ["run", "waiting", "waiting"], fixed
    counts(p.run(status=0), received=3, resumed=1, done=1, duplicates=3)
    assert p.dead() == []


# ---- the line ----

LONG = '{"id": "' + "x" * 500 + '", "n": tru, "more": "' + "y" * 500 + '"}'
SECRET = b'{"id": 7, "note": "\x1b[31m \xff \xc3\xa9", }'


def test_a_malformed_letter_shows_its_line(tmp_path, store):
    p = Any(tmp_path, store, CONFIG)
    p.write('{"id": "a"', '{"other": 1}', LONG, SECRET, {"id": "good"})
    p.run(status=1)
    dead = p.dead()
    assert [letter["line"] for letter in dead[:3]] == ['{"id": "a"', '{"other": 1}', LONG], "whole"
    assert [letter.get("column") for letter in dead] == [11, None, LONG.index("tru,") + 1, SECRET.index(b"\x1b") + 1], dead
    assert [letter["place"] + ":" + letter["point"] for letter in dead] == [f"in.ndjson:{n}" for n in (1, 2, 3, 4)]
    assert all("body" not in letter for letter in dead)
    bodies = p.dead("--body")
    assert [letter["body"] for letter in bodies[:3]] == [letter["line"] for letter in dead[:3]]
    assert base64.b64decode(bodies[3]["body_base64"]) == SECRET, "it is no text"

    lines = p.once("list", "--dead", p.name).out.splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith("malformed ")]
    assert "  in.ndjson:1  20" in lines[0] and "malformed JSON at byte 11: " in lines[0] and "attempt" not in lines[0], lines[0]
    assert lines[1:3] == ['    {"id": "a"', " " * 14 + "^"]
    assert lines[heads[1] + 1:heads[2]] == ['    {"other": 1}']
    shown, caret = lines[heads[2] + 1:heads[3]]
    assert shown.startswith("    ...xxx") and shown.endswith("yyy...") and len(shown) < 140 and '"n": tru, "more"' in shown, shown
    assert shown[len(caret) - 1:].startswith("tru, "), (shown, caret)
    assert "\x1b" not in lines[heads[3] + 1] and '"note": "?[31m ? ' in lines[heads[3] + 1], lines[heads[3] + 1]


def test_explain_shows_the_line(tmp_path, store):
    p = Any(tmp_path, store, CONFIG)
    p.run(status=0)
    p.write("nonsense", '{"other": 1}', {"id": "good"})
    for fate in ("malformed", "letter", "discarded"):
        told = [p.fate(line) for line in (1, 2, 3)]
        assert [(t["fate"], t.get("line"), t.get("column")) for t in told[:2]] == [(fate, "nonsense", 1), (fate, '{"other": 1}', None)], told
        assert "line" not in told[2]
        text = p.once("explain", p.name, "--message", "in.ndjson:1").out
        assert text.endswith("    nonsense\n    ^\n"), text
        if fate == "malformed":
            p.run(status=1)
        else:
            p.once("discard", p.name, "--all")
