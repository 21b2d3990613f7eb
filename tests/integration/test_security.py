"""Protections of SECURITY.md that no other file tests: what messages can do to logs and terminals, and that the page is true."""

import os
import re
import resource

from harness import ONCE, ROOT, Pipeline

from test_docs import names_in_tests

CONFIG = """
key: "${/id}"
type: "${/type}"
tenant: "${/tenant}"
handlers:
  a:
    sql: ["INSERT INTO t VALUES (:id, :n, :note)"]
    retry: {attempts: 2, backoff: 1ms..2ms, on: [t.note]}
"""
TABLE = "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER CHECK (n > 0), note TEXT UNIQUE);"
LINE = {"logfmt": r'time=\S+ level=warn event=dead at=\S+( tenant=("[^"]*"|\S+))?( operation=\S+)?( key=("[^"]*"|\S+))?( attempt=1)?( idempotency_key=[0-9a-f]{32})? msg=".*"',
        "json": r'{"time":"[^"]*","level":"warn","event":"dead","at":"[^"]*",.*"msg":".*"}'}
SECRET = "4929-1234-5678-9012"


def message(key, **more):
    return {"id": key, "type": "a", "tenant": "x", "n": 1, "note": SECRET, **more}


def hostile(p):
    """One message for every way to end as a dead letter, each with the secret in its body."""
    p.write(message("k1"), message("k2"), message("k1", n=2), message("k3", n=SECRET, note=SECRET),
            message("k4", n=-1, note=SECRET + "x"),
            '{"id": "k5", "type": "a", "note": "%s" %s' % (SECRET, SECRET), message("k6", note={"card": SECRET}, type="b"),
            {"id": "k7", "type": "a", "tenant": "x", "card": SECRET}, {"type": "a", "tenant": "x", "card": SECRET})
    return 9


def test_bodies_are_in_no_log_and_no_summary(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLE)
    n = hostile(p)
    for form in ("logfmt", "json"):
        ended = p.try_run("--log-level", "debug", "--log-format", form)
        assert ended.status == 1 and ended.json["received"] == n
        assert SECRET not in ended.out + ended.err
    assert len(p.letters()) == n - 1
    assert not [reason for _, reason in p.letters() if SECRET in reason]
    for key in ("k1", "k2", "k3", "k4"):
        told = p.once("explain", "--tenant", "x", p.name, key)
        assert told.status == 0 and SECRET not in told.out + told.err, told


def test_a_message_can_neither_forge_a_log_line_nor_steer_a_terminal(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLE)
    evil = "\x1b[2J\x07\r\ntime=2026-01-01T00:00:00Z level=error event=forged\u0085\u009b31m"
    p.write(message("k1" + evil, n=-1), message("k2", type=evil), message("k3", tenant=evil, n=-2), evil.encode().replace(b"\n", b" "))
    for form in ("logfmt", "json"):
        os.remove(p.database)
        p.execute("PRAGMA journal_mode = WAL;" + TABLE)
        ended = p.try_run("--new-store", "--log-level", "debug", "--log-format", form)
        assert ended.status == 1 and ended.json["dead"] == 4
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u0080-\u009f]", ended.err), repr(ended.err)
        lines = ended.err.splitlines()
        assert len(lines) == 4 and all(re.fullmatch(LINE[form], line) for line in lines), ended.err


def test_statements_take_values_and_never_text(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t VALUES (:id, 1, :note)"]}\n', TABLE)
    notes = ["'); DROP TABLE t; --", "\\'; DELETE FROM once_entry; --", "\0'", ":id", "?1", "$x", "%s%n"]
    p.write(*[{"id": f"k{n}", "note": note} for n, note in enumerate(notes)])
    assert p.run()["done"] == len(notes)
    assert [note for (note,) in p.rows("SELECT note FROM t ORDER BY id")] == notes


def test_every_protection_names_a_test_that_exists():
    names = names_in_tests()
    with open(os.path.join(ROOT, "SECURITY.md"), encoding="utf-8") as text:
        section = text.read().partition("## Protections")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    for row in rows:
        proof = row.rsplit("|", 2)[1]
        tests = re.findall(r"`([a-z0-9_]+)`", proof)
        assert tests, row
        for test in tests:
            exists = os.path.exists(os.path.join(ROOT, "tests", "fuzz", test + ".c")) if test.startswith("fuzz_") else test in names
            assert exists, f"{test} is named by the page and is not in tests/"


# ---- secrets of handlers ----

def with_secrets(tmp_path, effect):
    path = os.path.join(tmp_path, "effect")
    with open(path, "w") as file:
        file.write("#!/bin/sh\n" + effect)
    os.chmod(path, 0o755)
    with open(os.path.join(tmp_path, "pin"), "w") as file:
        file.write(SECRET + "\n")
    p = Pipeline(tmp_path, 'key: "${/id}"\nretry: {attempts: 2, backoff: 1ms..2ms}\n'
                           'handler: {exec: [./effect], env: {PIN: "file:pin", CARD: "env:CARD_OF_ANN"}}\n')
    p.write({"id": 1})
    return p


def test_a_secret_is_in_no_output(tmp_path):
    """It reaches the command, and nothing else: no log, no summary, no finding, no argument, no store."""
    p = with_secrets(tmp_path, '[ "$PIN" = "$CARD" ] && [ -n "$PIN" ] && tr "\\0" "\\n" < /proc/$PPID/cmdline > cmdline && exit 75\n')
    env = {"CARD_OF_ANN": SECRET}
    said = [p.try_run("--log-level", "debug", env=env), p.once("check", p.name, env=env), p.once("list", p.name), p.once("explain", p.name, "1"),
            p.try_run(env={})]
    assert said[0].json["dead"] == 1 and said[0].json["retries"] == 1, "the command got both"
    assert said[-1].status == 2 and "CARD_OF_ANN" in said[-1].err
    for ended in said:
        assert SECRET not in ended.out + ended.err
    for name in ("cmdline", "store.db", "store.db-wal"):
        path = os.path.join(tmp_path, name)
        assert not os.path.exists(path) or SECRET.encode() not in open(path, "rb").read(), name


def dumped(p, env):
    """Whether the kernel wrote a core of a run that aborts."""
    child = os.fork()
    if child == 0:
        os.chdir(p.folder)
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.execve(ONCE, [ONCE, "run", p.name], {**os.environ, **env, "ONCE_FAILPOINT": "open_after:abort"})
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    return os.WCOREDUMP(status)


def test_a_run_with_secrets_leaves_no_core(tmp_path):
    p = with_secrets(tmp_path, "exit 0\n")
    try:
        assert not dumped(p, {"CARD_OF_ANN": SECRET})
    finally:
        for name in os.listdir(tmp_path):
            if name.startswith("core"):
                os.unlink(os.path.join(tmp_path, name))
