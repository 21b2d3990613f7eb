"""A Redis with a replica: failovers under load, with nothing lost where replicas are waited for. `make soak` does the same for minutes."""

import os

from harness import until
from fleet import SOAK_S, rounds
from redisload import Load, Runs
from redisserver import RedisServer, needs_redis
from tcpproxy import Proxy

pytestmark = needs_redis


class Pair:
    """A primary and a replica, and an address that is always the primary's, as a sentinel or a name in the DNS make it."""

    name = "once"

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self.primary = RedisServer(self.folder, "--repl-diskless-sync-delay", "0", name="first")
        self.replica = RedisServer(self.folder, "--repl-diskless-sync-delay", "0", name="second")
        self.follow()
        self.proxy = Proxy(self.primary.port).__enter__()
        return self

    def __exit__(self, *_):
        self.proxy.__exit__()
        for server in (self.primary, self.replica):
            server.__exit__()

    def follow(self):
        self.replica.cli("REPLICAOF", "127.0.0.1", self.primary.port)
        until(lambda: b"master_link_status:up" in self.replica.call("INFO", "replication"), what="the replica follows")

    def owner(self):
        return self.primary

    def url(self, more="", node=None):
        return self.primary.url(self.name, port=self.proxy.port, more=more)

    def fail_over(self):
        """The primary is killed, the replica takes its place and is followed by it."""
        self.primary.kill()
        self.replica.cli("REPLICAOF", "NO", "ONE")
        self.primary, self.replica = self.replica, self.primary
        self.proxy.server = ("127.0.0.1", self.primary.port)
        self.proxy.cut_all()
        self.replica.start()
        self.follow()


def test_f47_a_replica_that_was_waited_for_takes_over(tmp_path):
    for seed in rounds():
        folder = tmp_path / str(seed)
        os.makedirs(folder)
        with Pair(folder) as pair:
            load = Load(folder, pair, n=3000 if SOAK_S else 200, more="&wait=1", ack="after_accept" if seed % 2 else "after_effect", paced=True)
            with Runs(load) as runs:
                for _ in range(6 if SOAK_S else 2):
                    runs.after(20)
                    pair.fail_over()
                runs.end()
            load.check()
            load.replay()
