"""Many `once run` on one pipeline, each of them killed at random moments and followed by another one."""

import os
import random
import signal
import time

SOAK_S = float(os.environ.get("ONCE_SOAK_S", "0"))


def rounds():
    """Seeds: one for `make check`; for `make soak` new ones for so many seconds."""
    seed = random.SystemRandom().randrange(1 << 32) if SOAK_S else 1
    end = time.monotonic() + SOAK_S
    while True:
        if SOAK_S:
            print(f"seed {seed}", flush=True)
        yield seed
        seed += 1
        if time.monotonic() >= end:
            return


class Fleet:
    """Workers that do not end by themselves."""

    def __init__(self, start, workers):
        self.start = start
        self.running = [start(i) for i in range(workers)]
        self.kills = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for r in self.running:
            r.__exit__()

    def kill(self, i):
        r = self.running[i]
        assert r.process.poll() is None, f"worker {i} ended by itself: {r.end()}"
        r.send(signal.SIGKILL)
        r.end()
        self.kills += 1
        self.running[i] = self.start(i)

    def stop(self):
        """Their summaries. One that was started a moment ago may not have come so far that it could drain."""
        for r in self.running:
            r.send(signal.SIGTERM)
        ended = [e for e in (r.end() for r in self.running) if e.status != -signal.SIGTERM or e.out or e.err]
        for e in ended:
            assert e.status == 0, e
        return [e.json for e in ended]


def each_killed(rng, workers, times):
    """Every worker so many times, in any order."""
    order = [i for i in range(workers) for _ in range(times)]
    rng.shuffle(order)
    return order
