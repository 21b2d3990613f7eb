"""tools/check itself: a test that hangs, crashes, prints nothing or is missing must not look like one that passed."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import types

import pytest

from harness import ROOT, until

COMMANDS = {
    "fine": "echo '[==========] Running 1 test(s).'; echo '[ RUN      ] a'; echo '[       OK ] a'",
    "hangs": "echo '[==========] Running 3 test(s).'; echo '[ RUN      ] a'; echo '[       OK ] a'; echo '[ RUN      ] b'; sleep 600",
    "crashes": "echo '[==========] Running 2 test(s).'; echo '[ RUN      ] a'; kill -SEGV $$",
    "is silent": "true",
    "ends early": "echo '[==========] Running 2 test(s).'; echo '[ RUN      ] a'; echo '[       OK ] a'",
    "fails": "echo '[==========] Running 1 test(s).'; echo '[ RUN      ] a'; echo '[  FAILED  ] a'; echo '[  FAILED  ] 1 test(s), listed below:'; "
             "echo '[  FAILED  ] a'; exit 1",
    "fails afterwards": "echo '[==========] Running 1 test(s).'; echo '[ RUN      ] a'; echo 'no line end [       OK ] a'; exit 9",
    "is skipped": "echo '[==========] Running 1 test(s).'; echo '[ RUN      ] a'; echo '[  SKIPPED ] a'",
    "may not": "echo '[==========] Running 2 test(s).'; echo '[ RUN      ] a'; echo 'not allowed here: a mount'; echo '[  SKIPPED ] a';"
               "echo '[ RUN      ] b'; echo '[       OK ] b'",
    "has no group": "echo '[==========] Running 1 test(s).'; echo '[  FAILED  ] GROUP SETUP'; exit 1",
}


@pytest.fixture
def check(monkeypatch):
    """The module, fresh: a stage 'fake' of shell commands, a build that is there, no servers."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())  # it sets both
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    loader = importlib.machinery.SourceFileLoader("once_check", os.path.join(ROOT, "tools", "check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("once_check", loader))
    monkeypatch.setitem(sys.modules, "once_check", module)
    loader.exec_module(module)
    module.options = types.SimpleNamespace(coverage=False, fast=True, all=False, only=None, list=False, fuzz_seconds=1)
    module.signal = types.SimpleNamespace(**{**vars(module.signal), "signal": lambda *_: None})  # ours stay
    module.run_build = lambda name, stages: module.Report(f"build/{name}", [module.Test("build", "passed")], "", 0.0)
    module.wanted_servers = lambda stages: []
    return module


def fake(check, commands, read=None, timeout_s=20):
    def programs(build):
        return [check.Program(name, ["sh", "-c", text], read or check.read_cmocka, timeout_s) for name, text in commands.items()]

    check.STAGES[:] = [check.Stage("fake", "gcc", programs)]


def run(check, capsys):
    status = check.main()
    out = capsys.readouterr().out
    return status, out, [line for line in out.splitlines() if line.startswith(("FAILED  ", "SKIPPED fake"))], out.splitlines()[-1]


def test_what_passes_passes(check, capsys):
    fake(check, {"fine": COMMANDS["fine"]})
    status, _, told, last = run(check, capsys)
    assert (status, told, last) == (0, [], "2 passed, 0 failed, 0 skipped")


def test_what_the_machine_forbids_is_skipped_and_named(check, capsys):
    fake(check, {"may not": COMMANDS["may not"]})
    status, out, told, last = run(check, capsys)
    assert (status, told, last) == (0, ["SKIPPED fake/may not a: not allowed here: a mount"], "2 passed, 0 failed, 1 skipped"), out


@pytest.mark.parametrize("name, told", [
    ("crashes", "a: did not end"), ("is silent", "ran no test"), ("ends early", "ended after 1 of 2 tests"), ("fails", "a"),
    ("fails afterwards", "ended with status 9"), ("is skipped", "a: skipped: what it needs is missing"), ("has no group", "group setup")])
def test_what_does_not_pass_fails_and_is_named(check, capsys, name, told):
    fake(check, {name: COMMANDS[name], "fine": COMMANDS["fine"]})
    status, _, lines, _ = run(check, capsys)
    assert status == 1 and f"FAILED  fake/{name} {told}" in lines, lines


def test_a_test_that_hangs_is_named_and_nothing_of_it_stays(check, capsys, tmp_path):
    """Also what it started in a session of its own."""
    pids = tmp_path / "pids"
    started = f"setsid sh -c 'echo $$ >{pids}; exec sleep 600' & while [ ! -s {pids} ]; do sleep 0.01; done; "
    fake(check, {"hangs": started + COMMANDS["hangs"]}, timeout_s=8)
    began = time.monotonic()
    status, out, lines, last = run(check, capsys)
    assert status == 1 and time.monotonic() - began < 60
    assert "FAILED  fake/hangs b: did not end" in lines, out
    assert "FAILED  fake/hangs ended by force after 8 s" in lines, out
    assert last.startswith("2 passed, "), "the build, and the test before it"
    pid = int(pids.read_text())
    until(lambda: not os.path.exists(f"/proc/{pid}/cmdline") or not open(f"/proc/{pid}/cmdline").read(), what="it is gone")


def test_what_a_program_leaves_behind_is_ended_and_told(check, capsys, tmp_path):
    pids = tmp_path / "pids"
    fake(check, {"leaves": f"setsid sh -c 'echo $$ >{pids}; exec sleep 600' >/dev/null 2>&1 & while [ ! -s {pids} ]; do sleep 0.01; done; " + COMMANDS["fine"]})
    status, out, _, _ = run(check, capsys)
    assert status == 0 and "did not end 'sleep 600'" in out, out
    pid = int(pids.read_text())
    until(lambda: not os.path.exists(f"/proc/{pid}/cmdline") or not open(f"/proc/{pid}/cmdline").read(), what="it is gone")


PYTEST_FILE = '''
import os, signal, sys, time, pytest
sys.path.insert(0, "LIB")
from deadline import pytest_runtest_call

def test_before():
    pass

@pytest.mark.parametrize("n", ["a b"])
def test_hangs(n):
    if "HARD": signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(600)

def test_after():
    pass

@pytest.mark.skipif(True, reason="missing: a tool")
def test_without_a_tool():
    pass

@pytest.mark.skipif(True, reason="needs root")
def test_without_rights():
    pass
'''


def pytest_program(check, tmp_path, hard, timeout_s):
    (tmp_path / "conftest.py").write_text(f'import sys\nsys.path.insert(0, "{ROOT}/tests/lib")\nfrom deadline import pytest_runtest_call\n')
    (tmp_path / "test_it.py").write_text(PYTEST_FILE.replace("LIB", f"{ROOT}/tests/lib").replace("HARD", "yes" if hard else ""))
    argv = [check.PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junitxml={tmp_path}/report.xml", "test_it.py"]
    text = f"cd {tmp_path} && ONCE_TEST_LIMIT_S=1 exec {' '.join(argv)}"
    fake(check, {"it": text}, check.read_junit(f"{tmp_path}/report.xml"), timeout_s)


def test_a_python_test_that_hangs_is_ended_alone(check, capsys, tmp_path):
    pytest_program(check, tmp_path, hard=False, timeout_s=60)
    status, out, lines, last = run(check, capsys)
    assert status == 1 and last == "3 passed, 2 failed, 1 skipped", out
    assert lines == ["FAILED  fake/it test_hangs[a b]", "FAILED  fake/it test_without_a_tool: missing: a tool", "SKIPPED fake/it test_without_rights: needs root"]
    assert "test_it.py::test_hangs[a b] hangs: it did not end in 1 s" in out and "time.sleep(600)" in out, "and where it stood"


def test_a_python_test_that_no_signal_ends_is_named_all_the_same(check, capsys, tmp_path):
    pytest_program(check, tmp_path, hard=True, timeout_s=15)
    status, out, lines, _ = run(check, capsys)
    assert status == 1 and lines == ["FAILED  fake/it test_hangs[a b]: did not end", "FAILED  fake/it ended by force after 15 s"], out


# ---- servers ----

SERVER = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
time.sleep(600)
"""


def test_a_server_that_does_not_stop_changes_nothing(check, capsys):
    """The results come first; then it is killed with what it started."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(server.stdout.readline())
    check.SERVER_STOPS_S = 0.2
    check.wanted_servers = lambda stages: [check.Server("PostgreSQL", (), (), "", process=server)]
    check.prepare_servers = lambda wanted: None
    fake(check, {"fine": COMMANDS["fine"]})
    assert check.main() == 0 and not os.path.exists(check.own_folder)
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"
    assert "PostgreSQL did not stop in 0.2 s and was killed" in said.err
    assert server.poll() is not None
    until(lambda: not os.path.exists(f"/proc/{child}/cmdline") or not open(f"/proc/{child}/cmdline").read(), what="it is gone")


def only_python(tmp_path):
    """A PATH with nothing that could be a server."""
    folder = tmp_path / "bin"
    folder.mkdir()
    os.symlink("/usr/bin/env", folder / "env")
    return {**os.environ, "PATH": str(folder)}


def test_a_missing_server_fails_the_check(tmp_path):
    done = subprocess.run(["/usr/bin/python3", os.path.join(ROOT, "tools/check"), "--fast", "--only", "unit"], env=only_python(tmp_path),
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "check: there is no redis-server; tools/setup check installs one\n"), done


def test_a_server_that_does_not_start_fails_the_check(check, capsys):
    loader = importlib.machinery.SourceFileLoader("once_check_2", os.path.join(ROOT, "tools", "check"))
    fresh = importlib.util.module_from_spec(importlib.util.spec_from_loader("once_check_2", loader))
    sys.modules["once_check_2"] = fresh
    loader.exec_module(fresh)
    fresh.PYTHON, fresh.SERVER_STARTS_S, fresh.SERVER_STOPS_S = "/bin/false", 5, 5
    with pytest.raises(fresh.Unable, match="no PostgreSQL server could be started"):
        fresh.prepare_servers(fresh.wanted_servers([fresh.Stage("unit", "gcc", None)]))
    del sys.modules["once_check_2"]
    assert fresh.wanted_servers([fresh.Stage("tree", "gcc", None)]) == []
    fresh.SERVERS = fresh.SERVERS[1:]
    with pytest.raises(fresh.Unable, match="no Kafka could be copied"):
        fresh.prepare_servers(fresh.wanted_servers([fresh.Stage("conform-asan", "asan", None)]))


def test_a_check_without_its_servers_is_no_success(check, capsys):
    def refuse(wanted):
        raise check.Unable("no PostgreSQL server could be started")

    check.prepare_servers = refuse
    fake(check, {"fine": COMMANDS["fine"]})
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert ended.value.code == "check: no PostgreSQL server could be started; tools/setup check installs one"
    assert "2 passed" not in capsys.readouterr().out
