"""docs/kafka.md and examples/kafka: every pipeline is tried against a broker, and every test that the page names exists."""

import os
import re
import shutil
import sqlite3

import pytest

import kafka
from docpage import Page, check_quoted, read
from harness import ROOT, Running, once, until
from kafkaclient import new_name

DAY_MS = 86400000


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


PAGE = Page("docs/kafka.md", key='"${coordinates}"', remember="14d")


def in_this_cluster(text, client, brokers=None):
    """With topics and a consumer of its own; the names of topics that were replaced."""
    names = {}

    def rename(found):
        for name in re.findall(r"[\w-]+", found[2]):
            names[name] = client.topic(retention_ms=DAY_MS)
        return found[1] + re.sub(r"[\w-]+", lambda word: names[word[0]], found[2])

    text = re.sub(r"(\btopics: )(\[[^\]]*\]|[\w-]+)", rename, text)
    text = re.sub(r"(\bbrokers: )(\[[^\]]*\]|[\w.:-]+)", lambda found: found[1] + (brokers or client.address), text)
    return re.sub(r"^consumer: .*$", f"consumer: {new_name('docs')}", text, flags=re.M), names


@pytest.mark.parametrize("number", range(len(PAGE.blocks)))
def test_every_pipeline_of_the_page_is_accepted_by_the_cluster(tmp_path, client, number):
    block = PAGE.blocks[number]
    secure = "SASL_SSL" in block
    text, _ = in_this_cluster(PAGE.whole(block), client, kafka.sasl_tls(client) if secure else None)
    if secure:
        text = text.replace("/etc/ssl/certs/kafka-ca.pem", client.ca).replace("username: once", "username: alice")
    (tmp_path / "p.yaml").write_text(text)
    ended = once("check", "p.yaml", cwd=tmp_path, env={"WORKER": "1", "KAFKA_PASSWORD": kafka.USERS["alice"]})
    assert ended.status == 0, ended
    assert not re.search("^warning: source", ended.out, re.M), ended
    assert re.search(r"topic '\S+' has 1 partition", ended.out), ended


def test_every_test_that_the_page_names_exists():
    PAGE.check_tests("test_kafka", 10)


def test_the_page_quotes_what_the_product_says():
    """Texts of the table "You see X" are in the sources."""
    check_quoted("no broker answers (", "refuse the connection", "is shorter than", "less than all retries may take", "is shorter than all retries may take",
                 "less than 'timeout' (", "could not read %.80s of", "share partitions by '%s'",
                 "by its client.id it is another consumer", "does not exist; create it", "the topic was made anew, or the broker lost its last messages",
                 "' has lost its offset ", "another worker has the same 'instance'", '"stream_stuck"')


class Example:
    def __init__(self, name, folder, client):
        shutil.copytree(os.path.join(ROOT, "examples", "kafka"), folder, dirs_exist_ok=True)
        text, topics = in_this_cluster(read(f"examples/kafka/{name}"), client)
        (self.topic,) = topics.values()
        self.group = re.search("^consumer: (.*)$", text, re.M)[1]
        self.folder, self.name = folder, name
        (folder / name).write_text(text)

    def run_until(self, client, offset):
        with Running(["run", "--json", self.name], self.folder) as worker:
            until(lambda: client.committed(self.group, self.topic).get(0) == offset, what=f"offset {offset} is committed")
            worker.process.terminate()
            return worker.end()


def test_example_payments_books_each_payment_once(tmp_path, client):
    example = Example("payments.yaml", tmp_path, client)
    assert once("check", example.name, cwd=tmp_path).status == 0
    payment = {"payment_id": "p1", "account": "ann", "cents": 1200}
    client.produce(example.topic, payment, {**payment, "payment_id": "p2"}, payment)
    assert example.run_until(client, 3).json["done"] == 2
    client.commit(example.group, example.topic, {0: 0})  # as a tool that resets the group
    client.produce(example.topic, payment)
    again = example.run_until(client, 4)
    assert again.status == 0 and again.json["received"] == 1, "the offset in the store counts"
    with sqlite3.connect(tmp_path / "payments.db") as db:
        assert db.execute("SELECT id, account, cents FROM payments ORDER BY id").fetchall() == [("p1", "ann", 1200), ("p2", "ann", 1200)]


def test_example_notify_runs_a_command_for_each_message_id(tmp_path, client):
    example = Example("notify.yaml", tmp_path, client)
    assert once("check", example.name, cwd=tmp_path).status == 0
    for number, to in (("m1", "ann"), ("m2", "bob"), ("m1", "ann")):
        client.produce(example.topic, {"to": to}, key=to, headers=[("message-id", number.encode())])
    client.produce(example.topic, None, key="ann")
    summary = example.run_until(client, 4).json
    assert (summary["done"], summary["duplicates"]) == (2, 1)
    sent = (tmp_path / "sent.txt").read_text().splitlines()
    assert sorted(line.split(" ", 1)[1] for line in sent) == ["ann", "bob"] and all(re.match("[0-9a-f]{32} ", line) for line in sent)
