"""docs/sqs.md and examples/sqs: every pipeline is tried against a server, and every test that the page names exists."""

import os
import re
import shutil
import sqlite3

import pytest

import elasticmq
from docpage import Page, check_quoted, read
from harness import ROOT, Running, once, until
from sqspipeline import need_sqs

need_sqs()


@pytest.fixture(scope="module")
def client():
    return elasticmq.shared()


PAGE = Page("docs/sqs.md", key='"${coordinates}"', remember="15d")


def on_this_server(text, client):
    """With a queue of its own; its URL."""
    fifo = ".fifo" in text
    queue = client.queue(fifo=fifo)
    text = re.sub(r"^ *(endpoint|profile): .*\n", "", text, flags=re.M)
    return re.sub(r"\bqueue: \S+", f"queue: {queue}\n    endpoint: {client.address}", text), queue


@pytest.mark.parametrize("number", range(len(PAGE.blocks)))
def test_every_pipeline_of_the_page_is_accepted(tmp_path, client, number):
    text, _ = on_this_server(PAGE.whole(PAGE.blocks[number]), client)
    (tmp_path / "p.yaml").write_text(text)
    ended = once("check", "p.yaml", cwd=tmp_path, env=elasticmq.KEYS)
    assert ended.status == 0 and "is a standard queue" in ended.out, ended


def test_every_test_that_the_page_names_exists():
    PAGE.check_tests("test_sqs", 5)


def test_the_page_quotes_what_the_product_says():
    """Texts of the table "You see X" are in the sources."""
    check_quoted("no answer from '%s'", "SQS answers %ld", "no region is known to sign for", "is shorter than", "could not read %.80s of",
                 "deliveries (maxReceiveCount)", "not longer than the queue", "the body is in S3", "cannot be used: it is cut")


class Example:
    def __init__(self, name, folder, client):
        shutil.copytree(os.path.join(ROOT, "examples", "sqs"), folder, dirs_exist_ok=True)
        text, self.queue = on_this_server(read(f"examples/sqs/{name}"), client)
        self.folder, self.name, self.client = folder, name, client
        (folder / name).write_text(text)

    def run(self):
        assert once("check", self.name, cwd=self.folder, env=elasticmq.KEYS).status == 0
        with Running(["run", "--json", self.name], self.folder, env=elasticmq.KEYS) as worker:
            until(lambda: self.client.is_empty(self.queue), what="the queue is empty")
            worker.process.terminate()
            return worker.end().json


def test_example_payments_books_each_payment_once(tmp_path, client):
    example = Example("payments.yaml", tmp_path, client)
    payment = {"payment_id": "p1", "account": "ann", "cents": 1200}
    client.send(example.queue, payment, {**payment, "payment_id": "p2"}, payment)
    summary = example.run()
    assert (summary["done"], summary["duplicates"]) == (2, 1), summary
    with sqlite3.connect(tmp_path / "payments.db") as db:
        assert db.execute("SELECT id, account, cents FROM payments ORDER BY id").fetchall() == [("p1", "ann", 1200), ("p2", "ann", 1200)]


def test_example_orders_ships_the_orders_of_a_customer_in_order(tmp_path, client):
    example = Example("orders.yaml", tmp_path, client)
    orders = [{"order_id": f"o{n}"} for n in range(9)]
    client.send(example.queue, *orders, *orders[:3], group=lambda n, _: f"c{n % 3}")
    summary = example.run()
    assert (summary["done"], summary["duplicates"]) == (9, 3), summary
    shipped = [line.split()[1:] for line in (tmp_path / "shipped.txt").read_text().splitlines()]
    for customer in range(3):
        assert [order for order, group in shipped if group == f"c{customer}"] == [f"o{n}" for n in range(customer, 9, 3)]
