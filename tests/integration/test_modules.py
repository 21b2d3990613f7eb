"""Drivers with a library of their own are modules: loaded when they are named, from one folder, and only where they fit."""

import os
import re
import shutil
import subprocess

import pytest

from harness import ONCE, Pipeline, once, until

BUILD = os.path.dirname(ONCE)
INSERT = 'key: "${/id}"\nhandler: {dead: never run}\n'
LIBRARIES = ("libpq.", "libhiredis.", "libssl.", "libldap", "libgssapi_krb5.", "libkrb5.", "librdkafka.", "libcurl.")

STORES = {store["name"]: store for store in once("version", "--json").json["stores"]}
WITH_MODULES = any(store["module"] for store in STORES.values())


def loaded(test):
    """A test of a build that loads modules; one that has them linked in does not list it."""
    return test if WITH_MODULES else None


def linked(test):
    return None if WITH_MODULES else test


def needs(name):
    if name not in STORES:
        pytest.skip(f"missing: the library of {name} in the build")


def maps(pid):
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8") as text:
            return {os.path.basename(line.split()[-1]) for line in text if "/" in line}
    except OSError:  # it has ended
        return set()


def with_any(names, libraries):
    return sorted(name for name in names if name.startswith(libraries))


def compile_module(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    source, target = os.path.join(folder, f"{name}.c"), os.path.join(folder, f"{name}.so")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", target, source], check=True)
    return target


def module_text(interface, version):
    return f'const struct {{ unsigned interface; const char *version; const void *parts; }} once_this_module = {{{interface}, "{version}", 0}};\n'


def hostile(path):
    """Whoever loads it makes a file."""
    return f'#include <fcntl.h>\n__attribute__((constructor)) static void loaded(void) {{ open("{path}", O_CREAT | O_WRONLY, 0600); }}\n'


@loaded
def test_a_run_with_sqlite_has_no_libraries_of_other_stores(tmp_path):
    p = Pipeline(tmp_path, INSERT, source="{path: in.ndjson, follow: true}")
    p.write({"id": 1})
    with p.start() as running:
        until(lambda: p.has_table("once_letter") and p.letters(), what="a message that was handled")
        names = maps(running.process.pid)
    assert any(name.startswith("libsqlite3.") for name in names), names
    assert not with_any(names, LIBRARIES) and not {"postgres.so", "redis.so"} & names, names
    assert len([name for name in names if ".so" in name]) <= 8, names


@loaded
@pytest.mark.parametrize("name,url,has,has_not", [
    ("postgres", "postgres://127.0.0.1:1/none", ("libpq.", "postgres.so"), ("libhiredis.", "redis.so")),
    ("redis", "redis://127.0.0.1:1/0", ("libhiredis.", "redis.so"), ("libpq.", "postgres.so")),
])
def test_a_store_brings_its_own_library_and_no_other(tmp_path, name, url, has, has_not):
    needs(name)
    p = Pipeline(tmp_path, INSERT, store=f"'{url}'")
    p.write({"id": 1})
    with p.start() as running:  # nobody listens there, and it is patient
        until(lambda: all(with_any(maps(running.process.pid), (one,)) for one in has), what=f"the module of {name}")
        assert not with_any(maps(running.process.pid), has_not)


@loaded
@pytest.mark.parametrize("name,url", [("postgres", "postgres://127.0.0.1:1/none"), ("redis", "redis://127.0.0.1:1/0")])
def test_a_missing_module_is_named_with_what_to_do(tmp_path, name, url):
    needs(name)
    p = Pipeline(tmp_path, INSERT, store=f"'{url}'")
    p.write({"id": 1})
    folder = tmp_path / "modules"
    folder.mkdir()
    env = {"ONCE_MODULES": str(folder)}
    for verb in ("run", "check"):
        ended = p.once(verb, p.name, env=env)
        assert ended.status == 2, ended
        assert f"'{name}' needs the module '{folder}/{name}.so', which does not exist" in ended.err and "make install" in ended.err, ended
    told = once("version", env=env).out
    assert f"module {folder}/{name}.so, not installed" in told, told
    store = {one["name"]: one for one in once("version", "--json", env=env).json["stores"]}[name]
    assert store["module"] == f"{folder}/{name}.so" and store["there"] is False


@loaded
def test_sql_elsewhere_and_schemas_need_the_module_too(tmp_path):
    needs("postgres")
    env = {"ONCE_MODULES": str(tmp_path)}
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {sql: {url: "postgres://127.0.0.1:1/x", do: ["SELECT 1"]}}\n')
    p.write({"id": 1})
    for ended in (p.try_run(env=env), once("schema", "postgres:x", env=env)):
        assert ended.status == 2 and f"'{tmp_path}/postgres.so', which does not exist" in ended.err, ended
    assert "CREATE TABLE" in once("schema", "postgres:x").out


@loaded
@pytest.mark.parametrize("text,words", [
    (module_text(1000, "0.1.0"), r"has interface 1000, and this program has interface \d+; install both from one build"),
    (module_text("ONCE", "0.0.9"), r"is of version 0\.0\.9, and this program of version \d+\.\d+\.\d+; install both from one build"),
    ("int nothing;\n", "is not a module of once; install it again"),
    ("extern void once_nobody_has_this(void); void f(void); void f(void) { once_nobody_has_this(); }\n", "cannot be loaded: .*once_nobody_has_this"),
], ids=["interface", "version", "symbol", "function"])
def test_a_module_that_does_not_fit_is_refused(tmp_path, text, words):
    needs("postgres")
    with open(os.path.join(BUILD, "module_interface.h"), encoding="utf-8") as header:
        interface = re.search(r"#define ONCE_MODULE_INTERFACE (\d+)u", header.read())[1]
    compile_module(tmp_path / "modules", "postgres", text.replace("{ONCE,", f"{{{interface},"))
    ended = once("schema", "postgres:x", env={"ONCE_MODULES": str(tmp_path / "modules")})
    assert ended.status == 2 and re.search(words, ended.err), ended
    assert f"{tmp_path}/modules/postgres.so" in ended.err
    told = once("version", env={"ONCE_MODULES": str(tmp_path / "modules")}).out
    assert re.search(f"module {tmp_path}/modules/postgres.so cannot be used: .*" + words, told), told
    told = once("version", "--json", env={"ONCE_MODULES": str(tmp_path / "modules")}).json
    store = {one["name"]: one for one in told["stores"]}["postgres"]
    assert store["there"] is True and re.search(words, store["error"]), store


@loaded
def test_a_module_that_was_cut_off_is_refused(tmp_path):
    needs("postgres")
    with open(STORES["postgres"]["module"], "rb") as file:
        whole = file.read()
    for part in (0, 10, 64, 1000, 5000, len(whole) // 4, len(whole) // 2, len(whole) - 1):
        (tmp_path / "postgres.so").write_bytes(whole[:part])
        ended = once("schema", "postgres:x", env={"ONCE_MODULES": str(tmp_path)})
        assert ended.status == 2 and f"'{tmp_path}/postgres.so' cannot be loaded: it is truncated" in ended.err, (part, ended)
        assert "install it again" in ended.err
    bare = tmp_path / "bare.so"  # without section headers the segments tell
    subprocess.run(["objcopy", "--strip-all", STORES["postgres"]["module"], bare], check=True)
    short = bytearray(bare.read_bytes())
    short[0x28:0x30], short[0x3c:0x3e] = bytes(8), bytes(2)
    (tmp_path / "postgres.so").write_bytes(short[:len(short) // 2])
    ended = once("schema", "postgres:x", env={"ONCE_MODULES": str(tmp_path)})
    assert ended.status == 2 and "it is truncated" in ended.err, ended
    (tmp_path / "postgres.so").write_bytes(whole)
    assert "CREATE TABLE" in once("schema", "postgres:x", env={"ONCE_MODULES": str(tmp_path)}).out


@loaded
def test_a_module_under_the_name_of_another_is_refused(tmp_path):
    needs("postgres")
    needs("redis")
    shutil.copy(STORES["redis"]["module"], tmp_path / "postgres.so")
    ended = once("schema", "postgres:x", env={"ONCE_MODULES": str(tmp_path)})
    assert ended.status == 2 and f"'{tmp_path}/postgres.so' is not the module 'postgres'" in ended.err, ended
    assert "install it again" in ended.err
    told = once("version", env={"ONCE_MODULES": str(tmp_path)}).out
    assert f"{tmp_path}/postgres.so cannot be used: " in told, told


@loaded
def test_what_is_no_library_is_refused(tmp_path):
    needs("postgres")
    (tmp_path / "postgres.so").write_text("hello")
    ended = once("schema", "postgres:x", env={"ONCE_MODULES": str(tmp_path)})
    assert ended.status == 2 and "cannot be loaded: " in ended.err, ended


@loaded
def test_nothing_is_loaded_from_the_current_folder_or_from_beside_a_copy(tmp_path):
    needs("postgres")
    mark = tmp_path / "was_loaded"
    copy = tmp_path / "copy"
    for folder in (tmp_path, tmp_path / "once", tmp_path / "lib" / "once", tmp_path / "src" / "module", tmp_path / "modules",
                   copy, copy / "src" / "module", copy / "modules", copy / "lib" / "once"):
        compile_module(folder, "postgres", hostile(mark))
    shutil.copy(ONCE, copy / "once")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    env.pop("ONCE_MODULES", None)
    assert "CREATE TABLE" in once("schema", "postgres:x", cwd=tmp_path, env={"LD_LIBRARY_PATH": str(tmp_path)}).out
    for argv0 in ("once", "./once", ONCE):  # what it is called is not where it is
        told = subprocess.run([argv0, "version", "--json"], executable=copy / "once", cwd=copy, env=env, capture_output=True, text=True, check=True)
        assert str(tmp_path) not in told.stdout and BUILD not in told.stdout, told.stdout
        subprocess.run([argv0, "schema", "postgres:x"], executable=copy / "once", cwd=copy, env=env, capture_output=True, check=False)
    assert not mark.exists()
    relative = once("schema", "postgres:x", cwd=tmp_path, env={"ONCE_MODULES": "modules"})
    assert relative.status == 2 and "ONCE_MODULES must be an absolute path, not 'modules'" in relative.err, relative
    told = once("version", cwd=tmp_path, env={"ONCE_MODULES": "modules"}).out
    assert " cannot be used: ONCE_MODULES must be an absolute path, not 'modules'" in told, told
    assert not mark.exists()
    once("schema", "postgres:x", env={"ONCE_MODULES": str(tmp_path / "modules")})
    assert mark.exists()  # and it would have been noticed


@loaded
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program away")
def test_a_program_with_more_rights_than_its_caller_takes_no_folder_from_it(tmp_path):
    needs("postgres")
    mark = tmp_path / "was_loaded"
    compile_module(tmp_path / "modules", "postgres", hostile(mark))
    for folder in (tmp_path, *tmp_path.parents[:3]):
        os.chmod(folder, os.stat(folder).st_mode | 0o055)
    program = tmp_path / "once"
    shutil.copy(ONCE, program)
    os.chown(program, 65534, 65534)
    os.chmod(program, 0o4755)
    argv = [program, "version", "--json"]
    told = subprocess.run(argv, env={**os.environ, "ONCE_MODULES": str(tmp_path / "modules")}, capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in told, told


@loaded
def test_a_library_that_another_language_loads_for_itself_finds_its_modules(tmp_path):
    needs("postgres")
    program = f"""
import ctypes
once = ctypes.CDLL({os.path.join(BUILD, "libonce.so")!r}, mode=ctypes.RTLD_LOCAL)
text, error = ctypes.c_char_p(), ctypes.create_string_buffer(4096)
assert once.once_store_schema(b"postgres:x", ctypes.byref(text), error) == 0, error.raw
print(text.value.decode())
"""
    ended = subprocess.run(["/usr/bin/python3", "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "CREATE TABLE once_meta" in ended.stdout, ended


@linked
def test_a_build_without_modules_has_them_linked_in(tmp_path):
    assert all(store["module"] is None for store in STORES.values())
    assert "module " not in once("version").out
    if "postgres" in STORES:
        empty = {"ONCE_MODULES": str(tmp_path)}
        assert "CREATE TABLE" in once("schema", "postgres:x", env=empty).out


def test_what_is_built_in_has_no_module():
    assert STORES["sqlite"]["module"] is None and STORES["memory"]["module"] is None
    told = once("version", "--json").json
    assert [effect["name"] for effect in told["effects"] if effect["module"]] in ([], ["http"])
    assert [source["name"] for source in told["sources"] if not source["module"]] == ["file"]
    for one in [*STORES.values(), *told["sources"]]:
        if one["module"]:
            assert one["there"] is True and one["error"] is None and os.path.isabs(one["module"])
