"""A Redis Cluster on loopback for one test: three primaries, and replicas of the one that has the store where they are asked for. Data is in the test's folder; every
node is ended with the test, by its process.

    with Cluster(tmp_path, replicas=1) as cluster:
        p = Pipeline(tmp_path, config, store=cluster.url())
        cluster.move(to=...)

The slot that matters is the one of the store's name: all keys of a store are in it."""

import re

from harness import until
from redisserver import RedisServer, free_port

SLOTS = 16384


class Node(RedisServer):
    def __init__(self, folder, name, timeout_ms, *settings):
        self.bus = free_port()
        super().__init__(folder, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", str(self.bus),
                         "--cluster-node-timeout", str(timeout_ms), *settings, name=name)
        self.id = self.cli("CLUSTER", "MYID")

    def alive(self):
        return self.process.poll() is None


class Cluster:
    def __init__(self, folder, replicas=0, name="once", settings=()):
        self.name = name
        self.nodes = []
        self.timeout_ms = 2000 if replicas else 15000  # nodes of a busy machine are slow, and only where there is a replica is that of use
        try:
            self.primaries = [self._node(folder, f"node{i}", settings) for i in range(3)]
            self.slot = int(self.primaries[0].cli("CLUSTER", "KEYSLOT", "{%s}" % name))
            self._join()
            self.replicas = [self._replica(folder, i, settings) for i in range(replicas)]
            for replica in self.replicas:
                until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), what="the replica follows")
        except BaseException:
            self.__exit__()
            raise

    def _node(self, folder, name, settings):
        node = Node(folder, name, self.timeout_ms, *settings)
        self.nodes.append(node)
        return node

    def _join(self):
        first = self.primaries[0]
        third = SLOTS // 3
        for i, node in enumerate(self.primaries):
            node.cli("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            node.cli("CLUSTER", "ADDSLOTSRANGE", i * third, (i + 1) * third - 1 if i < 2 else SLOTS - 1)
        for node in self.primaries[1:]:
            first.cli("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
        self.whole(self.primaries)

    def _replica(self, folder, number, settings):
        node, of = self._node(folder, f"replica{number}", settings), self.owner()
        self.primaries[0].cli("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
        until(lambda: of.id in node.cli("CLUSTER", "NODES"), what="the nodes know each other")
        node.cli("CLUSTER", "REPLICATE", of.id)
        return node

    def whole(self, nodes=None):
        """All that live agree that all slots are served."""
        nodes = [n for n in nodes or self.nodes if n.alive()]
        until(lambda: all("cluster_state:ok" in n.cli("CLUSTER", "INFO") for n in nodes), what="the cluster is whole")

    def owner(self):
        """Who has the store's slot, by what most of the living say; None: nobody."""
        said = {}
        for node in self.nodes:
            if not node.alive():
                continue
            for line in node.cli("CLUSTER", "NODES").splitlines():
                words = line.split()
                if "master" not in words[2] or "fail" in words[2].split(","):
                    continue
                for first, last in re.findall(r" (\d+)(?:-(\d+))?(?= |$)", " " + " ".join(words[8:])):
                    if int(first) <= self.slot <= int(last or first):
                        said[words[0]] = said.get(words[0], 0) + 1
        best = max(said, key=said.get, default=None)
        return next((node for node in self.nodes if node.id == best and node.alive()), None)

    def others(self):
        """Living primaries that do not have the slot."""
        owner = self.owner()
        return [n for n in self.nodes if n.alive() and n is not owner and b"role:master" in n.call("INFO", "replication")]

    def url(self, more="", node=None):
        return (node or self.primaries[0]).url(self.name, more=more)

    # ---- moving the slot, a few keys at a time, as redis-cli --cluster reshard does ----

    def begin_move(self, source, target):
        target.cli("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source.id)
        source.cli("CLUSTER", "SETSLOT", self.slot, "MIGRATING", target.id)

    def keys(self, source, n=1000000):
        return source.call("CLUSTER", "GETKEYSINSLOT", self.slot, n)

    def move_keys(self, source, target, keys):
        def moved():
            try:
                return source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            except AssertionError as refused:
                if b"CLUSTERDOWN" in refused.args[0]:  # nodes of a busy machine lose sight of each other
                    return None
                raise

        until(moved, what="keys are moved")

    def move_some(self, source, target, n=10):
        keys = self.keys(source, n)
        if keys:
            self.move_keys(source, target, keys)
        return len(keys)

    def end_move(self, source, target):
        for node in (target, source, *[n for n in self.others() if n not in (source, target)]):
            node.cli("CLUSTER", "SETSLOT", self.slot, "NODE", target.id)

    def move(self, target, step=10, between=lambda: None, first=lambda keys: []):
        """`first` chooses keys that are moved before the others. Returns how many pieces it took."""
        source, pieces = self.owner(), 0
        assert source is not target
        self.begin_move(source, target)
        between()
        if chosen := first(self.keys(source)):
            self.move_keys(source, target, chosen)
            between()
        while self.move_some(source, target, step):
            pieces += 1
            between()
        self.end_move(source, target)
        return pieces

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.__exit__()
