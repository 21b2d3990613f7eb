"""A pipeline whose store is a PostgreSQL database of the test's own. Tables are read with libpq, never through the product."""

import itertools
import json
import os
import random
import subprocess

import pytest

import postgres
import pq
from harness import Pipeline, once

_numbers = itertools.count()


def new_name():
    """Numbers of processes come again during a long run of tests."""
    return f"once_{os.getpid()}_{random.randrange(1 << 32):08x}_{next(_numbers)}"


def has_postgres():
    return any(store["name"] == "postgres" for store in once("version", "--json").json["stores"])


def need_postgres():
    """Skips loudly what cannot be tested here."""
    if not has_postgres():
        pytest.skip("missing: libpq in the build", allow_module_level=True)
    try:
        postgres.programs()
    except postgres.Missing as why:
        pytest.skip(f"missing: {why}", allow_module_level=True)


def psql(url, sql):
    """What psql would print: a line for each row, columns joined by '|'."""
    return "".join("|".join(row) + "\n" for row in pq.once(url, sql))


class Session:
    """A connection that has said something and stays: what it locked is locked until it ends."""

    def __init__(self, url, sql):
        self.process = subprocess.Popen(["psql", "-XAtq", url.replace("postgres://", "postgresql://", 1)], stdin=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, text=True)
        self.process.stdin.write(sql + ";\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def socket_of(server):
    """The path of the server's socket."""
    return server.url.partition("host=")[2].partition("&")[0] + "/.s.PGSQL.5432"


class PostgresPipeline(Pipeline):
    def __init__(self, folder, config="", tables="", consumer="c", source="{path: in.ndjson}", name="p.yaml", server=None, url=None):
        self.folder, self.name = folder, name
        os.makedirs(folder, exist_ok=True)
        self.server = server or postgres.shared()
        self.url = url or self.server.database(new_name())
        self.sql = pq.Connection(self.url)
        self.source = os.path.join(folder, "in.ndjson")
        if not os.path.exists(self.source):
            open(self.source, "wb").close()
        if tables:
            self.execute(tables)
        self.configure(config, consumer, source=source)

    def configure(self, config, consumer="c", store=None, source="{path: in.ndjson}"):
        super().configure(config, consumer, store or self.url, source)

    def execute(self, script):
        self.sql.rows(script)

    def rows(self, sql, *parameters):
        for value in parameters:
            sql = sql.replace("?", repr(value), 1)
        found = self.sql.rows(f"SELECT row_to_json(rows) FROM ({sql}) AS rows")
        return [tuple(json.loads(row).values()) for row, in found]

    def has_table(self, name):
        return self.value(f"SELECT to_regclass('{name}') IS NOT NULL")

    def is_running(self):
        return self.has_table("once_fact") and bool(self.rows("SELECT 1 FROM once_fact WHERE encode(name, 'escape') LIKE 'worker/%'"))

    def letters(self):
        found = self.rows("SELECT encode(point, 'escape') AS point, encode(reason, 'escape') AS reason FROM once_letter")
        return sorted((int(point), reason) for point, reason in found)
