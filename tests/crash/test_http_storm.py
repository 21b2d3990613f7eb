"""`once` and the payment gateway, both killed at random while the gateway stalls, fails, cuts and resets; at the end its ledger is judged.

    keys     honoured                        exactly one charge for each key
    lookup   no key is honoured              exactly one, as the gateway acts or gives up within `after`
    neither  no key, no lookup               real repeats <= reported repeats, and no payment is lost

And the chaos test: the store fails 30 % of the time and the gateway 20 %, one message is delivered a hundred times, one charge."""

import random
import select
import signal
import time

import pytest

import pq
from anystore import behind, server_of, store  # noqa: F401
from fleet import SOAK_S, rounds
from gateway import Gateway
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

WRITES = 100  # a commit with less in front of it only reads


class Chaos(Proxy):
    """A store on a network: of its commits that write something 15 % do not arrive, and the replies to 15 % do not come back; never two in a
    row, as `once` waits longer for a store each time."""

    mark, rng, chance, spared = b"", None, None, False

    def _pass_on(self, pair, before):
        self.cut_at = self.lose_reply_to = self.mark
        self.chance = None
        return super()._pass_on(pair, before)

    def _meets(self, mark, data):
        """Asked for `cut_at` first, then for `lose_reply_to`."""
        if not mark or mark not in data or len(data) < WRITES:
            return False
        first, self.chance = self.chance is None, self.rng.random() if self.chance is None else self.chance
        hit = not self.spared and (self.chance < 0.15 if first else self.chance < 0.3)
        self.spared = hit or (self.spared and first)
        return hit

    def _await_reply(self, server):
        """Silence: so it is done, whatever the reply was."""
        while select.select([server], [], [], 0.05)[0] and server.recv(1 << 16):
            pass


STEPS = ("claim_before", "claim_after", "settle_before", "settle_after", "commit_before", "commit_after", "take_before", "take_after")


def failing(rng):
    """Of the steps of a store in this process 30 % fail, each once."""
    return ",".join(f"{step}:error:{rng.randrange(1, 3)}" for step in STEPS if rng.random() < 0.3) or None


@pytest.fixture
def chaotic(store):
    """The URL of a store that fails, and what gives the failpoints of the next run."""
    rng = random.Random(1)
    if store.startswith("sqlite"):
        yield store, lambda: failing(rng)
        return
    with Chaos(server_of(store)) as proxy:
        proxy.mark, proxy.rng = b"EVALSHA" if store.startswith("redis") else b"COMMIT\0", rng
        yield behind(proxy, store), lambda: None
        assert proxy.lost


@pytest.mark.parametrize("way", ["keys", "lookup"])
def test_chaos_a_hundred_deliveries_are_one_charge(tmp_path, chaotic, way):
    """Ten runs, each of which reads the message ten times. A run may end because of its store; the next one goes on."""
    store, failpoints = chaotic
    with Gateway(tmp_path) as gateway:
        account = gateway.account(honour=way == "keys", gives_up_s=0.2)
        account.fault(share=0.1, status=500)
        account.fault(share=0.1, cut=0)
        asks = {"lookup": lookup(account, "/charges/${key}", after="400ms")} if way == "lookup" else {}
        p = Paying(tmp_path / "p", account, store=store, unknown="hold" if asks else "retry", attempts=1000, more="batch: {max: 2}\n", **asks)
        p.write(*[{"id": "k0", "amount": 100}] * 10)
        ends = [p.try_run(failpoint=failpoints()) for _ in range(10)]
    assert account.per_reference() == {"k0": 1}, [ended.out + ended.err for ended in ends]
    assert all(ended.status in (0, 3) for ended in ends), ends
    assert sum(ended.status == 0 for ended in ends) >= 3, ends
    p.one_request_per_attempt()
