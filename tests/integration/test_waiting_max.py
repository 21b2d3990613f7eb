"""waiting_max: what waits in the store is bounded, on every store; nothing is lost by it, and it goes on."""

import os

from anystore import Any, store  # noqa: F401
from harness import counts, until

MOST, N = 40, 300
EFFECT = """#!/bin/sh
[ -e go ] || exit 69
read -r body
echo "$ONCE_KEY" >> done
"""
CONFIG = """
key: "${/id}"
lease: 5s
retry: {attempts: 1000, backoff: BACKOFF}
batch: {max: 10}
workers: 2
handler: {exec: [./effect]}
"""


class Bounded(Any):
    def __init__(self, folder, store, more, backoff="50ms..100ms"):
        super().__init__(folder, store, CONFIG.replace("BACKOFF", backoff) + more)
        with open(os.path.join(folder, "effect"), "w") as file:
            file.write(EFFECT)
        os.chmod(os.path.join(folder, "effect"), 0o755)
        self.run(status=0)  # makes the store
        self.write(*[{"id": f"m{i}", "text": "x" * 90} for i in range(N)])

    def stored(self):
        return self.ask("status")["stored"]

    def go(self):
        open(os.path.join(self.folder, "go"), "w").close()

    def done(self):
        try:
            with open(os.path.join(self.folder, "done")) as file:
                return file.read().split()
        except FileNotFoundError:
            return []

    def watch(self, most):
        """Runs it: the handler is down until fetching has stopped."""
        with self.start("--log-level", "debug") as running:
            said = running.hear("fetch_paused")
            assert "level=debug event=fetch_paused" in said
            held = self.stored()
            self.go()
            until(lambda: len(self.done()) >= N // 2 or running.process.poll() is not None, what="effects")
            later = self.stored()
            ended = running.end()
        assert ended.status == 0, ended
        ended.err = said + ended.err  # it need not pause a second time
        assert most(held) and most(later), (held, later)
        counts(ended.json, received=N, done=N, acked=N)
        assert sorted(self.done()) == sorted(f"m{i}" for i in range(N))
        assert self.stored()["messages"] == self.stored()["bytes"] == 0
        return ended, held


def test_an_inbox_is_bounded(tmp_path, store):
    p = Bounded(tmp_path, store, f"ack: after_accept\nwaiting_max: {MOST}\n")
    ended, held = p.watch(lambda stored: stored["messages"] <= MOST)
    assert held["messages"] == MOST and held["messages_max"] == MOST
    assert "waiting_max is 40 messages" in ended.err and "fetch_resumed" in ended.err, ended.err


def test_bytes_in_an_inbox_are_bounded(tmp_path, store):
    p = Bounded(tmp_path, store, "ack: after_accept\nwaiting_max: {bytes: 5KiB}\n")
    p.watch(lambda stored: stored["bytes"] <= 5 * 1024 + 2 * 10 * 400)


def test_what_is_to_be_tried_again_is_bounded(tmp_path, store):
    p = Bounded(tmp_path, store, f"waiting_max: {MOST}\n")
    p.watch(lambda stored: stored["messages"] <= MOST + 3 * 10)


def test_what_waits_in_lanes_is_bounded(tmp_path, store):
    p = Bounded(tmp_path, store, f"order: one\nwaiting_max: {MOST}\n")
    ended, _ = p.watch(lambda stored: stored["messages"] <= MOST + 4 * 10)
    assert p.done() == [f"m{i}" for i in range(N)], "in their order"


def test_a_store_that_is_full_at_the_start(tmp_path, store):
    p = Bounded(tmp_path, store, f"ack: after_accept\nwaiting_max: {MOST}\n")
    for _ in range(3):
        with p.start("--log-level", "debug") as running:
            running.hear("fetch_paused")
            running.send(15)
            running.end()
        assert p.stored()["messages"] == MOST
    p.go()
    ended = p.run(status=0)
    assert sorted(p.done()) == sorted(f"m{i}" for i in range(N)) and ended["waiting"] == 0


def test_a_pause_that_lasts_is_a_warning(tmp_path):
    p = Bounded(tmp_path, "sqlite:store.db", f"ack: after_accept\nwaiting_max: {MOST}\n", backoff="1s..2s")
    with p.start() as running:  # says warnings
        assert "level=warn event=fetch_paused" in running.hear("fetch_paused")
        p.go()
        ended = running.end()
    assert ended.status == 0 and "level=warn event=fetch_resumed" in ended.err, ended
    assert "waiting_max" not in p.once("check", p.name).out, "four batches are enough"


def test_giving_up_at_the_bound_is_a_clean_end(tmp_path, store):
    """Its lane is held by an unknown: nobody works on what waits. Nothing was begun and left, so the next run has no doubts."""
    p = Any(tmp_path, store, 'key: "${/id}"\norder: one\nack: after_accept\npatience: 100ms\nbatch: {max: 10}\nwaiting_max: 40\n'
            "handler: {exec: [sh, -c, 'exit 70']}\n")
    p.write(*[{"id": f"m{i}"} for i in range(N)])
    first = p.try_run()
    assert first.status == 3 and "and none can go on until an operator acts" in first.err, first
    again = p.try_run()
    assert again.status == 3 and "until an operator acts" in again.err, again
    assert "event=unclean" not in again.err and "event=taken_over" not in again.err, again


def test_two_workers_share_a_bound(tmp_path, store):
    p = Bounded(tmp_path, store, f"ack: after_accept\nwaiting_max: {MOST}\n")
    with p.start("--log-level", "debug") as one, p.start("--log-level", "debug") as two:
        one.hear("fetch_paused")
        two.hear("fetch_paused")
        held = p.stored()
        p.go()
        ended = one.end(), two.end()
    assert [e.status for e in ended] == [0, 0], ended
    assert MOST <= held["messages"] <= MOST + 2 * 3 * 10, held  # each may have three batches in memory
    assert sorted(set(p.done())) == sorted(p.done()) and len(p.done()) == N


def test_without_a_bound_all_of_it_waits(tmp_path, store):
    p = Bounded(tmp_path, store, "ack: after_accept\nwaiting_max: none\n")
    with p.start() as running:
        until(lambda: p.stored()["messages"] == N, what="all of it to wait")
        stored = p.stored()
        p.go()
        assert running.end().status == 0
    assert stored["messages_max"] is None and stored["bytes_max"] is None


def test_check_says_what_contradicts_it(tmp_path, store):
    p = Bounded(tmp_path, store, "waiting_max: {bytes: 100KiB, messages: 5}\norder: one\nversion: \"${/v}\"\ngap: {wait: 1s}\n")
    said = p.once("check", p.name).out
    assert "waiting_max (5 messages) is less than 4 batches (batch.max, 10)" in said, said
    assert "waiting_max.bytes (102400 B) is less than the largest message" in said, said
    assert "waiting_max (5 messages) is less than a batch" in said, said
