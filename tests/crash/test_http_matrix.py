"""Effects over HTTP, and kill -9 of `once` at every step between receive and ack: the ledger of the gateway against what is reported.

Four ways to pay, each with its promise:
    keys     the gateway honours keys, unknowns are tried again          one charge for each key
    lookup   it honours nothing, and answers questions                   one charge for each key
    hold     it honours nothing, and unknowns are held                   at most one, and what is not charged is held
    neither  it honours nothing, and unknowns are tried again            repeats are reported, and nothing is lost"""

import os
import signal
import time

import pytest

from anystore import store  # noqa: F401
from certificates import make_certificates
from crashes import at_once
from gateway import Gateway
from harness import counts, stopped, until
from httppipeline import Paying, lookup

WAYS = {"keys": (True, "retry"), "lookup": (False, "hold"), "hold": (False, "hold"), "neither": (False, "retry")}
POINTS = {
    "fetch_after": "f01", "claim_before": "f01", "claim_after": "f02", "commit_before": "f02", "commit_after": "f02_f05", "effect_before": "f02",
    "http_before": "f02", "http_after": "f04", "effect_after": "f04", "settle_before": "f05", "settle_after": "f05", "ack_before": "f07",
    "ack_after": "f08",
}
INBOX_POINTS = ("accept_before", "accept_after", "take_before", "take_after", "effect_after", "commit_after")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("gateway")) as server:
        yield server


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure")
    ca = make_certificates(folder)
    with Gateway(folder, tls=folder / "broker.pem", http2=True) as server:
        server.ca = ca
        yield server


class Way:
    """One of the ways to pay, and its promise."""

    def __init__(self, folder, gateway, name, n=12, window=4, after="400ms", **more):
        honour, unknown = WAYS[name]
        self.name, self.account = name, gateway.account(honour=honour, gives_up_s=0.2 if name == "lookup" else None)
        asks = {"lookup": lookup(self.account, "/charges/${key}", after=after)} if name == "lookup" else {}
        if "store" not in more:
            more.setdefault("lease", "1500ms")  # calls that end because the machine is busy are not what is counted here
        self.p = Paying(folder, self.account, n=n, unknown=unknown, window=window, **asks, **more)

    def held(self):
        return {message["key"] for message in self.p.ask("list", "--unknown")["messages"]}

    def check_end(self, lost):
        """`lost`: how many attempts may have ended without reporting an outcome."""
        charged, keys = self.account.per_reference(), self.p.keys()
        self.p.one_request_per_attempt()
        if self.name in ("keys", "lookup"):
            assert charged == dict.fromkeys(keys, 1) and not self.held(), f"{self.name}: {charged}"
        elif self.name == "hold":
            held = self.held()
            assert set(charged.values()) <= {1} and set(charged) | held == keys and len(held) <= lost, (charged, held)
        else:
            real, reported = self.p.real_repeats(), self.p.ask("status")["repeats"]
            assert set(charged) == keys and real <= reported <= lost, f"{real} repeats, {reported} reported, at most {lost} can be"


def kill_and_go_on(work, point):
    times = 1 if point.startswith("ack_") else 2  # one ack may cover all of them
    ended = work.p.try_run(failpoint=f"{point}:kill:{times}")
    assert ended.killed, f"{point} was not reached: {ended}"
    assert max(work.account.per_reference().values(), default=1) == 1, "nothing ran twice before the kill"
    work.p.run()
    work.check_end(lost=4)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{POINTS[point]}_{point}")
def test_killed_at(tmp_path, gateway, point):
    def one(way):
        work = Way(tmp_path / way, gateway, way, lease="1s", more="batch: {max: 4}\n")  # a lease that ends under load is a repeat, too
        kill_and_go_on(work, point)
        again = work.p.run()
        counts(again, received=12, duplicates=12 - again["unknown"], unknown=again["unknown"], attempts=0)

    at_once(one, list(WAYS))


# How libcurl carries a call. Over http:// it only connects, unless `redirects` is set, and other code sends the request.
WIRES = {"tls": {"http2": "false"}, "http2": {}, "redirects": {"redirects": 1}}


@pytest.mark.parametrize("point", ["http_before", "http_after"], ids=lambda point: f"{POINTS[point]}_{point}")
def test_killed_with_libcurl_at(tmp_path, gateway, secure, point):
    def one(wire_and_way):
        wire, way = wire_and_way
        over = {"gateway": gateway} if wire == "redirects" else {"gateway": secure, "ca": secure.ca}
        work = Way(tmp_path / wire / way, name=way, lease="2s", more="batch: {max: 4}\n", **over, **WIRES[wire])
        kill_and_go_on(work, point)
        assert {each["version"] for each in work.account.requests()} == {"2" if wire == "http2" else "1.1"}

    at_once(one, [("tls", "lookup"), ("http2", "lookup"), ("http2", "neither"), ("redirects", "lookup")])


@pytest.mark.parametrize("point, outcome", [("http_before", "retries"), ("http_after", "unknown")])
def test_f69_a_failure_of_libcurl_reported_at(tmp_path, secure, point, outcome):
    """Before it was sent, it is tried again; afterwards nobody knows."""
    work = Way(tmp_path, secure, "hold", ca=secure.ca)
    ended = work.p.try_run(failpoint=f"{point}:error")
    assert ended.json[outcome] == 1 and work.account.per_reference() == dict.fromkeys(work.p.keys(), 1) and len(work.account.tries()) == 12, ended


@pytest.mark.parametrize("store", ["postgres", "redis"], indirect=True)
def test_f02_f04_killed_beside_a_server(tmp_path, gateway, store):
    def one(point_and_way):
        point, way = point_and_way
        kill_and_go_on(Way(tmp_path / point / way, gateway, way, store=store, consumer=f"{point}/{way}", more="batch: {max: 4}\n"), point)

    at_once(one, [(point, way) for point in ("http_before", "http_after") for way in ("keys", "lookup")])


@pytest.mark.parametrize("point", INBOX_POINTS, ids=lambda point: f"f73_{point}")
def test_killed_with_an_inbox_at(tmp_path, gateway, point):
    def one(way):
        work = Way(tmp_path / way, gateway, way, lease="1s", more="ack: after_accept\nbatch: {max: 4}\n")
        ended = work.p.try_run(failpoint=f"{point}:kill:2")
        assert ended.killed, f"{point} was not reached: {ended}"
        work.p.run()
        work.check_end(lost=4)

    at_once(one, ["keys", "lookup"])


@pytest.mark.parametrize("point", ["take_after", "effect_before", "http_before", "http_after", "effect_after", "settle_before", "settle_after", "commit_before", "commit_after"])
def test_f11_killed_with_a_question_in_flight(tmp_path, gateway, point):
    """Each charge is lost on its way back, so that each is asked for; whoever dies over a question, another asks again."""
    work = Way(tmp_path, gateway, "lookup", n=6, after="50ms")
    work.account.fault(method="POST", cut=0)
    hit = 7 if point in ("effect_before", "http_before", "effect_after") else 2  # six are about the charges
    assert work.p.try_run(failpoint=f"{point}:kill:{hit}").killed
    work.p.run(status=0)
    work.check_end(lost=0)
    assert len(work.account.tries()) == 6 and len(work.account.lookups()) >= 6


def test_f11_killed_with_a_question_of_libcurl_in_flight(tmp_path, secure):
    def one(point_and_wire):
        point, wire = point_and_wire
        work = Way(tmp_path / point / wire, secure, "lookup", n=6, after="50ms", ca=secure.ca, **WIRES[wire])
        work.account.fault(method="POST", status=500, charge=True)  # one that is cut would end all that share its connection
        assert work.p.try_run(failpoint=f"{point}:kill:{7 if point == 'http_before' else 8}").killed  # six are about the charges
        work.p.run(status=0)
        work.check_end(lost=0)
        assert len(work.account.tries()) == 6 and len(work.account.lookups()) >= 6

    at_once(one, [(point, wire) for point in ("http_before", "http_after") for wire in ("tls", "http2")])


# ---- zombies and leases ----

def test_f14_a_worker_that_was_stopped_past_its_lease(tmp_path, gateway):
    """With a call in flight. What it hears when it goes on is fenced off: the outcome of the other one stays."""
    account = gateway.account(honour=False)
    account.fault(path="/charges/k0", after_s=0.3, times=1)
    p = Paying(tmp_path, account, unknown="retry", timeout="5s")
    with p.start() as zombie:
        until(lambda: account.charges(), what="the charge")
        zombie.send(signal.SIGSTOP)
        until(lambda: stopped(zombie), what="stopped")
        time.sleep(0.35)  # past the lease
        p.run(status=0)
        zombie.send(signal.SIGCONT)
        ended = zombie.end()
    assert ended.status == 0, ended
    entry = p.explain("k0")[0]
    assert entry["state"] == "done" and entry["attempt"] == 2 and '"ch_2"' in entry["result"], f"a stale settle: {entry}"
    assert account.per_reference() == {"k0": 2} and p.ask("status")["repeats"] == 1


def test_f15_a_call_ends_before_its_lease_does(tmp_path, gateway):
    """The store is locked by somebody for longer than the lease."""
    account = gateway.account()
    account.fault(hang=True)
    p = Paying(tmp_path, account, unknown="hold", lease="10s", timeout="30s")
    with p.start() as running:
        until(account.tries, what="the call")
        lock = p.connect()
        lock.execute("BEGIN IMMEDIATE")
        began = time.monotonic()  # nothing extends the lease from now on
        until(lambda: not connected(running.process.pid, gateway.port), what="the call is ended", deadline_s=30)
        took = time.monotonic() - began
        lock.rollback()
        lock.close()
        ended = running.end()
    assert took < 10, f"ended after {took:.2f} s of a lease of 10 s"
    counts(ended.json, received=1, unknown=1)
    assert len(account.tries()) == 1


def connected(pid, port):
    """Whether the process has a connection to the port."""
    mine = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            mine.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:  # closed meanwhile
            pass
    with open("/proc/net/tcp") as file:
        lines = [line.split() for line in file.readlines()[1:]]
    return any(line[2].endswith(f":{port:04X}") and line[3] == "01" and f"socket:[{line[9]}]" in mine for line in lines)


def test_f24_three_workers_share_unknowns(tmp_path, gateway, store):
    """Three workers, and each first reply is lost: each is asked for once, by whoever is free, and nobody charges again."""
    account = gateway.account(honour=False)
    account.fault(method="POST", cut=0)
    p = Paying(tmp_path, account, n=24, store=store, lease="10s", window=4, lookup=lookup(account, "/charges/${key}", after="50ms"), more="batch: {max: 4}\n")
    workers = [p.start() for _ in range(3)]
    try:
        for each in workers:
            ended = each.end()
            assert ended.status == 0, ended
    finally:
        for each in workers:
            each.__exit__()
    assert account.per_reference() == dict.fromkeys(p.keys(), 1) and len(account.tries()) == 24
    assert sorted(each["path"] for each in account.lookups()) == sorted(f"/charges/{key}" for key in p.keys()), "each was asked for, once"


def worker_of(request):
    return request["headers"]["authorization"].removeprefix("Bearer ")


def check_questions(questions, dead, killed_s):
    """One after the other for each key. A worker that is killed asks no longer, whatever the gateway still does for it."""
    for path in {each["path"] for each in questions}:
        free_s = 0
        for each in sorted((each for each in questions if each["path"] == path), key=lambda each: each["at"]):
            assert each["at"] >= free_s, f"two asked at the same time about {path}"
            free_s = min(each["over"], killed_s) if worker_of(each) == dead else each["over"]


def test_f11_f24_one_of_three_workers_is_killed_while_its_calls_are_unknown(tmp_path, gateway, store):
    """It has a call in flight, unknowns that it has recorded, and a question in flight. The others live, and one of them asks about each. Until
    the first is dead, no question finds out anything, so none of its unknowns is settled before."""
    account = gateway.account(honour=False)
    account.fault(path="/charges/k0", method="POST", hang=True)
    account.fault(method="POST", cut=0)
    account.fault(method="GET", before_s=0.1, status=503)
    p = Paying(tmp_path, account, n=24, store=store, lease="2s", window=4, timeout="60s", more="batch: {max: 4}\n", bearer="env:WORKER",
               lookup=lookup(account, "/charges/${key}", after="50ms", timeout="10s"))
    workers, dead = {}, "first"
    try:
        for name in ("first", "second", "third"):
            workers[name] = p.start(env={"WORKER": name})
            until(lambda: any(worker_of(each) == name for each in account.requests()), what=f"the {name} works")
        until(lambda: len(account.charges()) == 24, what="all are charged")
        until(lambda: any(worker_of(each) == dead and "over" not in each for each in account.lookups()), what="a question in flight")
        workers[dead].send(signal.SIGKILL)
        workers[dead].process.wait()
        killed_s = time.monotonic()
        assert all(workers[name].process.poll() is None for name in ("second", "third")), "the others live"
        account.set(faults=account.control["faults"][:2])  # from now on questions are answered
        for name in ("second", "third"):
            ended = workers[name].end()
            assert ended.status == 0, ended
    finally:
        for each in workers.values():
            each.__exit__()
    unknown_of = {each["path"] for each in account.tries() if worker_of(each) == dead}
    assert "/charges/k0" in unknown_of and len(unknown_of) > 1
    answered = {each["path"]: worker_of(each) for each in account.lookups() if each["status"] == 200}
    assert set(answered) >= unknown_of and dead not in answered.values(), answered
    assert sum(each["status"] == 200 for each in account.lookups()) == len(answered) == 24, "each found out once"
    check_questions(account.lookups(), dead, killed_s)
    assert account.per_reference() == dict.fromkeys(p.keys(), 1) and len(account.tries()) == 24
