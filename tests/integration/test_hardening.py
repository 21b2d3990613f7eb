"""What the compiler and the linker were asked to do for safety is really in the binaries, and the service is locked up."""

import glob
import json
import os
import re
import shutil
import subprocess

import pytest

from harness import ONCE, ROOT, Pipeline

BUILD = os.path.dirname(ONCE)
UNIT = os.path.join(ROOT, "packaging", "systemd", "once@.service")
MODULES = [os.path.relpath(path, BUILD) for path in sorted(glob.glob(os.path.join(BUILD, "src", "module", "*.so")))]
BINARIES = ["once", "libonce.so", *MODULES]


def build_options():
    with open(os.path.join(BUILD, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as text:
        return {option["name"]: option["value"] for option in json.load(text)}


def sanitized():
    value = build_options()["b_sanitize"]
    return value not in ("none", [], ["none"])


def product(test):
    """A test of the product; a build with sanitizers does not list it."""
    return None if sanitized() else test


def tool(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def binary(name):
    return os.path.join(BUILD, name)


def imports(name):
    return {line.split()[-1].split("@")[0] for line in tool("nm", "-D", "--undefined-only", binary(name)).splitlines()}


def gcc():
    """The major version of the gcc that built the command; 0: it was another compiler. (The C runtime always names gcc.)"""
    comment = tool("readelf", "-p", ".comment", binary("once"))
    version = re.search(r"GCC: \(.*?\) (\d+)", comment)
    return int(version[1]) if version and "clang" not in comment else 0


# ---- the linker ----

@product
def test_command_is_position_independent():
    assert re.search(r"Type:\s+DYN", tool("readelf", "-hW", binary("once")))
    assert re.search(r"FLAGS_1.*\bPIE\b", tool("readelf", "-dW", binary("once")))


@product
@pytest.mark.parametrize("name", BINARIES)
def test_relocations_are_read_only_and_bound_at_the_start(name):
    assert "GNU_RELRO" in tool("readelf", "-lW", binary(name))
    dynamic = tool("readelf", "-dW", binary(name))
    assert "BIND_NOW" in dynamic or re.search(r"FLAGS_1.*\bNOW\b", dynamic)
    assert "TEXTREL" not in dynamic and not re.search(r"\((RPATH|RUNPATH)\)", dynamic)


@product
@pytest.mark.parametrize("name", BINARIES)
def test_nothing_is_writable_and_executable(name):
    segments = re.findall(r"^  (\S+)\s+0x\S+ 0x\S+ 0x\S+ 0x\S+ 0x\S+ ([RWE ]{3})", tool("readelf", "-lW", binary(name)), re.M)
    assert dict(segments)["GNU_STACK"].strip() == "RW"
    assert not [kind for kind, rights in segments if "W" in rights and "E" in rights]


# ---- the compiler ----

@product
@pytest.mark.parametrize("name", BINARIES)
def test_stacks_are_guarded(name):
    assert "__stack_chk_fail" in imports(name)


@product
@pytest.mark.parametrize("name", BINARIES)
def test_libc_calls_are_fortified(name):
    if not gcc():
        pytest.skip("only gcc fortifies; see meson.build")
    checked = {symbol for symbol in imports(name) if symbol.endswith("_chk")}
    assert {"__snprintf_chk", *([] if name in MODULES else ["__memcpy_chk", "__vsnprintf_chk"])} <= checked, checked


@product
def test_every_file_of_the_product_is_built_with_the_flags():
    wanted = ["-fstack-protector-strong", "-fstack-clash-protection", "-fno-strict-overflow", "-Wformat=2", "-Werror=format-security",
              "-Wimplicit-fallthrough"]
    if gcc() >= 12:
        wanted += ["-D_FORTIFY_SOURCE=3", "-ftrivial-auto-var-init=zero", "-Wbidi-chars=any"]
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as text:
        commands = [c for c in json.load(text) if c["output"].startswith(("libonce.a.p/", "libonce-core.a.p/", "once.p/", "src/module/"))]
    assert len(commands) > 30
    for command in commands:
        missing = [flag for flag in wanted if flag not in command["command"].split()]
        assert not missing, f"{command['output']}: {missing}"


# ---- the service ----

@pytest.fixture
def unit(tmp_path):
    """An instance of the template as it is installed; its command stands for itself."""
    with open(UNIT, encoding="utf-8") as text:
        path = tmp_path / "once@payments.service"
        path.write_text(text.read().replace("@bindir@/once", ONCE))
    return str(path)


needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="missing: systemd-analyze; Debian package systemd")


@needs_systemd
def test_service_exposure_is_at_most_2(unit):
    told = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", unit], capture_output=True, text=True,
                          timeout=60, check=False)
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", told.stdout)
    assert level, told.stdout + told.stderr
    assert float(level[1]) <= 2.0, told.stdout


@needs_systemd
def test_service_is_understood_line_by_line(unit):
    told = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit], capture_output=True, text=True,
                          timeout=60, check=False)
    complaints = [line for line in told.stderr.splitlines() if "once@" in line]
    assert not complaints, told.stderr


def call_groups():
    """The groups of system calls that systemd knows, each with the calls and groups in it."""
    groups, members = {}, None
    for line in tool("systemd-analyze", "syscall-filter", "--no-pager").splitlines():
        if line.startswith("@"):
            members = groups.setdefault(line.strip(), [])
        elif line.startswith("    ") and members is not None and not line.strip().startswith("#"):
            members.append(line.strip())
    return groups


def calls_of(groups, name):
    return set().union(*(calls_of(groups, member) if member.startswith("@") else {member} for member in groups[name]))


@product
@needs_systemd
@pytest.mark.skipif(not shutil.which("strace"), reason="missing: strace; Debian package strace")
def test_service_lets_through_what_a_run_needs(unit, tmp_path):
    """What a run really asks of the kernel is within the unit's filter; in it a call that is not would end in EPERM."""
    p = Pipeline(tmp_path, 'key: "${/id}"\ntype: "${/t}"\nhandlers:\n  sql: {sql: ["INSERT INTO t VALUES (:id)"]}\n  cmd: {exec: [cat]}\n'
                           '  kept: {exec: [sh, -c, "read -r line"], mode: stream}\n', "CREATE TABLE t(id TEXT PRIMARY KEY);")
    p.write(*[{"id": n, "t": "sql"} for n in range(2000)], {"id": 1, "other": 1, "t": "sql"}, "not json", {"id": 1, "t": "cmd"}, {"id": 1, "t": "kept"})
    trace = tmp_path / "trace"
    ran = subprocess.run(["strace", "-f", "-qq", "-o", trace, ONCE, "run", "--json", p.name], cwd=tmp_path, capture_output=True,
                         text=True, timeout=60, check=False)
    if "ptrace" in ran.stderr and "not permitted" in ran.stderr:
        pytest.skip("this machine does not let strace look")
    assert ran.returncode == 1, ran.stderr
    used = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(), re.M))
    assert {"execve", "openat", "fdatasync", "close_range", "epoll_wait"} <= used
    if os.geteuid() == 0:
        used.discard("fchown")  # SQLite gives its files root's owner back, which the service's user need not

    groups = call_groups()
    with open(unit, encoding="utf-8") as text:
        rules = re.findall(r"^SystemCallFilter=(~?)(.*)$", text.read(), re.M)
    allowed = set()
    for without, names in rules:
        for name in names.split():
            allowed = allowed - calls_of(groups, name) if without else allowed | calls_of(groups, name)
    assert used <= allowed | calls_of(groups, "@default"), sorted(used - allowed)


def settings(path):
    with open(path, encoding="utf-8") as text:
        lines = [line.strip() for line in text if "=" in line and not line.startswith("#")]
    return {line.split("=", 1)[0]: line.split("=", 1)[1] for line in lines}


def test_service_restarts_what_a_restart_can_cure(unit):
    """By the exit statuses of `once run`: 1 is no failure of the service, 2 and 4 cannot be cured by trying again."""
    said = settings(unit)
    assert said["Restart"] == "on-failure"
    assert said["SuccessExitStatus"] == "1" and said["RestartPreventExitStatus"] == "2 4"
    assert said["KillSignal"] == "SIGTERM"


def test_service_writes_its_state_folder_only_and_leaves_no_core(unit):
    said = settings(unit)
    assert said["StateDirectory"] == "once/%i" and said["WorkingDirectory"] == "%S/once/%i" and said["StateDirectoryMode"] == "0700"
    assert said["ProtectSystem"] == "strict" and "ReadWritePaths" not in said
    assert said["LimitCORE"] == "0"
