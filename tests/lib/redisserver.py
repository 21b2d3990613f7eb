"""A redis-server on loopback for one test, with its data in the test's folder; ended with the test whatever happens.

    with RedisServer(tmp_path) as redis:
        p = Pipeline(tmp_path, config, store=redis.url())

It syncs every reply (appendonly yes, appendfsync always) unless told otherwise. Data is read with a client of our own, never
through the product."""

import os
import shutil
import signal
import socket
import subprocess

import pytest

from harness import ONCE, until


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def has_redis():
    version = subprocess.run([ONCE, "version"], capture_output=True, text=True)
    return bool(shutil.which("redis-server")) and "\n  redis " in version.stdout


needs_redis = pytest.mark.skipif(not has_redis(), reason="missing: redis-server, or hiredis in the build")


class RedisServer:
    def __init__(self, folder, *settings, durable=True, name="redis"):
        self.folder = os.path.join(folder, name)
        os.makedirs(self.folder)
        self.settings = ["--appendonly", "yes", "--appendfsync", "always"] if durable else []
        self.settings += settings
        self.port = free_port()
        self.process = None
        self.auth = []
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "", "--logfile", "log",
             *self.settings], stdin=subprocess.DEVNULL)
        until(self.answers, what="redis answers")

    def answers(self):
        assert self.process.poll() is None, "redis-server ended"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(1)
                connection.sendall(b"PING\r\n")
                return connection.recv(64)[:5] in (b"+PONG", b"-NOAU")
        except OSError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def send(self, number):
        self.process.send_signal(number)

    def url(self, name="once", user="", port=None, more=""):
        return f"redis://{user}127.0.0.1:{port or self.port}/0?name={name}{more}"

    def call(self, *arguments):
        """One command on a connection of its own; bytes, int, list or None."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection, connection.makefile("rb") as replies:
            for command in ([self.auth] if self.auth else []) + [arguments]:
                words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
                connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
                reply = self._read(replies)
            return reply

    def _read(self, replies):
        line = replies.readline()[:-2]
        kind, rest = line[:1], line[1:]
        assert kind != b"-", rest
        if kind == b"$":
            return None if rest == b"-1" else replies.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._read(replies) for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def cli(self, *arguments):
        reply = self.call(*arguments)
        return reply.decode() if isinstance(reply, bytes) else str(reply)

    def count(self, pattern):
        return len(self.call("KEYS", pattern))
