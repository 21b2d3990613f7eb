"""A page of docs/ about a source: its pipelines, the tests that it names, and the texts that it quotes.

    PAGE = Page("docs/sqs.md", key='"${coordinates}"', remember="15d")
    for block in PAGE.blocks: ... PAGE.whole(block) ..."""

import os
import re

from harness import ROOT


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Page:
    def __init__(self, path, **rest):
        """`rest`: fields of a pipeline that a block may leave out."""
        self.text = read(path)
        self.blocks = re.findall(r"```yaml\n(.*?)```", self.text, re.S)
        self.rest = {"consumer": "docs", "store": "sqlite:docs.db", "handler": "{exec: [cat]}", **rest}

    def whole(self, block):
        """A part of a pipeline, with what it leaves out; a preset has a key."""
        said = {"handler": "handlers?", "key": "key|preset"}
        return block + "".join(f"{name}: {value}\n" for name, value in self.rest.items() if not re.search(rf"^({said.get(name, name)}):", block, re.M))

    def check_tests(self, prefix, least):
        """Every test that the page names is in a file that begins with `prefix`."""
        names = set(re.findall(r"`(test_\w+)`", self.text))
        assert len(names) > least
        folders = [os.path.join(ROOT, "tests", name) for name in ("integration", "soak")]
        known = "".join(read(os.path.join(folder, name)) for folder in folders for name in os.listdir(folder) if name.startswith(prefix))
        assert {name for name in names if f"def {name}(" not in known} == set()


def check_quoted(*texts):
    """The texts are in the sources, where a format may have a number."""
    sources = "".join(read(os.path.join(folder, name)) for folder, _, files in os.walk(os.path.join(ROOT, "src"))
                      for name in files if name.endswith(".c"))
    sources = re.sub(r'"\s*(?:PRI\w+)\s*"', "d", re.sub(r'"\n\s*"', "", sources))
    assert [words for words in texts if words not in sources] == []
