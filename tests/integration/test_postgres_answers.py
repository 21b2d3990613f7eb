"""A PostgreSQL server, or something in between, that answers otherwise than a statement must be answered, or not at all."""

import os
import re
import struct
import time

import pytest

import postgres
from harness import Pipeline, until
from pgpipeline import PostgresPipeline, need_postgres, new_name, psql
from tcpproxy import Proxy

need_postgres()

TABLES = "CREATE TABLE t(id text)"
HEAD = 'key: "${/id}"\norder: "${/lane}"\npatience: 1s\nlease: 5s\ntimeout: 2s\n'
DO = "INSERT INTO t VALUES (:id)"


def socket_of(url):
    return os.path.join(re.search(r"host=([^&]*)", url).group(1), ".s.PGSQL.5432")


def row(columns):
    data = struct.pack(">H", len(columns))
    for column in columns:
        data += struct.pack(">i", -1) if column is None else struct.pack(">i", len(column)) + column
    return b"D" + struct.pack(">I", len(data) + 4) + data


def columns_of(message):
    n, at, columns = struct.unpack(">H", message[5:7])[0], 7, []
    for _ in range(n):
        length = struct.unpack(">i", message[at:at + 4])[0]
        at += 4
        columns.append(None if length < 0 else message[at:at + length])
        at += max(length, 0)
    return columns


MUTATIONS = {
    "no row": lambda m: b"",
    "nulls": lambda m: row([None] * len(columns_of(m))),
    "short": lambda m: row([c and c[:1] for c in columns_of(m)]),
    "empty": lambda m: row([c and b"" for c in columns_of(m)]),
    "long": lambda m: row([c and c + b"\xff" * 5 for c in columns_of(m)]),
    "twice": lambda m: m + m,
    "done": lambda m: b"C" + struct.pack(">I", 13) + b"SELECT 0\0",
}


class Mutating:
    """Counts the rows that a server sends, and changes the one with a number."""

    def __init__(self, at, mutation):
        self.at, self.mutation, self.seen = at, mutation, 0

    def __call__(self):
        kept = b""

        def rewrite(data):
            nonlocal kept
            kept += data
            out = b""
            while len(kept) >= 5:
                size = 1 + struct.unpack(">I", kept[1:5])[0]
                if len(kept) < size:
                    break
                message, kept = kept[:size], kept[size:]
                if message[:1] == b"D":
                    self.seen += 1
                    if self.seen == self.at:
                        message = self.mutation(message)
                out += message
            return out
        return rewrite


def pipeline(folder, where, proxy, direct, more=""):
    proxied = re.sub(r"host=[^&]*", f"host=127.0.0.1&port={proxy.port}&sslmode=disable&gssencmode=disable{more}", direct)
    if where == "store":
        p = PostgresPipeline(folder, "", url=direct)
        p.configure(HEAD + f'handler: {{sql: ["{DO}"]}}\n', store=proxied)
        return p
    folder.mkdir(exist_ok=True)
    return Pipeline(folder, HEAD + f'handler: {{sql: {{url: "{proxied}", do: ["{DO}"]}}}}\n')


@pytest.mark.parametrize("verb", ["run", "check"])
@pytest.mark.parametrize("where", ["store", "elsewhere"])
def test_f93_answers_that_a_statement_does_not_have(tmp_path, where, verb):
    """Every row of a run in turn, each changed in one of the ways. Nothing crashes, and nothing is done twice."""
    direct = postgres.shared().database(new_name())
    psql(direct, TABLES)
    with Proxy(socket_of(direct)) as proxy:
        for at in range(1, 200):
            over = False
            for number, kind in enumerate(("done", list(MUTATIONS)[at // 2 % 6])):
                if at % 2 != number:
                    continue
                mutating = proxy.rewriting = Mutating(at, MUTATIONS[kind])
                p = pipeline(tmp_path / f"{at}{number}", where, proxy, direct)
                p.write(*({"id": f"{at}{kind}{i}", "lane": i % 2} for i in range(3)))
                ended = p.once(verb, p.name)
                assert ended.status in (0, 1, 2, 3), (at, kind, ended)
                over = mutating.seen < at
                if verb == "check":
                    continue
                proxy.rewriting = None
                p.try_run()
                rows = psql(direct, "SELECT id FROM t").split("\n")
                assert len(rows) == len(set(rows)), (at, kind, ended)
                psql(direct, "TRUNCATE t")
            if over:
                break
        assert at > 5, "rows were counted"


STRANGE = {"copy in": b"G\0\0\0\7\0\0\0", "copy out": b"H\0\0\0\7\0\0\0", "copy both": b"W\0\0\0\7\0\0\0", "empty": b"I\0\0\0\4"}


def once_instead(right, wrong):
    left = [1]

    def rewrite(data):
        if right not in data or not left:
            return data
        left.clear()
        return data.replace(right, wrong, 1)
    return lambda: rewrite


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("where", ["store", "elsewhere"])
def test_f93_answers_of_another_kind(tmp_path, where, strange):
    """Of some rows in turn, and of the first effect. Who is told to copy is told so without end."""
    direct = postgres.shared().database(new_name())
    psql(direct, TABLES)
    with Proxy(socket_of(direct)) as proxy:
        for at in (1, 2, 5, 9, 0):
            mutating = proxy.rewriting = Mutating(at, lambda message: STRANGE[strange])
            if at == 0:
                proxy.rewriting = once_instead(b"C\0\0\0\017INSERT 0 1\0", STRANGE[strange])
            p = pipeline(tmp_path / f"{at}", where, proxy, direct)
            p.write({"id": f"{at}", "lane": 0})
            ended = p.once("run", "--json", p.name)
            assert ended.status in (0, 1, 2, 3) and (ended.status == 0 or ended.err.strip()), (at, ended)
            assert 'msg=""' not in ended.err, ended
            proxy.rewriting = None
            p.try_run()
            assert mutating.seen >= at and psql(direct, "SELECT id FROM t") in (f"{at}\n", ""), (at, ended)
            psql(direct, "TRUNCATE t")


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("where", ["store", "elsewhere"])
def test_a_server_that_falls_silent_in_its_first_answers(tmp_path, where, rows):
    """One connection of all, from its first rows on: it is given up, and another one works."""
    direct = postgres.shared().database(new_name())
    psql(direct, TABLES)
    with Proxy(socket_of(direct)) as proxy:
        connections = []

        def rewriting():
            number = len(connections)
            connections.append(0)

            def rewrite(data):
                connections[number] += data.count(b"D\0\0")
                return b"" if number == 0 and connections[0] >= rows else data
            return rewrite
        proxy.rewriting = rewriting
        p = pipeline(tmp_path / "p", where, proxy, direct, "&answer_timeout=1")
        p.write({"id": "a", "lane": 1})
        begun = time.monotonic()
        ended = p.try_run()
        assert time.monotonic() - begun < 40, ended
        assert ended.status == 0 or "an answer was lost" in ended.err, ended
        if ended.status != 0:
            p.run(status=0)
        assert psql(direct, "SELECT id FROM t") == "a\n" and len(connections) > 1


def test_a_comparison_before_commit_that_fails_is_a_rollback(tmp_path):
    """The server passes over the COMMIT behind it, so it is known that nothing was committed."""
    direct = postgres.shared().database(new_name())
    psql(direct, TABLES)
    compares = b"pg_catalog.texteq($6, 'last')) THEN 0 ELSE"
    with Proxy(socket_of(direct)) as proxy:
        p = pipeline(tmp_path / "p", "elsewhere", proxy, direct)
        p.write({"id": "a", "lane": 1})
        proxy.replacing = {compares: b"texteq($6, 'last')) THEN 1/0 ELSE".ljust(len(compares))}
        with p.start() as running:
            until(lambda: "division by zero" in p.once("explain", p.name, "a").out + p.once("explain", p.name, "a").err, what="an attempt that failed")
            proxy.replacing = {}
            ended = running.end()
        assert ended.status == 0 and ended.json["done"] == 1 and ended.json["unknown"] == 0, ended
        assert psql(direct, "SELECT id FROM t") == "a\n"
