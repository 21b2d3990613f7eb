"""What pipelines with a broker share, whichever it is: a table that shows every effect, because nothing in it stops a second one, and runs
that are stopped or killed when something has happened."""

import collections
import itertools
import os
import signal

from harness import check_sum, until

TABLE = "CREATE TABLE t(id TEXT, n INTEGER);"
INSERT = "INSERT INTO t(id, n) VALUES (:id, :n)"
CONFIG = f'key: "${{/id}}"\nhandler: {{sql: "{INSERT}"}}\n'


def numbered(n, start=0):
    return [{"id": f"m{i}", "n": i} for i in range(start, start + n)]


# ---- one slow message, which goes on when the file `go` is there, among quick ones ----

SLOW = """
key: "${/id}"
type: "${/type}"
timeout: 5m
lease: 2s
unknown: retry
retry: {attempts: 100, backoff: 10ms..50ms}
handlers:
  slow: {exec: [sh, -c, 'cat >/dev/null; echo began >>FOLDER/began; while [ ! -e FOLDER/go ]; do sleep 0.05; done; echo "$1" >>FOLDER/slow', sh, "${/id}"]}
  "*": {sql: "INSERT INTO t(id, n) VALUES (:id, :n)"}
"""


def slow_config(folder, more=""):
    return more + SLOW.replace("FOLDER", str(folder)).lstrip("\n")


def lines(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return file.read().splitlines()


def let_go(folder):
    open(os.path.join(folder, "go"), "w").close()


# ---- pipelines ----

class OnBroker:
    """For a Pipeline whose source does not end."""
    logs = None

    def start(self, *arguments, **more):
        """Its log goes to a file: a run that says much is not held up by a pipe that nobody reads."""
        if "stderr" in more:
            return super().start(*arguments, **more)
        self.logs = self.logs or itertools.count()
        path = os.path.join(self.folder, f"{self.name}.{next(self.logs)}.log")
        with open(path, "wb") as log:
            running = super().start(*arguments, stderr=log, **more)
        running.log = path
        return running

    def said(self, running):
        with open(running.log, errors="replace") as file:
            return file.read()

    def wait(self, running, condition, deadline_s=60, what="the condition"):
        """Until it is true; one that ends meanwhile is told."""
        def holds():
            assert running.process.poll() is None, f"it ended before {what}: {running.end()}\n{self.said(running)[-3000:]}"
            return condition()

        try:
            return until(holds, deadline_s, what)
        except AssertionError as why:
            raise AssertionError(f"{why}\n--- log\n{self.said(running)[-3000:]}") from why

    def stop(self, running, status=0):
        """By SIGTERM; its summary."""
        running.send(signal.SIGTERM)
        ended = running.end()
        assert ended.status == status, f"{ended}\n{self.said(running)[-3000:]}"
        check_sum(ended.json)
        return ended.json

    def kill(self, running):
        running.send(signal.SIGKILL)
        running.end()

    def run_until(self, condition, status=0, what="the condition", **more):
        with self.start(**more) as running:
            self.wait(running, condition, what=what)
            return self.stop(running, status)

    # ---- what has happened ----

    def count(self):
        return self.value("SELECT count(*) FROM t")

    def ids(self):
        return [id for id, in self.rows("SELECT id FROM t")]

    def check(self, n):
        """m0 to m(n - 1), each of them once."""
        found = collections.Counter(self.ids())
        assert {id: times for id, times in found.items() if times > 1} == {}, "effects that happened twice"
        wanted = {message["id"] for message in numbered(n)}
        assert set(found) == wanted, f"lost: {sorted(wanted - set(found))[:5]}, not sent: {sorted(set(found) - wanted)[:5]}"
