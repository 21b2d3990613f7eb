"""The manual pages: one for every verb and one for the pipeline file, whole, well-formed, and installed."""

import json
import os
import re
import shutil
import subprocess

import pytest

from harness import ONCE, ROOT, once

BUILD = os.path.dirname(ONCE)
PARTS = os.path.join(ROOT, "docs", "man")

pytestmark = pytest.mark.skipif(not shutil.which("scdoc"), reason="missing: scdoc; Debian package scdoc")


def verbs():
    return once("help", "--json").json["verbs"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Path of each page by its name, made as the build makes them."""
    folder = tmp_path_factory.mktemp("man")
    made = subprocess.run([os.path.join(ROOT, "tools", "man"), ONCE, "scdoc", PARTS, folder / "man1", folder / "man5"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0 and made.stderr == "", made.stderr
    return {path.name: str(path) for path in folder.glob("man?/*")}


def plain(path):
    """A page as its reader sees it, without bold and hyphenation, in one line."""
    shown = subprocess.run(["groff", "-man", "-Tutf8", "-P-c", "-rLL=10000n", "-rHY=0", path], capture_output=True, text=True,
                           timeout=60, check=True)
    text = re.sub(r".\x08", "", shown.stdout).replace("‐\n", "").replace("−", "-").replace("‐", "-")
    return re.sub(r"\s+", " ", text.replace("’", "'"))


needs_groff = pytest.mark.skipif(not shutil.which("groff"), reason="missing: groff; Debian package groff-base")


def test_every_verb_has_a_page_and_no_page_is_left_over(pages):
    expected = {"once.1", "once-pipeline.5"} | {f"once-{verb['name']}.1" for verb in verbs()}
    assert set(pages) == expected


def test_every_part_belongs_to_a_verb():
    parts = {name[:-len(".part")] for name in os.listdir(PARTS) if name.endswith(".part")}
    assert parts <= {verb["name"] for verb in verbs()}


@needs_groff
def test_pages_are_well_formed(pages):
    for name, path in pages.items():
        told = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", path], capture_output=True, text=True, timeout=60, check=False)
        assert told.returncode == 0 and told.stderr == "", f"{name}: {told.stderr}"
    if shutil.which("mandoc"):
        for name, path in pages.items():
            told = subprocess.run(["mandoc", "-T", "lint", "-W", "error", path], capture_output=True, text=True, timeout=60,
                                  check=False)
            assert told.returncode == 0, f"{name}: {told.stdout}"


@needs_groff
def test_pages_have_the_usual_sections(pages):
    for name, path in pages.items():
        text = plain(path)
        for section in ["NAME", "DESCRIPTION", "SEE ALSO"] + (["SYNOPSIS", "EXIT STATUS"] if name.endswith(".1") else []):
            assert f" {section} " in text, f"{name} has no {section}"
        assert "@" not in re.sub(r"once@NAME|USER@HOST", "", text), f"{name}: a place that was to be filled in"


@needs_groff
def test_every_option_of_a_verb_is_in_its_page(pages):
    for verb in verbs():
        text = plain(pages[f"once-{verb['name']}.1"])
        assert verb["summary"] in text
        told = once(verb["name"], "--help")
        assert told.status == 0, told
        options = re.findall(r"^ +(--[a-z][a-z0-9-]*(?: [A-Z]\S*)?)\s+(\S.*)$", told.out, re.M)
        assert options, told.out
        for option, meaning in options:
            assert f"[{option}]" in text.partition("DESCRIPTION")[0], f"{verb['name']}: {option} in the synopsis"
            assert f"{option} {re.sub(r'[ ]+', ' ', meaning)}" in text.partition(" OPTIONS ")[2], f"{verb['name']}: {option}"


@needs_groff
def test_overview_lists_every_verb_and_exit_status(pages):
    text = plain(pages["once.1"])
    for verb in verbs():
        assert f"once-{verb['name']}(1)" in text
    statuses = text.partition(" EXIT STATUS ")[2].partition(" SIGNALS ")[0]
    for status in "0123":
        assert f" {status} " in f" {statuses} "


@needs_groff
def test_pipeline_page_names_every_field_with_its_meaning(pages):
    """Against the tables, by another way than the page was made: the plain reference, section by section."""
    text = plain(pages["once-pipeline.5"])
    reference = once("help", "configuration.md").out
    sections = re.split(r"^## ", reference, flags=re.M)[1:]
    assert len(sections) >= 10
    fields = 0
    for section in sections:
        title = section.splitlines()[0].upper()
        part = text.partition(f" {title} ")[2]
        assert part, title
        for field, meaning in re.findall(r"^\| `([a-z_]+)` \|(?:[^|\n]|\\\|)*\|(?:[^|\n]|\\\|)*\| (.*) \|$", section, re.M):
            meaning = re.sub(r"\[([^\]]*)\]\(#[^)]*\)", r"\1", meaning).replace("`", "").replace("\\|", "|")
            assert f" {field} {re.sub(' +', ' ', meaning)}" in part, f"{title}: {field}"
            fields += 1
    assert fields == len(re.findall(r"^\| `[a-z_]+` \|.*\|.*\|.*\|$", reference, re.M)) > 40


def test_pages_completion_and_service_are_installed(tmp_path):
    with open(os.path.join(BUILD, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as text:
        options = {option["name"]: option["value"] for option in json.load(text)}
    done = subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet"], env={**os.environ, "DESTDIR": str(tmp_path)},
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    prefix = str(tmp_path) + options["prefix"]
    expected = ["bin/once", "share/bash-completion/completions/once", "lib/systemd/system/once@.service"]
    if options["b_sanitize"] in ("none", [], ["none"]):
        expected += ["share/man/man5/once-pipeline.5", "share/man/man1/once.1"]
        expected += [f"share/man/man1/once-{verb['name']}.1" for verb in verbs()]
    for path in expected:
        assert os.path.isfile(os.path.join(prefix, path)), \
            f"{path}; a build folder made before scdoc was there wants meson setup --reconfigure"
    with open(os.path.join(prefix, "lib/systemd/system/once@.service"), encoding="utf-8") as text:
        assert f"ExecStart={options['prefix']}/bin/once run " in text.read()
