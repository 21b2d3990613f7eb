"""`once` and the payment gateway, both killed at random while the gateway stalls, fails, cuts and resets; at the end its ledger is judged.

    keys     honoured                        exactly one charge for each key
    lookup   no key is honoured              exactly one, as the gateway acts or gives up within `after`
    neither  no key, no lookup               real repeats <= reported repeats, and no payment is lost

And the chaos test: the store fails 30 % of the time and the gateway 20 %, each message is delivered a hundred times: one charge."""

import random
import re
import select
import signal
import threading
import time

import pytest

import pq
from anystore import behind, server_of, store  # noqa: F401
from crashes import at_once
from fleet import SOAK_S, rounds
from gateway import Gateway
from harness import stopped, until
from httppipeline import Paying, lookup
from tcpproxy import Proxy

N, KILLS = (400, 30) if SOAK_S else (40, 7)
TIMEOUT_MS, STALL_S, GIVES_UP_S, AFTER_MS = 150, 0.25, 0.3, 800


def troubled(account):
    """About a third of all requests meet a fault."""
    account.fault(method="GET", share=0.2, status=500)
    account.fault(method="GET", share=0.1, cut="random")
    for fault in ({"cut": "random"}, {"cut": 0, "reused": True}, {"before_s": [0, STALL_S]}, {"before_s": [0, STALL_S], "cut": 0}, {"after_s": 1},
                  {"status": 500, "charge": True}, {"status": 500}, {"status": 503}, {"status": 429, "headers": {"Retry-After": "0"}},
                  {"raw": "nonsense\r\n\r\n"}, {"before_s": [0, STALL_S], "charge": False, "status": 502}):
        account.fault(method="POST", share=0.035, **fault)


def storm(p, gateway, rng):
    """Runs to the end, with kills on the way; the last run has none."""
    kills = 0
    while kills < KILLS:
        with p.start() as running:
            try:
                running.process.wait(rng.uniform(0.05, 0.5))
                break  # it came to its end first
            except Exception:
                pass
            if rng.random() < 0.4:
                gateway.kill()
                time.sleep(rng.uniform(0, 0.1))
                gateway.start()
            running.send(signal.SIGKILL)
            running.process.wait()
            kills += 1
    p.run(status=0, deadline_s=120 + SOAK_S)
    return kills


# The primary key would refuse a second one: it commits with the outcome, once.
INIT = "init: CREATE TABLE IF NOT EXISTS %s(id TEXT PRIMARY KEY, charge TEXT)\n"
THEN = "  then: {sql: [\"INSERT INTO %s(id, charge) VALUES (:id, :{result:/charge_id})\"]}\n"


def check_orders(p, store, table, account):
    """What was written with each outcome is what the ledger says."""
    sql = f"SELECT id, charge FROM {table}"
    rows = p.rows(sql) if store.startswith("sqlite") else pq.once(store, sql)
    orders, real = dict(rows), {(charge["reference"], charge["id"]) for charge in account.charges()}
    assert len(rows) == len(orders) and set(orders) == p.keys() and set(orders.items()) <= real, orders


@pytest.mark.parametrize("way", ["keys", "lookup", "neither"])
def test_f04_f05_f69_a_storm(tmp_path, store, way):
    sql = not store.startswith("redis")
    for seed in rounds():
        table = f"orders{seed}"
        with Gateway(tmp_path / f"{seed}") as gateway:
            account = gateway.account(honour=way == "keys", gives_up_s=GIVES_UP_S, seed=seed)
            troubled(account)
            asks = {"lookup": lookup(account, "/charges/${key}", after=f"{AFTER_MS}ms", timeout="500ms")} if way == "lookup" else {}
            p = Paying(tmp_path / f"{seed}" / "p", account, n=N, store=store, unknown="hold" if way == "lookup" else "retry", attempts=10000, window=8,
                       timeout=f"{TIMEOUT_MS}ms", more="batch: {max: 8}\n" + (INIT % table if sql else ""),
                       then=THEN % table if sql else "", consumer=f"c{seed}", **asks)
            kills = storm(p, gateway, random.Random(seed))
            charged, reported = account.per_reference(), p.ask("status")["repeats"]
            assert set(charged) == p.keys(), f"seed {seed}: lost {p.keys() - set(charged)}"
            p.one_request_per_attempt()
            if way == "neither":
                assert p.real_repeats() <= reported, f"seed {seed}: {p.real_repeats()} repeats, {reported} reported, {kills} kills"
            else:
                assert set(charged.values()) == {1}, f"seed {seed}: {[key for key, count in charged.items() if count > 1]} more than once"
            if sql:
                check_orders(p, store, table, account)
            status = p.ask("status")
            assert status["unknown"] == status["dead"] == status["waiting"] == 0, status


# ---- chaos ----

MESSAGES, ROUNDS, RUNS = 20, 20, 5  # each of the messages is delivered a hundred times


class FailingFile:
    """A store in the process: each step of a transaction may fail, before or after it has done something, so that about 30 % of them do."""

    STEPS = ("claim_before", "claim_after", "settle_before", "settle_after", "take_before", "take_after", "commit_before", "commit_after")
    PERCENT = 4  # eight or so steps are a transaction

    def __init__(self, url):
        self.url, self.operations, self.failures = url, 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, p, seed):
        ended = p.try_run("--log-level", "debug", failpoint=",".join(f"{step}:error:{self.PERCENT}%{seed}" for step in self.STEPS))
        failures = len(re.findall(r'event=failpoint msg="[a-z_]+, time \d+: error"', ended.err))
        self.failures += failures
        self.operations += failures + len(re.findall(r'event=failpoint msg="commit_after, time \d+: nothing"', ended.err))
        return ended


class FailingNetwork(Proxy):
    """A store behind a network: of each ten operations one or two do not arrive, and the replies to two or one do not come back. From the first
    message until everything is settled: a store is opened and closed in many steps, and none of them knows a message."""

    def __init__(self, url):
        super().__init__(server_of(url))
        self.url = behind(self, url)
        self.marks = (b"\nMGET\r", b"EVALSHA") if url.startswith("redis") else (b"\0COMMIT\0",)
        self.rng, self.fates, self.mine, self.on, self.operations, self.failures = random.Random(1), [], threading.local(), False, 0, 0

    def run(self, p, _):
        with p.start(failpoint="fetch_after:stop,close_before:stop") as running:
            for fails in (True, False):
                until(lambda: running.process.poll() is not None or stopped(running), what="it stands still, or has ended")
                self.on = fails
                running.send(signal.SIGCONT)
            return running.end()

    def _draw(self):
        """What happens to the next operation."""
        with self._lock:
            if not self.fates:
                self.fates = ["cut_at", "lose_reply_to", self.rng.choice(["cut_at", "lose_reply_to"]), *[None] * 7]
                self.rng.shuffle(self.fates)
            self.operations += 1
            self.failures += self.fates[-1] is not None
            return self.fates.pop()

    def _pass_on(self, pair, before):
        self.mine.asked = 0
        self.cut_at = self.lose_reply_to = max(self.marks, key=len)
        return super()._pass_on(pair, before)

    def _meets(self, mark, data):
        """Asked for `cut_at` first, then for `lose_reply_to`."""
        if not mark or not self.on or not any(each in data for each in self.marks):
            return False
        self.mine.asked += 1
        if self.mine.asked == 1:
            self.mine.fate = self._draw()
        return self.mine.fate == ("cut_at" if self.mine.asked == 1 else "lose_reply_to")

    def _await_reply(self, server):
        """Silence: so it is done, whatever the reply was."""
        while select.select([server], [], [], 0.02)[0] and server.recv(1 << 16):
            pass


def test_chaos_a_hundred_deliveries_are_one_charge(tmp_path, store):
    """Each run reads each message twenty times. Whatever a run could not finish is the next one's."""
    failing_store = FailingFile if store.startswith("sqlite") else FailingNetwork

    def one(way):
        account = gateway.account(honour=way == "keys", gives_up_s=0.2)
        account.fault(one_in=10, status=500)
        account.fault(one_in=9, cut=0)  # of those that are left: every fifth in all
        asks = {"lookup": lookup(account, "/charges/${key}", after="400ms")} if way == "lookup" else {}
        with failing_store(store) as failing:
            p = Paying(tmp_path / way, account, n=MESSAGES, store=failing.url, consumer=way, lease="2s", unknown="hold" if asks else "retry", attempts=1000,
                       more=f"batch: {{max: {MESSAGES * 10}}}\n", **asks)
            p.write(*[{"id": f"k{i}", "amount": i} for i in range(MESSAGES)] * ROUNDS)
            ends = [failing.run(p, number) for number in range(RUNS)]
        requests = account.requests()
        failed = [each for each in requests if each["fault"]]
        # What was to be tried has happened.
        assert [(ended.status, ended.json["received"]) for ended in ends] == [(0, MESSAGES * ROUNDS)] * RUNS, ends
        assert failing.failures >= 15 and 0.2 < failing.failures / failing.operations < 0.4, (failing.failures, failing.operations)
        assert len(failed) >= 4 and abs(len(failed) - len(requests) / 5) <= 2, (len(failed), len(requests))
        # And this is what is promised.
        assert account.per_reference() == dict.fromkeys(p.keys(), 1), ends
        assert sum(ended.json["done"] for ended in ends) == MESSAGES, ends
        p.one_request_per_attempt()

    with Gateway(tmp_path) as gateway:
        at_once(one, ["keys", "lookup"])
