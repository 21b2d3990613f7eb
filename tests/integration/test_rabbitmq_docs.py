"""docs/rabbitmq.md and examples/rabbitmq: every pipeline is tried against a server, and every test that the page names exists."""

import os
import re
import shutil
import sqlite3

import pytest

import rabbitmq
from docpage import Page, check_quoted, read
from harness import ROOT, Running, once, until
from rabbitmqpipeline import need_rabbitmq

need_rabbitmq()


@pytest.fixture(scope="module")
def client():
    return rabbitmq.shared()


PAGE = Page("docs/rabbitmq.md", key='"${/id}"', remember="forever")


def at_this_server(text, client):
    """With a queue and a consumer of its own; its name."""
    queue = client.queue()
    text = re.sub(r"(\bqueue: )[\w-]+", lambda found: found[1] + queue, text)
    text = re.sub(r"amqp://localhost\b", client.url, text)
    text = re.sub(r"http://localhost:15672", client.management, text)
    text = re.sub(r"amqps://orders@[\w.]+/shop", f"amqps://alice@localhost:{client.tls_port}", text)
    text = re.sub(r"https://rabbit\.example\.com:15671", client.management, text)
    return re.sub(r"^consumer: .*$", f"consumer: {rabbitmq.new_name('docs')}", text, flags=re.M).replace("/etc/once/rabbitmq-ca.pem", client.ca), queue


@pytest.mark.parametrize("number", range(len(PAGE.blocks)))
def test_every_pipeline_of_the_page_is_accepted_by_the_server(tmp_path, client, number):
    text, queue = at_this_server(PAGE.whole(PAGE.blocks[number]), client)
    (tmp_path / "p.yaml").write_text(text)
    ended = once("check", "p.yaml", cwd=tmp_path, env={"RABBITMQ_PASSWORD": rabbitmq.USERS["alice"]})
    assert ended.status == 0, ended
    assert f"queue '{queue}' has 0 messages ready" in ended.out, ended


def test_every_test_that_the_page_names_exists():
    PAGE.check_tests("test_rabbitmq", 10)


def test_the_page_quotes_what_the_product_says():
    """Texts of the table "You see X" are in the sources."""
    check_quoted("cannot connect to '%s:%d'", "cannot log in at '%s:%d'", "is not accepted: %s", "there is no queue '%s'",
                 "the broker cancelled the consumer", "nothing came for two heartbeats", "drops a message after %d deliveries (delivery-limit)",
                 "keeps messages until they are acked (it has no message-ttl)", "could not read %.80s of",
                 "it is a stream, from which an ack removes nothing", '"rabbitmq_lost"', '"rabbitmq_blocked"', '"rabbitmq_given_back"')


class Example:
    def __init__(self, name, folder, client):
        shutil.copytree(os.path.join(ROOT, "examples", "rabbitmq"), folder, dirs_exist_ok=True)
        text, self.queue = at_this_server(read(f"examples/rabbitmq/{name}"), client)
        self.folder, self.name = folder, name
        (folder / name).write_text(text)

    def run(self, client, condition):
        """Until everything is acked: a duplicate may still wait when the last effect has happened, and is in the queue again after a stop."""
        summaries = []
        while not summaries or client.ready(self.queue):
            with Running(["run", "--json", self.name], self.folder) as worker:
                until(lambda: condition() and client.ready(self.queue) == 0, 30, "everything has run")
                worker.process.terminate()
                summaries.append(worker.end().json)
        return {name: sum(each[name] for each in summaries) for name in ("done", "duplicates")}


def rows(path, sql):
    with sqlite3.connect(path) as db:
        try:
            return db.execute(sql).fetchall()
        except sqlite3.OperationalError:  # not there yet
            return []


def test_example_payments_books_each_payment_once(tmp_path, client):
    example = Example("payments.yaml", tmp_path, client)
    assert once("check", example.name, cwd=tmp_path).status == 0
    payment = {"payment_id": "p1", "account": "ann", "cents": 1200}
    client.publish(example.queue, payment, payment, {**payment, "payment_id": "p2"})
    summary = example.run(client, lambda: len(rows(tmp_path / "payments.db", "SELECT id FROM payments")) == 2)
    assert (summary["done"], summary["duplicates"]) == (2, 1)
    assert rows(tmp_path / "payments.db", "SELECT id, account, cents FROM payments ORDER BY id") == [("p1", "ann", 1200), ("p2", "ann", 1200)]


def test_example_notify_runs_a_command_for_each_message_id(tmp_path, client):
    example = Example("notify.yaml", tmp_path, client)
    assert once("check", example.name, cwd=tmp_path).status == 0
    for number, to in (("m1", "ann"), ("m1", "ann"), ("m2", "bob")):
        client.publish(example.queue, {"to": to}, message_id=number)
    sent = tmp_path / "sent.txt"
    summary = example.run(client, lambda: sent.exists() and len(sent.read_text().splitlines()) == 2)
    assert (summary["done"], summary["duplicates"]) == (2, 1)
    sent = sent.read_text().splitlines()
    assert sorted(line.split(" ", 1)[1] for line in sent) == ["ann", "bob"] and all(re.match("[0-9a-f]{32} ", line) for line in sent)
