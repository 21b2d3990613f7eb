"""Ends a test that hangs, and prints its name and the line where it stood; the other tests of its file go on.

A conftest.py takes it in: `from deadline import pytest_runtest_call`. Where even that does not help (a call that no signal ends),
tools/check ends the whole file and reads the name from the output."""

import os
import signal

import pytest

SOAK_S = int(os.environ.get("ONCE_SOAK_S", "0"))  # so long the tests of `make soak` begin new rounds
LIMIT_S = int(os.environ.get("ONCE_TEST_LIMIT_S", "300")) + 2 * SOAK_S  # the slowest take 20 s on two busy cores, 140 s on a slow host


class Hangs(BaseException):
    """No `except Exception` of a test or of the harness may swallow it."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    def ring(number, frame):
        raise Hangs(f"{item.nodeid} hangs: it did not end in {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
