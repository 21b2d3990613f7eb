"""source: kafka, and many faults at once: pipelines on one broker, each with a misfortune of its own, while the broker and all workers are
killed again and again. At the end the user's tables are read, and nothing else: what the broker has acknowledged took effect once, what it
has not acknowledged once or never, and nothing of an aborted transaction did. tests/soak has a longer storm, with three brokers."""

import collections
import json
import random
import signal

import confluent_kafka

import kafka
import kafkawire as wire
from brokerpipeline import CONFIG, let_go, lines, numbered, slow_config
from crashes import at_once
from harness import until
from kafkaclient import new_name, patiently
from kafkapipeline import KafkaPipeline, KafkaPostgresPipeline, need_kafka, source
from kafkaproxy import COMMIT, KafkaProxy
from pgpipeline import need_postgres

need_kafka()
need_postgres()

TURNS = 2  # the broker is killed in each of them
SOON = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300, "socket.timeout.ms": 3000}
PLAIN = f"batch: {{max: 20}}\nlease: 1s\n{CONFIG}"


class Sender:
    """Knows what the broker has acknowledged. It does not wait for that, since the broker may be away."""

    def __init__(self, client, **config):
        self.producer = confluent_kafka.Producer({**client.config, "acks": "all", "message.max.bytes": 20000000, "socket.timeout.ms": 3000,
                                                  "reconnect.backoff.max.ms": 500, **config})
        self.sent, self.acked = set(), set()

    def send(self, topic, id, value, **more):
        self.sent.add(id)
        self.producer.produce(topic, value, on_delivery=lambda error, _: None if error else self.acked.add(id), **more)

    def flush(self):
        assert self.producer.flush(60) == 0, "messages are left"


class Scenario:
    """A pipeline, its messages and its workers."""
    workers, partitions, more = 1, 2, 'instance: "${host}"'  # it is back at once
    load = 1000  # so many messages take longer than a look at the table

    def __init__(self, folder, client):
        self.client, self.folder = client, folder / type(self).__name__
        self.topic = client.topic(partitions=self.partitions)
        self.running, self.kills, self.senders, self.next = [], collections.Counter(), [], 0
        self.p = self.pipeline()
        self.new_sender()

    def pipeline(self):
        return KafkaPipeline(self.folder, self.client, self.topic, PLAIN, more=self.more, properties=SOON)

    # ---- messages ----

    def new_sender(self, **config):
        self.sender = Sender(self.client, **{"enable.idempotence": True, **config})
        self.senders.append(self.sender)

    def send(self, n, **more):
        for message in numbered(n, self.next):
            self.sender.send(self.topic, message["id"], json.dumps(message), **{"key": message["id"], **more})
        self.sender.producer.poll(0)
        self.next += n

    def before(self, turn):
        """Nobody has been killed in this turn."""

    def after(self, turn):
        """The broker is there again."""

    # ---- workers ----

    def start(self, i):
        return self.p.start()

    def look(self):
        """Whether workers have ended that nobody has killed."""
        for i, each in enumerate(self.running):
            if each.process.poll() is not None:
                self.ended(i, each.end(), self.p.said(each))
                self.running[i] = self.start(i)

    def ended(self, i, ended, said):
        raise AssertionError(f"{type(self).__name__}: worker {i} ended by itself: {ended}\n{said[-3000:]}")

    def kill(self, i, when):
        self.look()
        self.running[i].send(signal.SIGKILL)
        assert self.running[i].end().killed
        self.kills[when] += 1
        if when == "there" and self.workers == 1:
            self.sender.flush()
            self.kills["at work"] += self.p.count() < len(self.all_of("acked"))
        self.running[i] = self.start(i)

    # ---- what has happened ----

    def all_of(self, what):
        return set().union(*(getattr(sender, what) for sender in self.senders))

    def work(self):
        """Sends messages, and returns while it works on them."""
        count = self.p.count()
        self.send(self.load)
        self.wait(lambda: self.p.count() > count, "it is at work")

    def wait(self, condition, what):
        try:
            return until(lambda: self.look() or condition(), 90, f"{type(self).__name__}: {what}")
        except AssertionError as why:
            raise AssertionError("\n--- log\n".join([str(why), *(self.p.said(each)[-2000:] for each in self.running)])) from why

    def complete(self):
        return self.p.count() >= len(self.all_of("acked")) and self.all_of("acked").issubset(self.p.ids()) and self.p.lag() == 0

    def check(self, summaries):
        found = collections.Counter(self.p.ids())
        assert [id for id, times in found.items() if times > 1] == [], "took effect twice"
        assert self.all_of("acked") - set(found) == set(), "acknowledged, and lost"
        assert set(found) - self.all_of("sent") == set(), "never sent"


# ---- misfortunes ----

class Replayed(Scenario):
    """Each worker begins at offset 0. One ends in the middle, by a failpoint, since a kill from outside may come too late for that."""
    halfway = 0

    def start(self, i):
        self.p.group = new_name("group")
        self.p.configure(PLAIN, source=source(self.client, self.topic, self.p.group, properties=SOON))
        armed = self.running and not self.halfway
        return self.p.start(failpoint="claim_after:kill:3" if armed else None)

    def ended(self, i, ended, said):
        assert ended.killed, (ended, said[-3000:])
        self.halfway += 1

    def check(self, summaries):
        super().check(summaries)
        [last] = summaries
        assert self.halfway == 1 and last["duplicates"] > 0 and last["received"] >= len(self.client.read(self.topic)), last


class SentAgain(Scenario):
    """The producer does not wait long for an answer, and sends some messages again that may be in the topic, and some that are. Others it
    gives up."""

    def new_sender(self):
        super().new_sender(**{"enable.idempotence": False, "message.timeout.ms": 3000})

    def after(self, turn):
        self.sender.flush()
        given_up = {f"m{n}" for n in range(0, self.next, 3)} - self.sender.acked
        for id in sorted(self.sender.acked)[::2] + sorted(self.sender.sent - self.sender.acked - given_up):
            self.sender.send(self.topic, id, json.dumps({"n": int(id[1:]), "id": id}))


class Transactions(Scenario):
    """One is aborted and one committed, and both are open while workers and the broker are killed. Of a third nobody hears again: its
    successor ends it. What is behind them in their partition waits."""

    def __init__(self, folder, client):
        super().__init__(folder, client)
        self.open, self.aborted = {}, set()

    def begin(self, name, first):
        sender = Sender(self.client, **{"transactional.id": f"{self.topic}-{name}", "transaction.timeout.ms": 300000})
        sender.producer.init_transactions(60)
        sender.producer.begin_transaction()
        for message in numbered(40, first):
            sender.send(self.topic, message["id"], json.dumps(message), partition=1)
        sender.flush()
        self.open[name] = sender

    def send(self, n):
        super().send(n, partition=0)

    def before(self, turn):
        at_once(lambda case: self.begin(*case), [(name, self.next + 40 * i) for i, name in enumerate(("committed", "aborted", "vanished"))])
        self.next += 120

    def after(self, turn):
        successor = Sender(self.client, **{"transactional.id": f"{self.topic}-vanished"})
        at_once(self.patiently, [self.open["committed"].producer.commit_transaction, self.open["aborted"].producer.abort_transaction,
                                 successor.producer.init_transactions])
        self.senders.append(self.open["committed"])
        self.aborted |= self.open["aborted"].sent | self.open["vanished"].sent

    @staticmethod
    def patiently(step):
        def done():
            try:
                step(10)
                return True
            except confluent_kafka.KafkaException as why:
                assert why.args[0].retriable(), why
                return False

        until(done, what="the end of a transaction")

    def check(self, summaries):
        assert len(self.aborted) == TURNS * 80 and not self.aborted.intersection(self.p.ids()), "of an aborted transaction"
        super().check(summaries)


class Grown(Scenario):
    """The topic gets more partitions while it is read."""
    partitions, more = 1, 'instance: "${host}", start: latest'

    def __init__(self, folder, client):
        super().__init__(folder, client)
        client.commit(self.p.group, self.topic, {0: 0})

    def before(self, turn):
        self.partitions += 2
        self.client.grow(self.topic, self.partitions)
        self.new_sender()  # one that knows of them
        for number in range(self.partitions):
            self.send(50, partition=number)


class Sizes(Scenario):
    """Messages of 0 bytes, and of as many as there may be."""
    largest = 1 << 20
    partitions, load = 1, 12

    def pipeline(self):
        self.client.configure(self.topic, max_message_bytes=self.largest + 1000)
        self.bodies = {}
        return KafkaPipeline(self.folder, self.client, self.topic, 'key: "${header:id}"\nmessage_max: 1MiB\nbatch: {max: 5}\nlease: 1s\n'
                             'handler: {sql: "INSERT INTO t(id, body) VALUES (:once_key, :once_body)"}\n', "CREATE TABLE t(id TEXT, body BLOB);",
                             more=self.more, properties={**SOON, "fetch.message.max.bytes": 1 << 21}, beside="body: bytes")

    def send(self, n, **more):
        for number in range(self.next, self.next + n):
            size = (0, self.largest, 1)[number % 3]
            self.bodies[f"m{number}"] = bytes([number % 256]) * size
            self.sender.send(self.topic, f"m{number}", self.bodies[f"m{number}"], headers=[("id", f"m{number}")])
        self.next += n

    def check(self, summaries):
        super().check(summaries)
        assert dict(self.p.rows("SELECT id, body FROM t")) == {id: self.bodies[id] for id in self.p.ids()}


class MadeAnew(Scenario):
    """The topic is deleted when all of it took effect, and made anew. The run ends then, or goes on by itself."""
    partitions, more = 1, ""

    def before(self, turn):
        self.send((200, 20)[turn])
        self.sender.flush()
        self.wait(self.complete, "all of the old topic")
        self.client.delete(self.topic)
        until(lambda: not patiently(wire.committed, self.client.address, self.p.group, self.topic, [0]), what="its offset is gone")
        self.client.topic(self.topic)
        self.new_sender()

    def ended(self, i, ended, said):
        assert ended.status == 3 and f"{self.topic}/0" in said and "made anew" in said, (ended, said[-3000:])


class Slow(Scenario):
    """10,000 messages behind one that waits for the end of the storm."""
    partitions = 1

    def pipeline(self):
        return KafkaPipeline(self.folder, self.client, self.topic, slow_config(self.folder).replace("sleep 0.05", "sleep 0.5"), properties=SOON)

    def before(self, turn):
        if turn == 0:
            self.sender.send(self.topic, "slow", json.dumps({"id": "slow", "type": "slow"}))
            self.send(10000)

    def send(self, n, **more):
        for message in numbered(n, self.next):
            self.sender.send(self.topic, message["id"], json.dumps(dict(message, type="quick")))
        self.sender.producer.poll(0)
        self.next += n

    def all_of(self, what):
        return super().all_of(what) - {"slow"}

    def complete(self):
        let_go(self.folder)
        return super().complete() and lines(self.folder, "slow")

    def check(self, summaries):
        super().check(summaries)
        assert 1 <= len(lines(self.folder, "slow")) <= len(lines(self.folder, "began"))


class HalfOpen(Scenario):
    """Connections are half open when a worker or the broker is killed, and some are cut in the middle of a commit."""

    def pipeline(self):
        self.proxy = KafkaProxy(self.client)
        return KafkaPipeline(self.folder, self.client, self.topic, PLAIN, more=self.more, properties=SOON, brokers=self.proxy.address)

    def before(self, turn):
        self.proxy.lose_reply_to = COMMIT

    def work(self):
        super().work()
        self.proxy.hush_all()

    def check(self, summaries):
        self.proxy.__exit__()
        super().check(summaries)
        assert self.proxy.lost >= 1


class InOrder(Scenario):
    """Three workers that share partitions; some are stopped. Every fifth message fails at first, so those behind it wait for it."""
    workers, partitions, load, lanes = 3, 4, 300, 12

    def __init__(self, folder, client):
        super().__init__(folder, client)
        self.leaves = 0

    def pipeline(self):
        config = """
key: "${/id}"
order: "${/lane}"
batch: {max: 20}
lease: 1s
drain: 1s
retry: {attempts: 1000, backoff: 10ms..50ms}
handler:
  sql: [{do: "INSERT INTO t(id, lane, n) SELECT :id, :lane, :n WHERE :n::int % 5 > 0 OR :once_attempt::int > 1", rows: 1, else: retry}]
"""
        return KafkaPostgresPipeline(self.folder, self.client, self.topic, config.lstrip(), properties=SOON,
                                     tables="CREATE TABLE t(at bigint GENERATED ALWAYS AS IDENTITY, id text, lane text, n integer);")

    def send(self, n, **more):
        for number in range(self.next, self.next + n):
            message = {"id": f"m{number}", "lane": f"lane{number % self.lanes}", "n": number}
            self.sender.send(self.topic, message["id"], json.dumps(message), key=message["lane"])
        self.sender.producer.poll(0)
        self.next += n

    def kill(self, i, when):
        if i == 0:
            self.look()
            self.p.stop(self.running[i])
            self.leaves += 1
            self.running[i] = self.start(i)
        else:
            super().kill(i, when)

    def check(self, summaries):
        super().check(summaries)
        found = collections.defaultdict(list)
        for lane, n in self.p.rows("SELECT lane, n FROM t ORDER BY at"):
            found[lane].append(n)
        assert found == {f"lane{lane}": list(range(lane, self.next, self.lanes)) for lane in range(self.lanes)}, "not in order"
        assert self.leaves == TURNS


SCENARIOS = (Replayed, SentAgain, Transactions, Grown, Sizes, MadeAnew, Slow, HalfOpen, InOrder)


def test_f08_f29_f30_f49_many_faults_at_once(tmp_path):
    with kafka.Cluster(session_ms=1500) as client:
        scenarios = []
        try:
            scenarios += [make(tmp_path, client) for make in SCENARIOS]
            storm(client, scenarios)
        finally:
            for scenario in scenarios:
                let_go(scenario.folder)
                for each in scenario.running:
                    each.__exit__()


def storm(client, scenarios):
    broker, ends = client.brokers[0], []
    workers = [(scenario, i) for scenario in scenarios for i in range(scenario.workers)]
    random.Random(1).shuffle(workers)
    for scenario in scenarios:
        scenario.running = [scenario.start(i) for i in range(scenario.workers)]
    for turn in range(TURNS):
        halves = workers[turn % 2::2], workers[1 - turn % 2::2]
        for scenario in scenarios:
            scenario.before(turn)
        for scenario, i in halves[0]:
            scenario.work()
            scenario.kill(i, "there")
        for scenario in scenarios:
            scenario.work()
        for scenario in scenarios:
            scenario.send(scenario.load)  # the broker has not acknowledged all of these
        broker.kill()
        ends.append(broker.process.returncode)
        for scenario, i in halves[1]:
            scenario.kill(i, "away")
        client.start()
        for scenario in scenarios:
            scenario.after(turn)
    for scenario in scenarios:
        for sender in scenario.senders:
            sender.flush()
    for scenario in scenarios:
        scenario.wait(scenario.complete, "everything took effect")
    for scenario in scenarios:
        scenario.check([scenario.p.stop(each) for each in scenario.running])
        assert scenario.kills["there"] > 0 and scenario.kills["away"] > 0, scenario.kills
    assert sum(scenario.kills["at work"] for scenario in scenarios) > 0
    assert ends == TURNS * [-signal.SIGKILL]
