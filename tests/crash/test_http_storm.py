"""`once` and the payment gateway, both killed at random while the gateway stalls, fails, cuts and resets; at the end its ledger is judged.

    keys     honoured                        exactly one charge for each key
    lookup   no key is honoured              exactly one, as the gateway acts or gives up within `after`
    neither  no key, no lookup               real repeats <= reported repeats, and no payment is lost

And the chaos test: the store fails 30 % of the time and the gateway 20 %, each message is delivered a hundred times: one charge."""

import collections
import os
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

N, KILLS = (400, 30) if SOAK_S else (40, 5)
TIMEOUT_MS, STALL_S, GIVES_UP_S, AFTER_MS = 150, 0.25, 0.3, 800


def troubled(account):
    """About a third of all requests meet a fault."""
    account.fault(method="GET", share=0.2, status=500)
    account.fault(method="GET", share=0.1, cut="random")
    for fault in ({"cut": "random"}, {"cut": 0, "reused": True}, {"before_s": [0, STALL_S]}, {"before_s": [0, STALL_S], "cut": 0}, {"after_s": 1},
                  {"status": 500, "charge": True}, {"status": 500}, {"status": 503}, {"status": 429, "headers": {"Retry-After": "0"}},
                  {"raw": "nonsense\r\n\r\n"}, {"before_s": [0, STALL_S], "charge": False, "status": 502}):
        account.fault(method="POST", share=0.035, **fault)


def hold_up_the_last(account):
    """Its payment is not even looked at before the last run, so no run is over before it is killed."""
    account.fault(method="POST", path=f"/charges/k{N - 1}", hang=True, charge=False)


def storm(p, gateway, account, rng):
    """Kills of runs that are at work, each with new messages; then one to the end."""
    messages = [{"id": f"k{i}", "amount": i} for i in range(N)]
    for kill in range(KILLS):
        p.write(messages[-1], *messages[:(kill + 1) * (N - 1) // KILLS])
        heard = account.heard()
        with p.start() as running:
            until(lambda: account.heard() != heard, what="it is at work")
            time.sleep(rng.uniform(0, 0.25))
            if rng.random() < 0.4:
                gateway.kill()
                time.sleep(rng.uniform(0, 0.1))
                gateway.start()
            assert running.process.poll() is None, f"it ended before it was killed: {running.end()}"
            running.send(signal.SIGKILL)
            running.process.wait()
    account.set(faults=account.control["faults"][1:])
    p.write(*messages)
    p.run(status=0, deadline_s=120 + SOAK_S)


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
            hold_up_the_last(account)
            troubled(account)
            asks = {"lookup": lookup(account, "/charges/${key}", after=f"{AFTER_MS}ms", timeout="500ms")} if way == "lookup" else {}
            p = Paying(tmp_path / f"{seed}" / "p", account, n=N, store=store, unknown="hold" if way == "lookup" else "retry", attempts=10000, window=8,
                       timeout=f"{TIMEOUT_MS}ms", more="batch: {max: 8}\n" + (INIT % table if sql else ""),
                       then=THEN % table if sql else "", consumer=f"c{seed}", **asks)
            storm(p, gateway, account, random.Random(seed))
            charged, reported = account.per_reference(), p.ask("status")["repeats"]
            assert set(charged) == p.keys(), f"seed {seed}: lost {p.keys() - set(charged)}"
            p.one_request_per_attempt()
            if way == "neither":  # in total: what a run would have said of its last attempts is lost when it is killed
                assert p.real_repeats() <= reported, f"seed {seed}: {p.real_repeats()} repeats, {reported} reported"
            else:
                assert set(charged.values()) == {1}, f"seed {seed}: {[key for key, count in charged.items() if count > 1]} more than once"
            if sql:
                check_orders(p, store, table, account)
            status = p.ask("status")
            assert status["unknown"] == status["dead"] == status["waiting"] == 0, status


# ---- the gateway alone ----

PAYMENTS, DEATHS, LIVES_FOR = (800, 60, 10) if SOAK_S else (60, 5, 10)
assert PAYMENTS > DEATHS * LIVES_FOR  # so no run can end before the gateway has died so often


def storm_of_the_gateway(p, gateway, account, rng):
    """One run from its beginning to its end, while the gateway dies and comes back: just when it has charged, or at any moment. How often it died by
    itself, and how the run ended."""
    by_itself = 0
    with open(os.path.join(p.folder, "log"), "wb") as log, p.start("--log-level", "info", stderr=log) as running:
        for death in range(DEATHS):
            if death > 0 and rng.random() < 0.4:
                time.sleep(rng.uniform(0.02, 0.15))
            else:
                until(gateway.ended, what="the gateway dies")
            by_itself += gateway.ended()
            assert running.process.poll() is None, "once goes on"
            gateway.kill()
            time.sleep(rng.uniform(0, 0.1))
            if death == DEATHS - 1:
                account.set(faults=[fault for fault in account.control["faults"] if "die" not in fault])
            gateway.start()
        return by_itself, running.end()


def unknowns_per_key(p):
    """`repeats` is one number for all keys; the log says of each attempt why there is another one, and so which keys it is about."""
    with open(os.path.join(p.folder, "log")) as log:
        told = re.findall(r'event=retry .* key=(\w+) attempt=\d+ .* msg="POST [^ ]+: (.*)', log.read())
    return collections.Counter(key for key, why in told if not why.startswith("nothing was sent"))


@pytest.mark.parametrize("way", ["keys", "lookup", "neither"])
def test_f04_f69_a_storm_of_the_gateway_alone(tmp_path, way):
    for seed in rounds():
        with Gateway(tmp_path / f"{seed}") as gateway:
            account = gateway.account(honour=way == "keys", gives_up_s=GIVES_UP_S if way == "lookup" else None, seed=seed)
            account.fault(method="POST", one_in=LIVES_FOR, die="after")
            account.fault(method="POST", before_s=[0, 0.03])
            asks = {"lookup": lookup(account, "/charges/${key}", after=f"{AFTER_MS}ms", timeout="500ms")} if way == "lookup" else {}
            p = Paying(tmp_path / f"{seed}" / "p", account, n=PAYMENTS, unknown="hold" if asks else "retry", window=8, lease="10s", more="batch: {max: 8}\n",
                       then="  breaker: off\n  retry: {attempts: 10000, backoff: 20ms..50ms}\n", **asks)
            by_itself, ended = storm_of_the_gateway(p, gateway, account, random.Random(seed))
            assert ended.status == 0 and gateway.starts == DEATHS + 1, f"seed {seed}: {ended}"
            cut = [each for each in account.requests() if "over" not in each]
            assert len(cut) >= by_itself >= 1, f"seed {seed}: calls were in flight when it died"
            charged, reported = account.per_reference(), p.ask("status")["repeats"]
            assert set(charged) == p.keys(), f"seed {seed}: lost {p.keys() - set(charged)}"
            p.one_request_per_attempt()
            if way == "neither":
                told = unknowns_per_key(p)
                assert sum(told.values()) == reported, f"seed {seed}: {told} are not {reported}"
                assert all(count - 1 <= told[key] for key, count in charged.items()), f"seed {seed}: {charged}, but only {told}"
                assert p.real_repeats() >= by_itself, f"seed {seed}: each death that followed a charge is a repeat"
            else:
                assert set(charged.values()) == {1}, f"seed {seed}: {[key for key, count in charged.items() if count > 1]} more than once"


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
