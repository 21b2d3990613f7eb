"""Commands as effects, as a user meets them: exit codes, environment, arguments, results, unknowns, mixed pipelines, natural."""

import json
import os
import signal
import stat
import subprocess
import time

import pytest

from fenced import Fenced
from harness import ONCE, Pipeline, counts, until

HEAD = 'key: "${/id}"\nretry: {attempts: 3, backoff: 1ms..5ms}\n'


def script(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


def pipeline(folder, text, config, *messages):
    script(folder, "effect", text)
    p = Pipeline(folder, HEAD + config)
    p.write(*messages)
    return p


# ---- the body ----

@pytest.mark.parametrize("size", [20, 1_000_000])
def test_f11_a_command_that_outlives_us_has_the_whole_body(tmp_path, size):
    """We are killed before it has read anything: the beginning of a message is no message."""
    p = pipeline(tmp_path, '#!/bin/sh\n(touch begun; sleep 0.3; wc -c > size.tmp; mv size.tmp size)\ntrue\n',
                 "message_max: 8MiB\nhandler: {exec: [./effect]}\n", {"id": 1, "text": "x" * size})
    whole = os.path.getsize(p.source) - 1
    with p.start() as running:
        until(lambda: os.path.exists(tmp_path / "begun"), what="the command runs")
        running.send(signal.SIGKILL)
        running.process.wait()
        until(lambda: os.path.exists(tmp_path / "size"), what="the command has read")
    assert int((tmp_path / "size").read_text()) == whole


def test_f04_a_signal_to_our_process_group_ends_no_command(tmp_path):
    """SIGPIPE, which we ignore: a command that had no group of its own yet got it, and its effect was unknown."""
    p = pipeline(tmp_path, '#!/bin/sh\nexit 0\n', "workers: 8\nhandler: {exec: [/bin/true]}\n", *({"id": i} for i in range(400)))
    running = subprocess.Popen([ONCE, "run", "--json", p.name], cwd=p.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: p.has_table("once_entry"), what="it runs")
    while running.poll() is None:
        os.killpg(running.pid, signal.SIGPIPE)
        time.sleep(0.0001)
    summary = json.loads(running.communicate()[0])
    assert running.returncode == 0 and summary["done"] == 400 and summary["unknown"] == 0, summary


def test_the_body_cannot_be_written_to_and_is_read_from_its_beginning(tmp_path):
    p = pipeline(tmp_path, '#!/bin/sh\n(echo changed >&0) 2>/dev/null\ncat >> seen; cat >> seen\n', "workers: 1\nhandler: {exec: [./effect]}\n", {"id": 1}, {"id": 2})
    counts(p.run(status=0), received=2, done=2)
    assert (tmp_path / "seen").read_text().replace(" ", "") == '{"id":1}{"id":2}'

@pytest.mark.parametrize("after", ["handler: {operation: deliver, exec: [./effect]}\n", 'type: "${/type}"\nhandlers:\n  other: {exec: [./effect]}\n'], ids=["renamed", "removed"])
def test_f93_a_message_whose_handler_is_gone_becomes_a_letter(tmp_path, after):
    """It was taken from the store without a handler's lease, and an assertion ended the run."""
    p = pipeline(tmp_path, "#!/bin/sh\nexit 75\n", "handler: {operation: ship, exec: [./effect], retry: {attempts: 100, backoff: 300ms..400ms}}\n",
                 {"id": 1, "type": "x"})
    with p.start() as running:
        until(lambda: p.has_table("once_entry") and p.once("status", "--json", p.name).json["waiting"] == 1, what="the message waits")
        running.send(signal.SIGTERM)
        running.end()
    p.configure(HEAD + after)
    p.write()
    ended = p.try_run("--confirm-scope-change")
    assert ended.status == 1, ended
    counts(ended.json, resumed=1, dead=1)
    assert [reason for _, reason in p.letters()] == ["operation 'ship' no longer has a handler"]


# ---- exit codes ----

def test_exit_codes_are_outcomes(tmp_path):
    p = pipeline(tmp_path, '#!/bin/sh\necho said >&2\nread -r b\necho "$b" >> seen\nexit $(echo "$b" | tr -dc 0-9)\n',
                 "handler: {exec: [./effect], key: '${/code}'}\n", *[f'{{"code": {code}}}' for code in (0, 64, 65, 66, 67, 75, 1, 0)])
    counts(p.run(status=1), received=8, done=1, rejected=1, already=1, stale=1, dead=2, unknown=1, duplicates=1, retries=2)
    reasons = dict(p.letters())
    assert reasons[3] == "exit status 65: said" and reasons[6] == "exit status 75: said" and len(reasons) == 2
    (entry,) = p.explain("1")
    assert entry["state"] == "unknown" and entry["reason"] == "exit status 1: said"
    (entry,) = p.explain("64")
    assert entry["state"] == "rejected" and entry["reason"] == "exit status 64: said"


# The effect happens, then its answer is lost: what curl says (28) when it timed out.
CHARGE = '#!/bin/sh\nread -r b\necho "$ONCE_KEY" >> charges\nexit 28\n'


def lines_of(folder, name):
    path = os.path.join(folder, name)
    return open(path).read().split() if os.path.exists(path) else []


def test_f60_a_held_unknown_is_tried_again_from_the_store(tmp_path):
    """The source has forgotten it: the store keeps the body until a person has decided."""
    p = pipeline(tmp_path, CHARGE, "unknown: hold\nhandler: {exec: [./effect]}\n", {"id": 1, "amount": 5})
    counts(p.run(status=1), received=1, unknown=1, acked=1)
    p.write()
    script(tmp_path, "effect", '#!/bin/sh\nread -r b\necho "$ONCE_KEY$b" >> charges\n')
    assert p.once("resolve", p.name, "1", "retry").status == 0
    counts(p.run(status=0), received=0, resumed=1, done=1, repeats=1)
    assert open(os.path.join(tmp_path, "charges")).read() == '1\n1{"id": 1, "amount": 5}\n'


def test_f81_a_code_that_nobody_listed_is_not_charged_again(tmp_path):
    p = pipeline(tmp_path, CHARGE, "unknown: hold\nhandler: {exec: [./effect]}\n", {"id": 1}, {"id": 2})
    counts(p.run(status=1), received=2, unknown=2, attempts=2, retries=0, repeats=0)
    counts(p.run(status=1), received=2, unknown=2, attempts=0)
    assert sorted(lines_of(tmp_path, "charges")) == ["1", "2"]


def test_f81_where_it_is_repeated_each_repeat_is_counted(tmp_path):
    p = pipeline(tmp_path, CHARGE, "unknown: retry\nhandler: {exec: [./effect]}\n", {"id": 1})
    counts(p.run(status=1), received=1, dead=1, attempts=3, repeats=2)
    assert lines_of(tmp_path, "charges") == ["1", "1", "1"]


def test_f81_a_handler_can_say_what_its_codes_mean(tmp_path):
    p = pipeline(tmp_path, '#!/bin/sh\nread -r b\nexit $(echo "$b" | tr -dc 0-9)\n',
                 "handler: {exec: [./effect], key: '${/code}', exit: {1: retry, 22: rejected, 75: unknown}}\n",
                 *[f'{{"code": {code}}}' for code in (1, 22, 75, 28)])
    counts(p.run(status=1), received=4, dead=1, rejected=1, unknown=2, retries=2)


# Away until somebody makes the file "back": a release, which is nobody's fault.
AWAY = '#!/bin/sh\nread -r b\necho "$ONCE_KEY $ONCE_FAILURES" >> tries\n[ -f back ] || exit 69\n'
AWAY_STREAM = '''#!/usr/bin/python3
import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    open("tries", "a").write(f"{m['key']} {m['failures']}\\n")
    print(json.dumps({"id": m["id"], "outcome": "done" if os.path.exists("back") else "release", "reason": "away"}), flush=True)
'''


@pytest.mark.parametrize("text, mode", [(AWAY, ""), (AWAY_STREAM, ", mode: stream")], ids=["message", "stream"])
def test_f81_f95_an_outage_that_the_handler_reports_spends_nothing(tmp_path, text, mode):
    """Far more tries than attempts, none of them a failure, and with growing pauses between them."""
    config = "retry: {attempts: 2, backoff: 20ms..200ms}\nhandler: {exec: [./effect]%s}\n" % mode
    script(tmp_path, "effect", text)
    p = Pipeline(tmp_path, 'key: "${/id}"\n' + config)
    p.write({"id": 1}, {"id": 2})
    with p.start() as run:
        until(lambda: len(lines_of(tmp_path, "tries")) >= 2 * 2 * 8)  # two words a line
        began, before = time.monotonic(), len(lines_of(tmp_path, "tries")) // 2
        time.sleep(1)
        tried, seconds = len(lines_of(tmp_path, "tries")) // 2 - before, time.monotonic() - began
        assert tried <= 2 * (2 + 25 * seconds), "asked again at once"  # the mean pause is 100 ms; without one there are hundreds
        open(os.path.join(tmp_path, "back"), "w").close()
        ended = run.end()
    assert ended.status == 0, ended
    counts(ended.json, received=2, done=2, retries=0, repeats=0)
    assert set(lines_of(tmp_path, "tries")[1::2]) == {"0"}, "a release counted as a failure"


FAILING = '#!/bin/sh\nread -r b\necho "$ONCE_KEY" >> tries\n[ -f back ] || exit 75\n'


def test_f95_an_outage_of_some_seconds_with_default_settings(tmp_path):
    script(tmp_path, "effect", FAILING)
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: [./effect]}\n')
    p.write(*[{"id": i} for i in range(20)])
    with p.start() as run:
        until(lambda: len(lines_of(tmp_path, "tries")) >= 20)
        time.sleep(4)
        open(os.path.join(tmp_path, "back"), "w").close()
        ended = run.end()
    assert ended.status == 0, ended
    counts(ended.json, received=20, done=20, dead=0)


def test_f95_a_budget_by_time_lasts_that_long(tmp_path):
    script(tmp_path, "effect", FAILING)
    p = Pipeline(tmp_path, 'key: "${/id}"\nretry: {for: 2s, backoff: 10ms..50ms}\nhandler: {exec: [./effect]}\n')
    p.write({"id": 1})
    began = time.monotonic()
    counts(p.run(status=1), received=1, dead=1)
    assert time.monotonic() - began >= 1.8  # the store's clock may be faster than ours, by a tenth
    assert len(lines_of(tmp_path, "tries")) > 12
    assert p.once("replay", "--all", p.name).status == 0
    began = time.monotonic()
    counts(p.run(status=1), received=1, resumed=1, dead=1, duplicates=1)
    assert time.monotonic() - began >= 1.8, "a replay begins anew"


def test_stdout_is_the_result_that_duplicates_see(tmp_path):
    p = pipeline(tmp_path, "#!/bin/sh\ncat\n", "handler: {exec: [./effect]}\n", {"id": 1, "é": "ü"})
    p.run(status=0)
    (entry,) = p.explain("1")
    assert json.loads(entry["result"]) == {"id": 1, "é": "ü"}


def test_f04_ended_by_a_signal_is_unknown_and_held(tmp_path):
    p = pipeline(tmp_path, "#!/bin/sh\nkill -9 $$\n", "handler: {exec: [./effect]}\n", {"id": 1})
    counts(p.run(status=1), received=1, unknown=1, attempts=1)
    (entry,) = p.explain("1")
    assert entry["state"] == "unknown" and "signal 9" in entry["reason"]
    counts(p.run(status=1), received=1, unknown=1, attempts=0)


def test_f60_a_command_that_hangs(tmp_path):
    """Its deadline ends it and all its children."""
    p = pipeline(tmp_path, '#!/bin/sh\nsleep 1000 &\necho $! > child\nsleep 1000\n', "timeout: 200ms\nhandler: {exec: [./effect]}\n", {"id": 1})
    began = time.monotonic()
    counts(p.run(status=1), received=1, unknown=1)
    assert time.monotonic() - began < 5
    (entry,) = p.explain("1")
    assert "deadline" in entry["reason"]
    with open(os.path.join(tmp_path, "child")) as file:
        child = int(file.read())
    assert not os.path.exists(f"/proc/{child}") or open(f"/proc/{child}/stat").read().split()[2] == "Z"


# ---- what a command gets ----

def test_f62_environment_and_descriptors(tmp_path):
    """A fixed environment, and nothing of ours but three descriptors."""
    p = pipeline(tmp_path, "#!/bin/sh\nenv | sort > env.txt\nls -l /proc/self/fd > fds.txt\n",
                 'type: "${/t}"\nhandlers: {x: {exec: [./effect], env: {GREETING: hello, TOKEN: "env:SECRET_TOKEN", PIN: "file:pin.txt"}}}\n',
                 {"id": "a b", "t": "x"})
    with open(os.path.join(tmp_path, "pin.txt"), "w") as file:
        file.write("1234\n")
    ended = p.try_run(env={"SECRET_TOKEN": "s3cret", "UNRELATED": "yes", "LD_PRELOAD": ""})
    assert ended.status == 0, ended
    with open(os.path.join(tmp_path, "env.txt")) as file:
        env = dict(line.rstrip("\n").split("=", 1) for line in file)
    identity = env.pop("ONCE_IDEMPOTENCY_KEY")
    assert len(identity) == 32 and all(c in "0123456789abcdef" for c in identity)
    for shell in ("PWD", "OLDPWD", "SHLVL", "_"):
        env.pop(shell, None)
    assert env.pop("PATH").startswith("/usr/local/") and env.pop("LANG") == "C.UTF-8"
    assert env == {"GREETING": "hello", "TOKEN": "s3cret", "PIN": "1234", "ONCE_KEY": "a b", "ONCE_ATTEMPT": "1", "ONCE_FAILURES": "0",
                   "ONCE_MAYBE_DONE": "0", "ONCE_TYPE": "x", "ONCE_TENANT": "", "ONCE_CONSUMER": "c", "ONCE_OPERATION": "x",
                   "ONCE_COORDINATES": "in.ndjson:1", "ONCE_SENT_MS": "", "ONCE_TOMBSTONE": "0"}
    with open(os.path.join(tmp_path, "fds.txt")) as file:
        descriptors = [line for line in file if "->" in line and "/proc/" not in line.split("->")[1]]
    assert len(descriptors) == 3, descriptors


def test_a_secret_that_is_not_there_is_found_before_the_first_message(tmp_path):
    p = pipeline(tmp_path, "#!/bin/sh\n", 'handler: {exec: [./effect], env: {TOKEN: "env:NO_SUCH_SECRET"}}\n', {"id": 1})
    ended = p.try_run()
    assert ended.status == 2 and "p.yaml:6: " in ended.err and "NO_SUCH_SECRET" in ended.err, ended
    assert p.once("check", p.name).status == 2


def test_an_argument_cannot_become_an_option(tmp_path):
    p = pipeline(tmp_path, '#!/bin/sh\nprintf "%s\\n" "$@" >> args\n', 'handler: {exec: [./effect, "${/to}", "--name=${/to}", x; rm -rf y]}\n',
                 {"id": 1, "to": "ann@example.org; $(reboot) `x` 'q'"}, {"id": 2, "to": "--config=/etc/passwd"}, {"id": 3, "to": "-x"}, {"id": 4})
    counts(p.run(status=1), received=4, done=1, dead=3)
    with open(os.path.join(tmp_path, "args")) as file:
        assert file.read().splitlines() == ["ann@example.org; $(reboot) `x` 'q'", "--name=ann@example.org; $(reboot) `x` 'q'", "x; rm -rf y"]
    letters = dict(p.letters())
    assert "option" in letters[2] and "option" in letters[3] and "missing field '/to'" in letters[4]


def test_f61_output_is_capped(tmp_path):
    p = pipeline(tmp_path, '#!/bin/sh\nhead -c 3000000 /dev/zero | tr "\\0" x\nhead -c 3000000 /dev/zero | tr "\\0" y >&2\nexit $(cat | tr -dc 0-9)\n',
                 "result_max: 1KiB\nhandler: {exec: [./effect], key: '${/code}'}\n", '{"code": 0}', '{"code": 64}')
    counts(p.run(status=0), received=2, done=1, rejected=1)
    (done,), (rejected,) = p.explain("0"), p.explain("64")
    assert len(done["result"]) <= 1024 and len(rejected["reason"]) <= 440


# ---- pausing ----

def test_a_command_that_is_not_there(tmp_path):
    p = Pipeline(tmp_path, HEAD + "handler: {exec: [no-such-command]}\n")
    p.write({"id": 1})
    for verb in ("run", "check"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "p.yaml:6: " in ended.err and "no-such-command" in ended.err, ended
    assert not p.rows("SELECT 1 FROM once_entry")


def test_a_command_that_disappears_pauses_its_handler(tmp_path):
    """Nobody is blamed: what was claimed goes back, and the next run goes on."""
    p = pipeline(tmp_path, "#!/bin/sh\nrm -f effect\n", "workers: 1\npatience: 200ms\nhandler: {exec: [./effect]}\n", *[{"id": i} for i in range(5)])
    ended = p.try_run()
    assert ended.status == 3 and "effect" in ended.err, ended
    assert ended.json["done"] == 1 and ended.json["dead"] == 0 and ended.json["retries"] == 0
    script(tmp_path, "effect", "#!/bin/sh\nexit 0\n")
    summary = p.run(status=0)
    assert summary["done"] == 4
    assert {e["failures"] for i in range(1, 5) for e in p.explain(str(i))} == {0}


# ---- together with the rest ----

def test_sql_and_commands_in_one_pipeline(tmp_path):
    p = pipeline(tmp_path, '#!/bin/sh\nread -r b\necho "$ONCE_KEY" >> ran\n',
                 'type: "${/t}"\nhandlers:\n  sql: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n  cmd: {exec: [./effect]}\n  bad: {exec: [./effect, "${/none}"]}\n',
                 *[{"id": i, "t": ("sql", "cmd", "bad")[i % 3]} for i in range(60)], *[{"id": i, "t": ("sql", "cmd", "bad")[i % 3]} for i in range(60)])
    p.execute("CREATE TABLE t(id)")
    counts(p.run(status=1), received=120, done=40, dead=20, duplicates=60)
    assert sorted(i for (i,) in p.rows("SELECT id FROM t")) == list(range(0, 60, 3))
    with open(os.path.join(tmp_path, "ran")) as file:
        assert sorted(map(int, file)) == list(range(1, 60, 3))


def test_equal_keys_wait_behind_their_leader(tmp_path):
    """A hundred deliveries of one message while it runs: one effect, ninety-nine duplicates, counted exactly."""
    p = pipeline(tmp_path, "#!/bin/sh\nsleep 0.3\necho x >> ran\n", "handler: {exec: [./effect]}\n", *[{"id": 1}] * 100)
    counts(p.run(status=0), received=100, done=1, duplicates=99, attempts=1, acked=100)
    with open(os.path.join(tmp_path, "ran")) as file:
        assert len(file.readlines()) == 1


def test_f33_lanes_run_one_at_a_time_and_in_order(tmp_path):
    p = pipeline(tmp_path, '#!/bin/sh\necho "begin $1 $2" >> log\nsleep 0.01\necho "end $1 $2" >> log\n[ "$2" != 3 ] || [ "$ONCE_ATTEMPT" -gt 2 ] || exit 75\n',
                 'order: "${/lane}"\nworkers: 4\nhandler: {exec: [./effect, "${/lane}", "${/n}"], key: "${/lane}:${/n}"}\n',
                 *[{"lane": lane, "n": n} for n in range(8) for lane in "abcd"])
    counts(p.run(status=0), received=32, done=32, retries=8)
    with open(os.path.join(tmp_path, "log")) as file:
        log = [line.split() for line in file]
    for lane in "abcd":
        mine = [(what, int(n)) for what, l, n in log if l == lane]
        assert mine == [(what, n) for n in (0, 1, 2, 3, 3, 3, 4, 5, 6, 7) for what in ("begin", "end")], f"lane {lane}: {mine}"


def test_several_commands_run_at_a_time(tmp_path):
    p = pipeline(tmp_path, "#!/bin/sh\nsleep 0.2\n", "workers: 8\nhandler: {exec: [./effect]}\n", *[{"id": i} for i in range(16)])
    began = time.monotonic()
    counts(p.run(status=0), received=16, done=16)
    assert time.monotonic() - began < 16 * 0.2 / 2, "not one after the other"


def test_the_inbox_with_commands(tmp_path):
    p = pipeline(tmp_path, "#!/bin/sh\necho $ONCE_KEY >> ran\n", "ack: after_accept\nhandler: {exec: [./effect]}\n", *[{"id": i % 20} for i in range(40)])
    counts(p.run(status=0), received=40, done=20, duplicates=20, acked=40)
    with open(os.path.join(tmp_path, "ran")) as file:
        assert sorted(map(int, file)) == list(range(20))


def test_a_slow_command_holds_up_no_other_in_the_inbox(tmp_path):
    """Thousands of messages of a command that does not end come first. Those of another one run nevertheless."""
    slow, fast = 3000, 100
    script(tmp_path, "fast", "#!/bin/sh\necho $ONCE_KEY >> fast.ran\n")
    p = pipeline(tmp_path, "#!/bin/sh\necho $ONCE_KEY >> slow.began\nwhile [ ! -e gate ]; do sleep 0.05; done\n",
                 'ack: after_accept\nworkers: 4\ntimeout: 5m\ntype: "${/type}"\nhandlers:\n'
                 "  slow: {exec: [./effect]}\n  fast: {exec: [./fast]}\n",
                 *[{"id": i, "type": "slow"} for i in range(slow)], *[{"id": i, "type": "fast"} for i in range(fast)])
    with p.start() as running:
        until(lambda: len(lines_of(tmp_path, "fast.ran")) == fast, deadline_s=60, what="the fast ones have run")
        assert len(lines_of(tmp_path, "slow.began")) == 4
        running.send(signal.SIGTERM)
        (tmp_path / "gate").touch()
        ended = running.end()
    assert ended.json["done"] >= fast and ended.json["waiting"] >= slow - 100, ended
    assert sorted(map(int, lines_of(tmp_path, "fast.ran"))) == list(range(fast))


def test_leases_are_extended_while_a_command_runs(tmp_path):
    """Longer than three leases: no other process gets it."""
    work = Fenced(tmp_path, n=1, lease="300ms", script='#!/bin/sh\necho "$ONCE_KEY $ONCE_ATTEMPT 0" >> effects\nsleep 1.2\n')
    with work.p.start() as one, work.p.start() as two:
        ended = [one.end(), two.end()]
    assert [e.status for e in ended] == [0, 0], ended
    assert len(work.effects()) == 1 and sum(e.json["done"] for e in ended) == 1


# ---- natural ----

def test_natural_remembers_nothing_and_runs_again(tmp_path):
    p = pipeline(tmp_path, '#!/bin/sh\necho $ONCE_KEY >> ran\n', "natural: true\nhandler: {exec: [./effect]}\n", {"id": 1}, {"id": 1}, {"id": 2})
    counts(p.run(status=0), received=3, done=3)
    counts(p.run(status=0), received=3, done=3)
    assert p.explain("1")[0]["state"] == "absent"


def test_natural_failures_wait_as_entries(tmp_path):
    p = Pipeline(tmp_path, HEAD + 'natural: true\nhandler: {sql: [{do: "INSERT INTO t(id) SELECT :id WHERE :id < 3", rows: 1, else: retry}]}\n', "CREATE TABLE t(id);")
    p.write({"id": 1}, {"id": 5}, {"id": 2}, {"id": 1})
    counts(p.run(status=1), received=4, done=3, dead=1, retries=2)
    assert p.rows("SELECT id FROM t ORDER BY id") == [(1,), (1,), (2,)]
    assert [p.explain(str(i))[0]["state"] for i in (1, 5)] == ["absent", "dead"]


def test_natural_with_a_version_keeps_only_the_lane(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\norder: "${/item}"\nversion: "${/v}"\nnatural: true\n'
                           'handler: {sql: ["INSERT INTO price(item, v) VALUES (:item, :v) ON CONFLICT(item) DO UPDATE SET v = excluded.v, n = n + 1"]}\n',
                 "CREATE TABLE price(item PRIMARY KEY, v, n DEFAULT 1);")
    p.write(*[{"id": f"m{i}", "item": "x", "v": v} for i, v in enumerate([1, 3, 2, 3, 4])])
    counts(p.run(status=0), received=5, done=4, stale=1)
    assert p.rows("SELECT * FROM price") == [("x", 4, 4)]
    counts(p.run(status=0), received=5, done=1, stale=4)
    assert p.rows("SELECT * FROM price") == [("x", 4, 5)]


@pytest.mark.parametrize("handler, sentence", [("exec: [./effect]", "held for 'once resolve'"), ("exec: [./effect], unknown: retry", "same idempotency key"),
                                               ("natural: true, exec: [./effect]", "every delivery runs")])
def test_check_says_what_is_promised(tmp_path, handler, sentence):
    p = pipeline(tmp_path, "#!/bin/sh\n", f"handler: {{{handler}}}\n")
    ended = p.once("check", p.name)
    assert ended.status == 0 and sentence in ended.out, ended


def test_a_natural_message_of_a_lane_is_the_stores_while_its_effect_runs(tmp_path):
    """Nobody remembers it when it is done, so nobody need bring it again: a claim without its body could hold the lane for ever."""
    p = pipeline(tmp_path, "#!/bin/sh\n[ -f go ] || { touch began; sleep 30; }\n", 'natural: true\norder: "${/lane}"\nlease: 300ms\nhandler: {exec: [./effect]}\n',
                 {"id": 1, "lane": "a"}, {"id": 2, "lane": "a"})
    with p.start() as running:
        until(lambda: os.path.exists(os.path.join(tmp_path, "began")), what="the effect")
        assert p.rows("SELECT owned FROM once_entry WHERE state = 1") == [(1,)], "the body is in the store"
        running.send(signal.SIGKILL)
        running.process.wait()
    open(os.path.join(tmp_path, "go"), "w").close()
    p.write()  # the source has nothing any more
    counts(p.run(status=0), received=0, resumed=2, done=2, repeats=1)


# ---- with a cursor ----

def test_a_cursor_follows_effects_that_end_in_another_order(tmp_path):
    """The first message ends last: the place in the file waits for it, and nothing is read again after the end."""
    script(tmp_path, "effect", '#!/bin/sh\nread -r b\ncase $ONCE_KEY in 0|7) sleep 0.3;; esac\necho "$ONCE_KEY" >> ran\n')
    p = Pipeline(tmp_path, HEAD + "workers: 4\nbatch: {max: 4}\nhandler: {exec: [./effect]}\n", source="{path: in.ndjson, cursor: true}")
    p.write(*[{"id": i} for i in range(12)])
    counts(p.run(status=0), received=12, done=12)
    counts(p.run(status=0), received=0)
    p.append({"id": 12})
    counts(p.run(status=0), received=1, done=1)


def test_a_cursor_never_passes_an_effect_that_is_not_settled(tmp_path):
    """Killed while the first is still under way and others behind it are done: it comes again, they are duplicates."""
    script(tmp_path, "effect", '#!/bin/sh\nread -r b\n[ "$ONCE_KEY" != 0 ] || [ -f go ] || sleep 30\necho "$ONCE_KEY" >> ran\n')
    p = Pipeline(tmp_path, HEAD + "workers: 2\nunknown: retry\nlease: 300ms\nbatch: {max: 2}\nhandler: {exec: [./effect]}\n",
                 source="{path: in.ndjson, cursor: true}")
    p.write(*[{"id": i} for i in range(8)])
    ran = os.path.join(tmp_path, "ran")
    with p.start() as running:
        until(lambda: os.path.exists(ran) and len(open(ran).readlines()) == 7, what="all but the first")
        time.sleep(0.05)
        running.send(signal.SIGKILL)
        running.process.wait()
    open(os.path.join(tmp_path, "go"), "w").close()
    summary = p.run(status=0)
    assert summary["received"] == 8 and summary["done"] >= 1, summary
    with open(ran) as file:
        assert sorted(map(int, file))[:2] == [0, 1], "the first one ran"


# ---- an operator orders another attempt ----

EXIT_70 = '#!/bin/sh\nread -r body\necho "$ONCE_KEY $ONCE_ATTEMPT $ONCE_FAILURES" >> runs\n[ -f good ] && exit 0\necho "gateway said $ONCE_ATTEMPT" >&2\nexit 70\n'


def runs(folder):
    return (folder / "runs").read_text().splitlines()


@pytest.mark.parametrize("budget", ["{attempts: 1}", "{attempts: 3, for: 1ms, backoff: 1ms..5ms}"])
def test_f77_resolved_as_retry_runs_whatever_the_budget(tmp_path, budget):
    """An order of a person is at least one more attempt, with failures 0 as after a replay; what ended how is told as it was."""
    script(tmp_path, "effect", EXIT_70)
    p = Pipeline(tmp_path, f'key: "${{/id}}"\nretry: {budget}\nhandler: {{exec: [./effect]}}\n')
    p.write({"id": "a"}, {"id": "b"})
    counts(p.run(status=1), received=2, unknown=2, attempts=2)
    p.write()
    for n in (2, 3):
        assert p.once("resolve", "--all", p.name, "retry").out.endswith("2 messages resolved as retry\n")
        assert "gateway said" in p.explain("a")[0]["reason"], "why it was unknown"
        counts(p.run(status=1), resumed=2, unknown=2, attempts=2)
        assert runs(tmp_path)[-2:] == [f"a {n} 0", f"b {n} 0"] or runs(tmp_path)[-2:] == [f"b {n} 0", f"a {n} 0"], runs(tmp_path)
        assert [attempt["outcome"] for attempt in p.explain("a")[0]["attempts"]] == ["unknown"] * n
        assert p.explain("a")[0]["reason"].endswith(f"gateway said {n}")
    assert p.once("resolve", p.name, "a", "dead").status == 0
    ((_, reason),) = p.letters()
    assert reason.startswith("resolved as dead by an operator; said before: ") and reason.endswith("gateway said 3"), reason
    assert p.once("resolve", p.name, "b", "retry").status == 0
    (tmp_path / "good").touch()
    counts(p.run(status=1), resumed=1, done=1, attempts=1)


def test_f80_a_death_in_silence_says_what_was_said_before(tmp_path):
    """The first attempt gave a reason, the second was killed with us: the letter does not say that every one ended without reporting an outcome."""
    script(tmp_path, "effect", '#!/bin/sh\nread -r body\n[ "$ONCE_ATTEMPT" = 1 ] && { echo "gateway is busy" >&2; exit 75; }\ntouch begun; sleep 60\n')
    p = Pipeline(tmp_path, 'key: "${/id}"\nlease: 300ms\nunknown: retry\nretry: {attempts: 2, backoff: 1ms..5ms}\nhandler: {exec: [./effect]}\n')
    p.write({"id": "a"})
    with p.start() as running:
        until(lambda: os.path.exists(tmp_path / "begun"), what="the second attempt")
        running.send(signal.SIGKILL)
        running.process.wait()
    p.write()
    counts(p.run(status=1), resumed=1, dead=1, attempts=0)
    ((_, reason),) = p.letters()
    assert reason.startswith("not run again: its last attempt ended without reporting an outcome") and reason.endswith("gateway is busy"), reason
