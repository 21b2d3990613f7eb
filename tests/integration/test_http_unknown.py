"""Calls whose outcome is unknown: replies that are lost, late or wrong, the lookup that asks for them, and the operator who decides.

The ledger of the gateway says what really happened."""

import functools
import json
import signal
import time

import pytest

from gateway import Gateway
from harness import counts, until
import httppipeline
from httppipeline import lookup

Paying = functools.partial(httppipeline.Paying, lease="30s")  # a busy machine takes its time

CUTS = (0, 1, 8, 9, 12, 13, 17, 22, 30, 60, 79, 80, 100, 120)  # in the version, the status, a header, between them, in the body


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("gateway")) as server:
        yield server


def cut_everywhere(account, **how):
    """A message for each place at which the reply of its first try is cut, and charged before."""
    for n in CUTS:
        account.fault(path=f"/charges/cut{n}x", cut=n, times=1, **how)
    return [{"id": f"cut{n}x"} for n in CUTS]


@pytest.mark.parametrize("cut_close", [False, True], ids=["reset", "closed"])
def test_f69_a_reply_that_is_cut_anywhere_is_unknown_and_held(tmp_path, gateway, cut_close):
    account = gateway.account(honour=False)
    messages = cut_everywhere(account, cut_close=cut_close)
    p = Paying(tmp_path, account)
    p.write(*messages)
    summary = p.run(status=1)
    counts(summary, received=len(CUTS), unknown=len(CUTS), attempts=len(CUTS))
    assert set(account.per_reference().values()) == {1} and len(account.charges()) == len(CUTS), "held, and none repeated"
    p.one_request_per_attempt()


def test_f69_a_reply_that_is_cut_anywhere_is_looked_up(tmp_path, gateway):
    """No key is honoured, and there is one charge each: the lookup finds it, also by what we call the payment."""
    account = gateway.account(honour=False)
    messages = cut_everywhere(account)
    p = Paying(tmp_path, account, lookup=lookup(account, "/charges/${key}", done="[200]", absent="[404]"))
    p.write(*messages)
    summary = p.run(status=0)
    counts(summary, received=len(CUTS), done=len(CUTS), attempts=len(CUTS), repeats=0)
    assert set(account.per_reference().values()) == {1} and len(account.charges()) == len(CUTS)
    assert len(account.lookups()) == len(CUTS)
    result = json.loads(p.explain(messages[0]["id"])[0]["result"])
    assert result["status"] == 200 and result["body"]["charge_id"].startswith("ch_"), "what the lookup found"


def test_f69_tried_again_under_the_same_key_where_keys_are_honoured(tmp_path, gateway):
    account = gateway.account()
    messages = cut_everywhere(account)
    p = Paying(tmp_path, account, unknown="retry")
    p.write(*messages)
    summary = p.run(status=0)
    counts(summary, received=len(CUTS), done=len(CUTS), attempts=2 * len(CUTS), repeats=len(CUTS))
    assert set(account.per_reference().values()) == {1} and len(account.charges()) == len(CUTS)
    keys = {}
    for each in account.tries():
        keys.setdefault(each["path"], set()).add(each["key"])
    assert all(len(found) == 1 for found in keys.values()) and len({key for found in keys.values() for key in found}) == len(CUTS)


def test_neither_key_nor_lookup_each_repeat_is_counted(tmp_path, gateway):
    account = gateway.account(honour=False)
    messages = cut_everywhere(account)
    p = Paying(tmp_path, account, unknown="retry")
    p.write(*messages)
    summary = p.run(status=0)
    assert p.real_repeats() == len(CUTS) == summary["repeats"] == p.ask("status")["repeats"]


def test_f69_a_call_that_times_out_after_it_succeeded(tmp_path, gateway):
    account = gateway.account(honour=False)
    account.fault(method="POST", after_s=30, times=1)
    p = Paying(tmp_path, account, timeout="300ms", lookup=lookup(account))
    counts(p.run(status=0), received=1, done=1, attempts=1, repeats=0)
    assert account.per_reference() == {"k0": 1} and len(account.lookups()) == 1


@pytest.mark.parametrize("acts", [True, False], ids=["acts", "gives_up"])
def test_f69_a_stalled_gateway_is_not_asked_before_it_has_acted_or_given_up(tmp_path, gateway, acts):
    """It charges 0.4 s after the client has gone, without honouring keys. `after` is longer than that: one charge."""
    account = gateway.account(honour=False)
    account.fault(method="POST", before_s=0.6, charge=acts, times=1)
    p = Paying(tmp_path, account, timeout="200ms", lookup=lookup(account, after="1s"))
    began = time.monotonic()
    counts(p.run(status=0), received=1, done=1, attempts=1 if acts else 2, repeats=0 if acts else 1)
    assert time.monotonic() - began >= 1 and account.per_reference() == {"k0": 1} and len(account.lookups()) == 1


def test_the_first_question_waits_for_the_timeout_unless_told(tmp_path, gateway):
    account = gateway.account(honour=False)
    account.fault(method="POST", cut=0, before_s=0.5, times=1)
    p = Paying(tmp_path, account, timeout="800ms", lookup="{get: \"%s\"}" % account.url("/charges/${idempotency_key}"))
    began = time.monotonic()
    counts(p.run(status=0), received=1, done=1, attempts=1)
    assert time.monotonic() - began >= 0.5 + 0.8 and account.per_reference() == {"k0": 1}


def test_asked_too_early_the_repeat_is_counted(tmp_path, gateway):
    """The gateway acts past `after`, and honours nothing: two charges, one of them reported."""
    account = gateway.account(honour=False)
    account.fault(method="POST", before_s=0.7, times=1)
    p = Paying(tmp_path, account, timeout="100ms", lookup=lookup(account))
    p.run(status=0)
    until(lambda: account.per_reference() == {"k0": 2}, what="the late charge")
    assert p.ask("status")["repeats"] == 1


def test_what_did_not_happen_is_tried_again_under_the_same_key(tmp_path, gateway):
    account = gateway.account(honour=False)
    account.fault(method="POST", status=500, times=1)
    p = Paying(tmp_path, account, lookup=lookup(account))
    counts(p.run(status=0), received=1, done=1, attempts=2, repeats=1)
    first, second = account.tries()
    assert first["key"] == second["key"] and (first["attempt"], second["attempt"]) == (1, 2) and account.per_reference() == {"k0": 1}
    asked = account.lookups()[0]
    assert asked["path"].endswith(first["key"]) and "idempotency-key" not in asked["headers"], "a server may answer by it"


def test_f69_a_lookup_with_a_wrong_path_is_no_second_charge(tmp_path, gateway):
    """The path leads nowhere, and its 404 says so: only that of a charge which is not there counts."""
    account = gateway.account(honour=False)
    account.fault(method="POST", cut=0)
    wrong = account.url("/charges/${idempotency_key}").replace(account.url(), account.url() + "-typo")
    p = Paying(tmp_path, account, lookup=lookup(account, get=f'"{wrong}"', absent_if="{/error: no such charge}", **{"for": "100ms"}))
    counts(p.run(status=1), received=1, unknown=1, attempts=1)
    assert account.per_reference() == {"k0": 1} and "'absent_if' is not met" in p.explain("k0")[0]["reason"]
    assert "takes every 404" not in p.once("check", p.name).out


def test_check_warns_of_a_lookup_that_takes_every_404_for_absent(tmp_path, gateway):
    account = gateway.account()
    p = Paying(tmp_path, account, lookup=lookup(account))
    ended = p.once("check", p.name)
    assert ended.status == 0 and "takes every 404" in ended.out + ended.err, ended


WRONG = {"f81_status": {"status": 500}, "f81_unlisted": {"status": 418}, "f93_garbage": {"raw": "\x00nonsense\r\n\r\n"}, "cut": {"cut": 20}, "hangs": {"hang": True},
         "declined": {"status": 200, "body": '{"status": "pending"}'}, "f93_no_json": {"status": 200, "body": "<html>"}}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_an_answer_of_the_lookup_that_says_nothing_is_asked_again(tmp_path, gateway, answer):
    account = gateway.account(honour=False)
    account.fault(method="POST", cut=0)
    account.fault(method="GET", times=2, **answer)
    p = Paying(tmp_path, account, lookup=lookup(account, timeout="200ms", done_if="{/status: [succeeded]}"))
    counts(p.run(status=0), received=1, done=1, attempts=1)
    assert len(account.lookups()) == 3 and account.per_reference() == {"k0": 1}


def test_a_lookup_can_say_that_it_was_refused(tmp_path, gateway):
    """For good: recorded with its answer, neither held nor sent again."""
    account = gateway.account(honour=False)
    account.fault(method="POST", cut=0, charge=False)
    account.fault(method="GET", status=410, body='{"status": "declined"}')
    p = Paying(tmp_path, account, lookup=lookup(account, rejected="[410]"))
    counts(p.run(status=0), received=1, rejected=1, attempts=1)
    entry = p.explain("k0")[0]
    assert entry["state"] == "rejected" and "status 410" in entry["reason"], entry
    assert json.loads(entry["result"]) == {"status": 410, "body": {"status": "declined"}}
    assert len(account.tries()) == len(account.lookups()) == 1 and not account.charges()


@pytest.mark.parametrize("status, lists", [(401, {}), (423, {"pause": "[423]"})], ids=["usual", "listed"])
def test_f96_a_lookup_that_is_not_allowed_pauses_the_handler(tmp_path, gateway, status, lists):
    """Until it is: nothing is taken for absent meanwhile, and nobody has to decide."""
    account = gateway.account(honour=False)
    account.fault(method="POST", cut=0)
    account.fault(method="GET", status=status)
    p = Paying(tmp_path, account, lookup=lookup(account, **lists), then="  breaker: off\n")
    with p.start() as running:
        running.hear("event=paused", f"lookup: GET {account.gateway.address}: status {status}")
        account.heal()
        ended = running.end()
    assert ended.status == 0, ended
    counts(ended.json, received=1, done=1, attempts=1, repeats=0)
    assert account.per_reference() == {"k0": 1} and len(account.tries()) == 1


def test_nothing_found_out_in_time_is_held(tmp_path, gateway):
    account = gateway.account(honour=False)
    account.fault(method="POST", cut=0)
    account.fault(method="GET", status=500)
    p = Paying(tmp_path, account, lookup=lookup(account, **{"for": "300ms"}))
    counts(p.run(status=1), received=1, unknown=1, attempts=1)
    asked = len(account.lookups())
    assert asked > 1 and account.per_reference() == {"k0": 1}
    assert "lookup" in p.explain("k0")[0]["reason"] and "500" in p.explain("k0")[0]["reason"]
    counts(p.run(status=1), received=1, unknown=1, attempts=0)
    assert len(account.lookups()) == asked, "nobody is asked any more"


@pytest.mark.parametrize("decision", ["done", "retry", "dead"])
def test_held_and_decided_by_an_operator(tmp_path, gateway, decision):
    account = gateway.account()
    account.fault(cut=0, times=1)
    p = Paying(tmp_path, account, n=2)
    counts(p.run(status=1), received=2, done=1, unknown=1)
    (held,) = p.ask("list", "--unknown")["messages"]
    assert p.once("resolve", p.name, held["key"], decision).status == 0
    summary = p.run(status=1 if decision == "dead" else 0)
    assert summary["attempts"] == summary["repeats"] == (1 if decision == "retry" else 0), summary
    assert p.explain(held["key"])[0]["state"] == ("dead" if decision == "dead" else "done")
    assert account.per_reference() == {"k0": 1, "k1": 1}


def test_f04_killed_with_calls_in_flight(tmp_path, gateway):
    """The gateway charges after `once` is gone: with a lookup one charge, although no key is honoured."""
    account = gateway.account(honour=False)
    account.fault(method="POST", before_s=0.3, times=4)
    p = Paying(tmp_path, account, n=4, lease="300ms", lookup=lookup(account, after="500ms"))
    with p.start() as running:
        until(lambda: len(account.tries()) == 4, what="four calls in flight")
        running.send(signal.SIGKILL)
        running.end()
    p.run(status=0)
    assert account.per_reference() == dict.fromkeys(p.keys(), 1) and len(account.tries()) == 4
    p.one_request_per_attempt()


def test_f59_told_to_stop_with_calls_in_flight(tmp_path, gateway):
    """Answers that come within the drain count; what does not is unknown, never forgotten."""
    account = gateway.account()
    account.fault(path="/charges/k0", after_s=0.4)
    account.fault(path="/charges/k1", hang=True)
    p = Paying(tmp_path, account, n=2, more="drain: 1s\n", timeout="20s", lease="30s")
    with p.start() as running:
        until(lambda: len(account.tries()) == 2, what="two calls in flight")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 1, ended
    counts(ended.json, received=2, done=1, unknown=1)


def test_f60_a_gateway_that_hangs_ends_with_the_timeout(tmp_path, gateway):
    account = gateway.account()
    account.fault(hang=True)
    p = Paying(tmp_path, account, n=3, timeout="300ms")
    summary = p.run(status=1)
    counts(summary, received=3, unknown=3, attempts=3)
    assert 0.3 <= summary["seconds"] < 5, summary


def test_f17_a_timeout_of_nothing_is_refused(tmp_path, gateway):
    account = gateway.account()
    for fields in ({"timeout": "0s"}, {"connect_timeout": "0s"}, {"timeout": "-1s"}):
        p = Paying(tmp_path, account, **fields)
        ended = p.once("check", p.name)
        assert ended.status == 2 and f"'{list(fields)[0]}'" in ended.err + ended.out, ended
