"""The workload of the crash tests, and what must be true of it after any crash and at the end.

Payments move money; nothing in the tables stops a second effect (no unique constraint), so a double shows as a row too many
and as a wrong balance. Everything a pipeline can meet is in it: duplicates, conflicts, malformed lines, messages that wait for
another one, followers parked in their lane, dead letters."""

import concurrent.futures
import os
import random
import shutil
import time

from harness import Pipeline, counts, encode
from pgpipeline import PostgresPipeline, new_name

LEASE_MS = 300
TABLES = """
CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE payments(n INTEGER PRIMARY KEY, id TEXT, account INTEGER, amount INTEGER);
INSERT INTO accounts VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0);
"""
POSTGRES_TABLES = TABLES.replace("n INTEGER PRIMARY KEY", "n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
CONFIG = """
key: "${/id}"
type: "${/type}"
order: "${/lane}"
lease: %(lease)dms
remember: 7d
retry: {attempts: 100000, backoff: 1ms..10ms}
batch: {max: %(batch)d}
handlers:
  pay:
    sql:
      - INSERT INTO payments(id, account, amount) VALUES (:id, :account, :amount)
      - UPDATE accounts SET balance = balance + :amount WHERE id = :account
  after:
    sql:
      - {do: "INSERT INTO payments(id, account, amount) SELECT :id, :account, :amount FROM payments WHERE id = :needs", rows: 1, else: retry}
      - UPDATE accounts SET balance = balance + :amount WHERE id = :account
  bad:
    dead_limit: off
    sql:
      - UPDATE accounts SET balance = balance + 1000000 WHERE id = 0
      - UPDATE accounts SET balance = NULL WHERE id = 1
"""


def at_once(one, over):
    """Cases of one test side by side: mostly they wait for leases."""
    with concurrent.futures.ThreadPoolExecutor(len(over)) as pool:
        for case in [pool.submit(one, each) for each in over]:
            case.result()


class Workload:
    def __init__(self, folder, n=40, batch=8, seed=1, source="{path: in.ndjson}", lease_ms=LEASE_MS, database=None, postgres=None):
        """`postgres`: a server, in a new schema of which is everything then."""
        os.makedirs(folder, exist_ok=True)
        self.lease_ms = lease_ms
        self.unfinished = "once_live" if postgres else "once_entry"
        if postgres:
            self.p = PostgresPipeline(folder, CONFIG % {"lease": lease_ms, "batch": batch}, POSTGRES_TABLES, source=source,
                                      url=postgres.schema(new_name()))
        else:
            self.p = Pipeline(folder, CONFIG % {"lease": lease_ms, "batch": batch}, "" if database else TABLES, source=source)
        if database:
            shutil.copy(database, self.p.database)
            self.p.execute(TABLES)
        self._make(n, random.Random(seed))
        self.p.write(*self.lines)

    def _make(self, n, rng):
        lines, self.expected = [], {}
        for i in range(n):
            account, amount = rng.randrange(5), rng.randrange(1, 1000)
            message = {"type": "pay", "id": f"p{i}", "lane": f"own{i}" if i % 4 else f"shared{i % 3}", "account": account, "amount": amount}
            if i % 10 == 7:  # waits for the last payment; its follower is parked behind it
                message.update(type="after", needs=f"p{n - 1}", lane=f"slow{i}")
            if i % 10 == 8:
                message["lane"] = f"slow{i - 1}"
            if i % 10 == 5:
                message.update(type="bad")
            else:
                self.expected[message["id"]] = (account, amount)
            lines.append(message)
            if i % 6 == 1:
                lines.append(rng.choice(lines))
            if i % 9 == 4:
                lines.append('{"malformed": ' + str(i))
            if i % 11 == 3:
                lines.append(dict(message, amount=amount + 1))
        self.lines = lines
        self.dead_lines, seen, self.duplicates = [], {}, 0
        self.same_letter = {}  # lines of one key and content are one letter, which is at the last of them that was met
        # What waits after a failed try gives way to other content, unless a kill hid whether that try did anything: one of the two is the letter.
        self.corrected, corrected = {}, {}
        for number, line in enumerate(self.lines, 1):
            if isinstance(line, str):
                self.dead_lines.append(number)
            elif (line["type"], line["id"]) not in seen:
                seen[line["type"], line["id"]] = line
                if line["type"] == "bad":
                    self.dead_lines.append(number)
            elif seen[line["type"], line["id"]] != line:
                first = self.same_letter.setdefault(encode(line), number)
                self.same_letter[number] = first
                if line["type"] == "after":
                    corrected[encode(seen[line["type"], line["id"]])] = first
                    self.corrected[line["id"]] = (line["account"], line["amount"])
                if first == number:
                    self.dead_lines.append(number)
                else:
                    self.duplicates += 1
            else:
                self.duplicates += 1
        for number, line in enumerate(self.lines, 1):
            if encode(line) in corrected:
                self.same_letter[number] = corrected[encode(line)]
        # It may be a letter while a try of the first may have done something, and come again and take the place when that has come to nothing.
        self.may_be_two = set(corrected.values())
        self.received = len(self.lines)
        self.conflicts = self.received - self.duplicates - len(seen) - sum(isinstance(line, str) for line in self.lines)

    # ---- what must be true ----

    def check_now(self):
        """After any crash: nothing twice, nothing by half, no claim without an end."""
        p = self.p
        if not p.has_table("payments"):
            return
        payments = p.rows("SELECT id, account, amount FROM payments")
        assert len(payments) == len({id for id, _, _ in payments}), f"double effects: {payments}"
        for id, account, amount in payments:
            assert (account, amount) in (self.expected[id], self.corrected.get(id)), (id, account, amount)
        balances = dict.fromkeys(range(5), 0)
        for _, account, amount in payments:
            balances[account] += amount
        assert dict(p.rows("SELECT id, balance FROM accounts")) == balances, "an effect by half"
        if p.has_table(self.unfinished):
            latest = time.time() * 1000 + self.lease_ms + 1000
            assert not p.rows(f"SELECT key, due_ms FROM {self.unfinished} WHERE state = 1 AND due_ms > ?", latest), "a claim without an end"
            letters = p.rows("SELECT point FROM once_letter")
            assert len(letters) == len(set(letters)), "two letters of one message"

    def check_end(self):
        """Everything took effect once, and what cannot is a letter."""
        self.check_now()
        assert {id for (id,) in self.p.rows("SELECT id FROM payments")} == set(self.expected), "lost effects"
        letters = sorted(self.same_letter.get(line, line) for line, _ in self.p.letters())
        for line in self.may_be_two:
            if letters.count(line) == 2:
                letters.remove(line)
        assert letters == self.dead_lines, (set(letters) ^ set(self.dead_lines), self.p.letters())
        assert self.p.value(f"SELECT count(*) FROM {self.unfinished} WHERE state <> 4") == 0, "something is left"
        order = [id for (id,) in self.p.rows("SELECT id FROM payments ORDER BY n")]
        for lane in {line["lane"] for line in self.lines if isinstance(line, dict)}:
            wanted = list(dict.fromkeys(line["id"] for line in self.lines
                                        if isinstance(line, dict) and line["lane"] == lane and line["id"] in self.expected))
            assert [id for id in order if id in wanted] == wanted, f"order in lane {lane}"

    def check_replay(self):
        """The whole input once more changes nothing."""
        counts(self.p.run(status=1), received=self.received, duplicates=self.received, attempts=0)
        self.check_end()

    def finish(self):
        """Runs to the end without any fault."""
        summary = self.p.run(status=1)
        self.check_end()
        return summary

