"""What the integration and crash tests share: a pipeline in a folder of its own, the real binary, and independent reading.

    p = Pipeline(tmp_path, tables="CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER);", config='''
    key: "${/id}"
    handler: {sql: ["INSERT INTO t(id, n) VALUES (:id, :n)"]}
    ''')
    p.write({"id": "a", "n": 1}, {"id": "a", "n": 1})
    summary = p.run()                          # checks the exit status, and the sum rule of every summary
    assert p.rows("SELECT id, n FROM t") == [("a", 1)]

Tables are read with Python's own sqlite3, never through the product."""

import hashlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ONCE = os.path.abspath(os.environ.get("ONCE") or os.path.join(ROOT, "build", "once"))
DEADLINE_S = 60

FATES = ("done", "already", "rejected", "stale", "skipped", "duplicates", "waiting", "unknown", "dead")


def check_sum(summary):
    """Each message counts once, by where it stands at the end."""
    came = summary["received"] + summary["resumed"]
    stands = sum(summary[fate] for fate in FATES)
    assert came == stands, f"{came} came, {stands} are accounted for: {summary}"
    assert summary["conflicts"] + summary["too_old"] <= summary["dead"], summary
    assert summary["acked"] <= summary["received"], summary
    for name, value in summary.items():
        assert name == "error" or 0 <= value < 1 << 40, f"{name} is {value}"


def encode(message):
    if isinstance(message, bytes):
        return message
    if isinstance(message, str):
        return message.encode()
    return json.dumps(message).encode()


_state = tempfile.TemporaryDirectory(prefix="once-state-")


def state_folder(folder):
    """Which stores are known: each folder is a machine of its own."""
    return os.path.join(_state.name, hashlib.sha256(os.path.abspath(folder or ".").encode()).hexdigest()[:16])


def environment(failpoint=None, extra=None, folder=None):
    env = {name: value for name, value in os.environ.items() if name not in ("ONCE_FAILPOINT", "STATE_DIRECTORY")}
    env["XDG_STATE_HOME"] = state_folder(folder)
    if failpoint:
        env["ONCE_FAILPOINT"] = failpoint
    env.update(extra or {})
    return env


class Ended:
    """A process that has ended."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def killed(self):
        return self.status == -signal.SIGKILL

    @property
    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"status {self.status}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def once(*arguments, cwd=None, stdin=b"", failpoint=None, deadline_s=DEADLINE_S, **more):
    """Runs the binary to its end."""
    run = subprocess.run([ONCE, *map(str, arguments)], cwd=cwd, input=stdin, capture_output=True, timeout=deadline_s,
                         env=environment(failpoint, more.pop("env", None), cwd), **more)
    return Ended(run.returncode, run.stdout.decode(errors="replace"), run.stderr.decode(errors="replace"))


class Running:
    """A process that is still going; ended with the test whatever happens."""

    def __init__(self, arguments, cwd, failpoint=None, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        self.process = subprocess.Popen([ONCE, *map(str, arguments)], cwd=cwd, env=environment(failpoint, more.pop("env", None), cwd), **more)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def send(self, number):
        self.process.send_signal(number)

    def hear(self, *words, deadline_s=DEADLINE_S):
        """What it says on standard error, in whole lines, until all of the words were there."""
        end, said = time.monotonic() + deadline_s, b""
        while not all(word.encode() in said for word in words) or not said.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stderr], [], [], max(0, end - time.monotonic()))
            assert ready, f"it did not say {words} in {deadline_s} s, but {said}"
            part = os.read(self.process.stderr.fileno(), 65536)
            assert part, f"it ended without saying {words}, but {said}"
            said += part
        return said.decode(errors="replace")

    def end(self, deadline_s=DEADLINE_S):
        out, err = self.process.communicate(timeout=deadline_s)
        return Ended(self.process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace"))


def stopped(running):
    """SIGSTOP has reached it."""
    with open(f"/proc/{running.process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def until(condition, deadline_s=60, what="the condition"):
    """Waits for something to become true, and returns it."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not come true in {deadline_s} s"
        time.sleep(0.01)


class Pipeline:
    kind = "file"  # of the source

    def __init__(self, folder, config="", tables="", consumer="c", store="sqlite:store.db", source="{path: in.ndjson}",
                 name="p.yaml"):
        self.folder = folder
        self.name = name
        self.database = os.path.join(folder, store.partition(":")[2] or "none.db")
        self.source = os.path.join(folder, "in.ndjson")
        if not os.path.exists(self.source):
            open(self.source, "wb").close()
        if tables:
            self.execute("PRAGMA journal_mode = WAL;" + tables)
        self.configure(config, consumer, store, source)

    def configure(self, config, consumer="c", store="sqlite:store.db", source="{path: in.ndjson}"):
        """A pipeline file with the usual head; line 1 of `config` is line 4 of the file."""
        text = f"consumer: {consumer}\nstore: {store}\nsource: {{{self.kind}: {source}}}\n" + config.lstrip("\n")
        with open(os.path.join(self.folder, self.name), "w") as file:
            file.write(text)

    def write(self, *messages, end=b"\n"):
        """The whole input: dicts become JSON, text and bytes stay."""
        with open(self.source, "wb") as file:
            for message in messages:
                file.write(encode(message) + end)

    def append(self, *messages):
        with open(self.source, "ab") as file:
            for message in messages:
                file.write(encode(message) + b"\n")

    # ---- running ----

    def once(self, verb, *arguments, **more):
        return once(verb, *arguments, cwd=self.folder, **more)

    def try_run(self, *arguments, **more):
        """Runs to the end, whatever that is."""
        ended = self.once("run", "--json", *arguments, self.name, **more)
        if ended.out and ended.status in (0, 1, 3):
            check_sum(ended.json)
        return ended

    def run(self, *arguments, status=None, **more):
        """Runs to the end; without `status` 0 or 1 is asked for, whichever the summary says. Returns the summary."""
        ended = self.try_run(*arguments, **more)
        if status is None:
            assert ended.status in (0, 1), ended
            summary = ended.json
            assert ended.status == (1 if summary["store_dead"] or summary["store_unknown"] else 0), ended
        else:
            assert ended.status == status, ended
        return ended.json

    def start(self, *arguments, **more):
        return Running(["run", "--json", *arguments, self.name], self.folder, **more)

    def explain(self, key, *arguments):
        ended = self.once("explain", "--json", *arguments, self.name, key)
        assert ended.status == 0, ended
        return ended.json["entries"]

    # ---- reading, without the product ----

    def connect(self):
        return sqlite3.connect(self.database, timeout=30)

    def execute(self, script):
        connection = self.connect()
        try:
            connection.executescript(script)
            connection.commit()
        finally:
            connection.close()

    def edit(self, script):
        """Changes rows of our own tables, with the sums that belong to them."""
        program = os.path.join(os.environ.get("ONCE_BUILD") or os.path.join(ROOT, "build"), "tests", "crash", "edit_store")
        subprocess.run([program, self.database, script], check=True, timeout=DEADLINE_S)

    def rows(self, sql, *parameters):
        connection = self.connect()
        try:
            return connection.execute(sql, parameters).fetchall()
        finally:
            connection.close()

    def value(self, sql, *parameters):
        return self.rows(sql, *parameters)[0][0]

    def has_table(self, name):
        return os.path.exists(self.database) and bool(self.rows("SELECT 1 FROM sqlite_schema WHERE name = ?", name))

    def is_running(self):
        """A run is past its start, so that it listens to signals; a run that was killed leaves this true."""
        if not os.path.exists(self.database) or not self.rows("SELECT 1 FROM sqlite_schema WHERE name = 'once_fact'"):
            return False
        return bool(self.rows("SELECT 1 FROM once_fact WHERE name LIKE 'worker/%'"))

    def letters(self):
        """Dead letters as (line, reason), in order of the lines."""
        found = self.rows("SELECT CAST(point AS TEXT), CAST(reason AS TEXT) FROM once_letter")
        return sorted((int(point), reason) for point, reason in found)

    def bodies(self):
        return [bytes(body) for (body,) in self.rows("SELECT CAST(body AS BLOB) FROM once_letter ORDER BY id")]


def counts(summary, **expected):
    """Compares the named counts, and asks that every other fate is zero."""
    for fate in FATES + ("resumed", "conflicts", "too_old"):
        assert summary[fate] == expected.get(fate, 0), f"{fate} is {summary[fate]}, not {expected.get(fate, 0)}: {summary}"
    for name in set(expected) - set(FATES):
        assert summary[name] == expected[name], f"{name} is {summary[name]}, not {expected[name]}: {summary}"


def read_terminal(master, process, deadline_s=20):
    """Everything that a process writes to its terminal until it ends."""
    end, data = time.monotonic() + deadline_s, b""
    while time.monotonic() < end:
        ready, _, _ = select.select([master], [], [], 0.05)
        if ready:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            data += chunk
        elif process.poll() is not None:
            break
    return data.decode(errors="replace")
