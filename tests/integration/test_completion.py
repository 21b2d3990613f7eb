"""bash completion: what TAB offers, asked from the real file in a real bash."""

import os
import re
import shlex
import subprocess

import pytest

from harness import ONCE, ROOT, once

FILE = os.path.join(ROOT, "packaging", "completion", "once")


def complete(line, cwd="."):
    """What is offered at the end of the line; a blank at its end begins a new word."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    script = f"""
        source {shlex.quote(FILE)}
        COMP_WORDS=({' '.join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}
        _once once "${{COMP_WORDS[COMP_CWORD]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    env = {**os.environ, "PATH": os.path.dirname(ONCE) + ":" + os.environ["PATH"]}
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=cwd, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return sorted(done.stdout.split("\n")[:-1]) if done.stdout.strip() else []


def verbs():
    return sorted(verb["name"] for verb in once("help", "--json").json["verbs"])


def test_verbs():
    assert complete("once ") == verbs()
    assert complete("once r") == [verb for verb in verbs() if verb.startswith("r")]
    assert "run" in complete("once r")
    assert complete("once ru") == ["run"]
    assert complete("once nonsense") == []


def test_options_of_every_verb():
    for verb in verbs():
        options = re.findall(r"^  (--[a-z][a-z0-9-]*)", once(verb, "--help").out, re.M)
        assert complete(f"once {verb} --") == sorted([*options, "--help"]), verb
    assert complete("once run --log-f") == ["--log-format"]
    assert complete("once run pipeline.yaml --j") == ["--json"]


def test_values_of_options():
    assert complete("once run --log-level ") == ["debug", "error", "info", "warn"]
    assert complete("once run --log-format j") == ["json"]
    assert complete("once explain --tenant ") == []


@pytest.fixture
def folder(tmp_path):
    for name in ("payments.yaml", "orders.yml", "with blank.yaml", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "more").mkdir()
    return tmp_path


def test_pipeline_files_and_folders(folder):
    offered = ["more", "orders.yml", "payments.yaml", "with blank.yaml"]
    for verb in ("run", "check", "explain"):
        assert complete(f"once {verb} ", folder) == offered
    assert complete("once run p", folder) == ["payments.yaml"]


def test_options_and_their_values_are_no_arguments(folder):
    assert complete("once run --log-level info --json p", folder) == ["payments.yaml"]
    assert complete("once explain --tenant p p", folder) == ["payments.yaml"]
    assert complete("once explain payments.yaml ", folder) == []
    assert complete("once run payments.yaml ", folder) == []


def test_help_takes_verbs_and_config():
    assert complete("once help ") == sorted([*verbs(), "config"])
    assert complete("once help c") == ["check", "config"]


def test_shell_options_of_the_user_are_left_alone():
    script = f"before=$(shopt -p); source {shlex.quote(FILE)}; [ \"$before\" = \"$(shopt -p)\" ] && complete -p once"
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 and "-F _once" in done.stdout, "sourcing it changed a shell option"
