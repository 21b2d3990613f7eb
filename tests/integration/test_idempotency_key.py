"""The idempotency key that effects are given: the same after the store is lost or replaced, and shown wherever an operator needs it."""

import hashlib
import hmac
import json
import os
import re
import signal
import struct

import pytest

import pgpipeline
import postgres
from gateway import Gateway
from harness import ROOT, Pipeline, counts, once, until
from httppipeline import Paying, lookup
from oldstore import old_postgres, old_redis, old_store
from redisserver import RedisServer, has_redis

HANDLER = 'echo "$ONCE_KEY $ONCE_IDEMPOTENCY_KEY" >>seen; case "$ONCE_KEY" in unknown*) kill -9 $$ ;; dead*) exit 65 ;; esac'
CONFIG = """
key: "${/id}"
retry: {attempts: 3, backoff: 1ms..2ms}
handler: {operation: charge, exec: [sh, handler.sh]}
"""


def outward(consumer, operation, key, tenant=b"", salt=None):
    """As docs/idempotency-keys.md says it."""
    text = b"".join(struct.pack(">I", len(part)) + part for part in (tenant, consumer, operation, key))
    return (hmac.new(salt, text, hashlib.sha256) if salt else hashlib.sha256(text)).hexdigest()[:32]


def pipeline(folder, config=CONFIG, **more):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "handler.sh"), "w") as file:
        file.write(HANDLER)
    return Pipeline(folder, config, consumer="pay", **more)


def seen(folder):
    """What the handlers were given since the last call, by key."""
    path = os.path.join(folder, "seen")
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        lines = [line.split() for line in file]
    os.remove(path)
    assert len({key: value for key, value in lines}) == len({tuple(line) for line in lines}), "one key, several idempotency keys"
    return dict(lines)


WANTED = {key: outward(b"pay", b"charge", key.encode()) for key in ("a", "b")}


# ---- the store goes away ----

def test_f82_the_store_is_deleted(tmp_path):
    p = pipeline(tmp_path)
    p.write({"id": "a"}, {"id": "b"})
    for _ in range(3):
        counts(p.run("--new-store", status=0), received=2, done=2)
        assert seen(tmp_path) == WANTED
        for name in os.listdir(tmp_path):
            if name.startswith("store.db"):
                os.remove(tmp_path / name)


@pytest.mark.skipif(not has_redis(), reason="no redis-server, or a build without hiredis")
def test_f82_redis_is_flushed(tmp_path):
    with RedisServer(tmp_path) as redis:
        p = pipeline(tmp_path / "p", store=redis.url())
        p.configure(CONFIG, consumer="pay", store=redis.url())
        p.write({"id": "a"}, {"id": "b"})
        for _ in range(2):
            counts(p.run("--new-store", status=0), received=2, done=2)
            assert seen(tmp_path / "p") == WANTED
            redis.call("FLUSHALL")


def test_f82_the_store_is_moved_to_another_database(tmp_path):
    pgpipeline.need_postgres()
    p = pipeline(tmp_path)
    p.write({"id": "a"}, {"id": "b"})
    for store in ("sqlite:one.db", "sqlite:two.db", "memory", postgres.shared().database(pgpipeline.new_name())):
        p.configure(CONFIG, consumer="pay", store=store)
        counts(p.run("--new-store", status=0), received=2, done=2)
        assert seen(tmp_path) == WANTED


def test_f82_every_kind_of_effect_is_given_the_same(tmp_path):
    with open(tmp_path / "stream.py", "w") as file:
        file.write("import json, sys\nfor line in sys.stdin:\n    m = json.loads(line)\n    open('seen', 'a').write(m['key'] + ' ' + m['idempotency_key'] + '\\n')\n"
                   "    print(json.dumps({'id': m['id'], 'outcome': 'done'}), flush=True)\n")
    p = pipeline(tmp_path, CONFIG.replace("exec: [sh, handler.sh]", "exec: [python3, stream.py], mode: stream"))
    p.write({"id": "a"}, {"id": "b"})
    p.run(status=0)
    assert seen(tmp_path) == WANTED
    p.execute("CREATE TABLE there(id TEXT, key TEXT)")
    insert = "INSERT INTO there VALUES (:id, :once_idempotency_key)"
    for n, sql in enumerate((f'"{insert}"', '{url: "sqlite:store.db", do: ["%s"]}' % insert)):
        store = "sqlite:store.db" if n == 0 else "memory"
        p.configure(f'key: "${{/id}}"\nhandler: {{operation: charge, sql: {sql}}}\n', consumer=f"pay{n}", store=store)
        p.run("--confirm-scope-change", status=0)
        assert dict(p.rows("SELECT id, key FROM there")) == {key: outward(b"pay%d" % n, b"charge", key.encode()) for key in ("a", "b")}
        p.execute("DELETE FROM there")


def test_f82_tenants_and_keys_of_all_sizes(tmp_path):
    p = pipeline(tmp_path, 'tenant: "${/t}"\n' + CONFIG.replace("sh, handler.sh", 'sh, -c, "echo $ONCE_IDEMPOTENCY_KEY >>seen"'))
    keys = ["k", "k" * 1024, "k" * 1025, "sha256:" + hashlib.sha256(b"k" * 1025).hexdigest()]
    p.write(*[{"id": key, "t": "acme"} for key in keys])
    counts(p.run(status=0), received=4, done=4)
    head = b"".join(struct.pack(">I", len(part)) + part for part in (b"acme", b"pay", b"charge"))
    wanted = {outward(b"pay", b"charge", key.encode(), b"acme") for key in (keys[0], keys[1], keys[3])}
    wanted.add(hashlib.sha256(head + b"\xff\xff\xff\xff" + hashlib.sha256(b"k" * 1025).digest()).hexdigest()[:32])
    with open(tmp_path / "seen") as file:
        assert set(file.read().split()) == wanted
    for key in keys:
        (entry,) = p.explain(key, "--tenant", "acme")
        assert entry["idempotency_key"] in wanted
        wanted.remove(entry["idempotency_key"])


def test_f82_the_page_is_right():
    with open(os.path.join(ROOT, "docs", "idempotency-keys.md")) as file:
        page = file.read()
    (shell,) = re.findall(r"```sh\n(.*?)\n```", page, re.S)
    (python,) = re.findall(r"```python\n(.*?)\n```", page, re.S)
    (said,) = re.findall(r"prints `([0-9a-f]{32})`", page)
    assert os.popen(shell).read().strip() == said
    told = []
    exec(python, {"print": told.append})
    assert told == [said] == [outward(b"payments", b"charge", b"p-1")]


# ---- the salt ----

SALT = "0123456789abcdef-this-is-the-salt"


def salted(p, how="env:SALT", **more):
    p.configure(f"idempotency_salt: {how}\n" + CONFIG, consumer="pay", **more)


def test_f82_with_a_salt(tmp_path):
    p = pipeline(tmp_path)
    salted(p)
    p.write({"id": "a"}, {"id": "dead"}, {"id": "unknown"})
    env = {"SALT": SALT}
    p.run(status=1, env=env)
    wanted = {key: outward(b"pay", b"charge", key.encode(), salt=SALT.encode()) for key in ("a", "dead", "unknown")}
    assert seen(tmp_path) == wanted
    (tmp_path / "salt").write_text(SALT + "\n")
    salted(p, "file:salt")
    listed = p.once("list", "--json", p.name)
    assert {m["key"]: m["idempotency_key"] for m in listed.json["messages"]} == {key: wanted[key] for key in ("dead", "unknown")}
    for verb in (["run"], ["check"], ["list"], ["explain", "a"], ["replay", "--all"]):
        ended = p.once(verb[0], p.name, *verb[1:])
        assert SALT not in ended.out + ended.err, ended
    with open(tmp_path / "store.db", "rb") as file:
        assert SALT.encode() not in file.read()


def test_f82_over_http_with_a_salt_and_without(tmp_path):
    """In the header of each try, in the question about it, and from another store. Who knows scope and key but no salt cannot guess it."""
    keys = {}
    with Gateway(tmp_path) as gateway:
        for salt, folder in ((None, "plain"), (SALT, "salted"), (SALT, "another-store")):
            account = gateway.account(honour=False)
            account.fault(method="POST", status=503, times=2)
            account.fault(method="POST", cut=0, times=1)  # it is charged, and the lookup must find it by the key that was sent
            p = Paying(tmp_path / folder, account, consumer="pay", lease="30s", more="idempotency_salt: env:SALT\n" if salt else "", lookup=lookup(account))
            env = {"SALT": SALT}
            counts(p.run(status=0, env=env), received=1, done=1, attempts=3)
            keys[folder] = outward(b"pay", b"handler", b"k0", salt=salt and salt.encode())
            assert [each["headers"]["idempotency-key"] for each in account.tries()] == [keys[folder]] * 3
            assert [each["path"] for each in account.lookups()] == ["/charges/" + keys[folder]]
            assert keys[folder] in p.once("explain", p.name, "k0", env=env).out
    assert keys["plain"] != keys["salted"] == keys["another-store"]


@pytest.mark.parametrize("before, after", [(None, "env:SALT"), ("env:SALT", None), ("env:SALT", "env:OTHER")])
def test_f75_f82_another_salt_is_another_scope(tmp_path, before, after):
    def say(how):
        if how:
            salted(p, how)
        else:
            p.configure(CONFIG, consumer="pay")

    env = {"SALT": SALT, "OTHER": "another-salt-of-enough-bytes"}
    p = pipeline(tmp_path)
    p.write({"id": "a"}, {"id": "dead"})
    say(before)
    p.run(status=1, env=env)
    say(after)
    for verb in (["check"], ["run"], ["list"], ["explain", "a"], ["replay", "--all"]):
        ended = p.once(verb[0], p.name, *verb[1:], env=env)
        assert ended.status == 2 and "'idempotency_salt' changed" in ended.err and "--confirm-scope-change" in ended.err, ended
        assert SALT not in ended.err and env["OTHER"] not in ended.err
    assert p.once("status", p.name).status == 1  # shows no key, and asks for no salt
    say(before)
    p.run(status=1, env=env)
    say(after)
    p.append({"id": "b"})
    seen(tmp_path)
    p.run("--confirm-scope-change", status=1, env=env)
    assert seen(tmp_path) == {"b": outward(b"pay", b"charge", b"b", salt=env[after[4:]].encode() if after else None)}
    p.run(status=1, env=env)


def test_f75_f82_no_other_salt_while_a_message_may_have_had_its_effect(tmp_path):
    """Whoever resolves it would look for a key that the other side never saw, find nothing, and say retry."""
    env = {"SALT": SALT, "OTHER": "another-salt-of-enough-bytes"}
    p = pipeline(tmp_path)
    p.write({"id": "a"}, {"id": "unknown"})
    salted(p)
    p.run(status=1, env=env)
    given = seen(tmp_path)
    salted(p, "env:OTHER")
    for verb in (["run", "--confirm-scope-change"], ["run"], ["list"], ["explain", "unknown"], ["resolve", "unknown", "retry"], ["check"]):
        ended = p.once(verb[0], p.name, *verb[1:], env=env)
        assert ended.status == 2 and "1 unknown, 0 claimed and 0 waiting messages may have had" in ended.err, ended
        assert outward(b"pay", b"charge", b"unknown", salt=env["OTHER"].encode()) not in ended.out + ended.err
    salted(p)
    assert given["unknown"] in p.once("list", p.name, env=env).out
    assert p.once("resolve", p.name, "unknown", "dead", env=env).status == 0
    salted(p, "env:OTHER")
    assert "(1 dead letter may also have had an effect" in p.once("run", p.name, env=env).err
    ended = p.once("run", p.name, "--confirm-scope-change", env=env)
    assert ended.status == 1 and "1 dead letter may have had an effect under idempotency keys of the old salt" in ended.err, ended
    assert p.once("run", p.name, env=env).status == 1


@pytest.mark.parametrize("script, maybe", [("exit 75", False), ("kill -9 $$", True)])
def test_f75_f82_what_waits_counts_only_when_it_may_have_had_its_effect(tmp_path, script, maybe):
    config = CONFIG.replace("1ms..2ms", "1h..2h").replace("exec: [sh, handler.sh]", f'unknown: retry, exec: [sh, -c, "{script}"]')
    p = pipeline(tmp_path, "idempotency_salt: file:salt\n" + config)
    p.write({"id": "a"})
    (tmp_path / "salt").write_text(SALT)
    with p.start() as running:
        until(lambda: '"waiting":1,' in p.once("status", "--json", p.name).out)
        running.send(signal.SIGTERM)
        running.end()
    (tmp_path / "salt").write_text("another-salt-of-enough-bytes")
    ended = p.once("check", p.name)
    assert ended.status == 2 and ("0 unknown, 0 claimed and 1 waiting messages" in ended.err) == maybe, ended
    assert ("--confirm-scope-change" in ended.err) != maybe, ended


def test_f67_mistakes_about_the_salt(tmp_path):
    p = pipeline(tmp_path)
    for how, said in ((SALT, "p.yaml:4: 'idempotency_salt' must not be in the file itself"), ('"env:"', "p.yaml:4: 'idempotency_salt' refers to a variable"),
                      ("env:NOT_THERE", "p.yaml:4: variable 'NOT_THERE' is not set"), ("file:nowhere", "p.yaml:4: cannot read file 'nowhere'"),
                      ("env:SHORT", "p.yaml:4: 'idempotency_salt' has fewer than 16 bytes")):
        salted(p, how)
        for verb in ("check", "run"):
            ended = p.once(verb, p.name, env={"SHORT": "fifteen-bytes-x"})
            assert ended.status == 2 and said in ended.err and SALT not in ended.err, ended


def test_f67_files_that_cannot_be_a_salt(tmp_path):
    p = pipeline(tmp_path, CONFIG)
    p.write({"id": "a"})
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "long").write_bytes(b"s" * 131072)
    (tmp_path / "blank").write_bytes(b" \n" * 20)
    for how, said in (("fifo", "it is not a regular file"), ("/dev/zero", "it is not a regular file"), (".", "it is a directory"),
                      ("long", "it has 128 KiB or more"), ("blank", "only white space")):
        for config in (f"idempotency_salt: file:{how}\n" + CONFIG, CONFIG.replace("exec:", 'env: {TOKEN: "file:%s"}, exec:' % how)):
            if how == "blank" and config.startswith("\nkey"):
                continue  # a variable may be
            p.configure(config, consumer="pay")
            ended = p.once("run", p.name)
            assert ended.status == 2 and said in ended.err and "p.yaml:" in ended.err, ended
    assert seen(tmp_path) == {}
    (tmp_path / "longest").write_bytes(b"s" * 131071)
    salted(p, "file:longest")
    counts(p.run(status=0), done=1)


@pytest.mark.parametrize("end, left", [(b"", b""), (b"\n", b""), (b"\r\n", b""), (b"\n\n", b"\n"), (b"\r", b"\r"), (b" \n", b" ")])
def test_f82_one_line_end_is_no_part_of_the_salt(tmp_path, end, left):
    p = pipeline(tmp_path)
    p.write({"id": "a"})
    (tmp_path / "salt").write_bytes(SALT.encode() + end)
    salted(p, "file:salt")
    p.run(status=0)
    assert seen(tmp_path) == {"a": outward(b"pay", b"charge", b"a", salt=SALT.encode() + left)}


# ---- it is shown ----

def test_f82_the_person_who_resolves_an_unknown_finds_it(tmp_path):
    p = pipeline(tmp_path)
    p.write({"id": "unknown"}, {"id": "dead"}, "not json")
    ended = p.try_run("--log-level", "info")
    assert ended.status == 1, ended
    given = seen(tmp_path)
    assert given == {key: outward(b"pay", b"charge", key.encode()) for key in ("unknown", "dead")}
    for key in given:
        assert re.search(f"{key}.*{given[key]}", ended.err), ended  # the log
        (entry,) = p.explain(key)
        assert entry["idempotency_key"] == given[key]
        assert f"Its idempotency key is {given[key]}." in p.once("explain", p.name, key).out
    # Programs before version 5 that still run refuse rows whose fingerprint has not 16 bytes: they would give the message an old key.
    assert all(n > 16 for (n,) in p.rows("SELECT length(fingerprint) FROM once_entry"))
    listed = p.once("list", "--json", p.name).json["messages"]
    assert {m["key"]: m.get("idempotency_key") for m in listed} == {**given, "": None}
    text = p.once("list", p.name).out
    assert f"unknown  key 'unknown' of operation 'charge' ({given['unknown']})" in text and f"key 'dead' of operation 'charge' ({given['dead']})" in text
    letters = p.once("replay", "--dry-run", "--all", "--json", p.name).json["letters"]
    assert {m["key"]: m.get("idempotency_key") for m in letters} == {"dead": given["dead"], "": None}
    assert f"idempotency key {given['dead']}" in p.once("replay", "--dry-run", "--all", p.name).out
    resolved = p.once("resolve", "--json", p.name, "unknown", "dead")
    assert (resolved.json["key"], resolved.json["idempotency_key"], resolved.json["resolved"]) == ("unknown", given["unknown"], "dead")
    letters = p.once("list", "--dead", "--json", p.name).json["messages"]
    assert {m["key"]: m.get("idempotency_key") for m in letters} == {**given, "": None}
    assert p.once("replay", "--all", p.name).status == 1  # one cannot run
    p.write()
    p.run(status=1)
    assert seen(tmp_path) == given  # every attempt the same
    assert given["unknown"] in p.once("resolve", p.name, "unknown", "done").out


# ---- stores from before ----

KINDS = ["sqlite", "postgres", "redis"]


@pytest.fixture(params=KINDS)
def old(request, tmp_path):
    """A folder with an old store, its handlers' idempotency keys, and handlers that succeed."""
    folder = tmp_path / "old"
    if request.param == "postgres":
        pgpipeline.need_postgres()
        keys = old_postgres(folder, postgres.shared().database(pgpipeline.new_name()))
    elif request.param == "redis":
        if not has_redis():
            pytest.skip("no redis-server, or a build without hiredis")
        redis = RedisServer(tmp_path)
        request.addfinalizer(lambda: redis.__exit__())
        keys = old_redis(folder, redis)
    else:
        keys = old_store(folder)
    (folder / "handler.sh").write_text('echo "$ONCE_KEY $ONCE_IDEMPOTENCY_KEY" >>seen\n')
    return folder, keys


def ask(folder, verb, *arguments, status=0):
    ended = once(verb, "--json", *arguments, cwd=folder)
    assert ended.status == status, ended
    return ended.json


def run(folder):
    """Until nothing is due any more; what waits for an hour keeps a run from ending."""
    ended = once("run", "--json", "pipeline.yaml", cwd=folder)
    assert ended.status in (0, 1), ended
    return ended.json


def test_f58_f82_what_existed_keeps_its_key_for_life(old):
    folder, keys = old
    listed = ask(folder, "list", "pipeline.yaml")["messages"]
    assert {m["key"]: m["idempotency_key"] for m in listed} == \
        {key: keys[key] for key in ("done", "dead", "dead-forgotten", "conflict-only", "unknown", "unknown-2", "waits")}
    for key in ("done", "done-third", "rejected", "already", "dead", "unknown", "waits"):
        assert ask(folder, "explain", "pipeline.yaml", key)["entries"][0]["idempotency_key"] == keys[key]

    assert ask(folder, "resolve", "pipeline.yaml", "unknown", "retry")["idempotency_key"] == keys["unknown"]
    assert ask(folder, "resolve", "pipeline.yaml", "unknown-2", "dead")["idempotency_key"] == keys["unknown-2"]
    ask(folder, "forget", "pipeline.yaml", "waits")  # otherwise a run waits for it for an hour
    with open(folder / "in.ndjson", "a") as file:
        file.write('{"id":"new","type":"run"}\n{"id":"waits","type":"run"}\n')
    run(folder)
    new = {key: outward(b"pay", b"run", key.encode()) for key in ("new", "waits")}
    assert seen(folder) == {"unknown": keys["unknown"], **new}

    # Replay: with the entry that died, without one, and forced over one that is finished or was never run under this content.
    told = ask(folder, "replay", "--all", "--force", "pipeline.yaml")["letters"]
    wanted = {key: keys[key] for key in ("done", "dead", "dead-forgotten", "conflict-only", "unknown-2")}
    assert {m["key"]: m["idempotency_key"] for m in told} == wanted
    assert {m["verdict"] for m in told} <= {"run", "forced"}
    run(folder)
    assert seen(folder) == wanted
    for key in wanted:
        assert ask(folder, "explain", "pipeline.yaml", key)["entries"][0]["idempotency_key"] == keys[key]

    # Its life is over: what comes again is new.
    ask(folder, "forget", "pipeline.yaml", "done-third")
    with open(folder / "in.ndjson", "a") as file:
        file.write('{"id":"done-third","type":"run"}\n')
    run(folder)
    assert seen(folder) == {"done-third": outward(b"pay", b"run", b"done-third")}


def test_f58_f82_a_letter_of_before_that_dies_again(old):
    folder, keys = old
    ask(folder, "forget", "pipeline.yaml", "waits")
    (folder / "handler.sh").write_text('echo "$ONCE_KEY $ONCE_IDEMPOTENCY_KEY" >>seen; exit 65\n')
    for _ in range(2):
        ask(folder, "replay", "--reason", "no such account" if _ == 0 else "65", "pipeline.yaml")
        run(folder)
        assert seen(folder) == {key: keys[key] for key in ("dead", "dead-forgotten")}
    listed = ask(folder, "list", "--dead", "pipeline.yaml")["messages"]
    assert {m["key"]: m["idempotency_key"] for m in listed if "65" in m["reason"]} == {key: keys[key] for key in ("dead", "dead-forgotten")}


def test_f58_f75_f82_an_old_store_may_begin_with_a_salt(old):
    folder, keys = old
    ask(folder, "forget", "pipeline.yaml", "waits")
    with open(folder / "pipeline.yaml", "a") as file:
        file.write("idempotency_salt: file:salt\n")
    (folder / "salt").write_text(SALT)
    with open(folder / "in.ndjson", "a") as file:
        file.write('{"id":"new","type":"run"}\n')
    ask(folder, "resolve", "pipeline.yaml", "unknown", "retry")
    run(folder)
    assert seen(folder) == {"unknown": keys["unknown"], "new": outward(b"pay", b"run", b"new", salt=SALT.encode())}
    assert json.dumps(ask(folder, "list", "pipeline.yaml")).count(keys["unknown-2"]) == 1


def test_f58_f82_programs_of_before_stop_at_what_is_made_now(tmp_path):
    """One that still runs would give such a message an old key. It knows neither the column in PostgreSQL nor the state in Redis; for SQLite
    see f58_a_program_of_version_4_that_still_runs_is_fenced_out."""
    pgpipeline.need_postgres()
    url = postgres.shared().database(pgpipeline.new_name())
    old_postgres(tmp_path / "pg", url)
    assert once("list", "pipeline.yaml", cwd=tmp_path / "pg").status == 0
    columns = pgpipeline.psql(url, "SELECT column_name FROM information_schema.columns WHERE table_name = 'once_live'").split()
    assert "marks" in columns and "flags" not in columns
    assert pgpipeline.psql(url, "SELECT encode(value, 'escape') FROM once_meta WHERE name = 'version'") == "2\n"


@pytest.mark.skipif(not has_redis(), reason="no redis-server, or a build without hiredis")
def test_f58_f82_programs_of_before_stop_at_what_is_made_now_in_redis(tmp_path):
    with RedisServer(tmp_path) as redis:
        p = pipeline(tmp_path / "p")
        p.configure(CONFIG, consumer="pay", store=redis.url())
        p.write({"id": "unknown"})
        p.run(status=1)
        (key,) = redis.call("KEYS", "{once}e*")
        assert redis.call("GETRANGE", key, 9, 9) == bytes([16 + 3])  # unknown, and a bit that they refuse
        assert redis.call("HGET", "{once}head", "format") == b"2"
