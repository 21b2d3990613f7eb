"""A pipeline whose effect is a command, followed by SQL in the store's database (`then`). The command keeps a ledger of its own, so what
really happened is counted without the product, on both sides."""

import collections
import os

import pytest

import pgpipeline
import postgres
from harness import Pipeline
from pgpipeline import PostgresPipeline, new_name

# Charges, and says under which number. The message can ask for another end, or another result.
CHARGE = """#!/usr/bin/python3 -IS
import json, os, sys
m = json.loads(sys.stdin.read())
with open("ledger", "a") as file:
    file.write(os.environ["ONCE_KEY"] + "\\n")
sys.stdout.write(m.get("says", json.dumps({"charge_id": "ch_" + m["id"], "cents": 1250, "card": {"last4": "4242"}})))
sys.exit(m.get("exit", 0))
"""
# The same as a kept process.
STREAM = """#!/usr/bin/python3
import json, os, sys
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for line in sys.stdin:
    m = json.loads(line)
    os.write(ledger, f"{m['key']}\\n".encode())
    result = m["body"].get("says", json.dumps({"charge_id": "ch_" + m["body"]["id"]}))
    print(json.dumps({"id": m["id"], "outcome": m["body"].get("outcome", "done"), "result": result}), flush=True)
"""
# Nothing in it stops a second row: a `then` that is written twice shows.
TABLES = """
CREATE TABLE charged(id text, charge text);
CREATE TABLE taken(id text PRIMARY KEY);
INSERT INTO taken VALUES ('unique');
"""
CONFIG = """
key: "${/id}"
lease: %(lease)s
unknown: %(unknown)s
workers: 4
retry: {attempts: 50, backoff: 1ms..20ms}
handler:
  exec: [./charge]
%(more)s
  then:
    sql:
%(then)s
"""
INSERT = "INSERT INTO charged(id, charge) VALUES (:id, :{result:/charge_id})"


def config(*then, unknown="hold", lease="30s", more=""):
    """`then`: statements, or lines of YAML that begin with '{'."""
    lines = "\n".join("      - " + (each if each.startswith("{") else '"' + each.replace('"', '\\"') + '"') for each in then or (INSERT,))
    return CONFIG % {"lease": lease, "unknown": unknown, "more": "\n".join("  " + line for line in more.splitlines()), "then": lines}


class Then:
    """Of either store: Pipeline or PostgresPipeline comes behind it."""

    def set_up(self, script=CHARGE):
        path = os.path.join(self.folder, "charge")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        os.chmod(path, 0o755)
        return self

    def ledger(self):
        path = os.path.join(self.folder, "ledger")
        if not os.path.exists(path):
            return collections.Counter()
        with open(path, encoding="utf-8") as file:
            return collections.Counter(file.read().split())

    def charged(self):
        return sorted(self.rows("SELECT id, charge FROM charged"))

    def state(self, key):
        entry = self.explain(key)[0]
        return entry["state"], entry.get("reason")

    def unknown_keys(self):
        return {m["key"] for m in self.once("list", "--unknown", "--json", self.name).json["messages"]}


class SqliteThen(Then, Pipeline):
    pass


class PostgresThen(Then, PostgresPipeline):
    pass


def make(kind, folder, text=None, script=CHARGE, tables=TABLES):
    os.makedirs(folder, exist_ok=True)
    text = text or config()
    if kind == "sqlite":
        return SqliteThen(folder, text, tables).set_up(script)
    return PostgresThen(str(folder), text, tables, url=postgres.shared().schema(new_name())).set_up(script)


def kinds():
    return ["sqlite", "postgres"] if pgpipeline.has_postgres() else ["sqlite"]


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request):
    if request.param == "postgres":
        pgpipeline.need_postgres()
    return request.param
