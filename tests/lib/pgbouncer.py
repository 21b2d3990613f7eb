#!/usr/bin/python3
"""PgBouncer for tests: on a socket in a temporary folder, in front of a server of postgres.py, stopped by its process id.

    tests/lib/pgbouncer.py serve MODE URL [SETTING=VALUE...]    starts one before that server, prints the URL of the same database
                                                                through it, and stops it at the end of standard input"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

import postgres
import pq

PORT = 6432  # part of the name of its socket, and nothing else: it does not listen on the network

SETTINGS = {
    "auth_type": "any", "max_client_conn": "200", "default_pool_size": "2", "ignore_startup_parameters": "options,extra_float_digits",
    "server_reset_query": "DISCARD ALL", "log_connections": "0", "log_disconnections": "0", "log_stats": "0", "admin_users": "postgres",
}


class Pooler:
    """`mode` is session, transaction or statement. All databases of the server have the same name here."""

    def __init__(self, server, mode, connect_query="", **settings):
        """connect_query: what is said in every session when it begins."""
        if not shutil.which("pgbouncer"):
            raise postgres.Missing("PgBouncer is not installed")
        self.server, self.connect_query = server, connect_query
        self.settings = {**SETTINGS, "pool_mode": mode, **{name: str(value) for name, value in settings.items()}}
        self.folder = tempfile.mkdtemp(prefix="once-bouncer-")
        self.process = None
        try:
            if os.geteuid() == 0:
                user = pwd.getpwnam("postgres")
                os.chown(self.folder, user.pw_uid, user.pw_gid)
            os.chmod(self.folder, 0o711)
            self.start()
        except BaseException:
            self.close()
            raise

    def _write(self):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.server.url).query))
        where = f"host={query['host']} port={query.get('port', '5432')} user=postgres" + (f" connect_query='{self.connect_query}'" if self.connect_query else "")
        settings = {"listen_addr": "", "listen_port": PORT, "unix_socket_dir": self.folder, "logfile": os.path.join(self.folder, "log"), **self.settings}
        path = os.path.join(self.folder, "ini")
        with open(path, "w") as file:
            file.write(f"[databases]\n* = {where}\n[pgbouncer]\n")
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        os.chmod(path, 0o644)
        return path

    def start(self):
        argv = postgres.as_postgres(["pgbouncer", "-q", self._write()])
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/tmp",
                                        start_new_session=True)
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.admin("SHOW VERSION")
            except pq.Failed as why:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise postgres.Missing(f"PgBouncer did not start: {why} {self.log()}")
                time.sleep(0.02)

    def log(self):
        path = os.path.join(self.folder, "log")
        return open(path).read()[-800:] if os.path.exists(path) else ""

    def url(self, direct):
        """The same database and options as `direct`, through the pooler."""
        parts = urllib.parse.urlsplit(direct)
        query = dict(urllib.parse.parse_qsl(parts.query))
        query.update(host=self.folder, port=str(PORT))
        return urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))

    def admin(self, command):
        return pq.once(f"postgresql://postgres@/pgbouncer?host={self.folder}&port={PORT}", command)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def serve(mode, url, settings):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with Pooler(postgres.Given(url), mode, **settings) as pooler:
        print(pooler.url(url), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:2] != ["serve"] or len(sys.argv) < 4 or not all("=" in setting for setting in sys.argv[4:]):
        sys.exit("usage: tests/lib/pgbouncer.py serve MODE URL [SETTING=VALUE...]")
    try:
        serve(sys.argv[2], sys.argv[3], dict(setting.split("=", 1) for setting in sys.argv[4:]))
    except postgres.Missing as why:
        sys.exit(f"pgbouncer: {why}")
