"""A store as an older once wrote it, in a folder and with the pipeline that it was made with (tests/fixtures/version-4.sh)."""

import json
import os
import shutil
import subprocess

import pq
from harness import ROOT

FIXTURES = os.path.join(ROOT, "tests", "fixtures")


def old_pipeline(folder, store="sqlite:version-4.db"):
    """pipeline.yaml, handler.sh and in.ndjson."""
    subprocess.run([os.path.join(FIXTURES, "version-4.sh"), "", folder, store], check=True)


def keys_of(name):
    """The idempotency keys that the handlers were given, by key."""
    with open(os.path.join(FIXTURES, name + ".keys")) as file:
        return dict(line.split() for line in file)


def old_store(folder):
    """Tables of version 4 in SQLite. Returns the idempotency keys."""
    old_pipeline(folder)
    shutil.copy(os.path.join(FIXTURES, "version-4.db"), folder)
    return keys_of("version-4")


def old_postgres(folder, url):
    """Tables of version 1 in a new database."""
    with open(os.path.join(FIXTURES, "postgres-1.sql")) as file:
        pq.once(url, file.read())
    old_pipeline(folder, url)
    return keys_of("postgres-1")


def old_redis(folder, redis):
    """A store of format 1 on a new server."""
    with open(os.path.join(FIXTURES, "redis-1.json")) as file:
        for command in json.load(file):
            redis.call(*[bytes.fromhex(word[4:]) if word.startswith("hex:") else word for word in command])
    old_pipeline(folder, redis.url("old"))
    return keys_of("redis-1")
