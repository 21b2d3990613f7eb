"""What `once check` says about files that others may change or read, and about text of messages among arguments."""

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
