"""A Redis Cluster of three under load: its slots move, a node is killed, a replica is promoted. `make soak` does the same for minutes.

What happened is counted by the handler itself, in a file; what the store has is read with a client of our own."""

import os
import random
import signal
import socket
import threading
import time

import pytest

import fenced
from fenced import Fenced
from harness import Pipeline, counts, until
from fleet import SOAK_S, rounds
from rediscluster import Cluster
from redisload import Load, Runs
from redisserver import needs_redis

pytestmark = needs_redis

class Mover:
    """Moves the slot from node to node, some keys at a time. Mostly what a commit touches last goes first: that is where one would tear."""

    def __init__(self, cluster, rng):
        self.cluster, self.rng, self.moves, self.pieces = cluster, rng, 0, 0

    def first(self, keys):
        at = len(self.cluster.name) + 2
        some = b"".join(self.rng.sample([b"c", b"g", b"d", b"U", b"i", b"o", b"n"], 3))
        return [key for key in keys if key[at:at + 1] in some]

    def between(self):
        time.sleep(self.rng.choice([0, 0.001, 0.01, 0.05]))

    def once(self):
        target = self.rng.choice(self.cluster.others())
        self.pieces += self.cluster.move(target, step=self.rng.choice([7, 40, 200]), between=self.between, first=self.first)
        self.moves += 1


FOLLOWS = 'key: "${/id}"\nhandler: {exec: [./effect]}\n'


# ---- what Redis itself does ----

class Connection:
    def __init__(self, node):
        self.socket = socket.create_connection(("127.0.0.1", node.port), 10)
        self.node, self.replies = node, self.socket.makefile("rb")

    def __call__(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        try:
            return self.node._read(self.replies)
        except AssertionError as error:
            return error.args[0].split(b" ")[0].decode() + (" in the middle" if b"non local key" in error.args[0] else "")


def test_f90_what_redis_does_with_the_keys_of_a_moving_slot(tmp_path):
    """What the commit is built on (src/store/redis/commit.c). If a version of Redis does otherwise, this is where it shows."""
    with Cluster(tmp_path) as cluster:
        source, target = cluster.owner(), cluster.others()[0]
        here, there = Connection(source), Connection(target)
        set_all = "for i = 1, #KEYS do redis.call('SET', KEYS[i], 'new') end return #KEYS"
        for key in "abc":
            here("SET", "{once}" + key, "old")
        cluster.begin_move(source, target)
        assert here("EVAL", set_all, 2, "{once}a", "{once}none") == "TRYAGAIN", "absent counts as moved"
        assert here("GET", "{once}a") == b"old", "nothing was done"
        assert here("EVAL", set_all, 2, "{once}none", "{once}none2") == "ASK"
        assert here("EVAL", set_all, 2, "{once}a", "{once}b") == 2, "all are there"
        for flags in ("", "#!lua flags=allow-cross-slot-keys\n"):
            here("SET", "{once}a", "old")
            undeclared = flags + "redis.call('SET', KEYS[1], 'torn') redis.call('SET', ARGV[1], 'torn')"
            assert here("EVAL", undeclared, 1, "{once}a", "{once}none") == "ERR in the middle"
            assert here("GET", "{once}a") == b"torn"
        removed = "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[2], 'torn') redis.call('SET', KEYS[1], 'x')"
        assert here("EVAL", removed, 2, "{once}c", "{once}b") == "ERR in the middle", "what it removed itself counts as moved"
        assert here("GET", "{once}b") == b"torn"
        source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", "{once}a")
        assert here("EVAL", set_all, 2, "{once}a", "{once}b") == "TRYAGAIN"
        assert there("EVAL", set_all, 1, "{once}a") == "MOVED"
        assert there("ASKING") == b"OK" and there("EVAL", set_all, 2, "{once}a", "{once}none") == "TRYAGAIN"
        assert there("ASKING") == b"OK" and there("EVAL", set_all, 1, "{once}a") == 1
        while cluster.move_some(source, target):
            pass
        assert there("ASKING") == b"OK" and there("EVAL", set_all, 2, "{once}a", "{once}none") == "TRYAGAIN", "also when all have come"
        cluster.end_move(source, target)
        assert there("EVAL", set_all, 2, "{once}a", "{once}none") == 2
        assert here("EVAL", set_all, 1, "{once}a") == "MOVED"


# ---- moving under load ----

@pytest.mark.parametrize("ack", ["after_effect", "after_accept"])
def test_f90_commits_are_whole_while_the_slot_moves_forth_and_back(tmp_path, ack):
    for seed in rounds():
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        os.makedirs(folder)
        with Cluster(folder) as cluster:
            load = Load(folder, cluster, n=2000 if SOAK_S else 240, ack=ack)
            mover = Mover(cluster, rng)
            running = [load.p.start() for _ in range(3)]
            try:
                until(lambda: load.effects() > 5, what="effects")
                while any(r.process.poll() is None for r in running):
                    mover.once()
                    seen = load.effects()
                    until(lambda: load.effects() > seen + load.n // 40 or all(r.process.poll() is not None for r in running), deadline_s=60, what="effects")
                ended = [r.end() for r in running]
            finally:
                for r in running:
                    r.__exit__()
            for e in ended:
                assert e.status == 1, e
            assert mover.moves >= 3 and mover.pieces > 10, "it moved under load"
            load.check()
            load.replay()
            print(f"{mover.moves} moves in {mover.pieces} pieces")


def test_f77_f90_a_move_that_takes_longer_than_a_verb_waits(tmp_path):
    """Nothing starts meanwhile and no failure is counted; it is said; and it goes on when the move has ended."""
    with Cluster(tmp_path) as cluster:
        load = Load(tmp_path, cluster, n=300, more="&timeout=1")
        with Runs(load) as runs:
            runs.after(20)
            source, target = cluster.owner(), cluster.others()[0]
            cluster.begin_move(source, target)
            cluster.move_some(source, target, 100)
            time.sleep(1.5)
            before = load.effects()
            time.sleep(2.5)
            assert load.effects() == before, "no effect starts without the store"
            while cluster.move_some(source, target, 50):
                pass
            cluster.end_move(source, target)
            assert any("moves the keys of the store to another node" in e.err for e in runs.end())
        load.check()


def warned(work):
    ended = work.p.once("check", "--json", work.p.name)
    assert ended.status == 0, ended
    return [finding["text"] for finding in ended.json["findings"] if finding["warning"] and finding["topic"] == "store"]


@pytest.mark.parametrize("may_ask", [True, False])
def test_f90_check_says_that_a_move_is_stuck(tmp_path, may_ask):
    """Somebody began to move the slot and did not go on: commits are refused without end, and `check` said ok."""
    with Cluster(tmp_path) as cluster:
        source, target = cluster.owner(), cluster.others()[0]
        for node in cluster.nodes:
            node.cli("ACL", "SETUSER", "worker", "on", ">w0rd", "~*", "+@all", *([] if may_ask else ["-cluster|nodes"]))
        work = Fenced(tmp_path, n=5, store=source.url(cluster.name, user="worker:w0rd@", more="&timeout=1"), lease="30s")
        counts(work.p.run(status=0), received=5, done=5)
        assert not warned(work)
        cluster.begin_move(source, target)
        for moved in (0, 3):
            if moved:
                cluster.move_some(source, target, moved)
            (text,) = warned(work)
            assert "is being moved" in text and f"--cluster fix 127.0.0.1:{source.port}" in text, text
            assert not may_ask or (f"slot {cluster.slot} " in text and f"to '127.0.0.1:{target.port}'" in text), text
        work.p.append({"id": "later"})
        with work.p.start() as running:
            assert "--cluster fix" in running.hear("moves the keys of the store")
            while cluster.move_some(source, target, 50):
                pass
            cluster.end_move(source, target)
            ended = running.end()
        assert ended.status == 0 and ended.json["done"] == 1, ended
        until(lambda: not warned(work), what="no warning")


# ---- nodes that are killed ----

def test_f46_f90_either_node_is_killed_while_the_slot_moves(tmp_path):
    """The one that has it, and the one that gets it. Both keep what they acknowledged, and the move goes on."""
    for seed in rounds():
        folder = tmp_path / str(seed)
        os.makedirs(folder)
        with Cluster(folder) as cluster:
            load = Load(folder, cluster, n=3000 if SOAK_S else 300, paced=True)
            with Runs(load) as runs:
                for victim in (0, 1):
                    runs.after(30)
                    pair = source, target = cluster.owner(), cluster.others()[seed % 2]
                    cluster.begin_move(source, target)
                    for _ in range(3):
                        cluster.move_some(source, target, 20)
                    pair[victim].kill()
                    time.sleep(0.2)
                    pair[victim].start()
                    cluster.whole()
                    while cluster.move_some(source, target, 50):
                        pass
                    cluster.end_move(source, target)
                runs.end()
            load.check()
            load.replay()


def test_f47_f90_a_node_is_killed_and_its_replica_promoted(tmp_path):
    """Told to, and because the primary is dead. The replica has what was acknowledged (wait=1), so nothing runs twice; and the node of the
    URL need not be there any more."""
    for seed in rounds():
        folder = tmp_path / str(seed)
        os.makedirs(folder)
        with Cluster(folder, replicas=1) as cluster:
            first = cluster.owner()
            load = Load(folder, cluster, n=3000 if SOAK_S else 300, more="&wait=1", node=first, paced=True)
            with Runs(load) as runs:
                runs.after(30)
                replica = cluster.replicas[0]
                replica.cli("CLUSTER", "FAILOVER")
                until(lambda: cluster.owner() is replica, what="the replica is promoted")
                runs.after(30)
                until(lambda: b"master_link_status:up" in first.call("INFO", "replication"), what="the first one follows")
                replica.kill()
                until(lambda: cluster.owner() is first, deadline_s=60, what="the first one is promoted again")
                replica.start()
                runs.end()
            load.check()
            load.replay()


def test_f90_a_move_that_a_failover_forgot_is_noticed(tmp_path):
    """The node that gives the slot away is killed, and its replica does not know of the move: what has been moved would seem to be new. Nothing
    runs until that is repaired; then everything is there."""
    with Cluster(tmp_path, replicas=1) as cluster:
        source, target, replica = cluster.owner(), cluster.others()[0], cluster.replicas[0]
        load = Load(tmp_path, cluster, n=240, more="&wait=1", lease="5s")
        with Runs(load) as runs:
            runs.after(40)
            cluster.begin_move(source, target)
            head = [key for key in cluster.keys(source) if key.endswith(b"}head")]
            moved = [key for key in cluster.keys(source) if key not in head][::2]
            cluster.move_keys(source, target, moved)
            until(lambda: replica.call("CLUSTER", "COUNTKEYSINSLOT", cluster.slot) == len(cluster.keys(source)), what="the replica has it, too")
            source.kill()
            until(lambda: cluster.owner() is replica, deadline_s=60, what="the replica is promoted")
            cluster.whole([n for n in cluster.nodes if n is not target])  # which does not know who has the slot, and says that the cluster is down
            ended = load.p.once("list", "--waiting", load.p.name)
            assert ended.status == 3 and "on two nodes of the cluster" in ended.err and "--cluster fix" in ended.err, ended
            before = load.effects()
            time.sleep(1.5)
            assert load.effects() == before, "nothing starts while some keys are not found"
            for r in runs.running:
                r.send(signal.SIGTERM)
            for r in runs.running:
                r.end()
            target.cli("CLUSTER", "SETSLOT", cluster.slot, "NODE", replica.id)  # back to where the slot is, as `redis-cli --cluster fix` does it
            cluster.whole([target])
            while cluster.move_some(target, replica, 100):
                pass
            target.cli("CLUSTER", "SETSLOT", cluster.slot, "STABLE")
        source.start()
        cluster.whole()
        load.p.run()
        happened = load.work.per_key()
        kept = {m["key"] for m in load.p.once("list", "--unknown", "--waiting", "--json", load.p.name).json["messages"]}
        assert all(happened[key] <= n for key, n in load.expected().items()), "what had been moved ran again"
        assert not {key for key in load.expected() if not happened[key]} - kept, "something was lost"  # held, or behind one that is


def test_f47_f90_replicas_are_those_of_the_node_that_has_the_key(tmp_path):
    """Half of a move: the node that has the keys by now has no replica, and that of the other one does not count."""
    with Cluster(tmp_path, replicas=1) as cluster:
        source, target = cluster.owner(), cluster.others()[0]
        work = Fenced(tmp_path, n=5, store=cluster.url("&wait=1&timeout=1"), config="patience: 1s\n" + fenced.CONFIG)
        counts(work.p.run(status=0), received=5, done=5)
        cluster.begin_move(source, target)
        while cluster.move_some(source, target, 100):
            pass
        ended = work.p.try_run()
        assert ended.status == 3 and "only 0 of 1 replicas" in ended.err and ended.json["acked"] == 0, ended


def test_f90_a_move_that_is_given_up_is_noticed(tmp_path):
    """By a worker that stays connected, too: it has seen keys on their way."""
    with Cluster(tmp_path) as cluster:
        source, target = cluster.owner(), cluster.others()[0]
        work = Fenced(tmp_path, n=20, store=cluster.url())
        work.p.configure(FOLLOWS, store=cluster.url(), source="{path: in.ndjson, follow: true}")
        with work.p.start() as worker:
            until(lambda: len(work.effects()) == 20, what="all effects")
            until(lambda: work.p.once("status", "--json", work.p.name).json["busy"] == 0, what="nothing in work")
            cluster.begin_move(source, target)
            entries = [key for key in cluster.keys(source) if key[len(b"{once}"):][:1] == b"e"]
            cluster.move_keys(source, target, entries)
            work.p.append({"id": "k0"})  # it is asked for there
            until(lambda: source.call("INFO", "errorstats").count(b"errorstat_ASK:"), what="it was sent there")
            for node in (source, target):
                node.cli("CLUSTER", "SETSLOT", cluster.slot, "STABLE")
            work.p.append(*[{"id": f"k{i}"} for i in range(20)])
            time.sleep(1.5)
            assert len(work.effects()) == 20, "what had been moved ran again"
            worker.send(signal.SIGTERM)
            ended = worker.end()
        assert "on two nodes of the cluster" in ended.err, ended


@pytest.mark.parametrize("moved", ["entries", "all"])
def test_f90_a_move_that_nobody_saw_is_noticed(tmp_path, moved):
    """It was begun and given up while the worker asked for nothing. Where the head of the store was moved, too, it is not taken for another store."""
    with Cluster(tmp_path) as cluster:
        source, target = cluster.owner(), cluster.others()[0]
        work = Fenced(tmp_path, n=20, store=cluster.url())
        work.p.configure(FOLLOWS, store=cluster.url(), source="{path: in.ndjson, follow: true}")
        with work.p.start() as worker:
            until(lambda: len(work.effects()) == 20, what="all effects")
            until(lambda: work.p.once("status", "--json", work.p.name).json["busy"] == 0, what="nothing in work")
            os.kill(worker.process.pid, signal.SIGSTOP)
            cluster.begin_move(source, target)
            cluster.move_keys(source, target, [key for key in cluster.keys(source) if moved == "all" or key[len(b"{once}"):][:1] == b"e"])
            for node in (source, target):
                node.cli("CLUSTER", "SETSLOT", cluster.slot, "STABLE")
            time.sleep(0.1)
            work.p.append(*[{"id": f"k{i}"} for i in range(20)])
            os.kill(worker.process.pid, signal.SIGCONT)
            time.sleep(1.5)
            assert len(work.effects()) == 20, "what had been moved ran again"
            ended = work.p.once("list", "--waiting", work.p.name)
            assert ended.status == 3 and "on two nodes of the cluster" in ended.err, ended
            worker.send(signal.SIGTERM)
            ended = worker.end()
        assert "on two nodes of the cluster" in ended.err and "no store" not in ended.err, ended


class Holding:
    """Between a worker and its node: holds back the first commit that has an entry, until it is let go."""

    def __init__(self, port):
        self.to, self.held, self.go = port, threading.Event(), threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self.carry, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.carry, args=(server, client, False), daemon=True).start()

    def carry(self, one, other, there):
        try:
            while data := one.recv(1 << 20):
                if there and b"EVALSHA" in data and b"{once}e" in data and not self.held.is_set():
                    self.held.set()
                    self.go.wait(60)
                other.sendall(data)
        except OSError:
            pass
        other.close()


def test_f90_a_commit_is_not_sent_again_after_a_move_that_was_given_up(tmp_path):
    """It was refused while keys moved. What was not there when it was read has come meanwhile, and is on the other node when it is sent again."""
    with Cluster(tmp_path) as cluster:
        source, target = cluster.owner(), cluster.others()[0]
        work = Fenced(tmp_path, n=3, store=cluster.url(), lease="60s")
        work.p.run(status=0)
        proxy = Holding(source.port)
        late = Pipeline(str(tmp_path), FOLLOWS, store=f"redis://127.0.0.1:{proxy.port}/0?name=once", name="late.yaml", source="{path: late.ndjson}")
        with open(tmp_path / "late.ndjson", "w") as file:
            file.write('{"id":"k0"}\n{"id":"new"}\n')
        with late.start() as worker:
            until(proxy.held.is_set, what="its commit is on its way")
            work.p.append({"id": "new"})
            work.p.run(status=0)
            assert work.per_key()["new"] == 1
            cluster.begin_move(source, target)
            cluster.move_keys(source, target, [key for key in cluster.keys(source) if key[len(b"{once}"):][:1] == b"e"])
            proxy.go.set()
            until(lambda: source.call("INFO", "errorstats").count(b"TRYAGAIN"), what="it was refused")
            time.sleep(0.5)
            for node in (source, target):
                node.cli("CLUSTER", "SETSLOT", cluster.slot, "STABLE")
            time.sleep(2)
            assert work.per_key()["new"] == 1, "it ran twice"
            worker.send(signal.SIGTERM)
            worker.end()
        proxy.listener.close()


def test_a_node_of_the_url_is_dead_from_the_start(tmp_path):
    """Any of the hosts that answers tells where the store is."""
    with Cluster(tmp_path) as cluster:
        other = cluster.others()[0]
        port = cluster.owner().port
        work = Fenced(tmp_path, n=5, store=f"redis://127.0.0.1:1,127.0.0.1:{other.port}/0?name=once")
        counts(work.p.run(status=0), received=5, done=5)
        assert len(cluster.keys(cluster.owner())) > 5 and cluster.owner().port == port
