"""Files that others may change or read, text of messages among arguments, and passwords in what is said."""

import os
import sqlite3

import pytest

from harness import Pipeline, once
from redisserver import RedisServer, needs_redis


def findings(p):
    ended = p.once("check", "--json", p.name)
    assert ended.status == 0, ended
    return [(f["topic"], f["text"]) for f in ended.json["findings"] if f["warning"] and f["topic"] != "retention"]


def commands(folder, more="", arguments=""):
    return Pipeline(folder, config='key: "${/id}"\nhandler:\n  exec: [cat%s]\n%s' % (arguments, more))


def said(p, topic):
    return [text for found, text in findings(p) if found == topic]


@pytest.mark.parametrize("mode,told", [(0o600, None), (0o644, None), (0o664, "can be changed by other users"), (0o646, "can be changed by other users")])
def test_a_pipeline_file_that_others_may_change(tmp_path, mode, told):
    p = commands(tmp_path)
    p.write()
    os.chmod(os.path.join(p.folder, p.name), mode)
    texts = said(p, "pipeline")
    assert bool(texts) == bool(told), texts
    assert not told or (told in texts[0] and f"mode {mode:04o}" in texts[0]), texts


def test_a_folder_in_which_everybody_may_replace_files(tmp_path):
    p = commands(tmp_path)
    p.write()
    os.chmod(p.folder, 0o777)
    assert "every user may replace files" in said(p, "pipeline")[0]
    os.chmod(p.folder, 0o1777)
    assert said(p, "pipeline") == []


@pytest.mark.parametrize("mode,told", [(0o600, []), (0o640, ["read"]), (0o604, ["read"]), (0o602, ["changed"]), (0o666, ["read", "changed"])])
def test_a_file_with_a_secret(tmp_path, mode, told):
    p = commands(tmp_path, more='  env: {TOKEN: "file:token"}\n')
    p.write()
    with open(os.path.join(p.folder, "token"), "w") as file:
        file.write("0123456789abcdef\n")
    os.chmod(file.name, mode)
    texts = said(p, "secret")
    assert len(texts) == len(told) and all(f"can be {word} by other users" in text for word, text in zip(told, texts)), texts
    assert all("0123456789abcdef" not in text for text in texts)


def test_the_salt_is_a_secret(tmp_path):
    p = commands(tmp_path, more='idempotency_salt: "file:salt"\n')
    p.write()
    with open(os.path.join(p.folder, "salt"), "w") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    os.chmod(file.name, 0o644)
    assert "'salt' (mode 0644) can be read by other users" in said(p, "secret")[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="not allowed here: another user's files, without root")
def test_a_pipeline_file_of_another_user(tmp_path):
    p = commands(tmp_path)
    p.write()
    os.chown(os.path.join(p.folder, p.name), 65534, 65534)
    assert "belongs to another user, who can decide what runs here" in said(p, "pipeline")[0]


def test_secrets_are_looked_at_wherever_they_stand(tmp_path):
    """Of each handler, of URLs that are in files, with short names, and in their folders."""
    for name in ("s", "url", "folder/t"):
        os.makedirs(os.path.dirname(tmp_path / name), exist_ok=True)
        (tmp_path / name).write_text("sqlite:other.db" if name == "url" else "0123456789abcdef\n")
        os.chmod(tmp_path / name, 0o600 if "/" in name else 0o640)
    os.chmod(tmp_path / "folder", 0o777)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t(n)").connection.close()
    p = commands(tmp_path)
    p.configure('key: "${/id}"\ntype: "${/type}"\nhandlers:\n  a: {exec: [cat]}\n  b: {exec: [cat], env: {X: "plain", Y: "file:s", Z: "file:folder/t"}}\n'
                '  c: {sql: {url: "file:url", do: ["SELECT 1"]}}\n')
    p.write()
    texts = said(p, "secret")
    assert sorted(text.split(" ")[0] for text in texts) == ["'folder'", "'s'", "'url'"], texts


@needs_redis
def test_a_password_in_a_url_or_in_a_file_that_it_names(tmp_path):
    with RedisServer(tmp_path, "--requirepass", "0123456789abcdef") as redis:
        (tmp_path / "secret").write_text("0123456789abcdef\n")
        os.chmod(tmp_path / "secret", 0o640)
        p = commands(tmp_path)
        p.write()
        p.configure('key: "${/id}"\nhandler: {exec: [cat]}\n', store=f"redis://127.0.0.1:{redis.port}/0?password=file:secret&name=x")
        assert [text.partition(";")[0] for text in said(p, "secret")] == ["'secret' (mode 0640) can be read by other users"]
        p.configure('key: "${/id}"\nhandler: {exec: [cat]}\n', store=f"redis://:0123456789abcdef@127.0.0.1:{redis.port}/0?name=x")
        for mode in (0o600, 0o640, 0o604):
            os.chmod(os.path.join(p.folder, p.name), mode)
            assert ["contains a password" in text for text in said(p, "pipeline")] == [True] * (mode != 0o600), oct(mode)


def test_text_of_a_message_among_the_arguments(tmp_path):
    p = commands(tmp_path, arguments=', "--id=${/id}", plain, "${/to}"')
    p.write()
    texts = said(p, "handler (all)")
    assert len(texts) == 2 and "argument 1, '--id=${/id}', carries text of the message" in texts[0] and "argument 3, '${/to}'" in texts[1], texts
    (tmp_path / "without").mkdir()
    p = commands(tmp_path / "without", arguments=", plain")
    p.write()
    assert said(p, "handler (all)") == []


def test_a_store_that_others_may_read(tmp_path):
    p = commands(tmp_path)
    p.write()
    p.execute("CREATE TABLE was_here(n)")
    os.chmod(p.database, 0o644)
    assert "'store.db' (mode 0644) can be read or changed by other users" in said(p, "store")[0]
    os.chmod(p.database, 0o620)
    assert "'store.db' (mode 0620) can be read or changed by other users" in said(p, "store")[0]
    os.chmod(p.database, 0o600)
    assert said(p, "store") == []


def test_f97_a_store_is_not_made_behind_a_link_to_nothing(tmp_path):
    p = commands(tmp_path)
    p.write({"id": 1})
    os.symlink("elsewhere.db", p.database)
    before = os.umask(0)
    try:
        for verb in ("check", "run"):
            ended = p.once(verb, p.name)
            assert ended.status == 2 and "is a symbolic link to nothing" in ended.err, ended
    finally:
        os.umask(before)
    assert not os.path.exists(tmp_path / "elsewhere.db")


@pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("to", ["nothing", "precious"])
def test_files_beside_a_store_are_no_links(tmp_path, beside, to):
    p = commands(tmp_path)
    p.write({"id": 1})
    os.mkdir(tmp_path / "folder")
    os.symlink("folder/real.db", p.database)
    open(tmp_path / "folder" / "real.db", "w").close()
    (tmp_path / "precious").write_text("precious")
    os.symlink("../" + to, tmp_path / "folder" / ("real.db" + beside))
    for verb in ("check", "run", "status"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and f"file 'store.db{beside}': is a symbolic link and no file" in ended.err and "gave up" not in ended.err, ended
    assert (tmp_path / "precious").read_text() == "precious" and not os.path.exists(tmp_path / "nothing")
    assert os.path.getsize(p.database) == 0


def test_a_store_that_is_no_file_is_called_what_it_is(tmp_path):
    p = commands(tmp_path)
    p.write({"id": 1})
    os.mkfifo(p.database)
    for verb in ("check", "run", "status"):
        ended = p.once(verb, p.name)
        assert ended.status == 2 and "file 'store.db': is a pipe and no file" in ended.err, ended
    p.configure('key: "${/id}"\nhandler: {exec: [cat]}\n', store="sqlite:/dev/null")
    ended = p.once("run", p.name)
    assert ended.status == 2 and "file '/dev/null': is a device and no file" in ended.err, ended


def test_nothing_is_written_to_an_empty_file_where_a_store_was_known(tmp_path):
    p = commands(tmp_path)
    p.write({"id": 1})
    p.run()
    for name in os.listdir(tmp_path):
        if name.startswith("store.db"):
            os.unlink(tmp_path / name)
    open(p.database, "w").close()
    before = sorted(os.listdir(tmp_path))
    for verb in ("run", "check", "status", "list"):
        ended = p.once(verb, p.name)
        assert ended.status == 4 and "there is no store here" in ended.err, ended
        assert os.path.getsize(p.database) == 0 and sorted(os.listdir(tmp_path)) == before, verb
    assert p.run("--new-store")["done"] == 1 and sqlite3.connect(p.database).execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("url", ["postgres://u:p@hunter2@h/db", "postgres://u:hunter2/x@h/db", "postgres://u:hunter2@h:x/db", "host=h password=hunter2",
                                 "postgres:user=u password=hunter2", "redis:///0?password=hunter2", "mysql://u:hunter2@h/db", "u:hunter2@h/db"])
@pytest.mark.parametrize("verb", ["check", "run", "status"])
def test_a_password_is_not_shown_wherever_it_stands(tmp_path, url, verb):
    p = commands(tmp_path)
    p.configure('key: "${/id}"\nhandler: {exec: [cat]}\n', store=f'"{url}"')
    ended = p.once(verb, p.name)
    assert ended.status == 2 and "hunter2" not in ended.out + ended.err, ended


@pytest.mark.parametrize("store,told", [("mysql://h/db", "unknown store 'mysql:'; write sqlite:PATH, postgres://HOST/DATABASE, redis://HOST, or memory"),
                                        ("sqlite:/proc/x.db", "its folder exists, but no file can be created in it"),
                                        ("sqlite:/nowhere/at/all.db", "its folder does not exist; make the folder first")])
def test_a_store_that_cannot_be(tmp_path, store, told):
    p = commands(tmp_path)
    p.configure('key: "${/id}"\nhandler: {exec: [cat]}\n', store=f'"{store}"')
    ended = p.once("check", p.name)
    assert ended.status == 2 and told in ended.err, ended


def test_the_memory_store_promises_nothing(tmp_path):
    p = commands(tmp_path)
    p.configure('key: "${/id}"\nhandler: {exec: [cat]}\n', store="memory")
    ended = p.once("check", p.name)
    assert ended.status == 0 and "never lost" not in ended.out and "everything is lost when the process ends" in ended.out, ended


STEERS = "\x1b[31m\x9b31m\x85\u061c\u200e\u2028\u202e\u2066\u2069\x7f"


def test_what_steers_a_terminal_is_escaped_in_text_and_json(tmp_path):
    p = Pipeline(tmp_path, config='key: "${/id}"\ntype: "${/type}"\nhandlers:\n  a: {exec: [sh, -c, "printf %s \\"$1\\" >&2; exit 65", sh, "${/said}"]}\n')
    p.write({"id": "k" + STEERS, "type": "a", "said": "no" + STEERS}, {"id": "b", "type": "t" + STEERS})
    ended = p.try_run()
    told = [ended.out + ended.err]
    for by in ("type", "reason", "handler"):  # a filter that cannot be printed is not shown
        for arguments in (["--by", by], ["--by", by, "--json"]):
            ended = p.once("list", *arguments, p.name)
            assert ended.status == 0, ended
            told.append(ended.out + ended.err)
    for verb in (["list"], ["list", "--json"], ["list", "--dead"], ["explain", "k" + STEERS], ["explain", "--json", "k" + STEERS], ["status"], ["status", "--json"]):
        ended = p.once(verb[0], *verb[1:2] if verb[1:2] in (["--json"], ["--dead"]) else (), p.name, *[v for v in verb[1:] if not v.startswith("--")])
        told.append(ended.out + ended.err)
    assert any("no" in text for text in told)
    for text in told:
        assert not set(STEERS) & (set(text) - set("31m[")), ascii(text)


STEERS_AND_BREAKS = STEERS + "\r\n\a"


@pytest.mark.parametrize("arguments", [
    [STEERS_AND_BREAKS], ["help", STEERS_AND_BREAKS], ["schema", STEERS_AND_BREAKS], ["schema", "redis://h/" + STEERS_AND_BREAKS], ["run", STEERS_AND_BREAKS],
    ["run", "p.yaml", STEERS_AND_BREAKS], ["run", "p.yaml", "--" + STEERS_AND_BREAKS], ["check", "p.yaml", "--json=" + STEERS_AND_BREAKS],
    ["discard", "p.yaml", STEERS_AND_BREAKS], ["discard", "p.yaml", "--type", STEERS_AND_BREAKS], ["replay", "p.yaml", "1" + STEERS_AND_BREAKS],
    ["replay", "p.yaml", "--rate", STEERS_AND_BREAKS], ["replay", "p.yaml", "1", "--body", STEERS_AND_BREAKS], ["replay", "p.yaml", "--since", STEERS_AND_BREAKS],
    ["list", "p.yaml", "--by", STEERS_AND_BREAKS], ["forget", "p.yaml", "no" + STEERS_AND_BREAKS], ["explain", "p.yaml", "no" + STEERS_AND_BREAKS],
    ["explain", "p.yaml", "--message", STEERS_AND_BREAKS], ["resolve", "p.yaml", "k", STEERS_AND_BREAKS], ["resolve", "p.yaml", STEERS_AND_BREAKS, "done"]], ids=str)
def test_arguments_are_echoed_in_one_line_that_steers_no_terminal(tmp_path, arguments):
    p = commands(tmp_path)
    p.run()
    ended = p.once(*arguments)
    assert ended.out or ended.err
    for text in (ended.out, ended.err):
        assert not set(STEERS_AND_BREAKS) & (set(text) - set("31m[\n")), ascii(text)
    assert ended.err.count("\n") <= 1, ended


def test_check_tells_what_the_file_says_without_steering_a_terminal(tmp_path):
    name = "p\x1b[31m\u202e.yaml"
    p = Pipeline(tmp_path, 'key: "${/id}"\ntype: "${/type}"\nhandlers:\n  a: {dead: "no \\x1b[31m \\u202e"}\n  b: {exec: [cat, "\\x1b[31m\\u202e${/id}"]}\n', name=name)
    ended = p.once("check", name)
    assert ended.status == 0 and "ok: p?[31m?.yaml" in ended.out and "no ?[31m ?" in ended.out, ended
    for text in (ended.out, ended.err):
        assert "\x1b" not in text and "\u202e" not in text, ascii(text)


@pytest.mark.parametrize("url", ["host=h password=S3cr3tPw", "password=S3cr3tPw", "mysql://u:S3cr3tPw@h/db", "u:S3cr3tPw@h", "S3cr3tPw"])
def test_schema_repeats_no_password(tmp_path, url):
    ended = once("schema", url, cwd=tmp_path)
    assert ended.status == 2 and "no schema for such a store" in ended.err and "S3cr3tPw" not in ended.err + ended.out, ended
