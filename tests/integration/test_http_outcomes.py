"""What a gateway's answer becomes: every row of the table of outcomes, from the request to the settled message."""

import functools
import json

import pytest

from gateway import Gateway, http_date
from harness import counts, until
import httppipeline
from httppipeline import lookup

Paying = functools.partial(httppipeline.Paying, lease="30s")  # a busy machine takes its time

ROWS = {  # of a handler with default lists
    "done": [200, 201, 202, 204, 299],
    "retry": [408, 409, 425, 429, 503],
    "unknown": [500, 502, 504, 501, 505, 599, 300, 302, 303, 304],
    "dead": [400, 402, 404, 405, 410, 413, 418, 422, 499, 307, 308],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("gateway")) as server:
        yield server


def answering(account, statuses, **how):
    """For each status a message whose charge is answered with it, once."""
    for status in statuses:
        account.fault(path=f"/charges/s{status}", status=status, charge=status // 100 == 2, times=1, **how)
    return [{"id": f"s{status}"} for status in statuses]


def fates(p, messages):
    return {message["id"]: p.explain(message["id"])[0] for message in messages}


def test_f81_each_status_has_its_outcome(tmp_path, gateway):
    account = gateway.account()
    p = Paying(tmp_path, account)
    messages = answering(account, [status for row in ROWS.values() for status in row])
    p.write(*messages)
    summary = p.run(status=1)
    n = {name: len(row) for name, row in ROWS.items()}
    counts(summary, received=len(messages), done=n["done"] + n["retry"], unknown=n["unknown"], dead=n["dead"], retries=n["retry"])
    found = fates(p, messages)
    for name, row in ROWS.items():
        for status in row:
            entry = found[f"s{status}"]
            state = "done" if name == "retry" else name
            assert (entry["state"], entry["attempt"]) == (state, 2 if name == "retry" else 1), entry
            assert state == "done" or str(status) in entry["reason"], entry
    p.one_request_per_attempt()
    counts(p.run(status=1), received=len(messages), duplicates=len(messages) - n["unknown"], unknown=n["unknown"], attempts=0)


def test_each_list_can_be_changed(tmp_path, gateway):
    account = gateway.account()
    p = Paying(tmp_path, account, done="[404]", already="[409]", rejected="[402]", stale="[412]", retry="[5xx]", unknown_="[418]", dead="[503, 206]")
    messages = answering(account, [404, 409, 402, 412, 500, 418, 503, 206, 201])
    p.write(*messages)
    summary = p.run(status=1)
    counts(summary, received=9, done=3, already=1, rejected=1, stale=1, unknown=1, dead=2)
    found = {key: (entry["state"], entry["attempt"]) for key, entry in fates(p, messages).items()}
    assert found == {"s404": ("done", 1), "s409": ("already", 1), "s402": ("rejected", 1), "s412": ("stale", 1), "s500": ("done", 2),
                     "s418": ("unknown", 1), "s503": ("dead", 1), "s206": ("dead", 1), "s201": ("done", 1)}


@pytest.mark.parametrize("status", [208, 409])
def test_f70_one_payment_under_two_message_ids_is_charged_once(tmp_path, gateway, status):
    """Two ids are two idempotency keys: only the gateway knows that it is one payment, and says so with a status of its own."""
    account = gateway.account(known=status)
    p = Paying(tmp_path, account, path="/charges", body='{id: "${/order}", amount: "${/amount}"}', already=f"[{status}]")
    messages = [{"id": f"m{i}", "order": order, "amount": 1} for i, order in enumerate(("o1", "o1", "o2", "o1"))]
    p.write(*messages, messages[0])
    counts(p.run(status=0), received=5, done=2, already=2, duplicates=1, attempts=4, retries=0, repeats=0)
    assert account.per_reference() == {"o1": 1, "o2": 1}
    assert len({each["key"] for each in account.tries()}) == 4
    found = fates(p, messages)
    assert sorted(found[f"m{i}"]["state"] for i in (0, 1, 3)) == ["already", "already", "done"] and found["m2"]["state"] == "done"
    (charge,) = [each for each in account.charges() if each["reference"] == "o1"]
    named = {json.loads(found[f"m{i}"]["result"])["body"]["charge_id"] for i in (0, 1, 3)}
    assert named == {charge["id"]}, "the answer names the charge that there is"
    counts(p.run(status=0), received=5, duplicates=5, attempts=0)


def test_what_is_sent(tmp_path, gateway):
    account = gateway.account()
    p = Paying(tmp_path, account, query='{currency: "${/currency}", "a b": "x"}', headers='{X-Order: "no ${/id}", Accept: text/plain}',
               body='{order: "${/id}", cents: "${/amount}", note: "for ${/id}", list: [1, "${/tags}"]}')
    message = {"id": "k0", "amount": 12345678901234567890, "currency": "EUR & more", "tags": ["a", {"b": None}]}
    p.write(message)
    p.run(status=0)
    (sent,) = account.tries()
    assert sent["path"] == "/charges/k0?currency=EUR%20%26%20more&a%20b=x" and sent["method"] == "POST"
    assert json.loads(sent["body"]) == {"order": "k0", "cents": 12345678901234567890, "note": "for k0", "list": [1, ["a", {"b": None}]]}
    headers = sent["headers"]
    assert headers["x-order"] == "no k0" and headers["accept"] == "text/plain" and headers["content-type"] == "application/json"
    assert headers["once-attempt"] == "1" and headers["idempotency-key"] and "expect" not in headers and "authorization" not in headers
    result = json.loads(p.explain("k0")[0]["result"])
    assert result["status"] == 201 and result["body"]["charge_id"] == "ch_1", result


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete"])
def test_each_method(tmp_path, gateway, method):
    account = gateway.account()
    p = Paying(tmp_path, account, method=method, path="/pay/${/id}")
    p.run(status=0)
    (sent,) = account.requests()
    assert sent["method"] == method.upper() and account.per_reference() == {"k0": 1}
    assert (json.loads(sent["body"]) == {"id": "k0", "amount": 0}) if method in ("post", "put", "patch") else sent["body"] == ""


def test_the_body_as_it_is(tmp_path, gateway):
    account = gateway.account()
    p = Paying(tmp_path, account)
    line = b'{"id" : "k0",  "amount": 1.50, "u": "\\u00e9\xc3\xa9"}'
    p.write(line)
    p.run(status=0)
    assert account.tries()[0]["body"].encode("latin-1") == line


def test_keys_are_stable_across_tries_and_stores(tmp_path, gateway):
    keys = []
    for folder in ("one", "other"):
        account = gateway.account()
        account.fault(status=503, times=2)
        p = Paying(tmp_path / folder, account)
        p.run(status=0)
        assert [(each["attempt"], each["headers"]["once-attempt"]) for each in account.tries()] == [(1, "1"), (2, "2"), (3, "3")]
        keys += [each["key"] for each in account.tries()]
    assert len(set(keys)) == 1 and p.explain("k0")[0]["idempotency_key"] == keys[0]


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(tmp_path, gateway, form):
    """Both forms; without it the next try would come within 20 ms."""
    account = gateway.account()
    account.fault(status=429, times=1, headers={"Retry-After": "1" if form == "seconds" else http_date(2)})
    p = Paying(tmp_path, account)
    summary = p.run(status=0)
    counts(summary, received=1, done=1, retries=1)
    assert summary["seconds"] >= 0.5, summary


@pytest.mark.parametrize("status, where", [(500, "call"), (429, "lookup")])
def test_retry_after_is_honoured_where_it_may_have_happened(tmp_path, gateway, status, where):
    """By an unknown that is tried again, and by the question about one."""
    account = gateway.account()
    if where == "call":
        account.fault(status=status, charge=True, times=1, headers={"Retry-After": "1"})
        p = Paying(tmp_path, account, unknown="retry")
    else:
        account.fault(method="POST", cut=0, times=1)
        account.fault(method="GET", status=status, times=1, headers={"Retry-After": "1"})
        p = Paying(tmp_path, account, lookup=lookup(account))
    counts(p.run(status=0), received=1, done=1, attempts=2 if where == "call" else 1)
    first, second = account.tries() if where == "call" else account.lookups()
    assert 0.99 < second["at"] - first["at"] and account.per_reference() == {"k0": 1}


@pytest.mark.parametrize("value", ["soon", "-1", "99999999999999999999", "Thu, 01 Jan 1970 00:00:00 GMT", "1.5", ""])
def test_f93_a_retry_after_that_makes_no_sense(tmp_path, gateway, value):
    """Never a failure of the run, and never an eternity."""
    account = gateway.account()
    account.fault(status=503, times=1, headers={"Retry-After": value})
    p = Paying(tmp_path, account)
    if value.startswith("999"):
        with p.start() as running:
            until(lambda: account.tries(), what="the try")
            until(lambda: p.ask("status")["waiting"] == 1, what="it waits")
            running.send(15)
            assert running.end().status == 0
        entry = p.explain("k0")[0]
        assert entry["due_ms"] - entry["changed_ms"] <= 3600 * 1000, entry
    else:
        counts(p.run(status=0), received=1, done=1, retries=1)


def test_done_if_for_services_that_answer_200_to_everything(tmp_path, gateway):
    account = gateway.account()
    bodies = {"ok": '{"status": "ok"}', "accepted": '{"a": 1, "status": "accepted"}', "declined": '{"status": "declined"}', "absent": "{}",
              "text": "ok", "empty": "", "list": '["ok"]', "number": '{"status": 1}', "object": '{"status": {"ok": 1}}', "twice": '{"status": "ok"} x',
              "half": '{"status": "ok"', "case": '{"status": "OK"}'}
    for name, body in bodies.items():
        account.fault(path=f"/charges/{name}", status=200, body=body)
    p = Paying(tmp_path, account, done_if="{/status: [ok, accepted]}", rejected_if="{/status: [declined]}")
    p.write(*({"id": name} for name in bodies))
    summary = p.run(status=1)
    counts(summary, received=len(bodies), done=2, rejected=1, unknown=len(bodies) - 3)
    assert {name for name in bodies if p.explain(name)[0]["state"] == "done"} == {"ok", "accepted"}


def test_f61_answers_that_are_too_much(tmp_path, gateway):
    """A huge body, a huge header: the status counts, nothing of it is kept, and nothing hangs."""
    account = gateway.account()
    account.fault(path="/charges/body", body="x" * 3000000, charge=True)
    account.fault(path="/charges/fits", body=json.dumps({"text": "y" * 1000}), charge=True)
    account.fault(path="/charges/head", headers={"X-Big": "z" * 200000}, status=201, charge=True)
    p = Paying(tmp_path, account, more="result_max: 2KiB\n")
    p.write({"id": "body"}, {"id": "fits"}, {"id": "head"})
    summary = p.run()
    assert summary["done"] >= 2 and summary["done"] + summary["unknown"] == 3, summary
    assert json.loads(p.explain("body")[0]["result"]) == {"status": 201, "truncated": True}
    assert json.loads(p.explain("fits")[0]["result"])["body"] == {"text": "y" * 1000}
    assert sum(account.per_reference().values()) == 3


def test_f93_answers_that_are_no_http(tmp_path, gateway):
    account = gateway.account()
    wrong = {"garbage": "\x00\xff garbage \r\n\r\n", "empty": "\r\n", "version": "HTTP/9.9 201 Created\r\n\r\n", "letters": "HTTP/1.1 abc Hm\r\n\r\n",
             "long": "HTTP/1.1 2010 Hm\r\nContent-Length: 0\r\n\r\n", "low": "HTTP/1.1 42 Hm\r\nContent-Length: 0\r\n\r\n",
             "length": "HTTP/1.1 201 Created\r\nContent-Length: -5\r\n\r\n", "chunks": "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
             "interim": "HTTP/1.1 100 Continue\r\n\r\n" * 3}
    for name, raw in wrong.items():
        account.fault(path=f"/charges/{name}", raw=raw)
    p = Paying(tmp_path, account, timeout="1s")
    p.write(*({"id": name} for name in wrong))
    summary = p.run(status=1)
    counts(summary, received=len(wrong), unknown=len(wrong))
    assert sum(account.per_reference().values()) == len(wrong)
    p.one_request_per_attempt()


def test_results_that_are_no_json(tmp_path, gateway):
    account = gateway.account()
    account.fault(path="/charges/text", body="héllo\n")
    account.fault(path="/charges/none", status=204, charge=True)
    account.fault(path="/charges/json", body='{"a": [1.50, 12345678901234567890]}')
    p = Paying(tmp_path, account)
    p.write({"id": "text"}, {"id": "none"}, {"id": "json"})
    p.run(status=0)
    assert json.loads(p.explain("text")[0]["result"]) == {"status": 201, "body": "héllo\n"}
    assert json.loads(p.explain("none")[0]["result"]) == {"status": 204}
    assert p.explain("json")[0]["result"] == '{"status":201,"body":{"a": [1.50, 12345678901234567890]}}'


def test_a_refused_connection_is_tried_again(tmp_path):
    with Gateway(tmp_path) as gateway:
        account = gateway.account()
        p = Paying(tmp_path, account, n=3, unknown="hold")
        gateway.kill()
        with p.start() as running:
            until(lambda: p.is_running() and p.ask("status")["waiting"] == 3, what="they wait")
            gateway.start()
            ended = running.end()
    assert ended.status == 0 and ended.json["done"] == 3 and ended.json["unknown"] == 0 and ended.json["repeats"] == 0, ended
    assert account.per_reference() == {"k0": 1, "k1": 1, "k2": 1}


@pytest.mark.parametrize("status, lists", [(401, {}), (403, {}), (423, {"pause": "[423]"})], ids=["401", "403", "listed"])
def test_f96_refused_credentials_bury_nobody(tmp_path, gateway, status, lists):
    """Nothing is counted against a message, and few requests are made. Other statuses can be said to mean the same."""
    account = gateway.account()
    account.fault(status=status)
    p = Paying(tmp_path, account, n=30, window=2, attempts=1, **lists)
    with p.start() as running:
        running.hear("event=paused", f"status {status}")
        account.heal()
        ended = running.end()
    assert ended.json["dead"] == ended.json["unknown"] == 0 and len(account.tries()) < 60, ended
    if ended.status != 0:
        p.run(status=0)
    status = p.ask("status")
    assert status["dead"] == status["waiting"] == status["unknown"] == status["repeats"] == 0, status
    assert account.per_reference() == dict.fromkeys(p.keys(), 1)
