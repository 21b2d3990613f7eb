"""Files that others may change or read, text of messages among arguments, and passwords in what is said."""

import os

import pytest

from harness import Pipeline


def findings(p):
    ended = p.once("check", "--json", p.name)
    assert ended.status == 0, ended
    return [(f["topic"], f["text"]) for f in ended.json["findings"] if f["warning"] and f["topic"] != "retention"]


def commands(folder, more="", arguments=""):
    return Pipeline(folder, config='key: "${/id}"\nhandler:\n  exec: [cat%s]\n%s' % (arguments, more))


def said(p, topic):
    return [text for found, text in findings(p) if found == topic]


@pytest.mark.parametrize("mode,told", [(0o600, None), (0o644, None), (0o664, "may be changed by others"), (0o646, "may be changed by others")])
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
    assert "everybody may replace files" in said(p, "pipeline")[0]
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
    assert len(texts) == len(told) and all(f"may be {word} by others" in text for word, text in zip(told, texts)), texts
    assert all("0123456789abcdef" not in text for text in texts)


def test_the_salt_is_a_secret(tmp_path):
    p = commands(tmp_path, more='idempotency_salt: "file:salt"\n')
    p.write()
    with open(os.path.join(p.folder, "salt"), "w") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    os.chmod(file.name, 0o644)
    assert "'salt' (mode 0644) may be read by others" in said(p, "secret")[0]


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
    assert "'store.db' (mode 0644) may be read or changed by others" in said(p, "store")[0]
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


@pytest.mark.parametrize("url", ["postgres://u:p@hunter2@h/db", "postgres://u:hunter2/x@h/db", "postgres://u:hunter2@h:x/db", "host=h password=hunter2",
                                 "postgres:user=u password=hunter2", "redis:///0?password=hunter2", "mysql://u:hunter2@h/db", "u:hunter2@h/db"])
@pytest.mark.parametrize("verb", ["check", "run", "status"])
def test_a_password_is_not_shown_wherever_it_stands(tmp_path, url, verb):
    p = commands(tmp_path)
    p.configure('key: "${/id}"\nhandler: {exec: [cat]}\n', store=f'"{url}"')
    ended = p.once(verb, p.name)
    assert ended.status == 2 and "hunter2" not in ended.out + ended.err, ended


@pytest.mark.parametrize("store,told", [("mysql://h/db", "unknown store 'mysql:'; write sqlite:PATH, postgres://HOST/DATABASE, redis://HOST, or memory"),
                                        ("sqlite:/proc/x.db", "cannot be made in its folder: No such file"),
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
    assert ended.status == 0 and "never lost" not in ended.out and "everything is forgotten with the process" in ended.out, ended


STEERS = "\x1b[31m\x9b31m\x85\u061c\u200e\u2028\u202e\u2066\u2069\x7f"


def test_what_steers_a_terminal_is_escaped_in_text_and_json(tmp_path):
    p = Pipeline(tmp_path, config='key: "${/id}"\ntype: "${/type}"\nhandlers:\n  a: {exec: [sh, -c, "printf %s \\"$1\\" >&2; exit 65", sh, "${/said}"]}\n')
    p.write({"id": "k" + STEERS, "type": "a", "said": "no" + STEERS}, {"id": "b", "type": "t" + STEERS})
    ended = p.try_run()
    told = [ended.out + ended.err]
    for verb in (["list"], ["list", "--json"], ["list", "--dead"], ["explain", "k" + STEERS], ["explain", "--json", "k" + STEERS], ["status"], ["status", "--json"]):
        ended = p.once(verb[0], *verb[1:2] if verb[1:2] in (["--json"], ["--dead"]) else (), p.name, *[v for v in verb[1:] if not v.startswith("--")])
        told.append(ended.out + ended.err)
    assert any("no" in text for text in told)
    for text in told:
        assert not set(STEERS) & (set(text) - set("31m[")), ascii(text)
