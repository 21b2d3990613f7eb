"""A machine that comes up with a wrong clock: nothing expires early, nothing is too old by mistake, and an operator sets it right."""

import os
import re
import subprocess
import time

import pytest

from harness import Pipeline, counts

DAY_S = 24 * 3600
CONFIG = 'key: "${/id}"\nremember: 7d\ntime: "${/at}"\nhandler: {sql: ["INSERT INTO t VALUES (:id)"]}\n'
TABLES = "CREATE TABLE t(id);"

# Shifts the wall clock, and hides the boot id, so that each process seems to live in a boot of its own.
SKEW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && clock == CLOCK_REALTIME) at->tv_sec += atol(getenv("SKEW_S"));
    return failed;
}
static int no_boot_id(const char *path) { return strstr(path, "boot_id") != NULL; }
#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...)                            \
    {                                                                     \
        static int (*real)(const char *, int, ...);                       \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);             \
        va_list more;                                                     \
        va_start(more, flags);                                            \
        int mode = va_arg(more, int);                                     \
        va_end(more);                                                     \
        if (no_boot_id(path)) { errno = EACCES; return -1; }              \
        return real(path, flags, mode);                                   \
    }
OPEN(open)
OPEN(open64)
OPEN(__open_2)
OPEN(__open64_2)
"""


@pytest.fixture(scope="module")
def rebooted(tmp_path_factory):
    """The environment of a process after a reboot, with a wall clock that is off by so much."""
    folder = tmp_path_factory.mktemp("skew")
    (folder / "skew.c").write_text(SKEW)
    made = subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "skew.so", folder / "skew.c", "-ldl"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return lambda seconds: {"LD_PRELOAD": str(folder / "skew.so"), "SKEW_S": str(seconds),
                            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def messages(n, first=0, at_s=None):
    at_ms = int(1000 * (time.time() if at_s is None else at_s))
    return [{"id": i, "at": at_ms} for i in range(first, first + n)]


def check(p, env, *arguments):
    ended = p.once("check", *arguments, p.name, env=env)
    assert ended.status == 0, ended
    return ended.out


def test_f85_a_reboot_ten_years_ahead_expires_nothing_until_it_is_confirmed(tmp_path, rebooted):
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write(*messages(5))
    counts(p.run(status=0, env=rebooted(0)), received=5, done=5, clock_doubted=False)
    later = rebooted(3650 * DAY_S)
    ended = p.try_run(env=later)
    assert ended.status == 0, ended
    counts(ended.json, received=5, duplicates=5, clock_doubted=True)
    assert "3650d ahead" in ended.err and "--confirm-clock" in ended.err, ended
    p.append(*messages(1, 5))
    counts(p.run(status=0, env=later), received=6, duplicates=5, done=1)
    status = p.once("status", "--json", p.name, env=later)
    assert status.json["clock_doubted"] and status.json["wall_ms"] - status.json["store_ms"] > 3649 * DAY_S * 1000, status
    assert "is not trusted" in p.once("status", p.name, env=later).out
    assert "warning: clock: after a reboot the wall clock is 3650d ahead" in check(p, later)
    assert p.rows("SELECT count(*) FROM once_audit") == [(0,)], "looking changes nothing"

    assert "the store's time was" in check(p, later, "--confirm-clock")
    assert not p.once("status", "--json", p.name, env=later).json["clock_doubted"]
    [(who, what, note)] = p.rows("SELECT who, what, note FROM once_audit")
    assert what == "confirm-clock" and "->" in note and f":{who.rpartition(':')[2]}" in who
    old = p.run(env=later)
    counts(old, received=6, dead=6, too_old=6)
    assert p.rows("SELECT count(*) FROM t") == [(6,)], "expired, but not run again: too old"


def test_f85_a_clock_that_is_set_right_again_needs_no_word(tmp_path, rebooted):
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write(*messages(5))
    p.run(status=0, env=rebooted(0))
    counts(p.run(status=0, env=rebooted(3650 * DAY_S)), received=5, duplicates=5, clock_doubted=True)
    counts(p.run(status=0, env=rebooted(DAY_S)), received=5, duplicates=5, clock_doubted=False)
    assert "wall clock is" not in check(p, rebooted(DAY_S))


def test_f85_made_under_a_clock_years_ahead_check_tells_and_sets_it_back(tmp_path, rebooted):
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write(*messages(5))
    counts(p.run(env=rebooted(3650 * DAY_S)), received=5, dead=5, too_old=5)
    told = check(p, rebooted(0))
    assert re.search("the store's time is 36(49|50)d ahead of the wall clock", told) and "--confirm-clock" in told, told
    assert "newest message seen is 3650d older than the store's time" in told, told
    check(p, rebooted(0), "--confirm-clock")
    told = check(p, rebooted(0))
    assert "warning: clock" not in told, told
    p.append(*messages(5, 5))
    counts(p.run(env=rebooted(0)), received=10, done=10)


def test_a_store_without_a_time_of_its_own_is_not_set(tmp_path):
    p = Pipeline(tmp_path)
    p.configure('key: "${/id}"\nhandler: {exec: ["true"]}\n', store='"memory:"')
    ended = p.once("check", "--confirm-clock", p.name)
    assert ended.status == 2 and "no clock of its own" in ended.err, ended


def test_an_old_file_after_a_current_one_does_not_make_the_newest_message_old(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write(*messages(5))
    p.run(status=0)
    p.write(*messages(5, 5, at_s=time.time() - 700 * DAY_S))
    counts(p.run(), received=5, dead=5, too_old=5)
    assert "newest message seen" not in check(p, {})
    # Nor in one run, in a later batch.
    p.configure(CONFIG + "batch: {max: 5}\n")
    p.write(*messages(5, 10), *messages(5, 15, at_s=time.time() - 700 * DAY_S))
    p.run()
    assert "newest message seen" not in check(p, {})


def test_a_message_from_the_future_is_the_newest_until_the_next_run(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write(*messages(1, at_s=time.time() + 700 * DAY_S))
    p.run(status=0)
    assert "ahead of the wall clock" in check(p, {})
    p.write(*messages(5, 1))
    p.run(status=0)
    assert "ahead of the wall clock" not in check(p, {})


@pytest.mark.parametrize("at", [-(2**63), "-9223372036854775808", 2**63 - 1, -62135596800001, 253402300800000, "0000-12-31T23:59:59Z"])
def test_f71_a_time_that_cannot_be_is_a_dead_letter(tmp_path, at):
    """-2^63 counted as no time: such a message was never too old, and ran again after `remember`."""
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write({"id": 1, "at": at})
    counts(p.run(status=1), received=1, dead=1, done=0)
    (letter,) = p.once("list", "--dead", "--json", p.name).json["messages"]
    assert "the time of the message" in letter["reason"], letter
    if isinstance(at, int):
        assert f"{at} ms, is not in the years 1 to 9999" in letter["reason"], letter


@pytest.mark.parametrize("at", [-62135596800000, -1, 0, "0001-01-01T00:00:00Z"])
def test_f71_a_time_before_1970_is_old_and_no_mistake(tmp_path, at):
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write({"id": 1, "at": at})
    counts(p.run(status=1), received=1, dead=1, too_old=1)


# ---- what a number counts ----

def in_unit(unit):
    return CONFIG.replace('time: "${/at}"', f'time: {{from: "${{/at}}", unit: {unit}}}')


@pytest.mark.parametrize("unit,factor", [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_a_number_counts_the_unit_that_is_said(tmp_path, unit, factor):
    p = Pipeline(tmp_path, in_unit(unit), TABLES)
    now = int(time.time())
    p.write({"id": 1, "at": now * factor}, {"id": 2, "at": str(now * factor)}, {"id": 3, "at": now * factor + 0.5}, {"id": 4, "at": "2999-01-31T12:00:00Z"},
            {"id": 5, "at": (now - 8 * DAY_S) * factor})
    counts(p.run(status=1), received=5, done=4, dead=1, too_old=1)


def test_too_old_shows_the_time_that_was_read_and_the_unit_that_was_meant(tmp_path):
    p = Pipeline(tmp_path, CONFIG, TABLES)
    p.write({"id": 1, "at": 1700000000}, {"id": 2, "at": 1700000000000}, {"id": 3, "at": "2023-11-14T22:13:20Z"}, {"id": 4, "at": 1700000000000000})
    counts(p.run(status=1), received=4, dead=4, too_old=3)
    assert [reason for _, reason in p.letters()] == [
        "too old: sent 1970-01-20T16:13:20.000Z, from 1700000000 milliseconds, and messages are remembered for 7d;"
        " as seconds it would be 2023-11-14T22:13:20.000Z: say 'unit: s' in 'time' if that is meant",
        "too old: sent 2023-11-14T22:13:20.000Z, from 1700000000000 milliseconds, and messages are remembered for 7d",
        "too old: sent 2023-11-14T22:13:20.000Z, from '2023-11-14T22:13:20Z', and messages are remembered for 7d",
        "the time of the message, 1700000000000000 ms, is not in the years 1 to 9999;"
        " as microseconds it would be 2023-11-14T22:13:20.000Z: say 'unit: us' in 'time' if that is meant"]
    p.append({"id": 5, "at": 1700000000000})
    told = p.once("explain", p.name, "--message", "in.ndjson:5").out
    assert "It would be too old: sent 2023-11-14T22:13:20.000Z, from 1700000000000 milliseconds, and messages are remembered for 7d." in told


def test_a_time_map_is_checked(tmp_path):
    p = Pipeline(tmp_path, in_unit("min"), TABLES)
    assert "p.yaml:6: 'unit' cannot be 'min'" in p.once("check", p.name).err
    p.configure(CONFIG.replace('time: "${/at}"', "time: {unit: s}"))
    assert "p.yaml:6: missing field 'from' in 'time'" in p.once("check", p.name).err
