"""examples/: every one runs, prints what its page says, and leaves the tables that a plain model of the business would have.

The models below are a few lines of Python each. They read the same messages, know nothing of the product, and stand for what
each team would otherwise have written by hand."""

import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess

import pytest

from harness import ONCE, ROOT, check_sum, once

EXAMPLES = sorted(os.path.basename(os.path.dirname(path)) for path in glob.glob(os.path.join(ROOT, "examples", "*", "pipeline.yaml")))


def inventory_reservation(messages):
    on_hand, reserved, held = {"X": 12, "Z": 3}, {"X": 0, "Z": 0}, {}
    asked = set()
    for m in messages:
        what = (m["order_id"], m["product_id"])
        if what in asked:
            continue
        asked.add(what)
        if on_hand[what[1]] - reserved[what[1]] >= m["quantity"]:
            reserved[what[1]] += m["quantity"]
            held[what] = m["quantity"]
    return {
        "SELECT product_id, on_hand, reserved FROM stock": [(p, on_hand[p], reserved[p]) for p in on_hand],
        "SELECT order_id, product_id, quantity FROM reservations": [(*what, n) for what, n in held.items()],
    }


def order_status(messages):
    leads = {"order.confirmed": ("confirmed", {"new"}), "order.shipped": ("shipped", {"new", "confirmed"}),
             "order.cancelled": ("cancelled", {"new", "confirmed"})}
    orders, moves = dict.fromkeys(("o1", "o2", "o3"), "new"), dict.fromkeys(("o1", "o2", "o3"), 0)
    seen = set()
    for m in messages:
        state, before = leads[m["type"]]
        if m["event_id"] not in seen and orders[m["order_id"]] in before:
            orders[m["order_id"]] = state
            moves[m["order_id"]] += 1
        seen.add(m["event_id"])
    return {"SELECT id, status, moves FROM orders": [(o, orders[o], moves[o]) for o in orders]}


def versioned_projection(messages):
    """Each order's versions in their order, from the first that was seen up to the first that is missing."""
    view = {}
    for order in {m["order_id"] for m in messages}:
        versions = {m["version"]: m["status"] for m in messages if m["order_id"] == order}
        first = next(m["version"] for m in messages if m["order_id"] == order)
        last = first
        while last + 1 in versions:
            last += 1
        view[order] = (versions[last], last, last - first + 1)
    return {"SELECT id, status, version, writes FROM order_view": [(o, *row) for o, row in view.items()]}


def payment_two_ids(messages):
    payments = {(m["provider"], m["txn"]): (m["invoice"], m["cents"]) for m in messages}
    paid = {i: sum(c for invoice, c in payments.values() if invoice == i) for i in ("inv-1", "inv-2")}
    return {
        "SELECT id, paid_cents FROM invoices": list(paid.items()),
        "SELECT provider, provider_txn, invoice, cents FROM payments": [(*k, *v) for k, v in payments.items()],
    }


def email_intent(messages):
    template = {"order.shipped": "shipped", "payment.failed": "pay-again"}
    mails = {}
    for m in messages:
        if m["type"] in template:
            mails.setdefault(f"{m['type']}:{m['order_id']}", (template[m["type"]], m["email"], None))
    return {"SELECT id, template, recipient, sent_at FROM notification_intent": [(k, *v) for k, v in mails.items()]}


def email_send(messages):
    """A file of its own: the command is outside."""
    sent = {m["mail_id"]: f"{m['to']}: {m['subject']}" for m in messages if not m["to"].endswith("@invalid.example")}
    return {"file:sent.txt": list(sent.values())}


def price_list(messages):
    prices = {}
    for m in messages:
        if m["version"] >= prices.get(m["product"], (0, 0))[1]:
            prices[m["product"]] = (m["cents"], m["version"])
    return {"SELECT product, cents, version FROM prices": [(p, *row) for p, row in prices.items()]}


def sensor_frames(messages):
    """The messages are bytes."""
    frames = {hashlib.sha256(m).hexdigest()[:32]: m for m in messages}
    return {"SELECT hash, frame FROM frames": list(frames.items())}


def cloud_events(messages):
    orders, seen = {}, set()
    for m in messages:
        if "specversion" not in m or (m["source"], m["id"]) in seen:
            continue
        seen.add((m["source"], m["id"]))
        order = (m["source"], m["subject"])
        if m["type"] == "com.example.order.placed":
            orders[order] = (m["data"]["cents"], "placed")
        elif order in orders:
            orders[order] = (orders[order][0], "cancelled")
    return {"SELECT shop, id, cents, state FROM orders": [(*order, *row) for order, row in orders.items()]}


def sns_topic(messages):
    orders, seen = {}, set()
    for m in messages:
        if m["Type"] != "Notification" or m["MessageId"] in seen:
            continue
        seen.add(m["MessageId"])
        sent = json.loads(m["Message"])
        if m["MessageAttributes"]["event"]["Value"] == "placed":
            orders[sent["order"]] = (sent["cents"], "placed", m["TopicArn"])
        elif sent["order"] in orders:
            orders[sent["order"]] = (orders[sent["order"]][0], "cancelled", orders[sent["order"]][2])
    return {"SELECT id, cents, state, topic FROM orders": [(order, *row) for order, row in orders.items()]}


def eventbridge(messages):
    orders, seen = {}, set()
    for m in messages:
        if "detail-type" not in m or m["id"] in seen:
            continue
        seen.add(m["id"])
        order = m["detail"]["order"]
        if m["detail-type"] == "Order Placed":
            orders[order] = (m["detail"]["cents"], "placed")
        elif order in orders:
            orders[order] = (orders[order][0], "cancelled")
    return {"SELECT id, cents, state FROM orders": [(order, *row) for order, row in orders.items()]}


#          folder                   model                 what its page explains, and how that ended   exit status
MODELS = {
    "cloud-events":          (cloud_events,          "https://shop.example/de#1", "done", 1),
    "email-intent":          (email_intent,          "order.shipped:o1", "done",     1),
    "email-send":            (email_send,            "order.shipped:o2", "done",     0),
    "eventbridge":           (eventbridge,           "com.example.shop#6a7e8feb-b491-4cf7-a9f1-bf3703467718", "done", 1),
    "inventory-reservation": (inventory_reservation, "V/X",              "rejected", 1),
    "order-status":          (order_status,          "e3",               "stale",    0),
    "payment-two-ids":       (payment_two_ids,       "webhook-77",       "already",  0),
    "price-list":            (price_list,            "e2",               "absent",   0),
    "sensor-frames":         (sensor_frames,         "b455f97e7fc4a2f15f1499c5da14373c", "done", 0),
    "sns-topic":             (sns_topic,             "arn:aws:sns:eu-west-1:123456789012:orders#9f0c6c6e-1111-5a4f-8a51-3a2f0f6d1a01", "done", 1),
    "versioned-projection":  (versioned_projection,  "o3:3",             "dead",     1),
}


class Example:
    def __init__(self, name, tmp_path):
        self.folder = str(tmp_path / name)
        shutil.copytree(os.path.join(ROOT, "examples", name), self.folder, ignore=shutil.ignore_patterns("*.db*"))
        self.model, self.key, self.ending, self.status = MODELS[name]
        self.file, = glob.glob(os.path.join(self.folder, "messages.*"))

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as text:
            return text.read()

    def lines(self):
        with open(self.file, "rb") as file:
            return file.readlines()

    def write_lines(self, lines):
        with open(self.file, "wb") as file:
            file.writelines(lines)

    def parse(self, lines):
        return [json.loads(line) if self.file.endswith("json") else line[:-1] for line in lines]

    def messages(self):
        return self.parse(self.lines())

    def run(self):
        ended = once("run", "--json", "pipeline.yaml", cwd=self.folder)
        assert ended.status == self.status, ended
        check_sum(ended.json)
        return ended.json

    def check_tables(self, messages=None):
        database, = glob.glob(os.path.join(self.folder, "*.db"))
        expected = self.model(messages or self.messages())
        assert expected
        with sqlite3.connect(database) as db:
            for query, rows in expected.items():
                found = self.read(query[5:]).splitlines() if query.startswith("file:") else db.execute(query)
                assert sorted(found) == sorted(rows), query


@pytest.fixture(params=EXAMPLES)
def example(request, tmp_path):
    return Example(request.param, tmp_path)


def normal(text):
    return re.sub(r"in [\d.]+ s \(\d+/s\)", "in S s", text)


def test_every_example_has_a_model_and_is_listed():
    assert EXAMPLES == sorted(MODELS)
    with open(os.path.join(ROOT, "examples", "README.md"), encoding="utf-8") as text:
        listed = re.findall(r"^\| \[([a-z-]+)\]", text.read(), re.M)
    assert set(EXAMPLES) <= set(listed)


def test_example_prints_what_its_page_says(example):
    script = "".join(re.findall(r"```sh\n(.*?)```", example.read("README.md"), re.S))
    assert script.splitlines()[0] == "once run pipeline.yaml" and f"once explain pipeline.yaml {shlex.quote(example.key)}\n" in script
    env = {**os.environ, "PATH": os.path.dirname(ONCE) + ":" + os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", script], cwd=example.folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    log = [line for line in done.stderr.splitlines() if not re.match(r"time=\S+ level=warn event=dead at=", line)]  # which the page leaves out
    assert log == [] and done.returncode == 0
    expected = example.read("expected.txt")
    run, _, explained = done.stdout.partition("\nkey '")
    assert normal(run + "\n") == normal(expected)
    assert re.search(rf"^{re.escape(example.key)}' of consumer .*: {example.ending}$", explained, re.M), explained
    example.check_tables()


def test_example_passes_its_own_check(example):
    ended = once("check", "pipeline.yaml", cwd=example.folder)
    assert ended.status == 0, ended


def test_example_run_again_changes_nothing(example):
    first = example.run()
    example.check_tables()
    again = example.run()
    assert again["received"] == first["received"]
    if example.ending == "absent":  # idempotent by nature: the newest versions run again
        assert again["duplicates"] == 0 and again["done"] == 2 and again["stale"] == again["received"] - 2
    else:
        assert again["duplicates"] == again["received"] and again["attempts"] == 0
    example.check_tables()


def test_example_with_every_message_ten_times(example):
    """Ten deliveries in a row: redelivery by an impatient broker."""
    messages = example.lines()
    example.write_lines(line * 10 for line in messages)
    summary = example.run()
    assert summary["received"] == 10 * len(messages)
    example.check_tables()


# Not with a gap: the run of an early version ends with its dead letter, before the late one comes.
@pytest.mark.parametrize("example", [name for name in EXAMPLES if name != "versioned-projection"], indirect=True)
def test_example_one_message_per_run(example):
    """Each message comes in a process of its own, so everything that is known has to come from the store."""
    messages = example.lines()
    for n in range(len(messages)):
        example.write_lines([messages[n]])
        assert once("run", "--json", "pipeline.yaml", cwd=example.folder).status in (0, 1)
    example.check_tables(example.parse(messages))
