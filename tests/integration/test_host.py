"""A host program with a locale, a umask, signals and an environment of its own: nothing of it touches what is stored or sent."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import threading

import pytest

import postgres
from harness import ONCE, ROOT, Pipeline, counts, once, until
from pgpipeline import has_postgres, new_name, psql

BUILD = os.path.dirname(ONCE)

# A program that runs a pipeline file inside itself. "strange": as a host program may be.
HOST = r"""
#include <locale.h>
#include <once/once.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int run(const char *file)
{
    once_error err = {0};
    once_pipeline *pipeline;
    once_summary summary;
    int rc = once_pipeline_load(file, NULL, NULL, &pipeline, &err);
    if (rc != ONCE_OK) return fprintf(stderr, "%s\n", err.text), 92;
    rc = once_pipeline_run(pipeline, NULL, &summary, &err);
    if (rc != ONCE_OK) fprintf(stderr, "%s\n", err.text);
    printf("{\"received\": %lu, \"done\": %lu, \"dead\": %lu, \"duplicates\": %lu, \"conflicts\": %lu}\n", (unsigned long)summary.counts.received,
           (unsigned long)summary.counts.done, (unsigned long)summary.counts.dead, (unsigned long)summary.counts.duplicates,
           (unsigned long)summary.counts.conflicts);
    once_pipeline_free(pipeline);
    return rc == ONCE_OK ? 0 : 93;
}

int main(int argc, char **argv)
{
    if (argc != 3) return 94;
    if (strcmp(argv[2], "strange") == 0) {
        sigset_t all;
        if (!setlocale(LC_ALL, "")) return 90;
        if (strcmp(localeconv()->decimal_point, ",") != 0) return 91;
        umask(0777);
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        signal(SIGUSR1, SIG_IGN);
    }
    return run(argv[1]);
}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    source, program = folder / "host.c", folder / "host"
    source.write_text(HOST)
    with open(os.path.join(BUILD, "build.ninja"), encoding="utf-8") as text:
        ninja = text.read()
    found = re.search(r"-fsanitize=([\w,]+)", ninja)
    compiler = "clang" if re.search(r"command = .*clang", ninja) else "gcc"
    subprocess.run([compiler, *([f"-fsanitize={found[1]}"] if found else []), f"-I{ROOT}/include", str(source), "-o", str(program), f"-L{BUILD}", "-lonce",
                    f"-Wl,-rpath,{BUILD}"], check=True)
    return str(program)


@pytest.fixture(scope="module")
def locales(tmp_path_factory):
    """A folder with a German locale; a machine that cannot make one cannot run these tests."""
    assert shutil.which("localedef"), "localedef is missing"
    folder = tmp_path_factory.mktemp("locales")
    subprocess.run(["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(folder / "de_DE.ISO-8859-1")], check=True, capture_output=True)
    return str(folder)


def strange(locales):
    """glibc keeps what it reads of a locale, which looks like a leak."""
    asan = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return {**os.environ, "ASAN_OPTIONS": asan, "LOCPATH": locales, "LC_ALL": "de_DE.ISO-8859-1", "LANGUAGE": "de", "TZ": "Asia/Kathmandu", "IFS": "x", "POSIXLY_CORRECT": "1"}


class Host:
    def __init__(self, program, folder, locales):
        self.program, self.folder, self.locales = program, folder, locales

    def end(self, how, status):
        env = strange(self.locales) if how == "strange" else dict(os.environ)
        ended = subprocess.run([self.program, "p.yaml", how], cwd=self.folder, env=env, capture_output=True, text=True, timeout=60)
        assert ended.returncode == status, ended
        return ended

    def run(self, how):
        return json.loads(self.end(how, 0).stdout)

    def refused(self, how):
        return self.end(how, 93).stderr


def both(tmp_path, host, locales, make):
    """The same pipeline run by an ordinary host and by a strange one, each with a store of its own."""
    result = []
    for how in ("plain", "strange"):
        folder = tmp_path / how
        folder.mkdir()
        p = make(folder)
        summary = Host(host, folder, locales).run(how)
        result.append((p, summary))
    return result


MESSAGES = ['{"id": 12.75, "v": 12.75, "w": "\\u00c4\\u00a0x", "t": 1.5e3}', '{"id": 0.1, "v": 0.1, "w": "i\\u0130", "t": 12345678901234567.25}', '{"id": 3, "v": 1e-7, "w": "", "t": -0.0}',
            '{"id": 4, "v": 12345678901234567.89, "w": "", "t": 0}', '{"id": 5, "v": 1e22, "w": "x", "t": true}', '{"id": 6, "v": 0.30000000000000004, "w": "x", "t": 6}']
CONFIG = """
key: "${/id}/${/v}"
fingerprint: [/v, /w]
remember: forever
handler: {sql: ["INSERT INTO t VALUES (:id, :v, :w, :{/t as text}, :once_key)"]}
"""


def test_f97_a_host_program_changes_nothing_in_sqlite(tmp_path, host, locales):
    def make(folder):
        p = Pipeline(folder, CONFIG + "init: CREATE TABLE IF NOT EXISTS t(id, v, w, t, key)\n")
        p.write(*MESSAGES)
        return p

    (plain, a), (other, b) = both(tmp_path, host, locales, make)
    assert a == b and a["done"] == 5 and a["dead"] == 1
    assert plain.rows("SELECT *, typeof(v) FROM t") == other.rows("SELECT *, typeof(v) FROM t")
    assert plain.rows("SELECT v FROM t ORDER BY rowid") == [(12.75,), (0.1,), (1e-7,), (1e22,), (0.30000000000000004,)]
    assert plain.letters() == other.letters() and "'/v'" in plain.letters()[0][1]
    # Keys and fingerprints are the same, too: each finds what the other has settled.
    for p, how in ((plain, "strange"), (other, "plain")):
        again = Host(host, p.folder, locales).run(how)
        assert again["duplicates"] == 6 and again["conflicts"] == 0, again
    for p in (plain, other):
        assert stat.S_IMODE(os.stat(p.database).st_mode) == 0o600


def test_f97_files_of_a_store_are_private_under_any_umask(tmp_path, host, locales):
    for umask in (0o000, 0o077, 0o777):
        folder = tmp_path / oct(umask)
        folder.mkdir()
        p = Pipeline(folder, 'key: "${/id}"\nhandler: {exec: ["/bin/sh", "-c", "stat -c %a store.db store.db-wal store.db-shm >modes"]}\n')
        p.write({"id": 1})
        before = os.umask(umask)
        try:
            ended = once("run", "--json", "p.yaml", cwd=folder)
        finally:
            os.umask(before)
        counts(ended.json, received=1, done=1)
        os.chmod(folder / "modes", 0o600)
        assert (folder / "modes").read_text().split() == ["600"] * 3


@pytest.mark.parametrize("mode", ["", "  mode: stream\n"], ids=["process", "stream"])
def test_f97_a_command_sees_nothing_of_the_host_program(tmp_path, host, locales, mode):
    answer = """while read -r line; do id=${line#*'"id":"'}; printf '{"id":"%s","outcome":"done"}\\n' "${id%%'"'*}"; done"""
    script = "umask 077; env | sort >seen; grep -E '^Sig(Blk|Ign)' /proc/self/status >>seen; " + (answer if mode else "cat >/dev/null")

    def make(folder):
        (folder / "handler.sh").write_text(script)
        p = Pipeline(folder, f'key: "${{/id}}"\nhandler:\n  exec: ["/bin/sh", "handler.sh"]\n{mode}')
        p.write({"id": 1.5, "v": 12.75})
        return p

    (plain, a), (other, b) = both(tmp_path, host, locales, make)
    assert a == b and a["done"] == 1, (a, b)
    seen = [(p.folder / "seen").read_text().replace(str(p.folder), "") for p in (plain, other)]
    assert seen[0] == seen[1], seen
    assert "SigBlk:\t0000000000000000" in seen[1] and "SigIgn:\t0000000000000000" in seen[1]


def test_f97_the_command_is_stopped_although_whoever_started_it_blocks_signals(tmp_path):
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: ["/bin/sh", "-c", "cat >>seen"]}\n', source="{path: in.ndjson, follow: true}")
    p.write({"id": 1})

    def block():
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    with p.start(preexec_fn=block) as running:
        until(lambda: os.path.exists(tmp_path / "seen") and p.once("explain", "--json", "p.yaml", "1").json["entries"][0]["state"] != "claimed")
        running.process.terminate()
        ended = running.end()
    assert ended.status == 0, ended
    counts(ended.json, received=1, done=1)


def test_f97_a_host_program_changes_nothing_in_postgres(tmp_path, host, locales):
    if not has_postgres():
        pytest.skip("this build has no postgres")
    urls = []

    def make(folder):
        urls.append(postgres.shared().schema(new_name()))
        psql(urls[-1], "CREATE TABLE t(id numeric, v numeric, w text, t text, key text)")
        p = Pipeline(folder, CONFIG, store=f'"{urls[-1]}"')
        p.write(*MESSAGES)
        return p

    (plain, a), (other, b) = both(tmp_path, host, locales, make)
    assert a == b and a["done"] == 6
    rows = [psql(url, "SELECT * FROM t ORDER BY id") for url in urls]
    assert rows[0] == rows[1] and "|12345678901234567.89|" in rows[0]
    for p, how in ((plain, "strange"), (other, "plain")):
        again = Host(host, p.folder, locales).run(how)
        assert again["duplicates"] == 6 and again["conflicts"] == 0, again


def test_f97_reasons_are_in_one_language(tmp_path, host, locales):
    said = []
    for how in ("plain", "strange"):
        folder = tmp_path / how
        folder.mkdir()
        Pipeline(folder, 'key: "${/id}"\nhandler: {exec: ["/nowhere/charge"]}\n').write({"id": 1})
        said.append(Host(host, folder, locales).refused(how))
    assert said[0] == said[1] and "No such file or directory" in said[0]


def test_f97_what_libpq_says_is_understood_in_every_language(tmp_path, host, locales):
    """A server without TLS, where TLS is asked for, will not pass by itself; libpq says so in the language of the host program."""
    if not has_postgres():
        pytest.skip("this build has no postgres")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=refuse_tls, args=(server,), daemon=True).start()
        for how in ("plain", "strange"):
            folder = tmp_path / how
            folder.mkdir()
            p = Pipeline(folder, 'key: "${/id}"\npatience: 1d\nhandler: {sql: ["SELECT 1"]}\n',
                         store=f'"postgres://u@127.0.0.1:{server.getsockname()[1]}/d?sslmode=require"')
            p.write({"id": 1})
            Host(host, folder, locales).refused(how)  # at once, and not when the patience is over


def refuse_tls(server):
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(8)
            connection.sendall(b"N")
