"""The command as its user meets it: what it prints, where, and with which exit status."""

import json
import os
import pty
import subprocess

import pytest

from harness import ONCE, Pipeline, counts, once, read_terminal

TABLE = "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER);"
INSERT = """
key: "${/id}"
handler: {sql: ["INSERT INTO t(id, n) VALUES (:id, :n)"]}
"""


def some(n):
    return [{"id": f"m{i}", "n": i} for i in range(n)]


# ---- the same message once, twice, ten times ----

@pytest.mark.parametrize("times", [1, 2, 10])
def test_same_message_takes_effect_once(tmp_path, times):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write(*[{"id": "a", "n": 7}] * times)
    counts(p.run(), received=times, done=1, duplicates=times - 1, attempts=1, acked=times)
    assert p.rows("SELECT * FROM t") == [("a", 7)]


@pytest.mark.parametrize("times", [2, 10])
def test_f30_same_input_run_again_and_again(tmp_path, times):
    p = Pipeline(tmp_path, "key: \"${/id}\"\nhandler: {sql: [\"UPDATE total SET n = n + :n\"]}\n",
                 "CREATE TABLE total(n INTEGER); INSERT INTO total VALUES (0);")
    p.write(*some(20))
    counts(p.run(), received=20, done=20)
    for _ in range(times - 1):
        counts(p.run(), received=20, duplicates=20, attempts=0, acked=20)
    assert p.value("SELECT n FROM total") == sum(range(20))


def test_different_messages_are_not_confused(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write(*some(3000))
    counts(p.run(), received=3000, done=3000)
    assert p.rows("SELECT count(*), count(DISTINCT n), sum(n) FROM t") == [(3000, 3000, sum(range(3000)))]


def test_empty_input(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    counts(p.run(status=0), received=0)


def test_memory_store_runs_without_sql(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {dead: not yet}\n', store="memory")
    p.write({"id": 1}, {"id": 1}, {"id": 2})
    counts(p.run(status=1), received=3, dead=2, duplicates=1, store_dead=2)


# ---- exit statuses ----

def test_status_0_when_all_is_settled(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write(*some(3))
    assert p.try_run().status == 0


def test_status_1_when_something_is_dead_and_while_it_stays(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write({"id": "a", "n": 1}, "not json")
    counts(p.run(status=1), received=2, done=1, dead=1, store_dead=1)
    counts(p.run(status=1), received=2, duplicates=2, store_dead=1)


def test_status_2_for_usage_and_configuration(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    for arguments in ([], ["run"], ["run", "--wrong", p.name], ["run", p.name, "more"], ["nonsense"], ["run", "missing.yaml"],
                      ["explain", p.name], ["run", "--log-level"], ["run", "--log-level", "loud", p.name], ["run", "--json=1", p.name]):
        ended = once(*arguments, cwd=tmp_path)
        assert ended.status == 2, (arguments, ended)
        assert ended.out == "" and ended.err.strip(), (arguments, ended)


def test_status_3_when_the_store_fails(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    with open(p.database, "wb") as file:
        file.write(b"this was never a database" * 100)
    ended = p.try_run()
    assert ended.status == 3, ended
    assert "store.db" in ended.err


# ---- output ----

def test_json_of_every_verb_parses(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write({"id": "a", "n": 1}, "not json")
    assert p.once("check", "--json", p.name).json["ok"] is True
    assert p.once("run", "--json", p.name).json["done"] == 1
    assert p.once("explain", "--json", p.name, "a").json["entries"][0]["state"] == "done"
    assert p.once("explain", "--json", p.name, "nobody").json["entries"][0]["state"] == "absent"
    assert "CREATE TABLE" in once("schema", "--json", "sqlite:x").json["sql"]
    version = once("version", "--json").json
    assert {store["name"] for store in version["stores"]} >= {"memory", "sqlite"}
    assert len(version["failpoints"]) > 20


def test_json_tells_what_went_wrong(tmp_path):
    p = Pipeline(tmp_path, INSERT)  # no table
    for arguments in (["run", "--json", p.name], ["check", "--json", p.name]):
        ended = p.once(*arguments)
        assert ended.status == 2 and "p.yaml:5: no such table: t" in ended.json["error"] and ended.json["error"] in ended.err, ended
    os.remove(p.database)
    ended = p.once("explain", "--json", p.name, "a")
    assert ended.status == 2 and ended.json["entries"] == [] and "store.db" in ended.json["error"], ended


def test_json_of_texts_that_need_escapes(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    key = 'quote " back \\ line\nbell \x07 ü \u2028'
    p.write({"id": key, "n": 1})
    p.run(status=0)
    (entry,) = p.explain(key)
    assert entry["key"] == key and entry["state"] == "done"


def test_json_is_alone_on_stdout_and_one_line(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write(*some(3))
    ended = p.once("run", "--json", "--log-level", "debug", p.name)
    assert ended.out.count("\n") == 1 and json.loads(ended.out)["received"] == 3


def test_quiet_in_a_pipe(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write(*some(3))
    ended = p.once("run", p.name)
    assert ended.err == ""
    assert "\r" not in ended.out and "\033" not in ended.out
    assert "3  the effect happened" in ended.out


def test_schema_is_the_one_that_is_used(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.run(status=0)
    script = once("schema", "sqlite:x").out
    fresh = Pipeline(tmp_path, INSERT, store="sqlite:fresh.db", name="fresh.yaml")
    fresh.execute(script)
    names = "SELECT name FROM sqlite_schema WHERE name LIKE 'once_%' ORDER BY name"
    assert fresh.rows(names) == p.rows(names)


def test_live_line_on_a_terminal(tmp_path):
    p = Pipeline(tmp_path, INSERT + "retry: {attempts: 2, backoff: 1ms..1ms}\n", TABLE, source="{path: in.ndjson, follow: true}")
    p.write(*some(500))
    master, slave = pty.openpty()
    process = subprocess.Popen([ONCE, "run", p.name], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    seen = ""
    while "500 messages" not in seen:
        chunk = os.read(master, 65536).decode()
        assert chunk
        seen += chunk
    process.terminate()
    seen += read_terminal(master, process)
    assert process.wait(20) == 0
    os.close(master)
    assert "\r\033[K" in seen and "500 done" in seen
    after = seen.rpartition("\033[K")[2]
    assert after.startswith("500 messages in ") and "stopped" in after, "the live line is gone before the summary"


def test_no_live_line_with_json(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write(*some(5))
    master, slave = pty.openpty()
    process = subprocess.Popen([ONCE, "run", "--json", p.name], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    text = read_terminal(master, process)
    assert process.wait(20) == 0
    os.close(master)
    assert "\033" not in text and json.loads(text)["done"] == 5


# ---- check and explain ----

def test_check_consumes_nothing_and_tells_modes(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write(*some(3))
    ended = p.once("check", p.name)
    assert ended.status == 0 and "atomic" in ended.out, ended
    assert p.value("SELECT count(*) FROM t") == 0
    counts(p.run(), received=3, done=3)


def test_f22_check_warns_about_retention(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    findings = p.once("check", "--json", p.name).json["findings"]
    assert any(f["topic"] == "retention" and f["warning"] and "not enforced" in f["text"] for f in findings)
    p.configure(INSERT + 'remember: 1s\nretry: {attempts: 9, backoff: 1s..1m}\ntime: "${/ts}"\n')
    findings = p.once("check", "--json", p.name).json["findings"]
    assert any(f["topic"] == "retention" and f["warning"] and "'remember' (1s) is shorter than all retries" in f["text"]
               and "becomes a dead letter" in f["text"] for f in findings), findings
    p.configure(INSERT + 'remember: 1s\nretry: {attempts: 9, backoff: 1s..1m}\n')
    findings = p.once("check", "--json", p.name).json["findings"]
    assert any(f["topic"] == "retention" and f["warning"] and "'remember' (1s) is shorter than all retries" in f["text"]
               and "runs again if it was handled before" in f["text"] for f in findings), findings
    p.configure(INSERT + 'remember: forever\n')
    findings = p.once("check", "--json", p.name).json["findings"]
    assert not any(f["warning"] for f in findings if f["topic"] == "retention"), findings


def test_check_then_another_key_then_run(tmp_path):
    """A check is a look: it must not make later changes of a pipeline that never ran look like a change of scope."""
    p = Pipeline(tmp_path, INSERT, TABLE)
    assert p.once("check", p.name).status == 0
    p.configure(INSERT.replace("${/id}", "${/n}"))
    assert p.once("check", p.name).status == 0
    p.write(*some(2))
    counts(p.run(status=0), received=2, done=2)


def test_explain_tells_what_happened(tmp_path):
    p = Pipeline(tmp_path, INSERT, TABLE)
    p.write({"id": "a", "n": 1}, {"id": "b"}, {"id": "a", "n": 1})
    p.run(status=1)
    (a,) = p.explain("a")
    assert (a["state"], a["attempt"], a["failures"], a["place"], a["point"]) == ("done", 1, 0, "in.ndjson", "1")
    (b,) = p.explain("b")
    assert b["state"] == "dead" and b["point"] == "2" and "'/n'" in b["reason"]
    text = p.once("explain", p.name, "a").out
    assert "key 'a'" in text and "done" in text
