"""Many consumers of one pipeline on a server's store, each killed at random: every effect once, because it is atomic.

Nothing in the user's tables stops a second effect. `make soak` runs these for minutes with ever new seeds."""

import random
import time

import pytest

import postgres
from harness import until
from fleet import Fleet, each_killed, rounds
from pgpipeline import PostgresPipeline, need_postgres, new_name

need_postgres()

TABLES = "CREATE TABLE t(n bigint GENERATED ALWAYS AS IDENTITY, id text); CREATE TABLE total(n bigint); INSERT INTO total VALUES (0);"
CONFIG = """
key: "${/id}"
lease: 300ms
retry: {attempts: 100000, backoff: 1ms..20ms}
batch: {max: 256}
handler:
  sql:
    - INSERT INTO t(id) VALUES (:id)
    - UPDATE total SET n = n + 1
"""


def pipeline(folder, config=CONFIG, url=None):
    return PostgresPipeline(str(folder), config, "" if url else TABLES, source="{path: in.ndjson, follow: true}",
                            url=url or postgres.shared().schema(new_name()))


def total(p):
    return p.value("SELECT n FROM total")


def exactly_once(p, n):
    found = p.rows("SELECT count(*) AS n, count(DISTINCT id) AS ids, (SELECT n FROM total) AS total FROM t")
    assert found == [(n, n, n)], f"rows, different ones, total; {n} of each were wanted"
    assert p.value("SELECT count(*) FROM once_live") == 0 and p.value("SELECT count(*) FROM once_body") == 0


def test_f01_f25_five_consumers_on_one_key_each_killed(tmp_path):
    """A message at a time, that five want at once; whoever is killed had it, or had it not."""
    for seed in rounds():
        rng = random.Random(seed)
        p = pipeline(tmp_path / str(seed))
        with Fleet(lambda i: p.start(), 5) as fleet:
            for n, victim in enumerate(each_killed(rng, 5, 3), 1):
                p.append(*[{"id": f"key {n}"}] * 3)
                time.sleep(rng.uniform(0, 0.03))
                fleet.kill(victim)
                until(lambda: total(p) == n, what=f"key {n}")
            fleet.stop()
        exactly_once(p, 15)


@pytest.mark.parametrize("inbox", [False, True], ids=["f09_f25_f57_of_the_same_messages", "f09_f57_f73_through_the_inbox"])
def test_ten_thousand_keys_on_eight_consumers_each_killed(tmp_path, inbox):
    """All of them read the same messages and want every key; or each reads a share, and all work on what any has accepted."""
    keys, workers, times = 10000, 8, 3
    slice_n = keys // (workers * times) + 1
    for seed in rounds():
        rng = random.Random(seed)
        folder, config = tmp_path / str(seed), CONFIG + ("ack: after_accept\n" if inbox else "")
        p = pipeline(folder, config)
        shares = [pipeline(folder / str(i), config, p.url) for i in range(workers)] if inbox else [p]
        messages = [{"id": str(i)} for i in range(keys)]
        with Fleet(lambda i: shares[i % len(shares)].start(), workers) as fleet:
            for victim in each_killed(rng, workers, times):
                slice_, messages = messages[:slice_n], messages[slice_n:]
                for i, share in enumerate(shares):
                    share.append(*slice_[i::len(shares)])
                time.sleep(rng.uniform(0, 0.08))
                fleet.kill(victim)
            until(lambda: total(p) == keys, 60, what=f"{keys} keys")
            summaries = fleet.stop()
        assert fleet.kills == workers * times and not messages
        exactly_once(p, keys)
        assert sum(s["dead"] + s["unknown"] for s in summaries) == 0
