"""SIGTERM and PostgreSQL: what runs on the server is cancelled, the exit status says whether something was lost; and databases of effects
that are not there yet."""

import contextlib
import json
import os
import signal
import subprocess
import time

import pytest

import pgbouncer
import postgres
from harness import ONCE, Pipeline, counts, environment, until
from pgpipeline import PostgresPipeline, Session, need_postgres, new_name, psql

need_postgres()

FOLLOW = "{path: in.ndjson, follow: true}"
SLOW = 'key: "${/id}"\ndrain: 300ms\nlease: 2s\nhandler: {sql: %s}\n'
NOT_ITSELF = "options=-cclient_connection_check_interval%3D0"  # the server would notice by itself that nobody waits


def sigterm_is_pending(pid):
    with open(f"/proc/{pid}/status") as file:
        pending = [int(line.split()[1], 16) for line in file if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in pending)


def running_sleeps(url):
    return psql(url, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()"
                     " AND datname = current_database()")


@pytest.mark.parametrize("where", ["store", "elsewhere", "pooler"])
def test_f59_a_stop_cancels_what_runs_on_the_server(tmp_path, where):
    server = postgres.shared()
    direct = server.database(new_name())
    pooler = pgbouncer.Pooler(server, "transaction") if where == "pooler" else None
    try:
        url = f"{pooler.url(direct) if pooler else direct}&{NOT_ITSELF}"
        if where == "elsewhere":
            p = Pipeline(tmp_path, SLOW % f'{{url: "{url}", do: ["SELECT pg_sleep(600), :id::text"]}}', source=FOLLOW)
        else:
            p = PostgresPipeline(tmp_path, SLOW % '["SELECT pg_sleep(600), :id::text"]', source=FOLLOW, url=url)
        p.write({"id": "a"})
        with p.start() as running:
            until(lambda: running_sleeps(direct) == "1\n", what="a statement that runs")
            begun = time.monotonic()
            running.send(signal.SIGTERM)
            ended = running.end()
            assert time.monotonic() - begun < 10
        assert ended.status == 0 and ended.json["stopped"] and ended.json["done"] == 0, ended
        until(lambda: running_sleeps(direct) == "0\n", deadline_s=3, what="the end of the statement")
    finally:
        if pooler:
            pooler.close()


def test_f59_a_timeout_elsewhere_cancels_what_runs_there(tmp_path):
    server = postgres.shared()
    direct = server.database(new_name())
    p = Pipeline(tmp_path, 'key: "${/id}"\ntimeout: 300ms\nretry: {attempts: 1}\nhandler: {sql: %s}\n' %
                 f'{{url: "{direct}&{NOT_ITSELF}", do: ["SELECT pg_sleep(600), :id::text"]}}')
    p.write({"id": "a"})
    counts(p.run(status=1), received=1, dead=1)
    until(lambda: running_sleeps(direct) == "0\n", deadline_s=3, what="the end of the statement")


@pytest.mark.parametrize("how", ["sessions", "server"])
@pytest.mark.parametrize("effect", ["atomic", "fenced"])
def test_f59_a_stop_when_the_connection_breaks_exits_well(tmp_path, how, effect):
    """As when a machine is shut down: the server goes at the same moment."""
    server = postgres.Server()
    try:
        direct = server.database(new_name())
        psql(direct, "CREATE TABLE t(id text)")
        handler = '{sql: ["INSERT INTO t(id) VALUES (:id)"]}' if effect == "atomic" else '{exec: ["true"]}'
        p = PostgresPipeline(tmp_path, f'key: "${{/id}}"\ndrain: 1s\nlease: 2s\nhandler: {handler}\n', source=FOLLOW, url=direct, server=server)
        p.write(*[{"id": f"m{i}"} for i in range(3000 if effect == "atomic" else 1000)])  # more than are done when it stops
        with p.start() as running:
            until(lambda: p.has_table("once_entry") and p.value("SELECT count(*) FROM once_entry WHERE expires_ms IS NOT NULL") > 0, what="work")
            running.send(signal.SIGTERM)
            if how == "server":
                server.kill()
            else:
                psql(server.url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'once:%'")
            ended = running.end()
        assert ended.status in (0, 1) and ended.json["stopped"], ended
        if how == "server":
            server.start()
        p.configure(f'key: "${{/id}}"\nlease: 2s\n{"unknown: retry" if effect == "fenced" else ""}\nhandler: {handler}\n', store=direct)
        assert p.try_run().status in (0, 1)
        if effect == "atomic":
            assert psql(direct, "SELECT count(*), count(DISTINCT id) FROM t") == "3000|3000\n"
    finally:
        server.close()


def test_f59_a_stop_that_cannot_keep_the_outcome_of_effects_says_so(tmp_path):
    """They were begun, and whether they have happened nobody will know: 1, and not 0."""
    server = postgres.Server()
    try:
        direct = server.database(new_name())
        p = PostgresPipeline(tmp_path, 'key: "${/id}"\ndrain: 3s\nlease: 2s\nhandler: {exec: [sh, -c, "touch begun; sleep 1"]}\n', source=FOLLOW, url=direct,
                             server=server)
        p.write(*[{"id": f"m{i}"} for i in range(3)])
        with p.start() as running:
            until((tmp_path / "begun").exists, what="an effect")
            server.kill()
            running.send(signal.SIGTERM)
            ended = running.end()
        assert ended.status == 1 and ended.json["store_unknown"] >= 1 and "could not be recorded" in ended.err, ended
        server.start()
        time.sleep(2.1)
        assert p.once("status", "--json", p.name).json["unknown"] >= ended.json["store_unknown"]
    finally:
        server.close()


def test_f59_a_stop_that_loses_what_a_pipe_gave_says_so(tmp_path):
    """Standard input does not deliver again: what was read and could not be settled is gone, and the exit status is not 0."""
    server = postgres.shared()
    direct = server.database(new_name())
    psql(direct, "CREATE TABLE t(id text)")
    p = PostgresPipeline(tmp_path, 'key: "${/id}"\ndrain: 300ms\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n', source='{path: "-"}', url=direct)
    assert p.once("check", p.name).status == 0
    process = subprocess.Popen([ONCE, "run", "--json", p.name], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=environment())
    try:
        process.stdin.write(b'{"id": "a"}\n')
        process.stdin.flush()
        until(lambda: psql(direct, "SELECT count(*) FROM t") == "1\n", what="the first")
        with Session(direct, "BEGIN; LOCK TABLE t IN EXCLUSIVE MODE"):
            until(lambda: psql(direct, "SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock' AND relation = 't'::regclass AND granted") == "1\n",
                  what="the lock")
            process.stdin.write(b"".join(b'{"id": "b%d"}\n' % i for i in range(100)))
            process.stdin.flush()
            until(lambda: psql(direct, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == "1\n",
                  what="somebody who waits")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3, (out, err)
    summary = json.loads(out)
    assert summary["received"] == summary["acked"] == 1 and summary["lost"] == 100 and "100 messages were read" in summary["error"], (out, err)
    assert b"event=lost" in err and b"100 messages were read from a source that cannot deliver again" in err and b"send them again" in err, err


@pytest.mark.parametrize("part, status", [(b"", 0), (b'{"id": "par', 3)])
def test_f59_a_stop_leaves_what_a_pipe_gave_in_the_store(tmp_path, part, status):
    """What was read and has not begun: in the buffer of the source, in the queue, behind a command that runs. Part of a line is told."""
    config = 'key: "${/id}"\nbatch: {max: 10}\ndrain: 2s\nhandler: {exec: [sh, -c, "echo $ONCE_KEY >> effects; sleep 0.2"]}\nworkers: 2\n'
    p = Pipeline(tmp_path, config, source='{path: "-"}')
    lines = b"".join(b'{"id": "m%d"}\n' % i for i in range(100))  # one write, which a pipe takes whole
    with p.start(stdin=subprocess.PIPE) as running:
        running.process.stdin.write(lines + part)
        running.process.stdin.flush()
        until(lambda: (tmp_path / "effects").exists(), what="an effect")
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == status and ended.json["stopped"] and ended.json["lost"] == (1 if part else 0), ended
    assert ended.json["received"] == ended.json["acked"] == 100 and ended.json["done"] + ended.json["waiting"] == 100, ended
    p.configure(config.replace("sleep 0.2", "true"))
    p.write()
    p.run(status=0)
    assert sorted((tmp_path / "effects").read_text().split()) == sorted(f"m{i}" for i in range(100))


REFUSALS = {
    "right": ("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}", "this role lacks rights; let the owner run: GRANT"),
    "tables": ("DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO {role}", "does not exist"),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_f59_a_stop_while_the_server_refuses_exits_well(tmp_path, why):
    """Nothing is settled, nothing is acked, and so nothing is lost: a file is read again."""
    change, said = REFUSALS[why]
    server = postgres.shared()
    direct = server.database(new_name())
    role = new_name()
    config = 'key: "${/id}"\nhandler: {exec: ["true"]}\n'
    p = PostgresPipeline(tmp_path, config, url=direct)
    assert p.once("check", p.name).status == 0
    psql(direct, f"CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    p.configure(config, store=direct.replace("postgres@", f"{role}@"), source=FOLLOW)
    with p.start() as running:
        p.append({"id": "a"})
        until(lambda: p.once("explain", "--json", p.name, "a").json["entries"][0]["state"] == "done", what="the first one")  # it is past its start
        psql(direct, change.format(role=role))
        p.append({"id": "b"})
        running.hear(said)
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0 and ended.json["stopped"] and ended.json["acked"] == 1 and "nothing was lost" in ended.err, ended


def test_f59_a_stop_after_the_end_is_harmless(tmp_path):
    """All is done, and whoever reads the summary is slow: there is nothing left to stop, and the summary is printed as a whole."""
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: ["true"]}\n')
    p.write({"id": "a"})
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(writes, b" " * 4096)
    os.set_blocking(writes, True)

    def waits_to_print():
        with open(f"/proc/{running.process.pid}/syscall") as file:
            return file.read().startswith("1 0x1 ")

    with p.start(stdout=writes) as running:
        os.close(writes)
        until(waits_to_print, what="the end")
        running.send(signal.SIGTERM)
        time.sleep(0.3)
        with open(reads, "rb") as pipe:
            out = pipe.read()
        ended = running.end()
    assert ended.status == 0 and not ended.err and len(out) > filled, ended
    assert json.loads(out)["done"] == 1


def test_f59_a_stop_right_at_the_start_is_heeded(tmp_path):
    """Also before the pipeline file was read: it is a pipe here, and says when it is asked for."""
    p = Pipeline(tmp_path, 'key: "${/id}"\nhandler: {exec: ["true"]}\n', source=FOLLOW)
    p.write({"id": "a"})
    text = (tmp_path / "p.yaml").read_text()
    (tmp_path / "p.yaml").unlink()
    os.mkfifo(tmp_path / "p.yaml")
    with p.start() as running:
        with open(tmp_path / "p.yaml", "w") as file:  # somebody reads it
            running.send(signal.SIGTERM)
            until(lambda: not sigterm_is_pending(running.process.pid), what="the signal")
            file.write(text)
        ended = running.end()
    assert ended.status == 0 and ended.json["stopped"] and ended.json["received"] == 0, ended


def test_f45_a_database_of_effects_is_waited_for_at_the_start(tmp_path):
    server = postgres.Server()
    try:
        direct = server.database(new_name())
        psql(direct, "CREATE TABLE t(id text)")
        p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{sql: {{url: "{direct}", do: ["INSERT INTO t(id) VALUES (:id)"]}}}}\n')
        p.write({"id": "a"}, {"id": "b"})
        server.kill()
        with p.start(stderr=subprocess.PIPE) as running:
            running.hear("trying again")
            server.start()
            ended = running.end()
        assert ended.status == 0, ended
        counts(ended.json, received=2, done=2)
        assert psql(direct, "SELECT count(*) FROM t") == "2\n"
        server.kill()
        p.append({"id": "c"})
        p.configure(f'key: "${{/id}}"\npatience: 1s\nhandler: {{sql: {{url: "{direct}", do: ["INSERT INTO t(id) VALUES (:id)"]}}}}\n')
        ended = p.try_run()
        assert ended.status == 3 and "patience" in ended.err and ended.json["received"] == 0, ended
    finally:
        server.close()


def test_f45_a_stop_ends_the_wait_for_a_database_of_effects(tmp_path):
    server = postgres.Server()
    try:
        direct = server.database(new_name())
        psql(direct, "CREATE TABLE t(id text)")
        p = Pipeline(tmp_path, f'key: "${{/id}}"\nhandler: {{sql: {{url: "{direct}", do: ["INSERT INTO t(id) VALUES (:id)"]}}}}\n', source=FOLLOW)
        p.write({"id": "a"})
        server.kill()
        with p.start() as running:
            running.hear("trying again")
            running.send(signal.SIGTERM)
            ended = running.end()
        assert ended.status == 0 and ended.json["stopped"] and ended.json["received"] == 0, ended
    finally:
        server.close()


def slow_command(folder):
    p = Pipeline(folder, 'key: "${/id}"\nlease: 30s\ndrain: 20s\nhandler: {exec: [sh, -c, "read b; touch begun; sleep 3"], timeout: 20s}\n')
    p.write({"id": 1})
    return p


def test_f59_two_signals_within_a_moment_are_one(tmp_path):
    """As `timeout` sends them: to its command, and then to the whole group. What is in flight is still waited for."""
    p = slow_command(tmp_path)
    with p.start() as running:
        until(lambda: os.path.exists(tmp_path / "begun"), what="the effect has begun")
        running.send(signal.SIGTERM)
        running.send(signal.SIGTERM)
        ended = running.end()
    assert ended.status == 0 and ended.json["done"] == 1, ended


def test_f59_whoever_insists_ends_it_at_once(tmp_path):
    p = slow_command(tmp_path)
    with p.start() as running:
        until(lambda: os.path.exists(tmp_path / "begun"), what="the effect has begun")
        running.send(signal.SIGTERM)
        time.sleep(1.2)
        running.send(signal.SIGTERM)
        assert running.end().status == -signal.SIGTERM
