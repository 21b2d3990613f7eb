"""A store as an older once wrote it, in the folder and with the pipeline that it was made with (tests/fixtures/version-4.sh)."""

import os
import shutil
import subprocess

from harness import ROOT

FIXTURES = os.path.join(ROOT, "tests", "fixtures")


def old_pipeline(folder):
    """pipeline.yaml, handler.sh and in.ndjson; the store in it is sqlite:version-4.db."""
    subprocess.run([os.path.join(FIXTURES, "version-4.sh"), "", folder], check=True)


def old_store(folder):
    """The same with its store. Returns the idempotency keys that its handlers were given, by key."""
    old_pipeline(folder)
    shutil.copy(os.path.join(FIXTURES, "version-4.db"), folder)
    with open(os.path.join(FIXTURES, "version-4.keys")) as file:
        return dict(line.split() for line in file)
