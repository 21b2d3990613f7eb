#!/usr/bin/python3
"""A PostgreSQL server for tests: on a socket in a temporary folder, and stopped with it.

    tests/lib/postgres.py serve [SETTING=VALUE...]    starts one, prints its URL, and stops it at the end of standard input

`tools/check` starts one for a whole run and names it in ONCE_TEST_POSTGRES; a test that is run alone starts its own. Every
test makes a schema or a database of its own in it."""

import atexit
import glob
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pq

# Tests kill processes and not the machine, so nothing is lost without fsync. Autovacuum would look at hundreds of databases again and
# again, each with a process of its own; a test whose plans depend on statistics makes them itself.
SETTINGS = {
    "fsync": "off", "full_page_writes": "off", "autovacuum": "off", "listen_addresses": "", "max_connections": "100", "shared_buffers": "64MB",
    "deadlock_timeout": "100ms", "log_min_messages": "fatal", "max_wal_size": "256MB",
}


FIRST = "first"  # the folder of a server with its files as initdb made them


class Missing(Exception):
    """There is no server to be had here."""


def programs():
    """The folder of initdb and postgres."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: float(path.split("/")[4]))
    path = found[-1] if found else shutil.which("initdb")
    if not path:
        raise Missing("PostgreSQL is not installed")
    return os.path.dirname(path)


def as_postgres(argv):
    """The server refuses to be root."""
    if os.geteuid() != 0:
        return argv
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        raise Missing("root cannot run PostgreSQL, and there is no user 'postgres'")
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *argv]


def children_of(parent):
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                pid, _, rest = file.read().partition(" ")
        except OSError:  # ended meanwhile
            continue
        if int(rest.rpartition(")")[2].split()[1]) == parent:
            found.append(int(pid))
    return found


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Server:
    def __init__(self, port=None, lends=False, **settings):
        """With a port it also listens on 127.0.0.1. `lends`: keeps a copy of its first files for other servers."""
        self.folder = tempfile.mkdtemp(prefix="once-pg-")
        self.data = os.path.join(self.folder, "data")
        self.log = os.path.join(self.folder, "log")
        self.process = None
        self.port = port
        self.settings = {**SETTINGS, **settings}
        self.url = f"postgres://postgres@/postgres?host={self.folder}" + (f"&port={port}" if port else "")
        try:
            if os.geteuid() == 0:
                user = pwd.getpwnam("postgres")
                os.chown(self.folder, user.pw_uid, user.pw_gid)
            os.chmod(self.folder, 0o711)
            self._make_data()
            if lends:
                self._run("/bin/cp", "-a", self.data, os.path.join(self.folder, FIRST))
            self.start()
        except BaseException:
            self.close()
            raise

    def _run(self, program, *arguments):
        argv = as_postgres([os.path.join(programs(), program), *arguments])
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/tmp")
        if done.returncode != 0:
            raise Missing(f"{program} failed: {done.stdout[-500:]}")

    def _make_data(self):
        """From the server of the whole run, if there is one: initdb takes ten times as long."""
        lender = os.path.join(os.environ.get("ONCE_TEST_POSTGRES", "").partition("host=")[2].partition("&")[0], FIRST)
        if os.path.isabs(lender) and os.path.isdir(lender):
            self._run("/bin/cp", "-a", lender, self.data)
        else:
            self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")

    def start(self):
        settings = dict(self.settings)
        if self.port:
            settings.update(listen_addresses="127.0.0.1", port=str(self.port))
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        argv = as_postgres([os.path.join(programs(), "postgres"), "-D", self.data, "-k", self.folder, *options])
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/tmp", start_new_session=True)
        deadline = time.monotonic() + 60
        while self.query("SELECT 1", quiet=True) != "1":
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Missing("the server did not start: " + open(self.log).read()[-800:])
            time.sleep(0.02)

    def query(self, sql, url=None, quiet=False):
        """A line for each row, columns joined by '|'. Quiet: nothing, when it fails."""
        try:
            return "\n".join("|".join(row) for row in pq.once(url or self.url, sql))
        except pq.Failed:
            if quiet:
                return ""
            raise

    def database(self, name, like="template1"):
        """A new one, a copy of another that nobody uses; its URL."""
        try:
            self.query(f'CREATE DATABASE "{name}" TEMPLATE "{like}" STRATEGY FILE_COPY')  # without a log of its blocks, in half of the time
        except pq.Failed:
            self.query(f'CREATE DATABASE "{name}" TEMPLATE "{like}"')  # PostgreSQL 14 knows no other
        return self.url.replace("/postgres?", f"/{name}?")

    def schema(self, name):
        """A new one in the common database, which costs less; its URL."""
        self.query(f'CREATE SCHEMA "{name}"')
        return f"{self.url}&options=-csearch_path%3D{name}"

    def kill(self):
        """As by kill -9 of the postmaster and all that it started."""
        if self.process and self.process.poll() is None:
            children = children_of(self.process.pid)
            self.process.kill()
            self.process.wait()
            for pid in children:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + 60
            while any(is_running(pid) for pid in children) and time.monotonic() < deadline:  # their memory blocks the next start
                time.sleep(0.01)
        for name in ("postmaster.pid",):
            path = os.path.join(self.data, name)
            if os.path.exists(path):
                os.remove(path)

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)  # at once: nobody wants the data
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Given(Server):
    """The one that tools/check has started; not ours to stop."""

    def __init__(self, url):
        self.url, self.process = url, None

    def close(self):
        pass


_shared = None


def shared():
    """The server of the whole run, or one of this process that ends with it."""
    global _shared
    if not _shared:
        given = os.environ.get("ONCE_TEST_POSTGRES")
        _shared = Given(given) if given else Server()
        atexit.register(_shared.close)
    return _shared


def serve(settings):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    server = Server(lends=True, **settings)
    try:
        print(server.url, flush=True)
        sys.stdin.read()
    finally:
        server.close()


if __name__ == "__main__":
    if sys.argv[1:2] != ["serve"] or not all("=" in setting for setting in sys.argv[2:]):
        sys.exit("usage: tests/lib/postgres.py serve [SETTING=VALUE...]")
    try:
        serve(dict(setting.split("=", 1) for setting in sys.argv[2:]))
    except Missing as why:
        sys.exit(f"postgres: {why}")
