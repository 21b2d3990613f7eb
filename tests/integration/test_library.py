"""The library as its users get it: installed, found with pkg-config, and the programs of examples/library built and run."""

import glob
import os
import re
import shutil
import subprocess

import pytest

import postgres
from harness import ONCE, ROOT
from pgpipeline import has_postgres

BUILD = os.path.dirname(ONCE)
WARNINGS = ["-std=c17", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wpedantic", "-Werror"]


def run(argv, **more):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, **more)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def sanitizers():
    """Flags that a program needs which links a library built with them."""
    with open(os.path.join(BUILD, "build.ninja"), encoding="utf-8") as text:
        found = re.search(r"-fsanitize=([\w,]+)", text.read())
    return [f"-fsanitize={found[1]}"] if found else []


class Installed:
    def __init__(self, root):
        env = {**os.environ, "DESTDIR": str(root)}
        run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet"], env=env)
        found = glob.glob(f"{root}/**/libonce.pc", recursive=True)
        assert len(found) == 1
        self.lib = os.path.dirname(os.path.dirname(found[0]))
        self.env = {**os.environ, "PKG_CONFIG_PATH": os.path.dirname(found[0]), "PKG_CONFIG_SYSROOT_DIR": str(root)}

    def flags(self, *packages):
        return run(["pkg-config", "--cflags", "--libs", *packages], env=self.env).split()

    def build(self, source, to, *packages, compiler="cc", extra=()):
        argv = [compiler, *WARNINGS, *sanitizers(), *extra, source, "-o", str(to), *self.flags("libonce", *packages), f"-Wl,-rpath,{self.lib}"]
        run(argv)
        return str(to)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if not shutil.which("pkg-config"):
        pytest.skip("missing: pkg-config")
    return Installed(tmp_path_factory.mktemp("root"))


def header_example(name):
    """The program in the comment at the head of a public header."""
    with open(os.path.join(ROOT, "include", "once", name), encoding="utf-8") as text:
        head = text.read().split("*/", 1)[0]
    after = re.split(r"^ \* Example\b.*\n", head, maxsplit=1, flags=re.M)
    assert len(after) == 2, f"{name}: its head has no example"
    code = re.match(r"(?: \*(?:     .*)?\n)+", after[1])
    assert code, f"{name}: its example is not indented by 5 columns"
    return "".join(line[7:] + "\n" for line in code[0].splitlines())


def compilers():
    with open(os.path.join(BUILD, "build.ninja"), encoding="utf-8") as text:
        return ["clang" if re.search(r"command = .*clang", text.read()) else "gcc"]


def example(name):
    return os.path.join(ROOT, "examples", "library", name)


PRINTED = {
    "error.h": "E_MESSAGE: cannot charge '-5' cents; send more than 0\n",
    "handle.h": "attempt 1\nrun, ack: receipt 1\nduplicate, ack: receipt 1\n",
    "log.h": "",
    "once.h": "open\n",
    "operate.h": "letter 1: run\n",
    "pipeline.h": "1 done, 1 dead\n",
    "store.h": "attempt 1\nack\n",
    "testing.h": "",
    "types.h": "p1 of payments: done\n",
    "version.h": None,  # what is in this build
}
PAYMENTS = """consumer: payments
store: sqlite:payments.db
source:
  file: {path: payments.ndjson}
key: "${/payment_id}"
init: CREATE TABLE IF NOT EXISTS payments(id TEXT PRIMARY KEY, account TEXT, cents INTEGER CHECK (cents > 0))
handler:
  sql: INSERT INTO payments(id, account, cents) VALUES (:payment_id, :account, :cents)
"""


@pytest.mark.parametrize("name", sorted(os.listdir(os.path.join(ROOT, "include", "once"))))
def test_example_of_a_header(installed, tmp_path, name):
    """What a header shows compiles without warnings, runs, and prints what it says."""
    (tmp_path / "payments.yaml").write_text(PAYMENTS, encoding="utf-8")
    (tmp_path / "payments.ndjson").write_text('{"payment_id": "p1", "account": "ann", "cents": 1200}\n'
                                              '{"payment_id": "p3", "account": "cyd", "cents": -5}\n', encoding="utf-8")
    if name == "operate.h":  # it works on what a run has left
        assert subprocess.run([ONCE, "run", "payments.yaml"], cwd=tmp_path, capture_output=True, timeout=120, check=False).returncode == 1
    source = tmp_path / "example.c"
    source.write_text(header_example(name), encoding="utf-8")
    program = installed.build(str(source), tmp_path / "program", compiler=compilers()[0])
    printed = run([program], cwd=tmp_path)
    assert printed == PRINTED[name] if PRINTED[name] is not None else printed.startswith("once ")


def test_payment_handler(installed, tmp_path):
    program = installed.build(example("payment_handler.c"), tmp_path / "program", compiler=compilers()[0])
    store = f"sqlite:{tmp_path}/payments.db"
    first = run([program, store]).splitlines()
    assert first == [
        'p1: run, done: {"receipt": "r-p1"}',
        'p2: run, done: {"receipt": "r-p2"}',
        'p1: duplicate, done before: {"receipt": "r-p1"}',
        "p2: conflict, dead",
        "p3: run, retry",
        'p3: run, done: {"receipt": "r-p3"}',
        "3 charges",
    ]
    again = run([program, store]).splitlines()
    assert again[-1] == "0 charges"
    assert [line for line in again if "run" in line] == []


def test_own_transaction(installed, tmp_path):
    program = installed.build(example("own_transaction.c"), tmp_path / "program", "sqlite3", compiler=compilers()[0])
    first = run([program, f"{tmp_path}/accounts.db"]).splitlines()
    assert first == [
        "d1: run, done, acked",
        "d2: run, done, rolled back",
        "d1: duplicate, done, acked",
        "d2: run, done, acked",
        "d3: run, rejected, acked",
        "d3: duplicate, rejected, acked",
        "ann has 100",
        "bob has 70",
    ]
    again = run([program, f"{tmp_path}/accounts.db"]).splitlines()
    assert again[-2:] == ["ann has 100", "bob has 70"]
    assert all("run" not in line for line in again)


def test_postgres_transaction(installed, tmp_path):
    if not has_postgres():
        pytest.skip("missing: libpq in the build")
    url = postgres.shared().database(f"library_{os.getpid()}").replace("postgres://", "postgresql://", 1)
    libpq = run(["pkg-config", "--cflags", "libpq"]).split()  # which is not under our root
    program = installed.build(example("postgres_transaction.c"), tmp_path / "program", "libpq", compiler=compilers()[0], extra=libpq)
    env = {**os.environ, "ONCE_MODULES": os.path.join(installed.lib, "once")}  # that of the installation is not under our root
    first = run([program, url], env=env).splitlines()
    assert first == [
        "d1: run, done, acked",
        "d2: run, done, rolled back",
        "d1: duplicate, done, acked",
        "d2: run, done, acked",
        "d3: run, rejected, acked",
        "d3: duplicate, rejected, acked",
        "ann has 100",
        "bob has 70",
    ]
    again = run([program, url], env=env).splitlines()
    assert again[-2:] == ["ann has 100", "bob has 70"]
    assert all("run" not in line for line in again)


def test_pipeline_callback(installed, tmp_path):
    program = installed.build(example("pipeline_callback.c"), tmp_path / "program", compiler=compilers()[0], extra=["-D_GNU_SOURCE"])
    shutil.copy(example("pipeline_callback.yaml"), tmp_path)
    orders = ['{"order_id": 1}', '{"order_id": 2, "what": "fragile"}', '{"order_id": 1}', '{"order_id": 3, "state": "closed"}', '{"order_id": 4}']
    (tmp_path / "orders.ndjson").write_text("\n".join(orders) + "\n")
    first = run([program, "pipeline_callback.yaml"], cwd=tmp_path).splitlines()
    assert first == ["5 received: 3 done, 1 rejected, 1 duplicates", "5 calls, 3 shipped"]
    again = run([program, "pipeline_callback.yaml"], cwd=tmp_path).splitlines()
    assert again == ["5 received: 0 done, 0 rejected, 5 duplicates", "0 calls, 0 shipped"]
    alone = subprocess.run([ONCE, "run", "pipeline_callback.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert alone.returncode == 2 and "pipeline_callback.yaml:8: callback 'ship' is not registered" in alone.stderr, "the command has no functions"


def test_run_beside(installed, tmp_path):
    program = installed.build(example("run_beside.c"), tmp_path / "program", compiler=compilers()[0])
    shutil.copy(example("run_beside.yaml"), tmp_path)
    (tmp_path / "orders.ndjson").write_text("".join(f'{{"order_id": {i % 4}}}\n' for i in range(6)))
    assert run([program, "run_beside.yaml", "6"], cwd=tmp_path) == "6 received, 4 done, 2 duplicates; the store remembers 4\n"
    assert run([program, "run_beside.yaml", "6"], cwd=tmp_path) == "6 received, 0 done, 6 duplicates; the store remembers 4\n"


def test_run_beside_ends_by_a_signal(installed, tmp_path):
    program = installed.build(example("run_beside.c"), tmp_path / "program", compiler=compilers()[0])
    shutil.copy(example("run_beside.yaml"), tmp_path)
    (tmp_path / "orders.ndjson").write_text('{"order_id": 1}\n')
    with subprocess.Popen([program, "run_beside.yaml", "1000"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while b"effect" not in subprocess.run([ONCE, "explain", "run_beside.yaml", "1"], cwd=tmp_path, capture_output=True, check=False).stdout:
            assert process.poll() is None
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "1 received, 1 done, 0 duplicates; the store remembers 1\n"), err


def test_every_program_of_the_folder_is_tested_here():
    with open(__file__, encoding="utf-8") as text:
        tests = text.read()
    programs = glob.glob(example("*.c"))
    assert programs
    for program in programs:
        assert f'example("{os.path.basename(program)}")' in tests, program


def test_headers_can_be_used_from_cplusplus(installed, tmp_path):
    if not shutil.which("c++"):
        pytest.skip("missing: a C++ compiler; Debian package g++")
    source = tmp_path / "main.cc"
    source.write_text('#include <once/once.h>\nint main() { once_store_close(nullptr); return once_status_class(ONCE_OK); }\n')
    flags = installed.flags("libonce")
    run(["c++", "-std=c++17", "-Wall", "-Wextra", "-fsyntax-only", str(source), *[flag for flag in flags if flag.startswith("-I")]])
