"""Servers for tests that are written in Java: their jars are copied by Maven into a cache, as tests/fixtures/NAME/pom.xml says.

The cache is $ONCE_TEST_NAME_JARS, or once/NAME-VERSION in $XDG_CACHE_HOME (~/.cache)."""

import os
import random
import re
import shutil
import socket
import subprocess
import tempfile

from harness import ROOT


class Missing(Exception):
    """There is no such server to be had here."""


def fixtures(name):
    return os.path.join(ROOT, "tests", "fixtures", name)


def folder(name):
    """The folder of the jars, whether it is there or not."""
    with open(os.path.join(fixtures(name), "pom.xml")) as file:
        version = re.search(r"<dependency>.*?<version>(.*?)</version>", file.read(), re.S).group(1)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get(f"ONCE_TEST_{name.upper()}_JARS") or os.path.join(cache, "once", f"{name}-{version}")


def copy(name):
    """Whole or not at all: a folder that is there is complete."""
    into = folder(name)
    if os.path.isdir(into):
        return
    print(f"{name}: copying its jars into {into}", flush=True)
    os.makedirs(os.path.dirname(into), exist_ok=True)
    part = tempfile.mkdtemp(prefix=os.path.basename(into) + ".", dir=os.path.dirname(into))
    try:
        copied = subprocess.run(["mvn", "-q", "-B", "-f", os.path.join(fixtures(name), "pom.xml"), "dependency:copy-dependencies",
                                 f"-DoutputDirectory={part}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if copied.returncode != 0:
            raise Missing(f"Maven could not copy it: {copied.stdout[-2000:]}")
        os.chmod(part, 0o755)
        os.rename(part, into)
    except OSError:
        if not os.path.isdir(into):  # another one was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def need(name):
    if not shutil.which("java"):
        raise Missing("Java is not installed")
    if not os.path.isdir(folder(name)):
        raise Missing(f"there is no {folder(name)}; tools/setup check makes it")


def free_ports(n):
    """The first of n that follow each other, below those that the system gives to clients: a server finds its own again after a restart."""
    while True:
        first = random.randrange(12000, 32000)
        try:
            for port in range(first, first + n):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
