"""A process that sees another host name, as the next pod of a deployment does."""

import os
import subprocess

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <dlfcn.h>
int gethostname(char *out, size_t size)
{
    strncpy(out, getenv("HOST_NAME"), size);
    return 0;
}
int uname(struct utsname *out)
{
    int (*real)(struct utsname *);
    *(void **)&real = dlsym(RTLD_NEXT, "uname");
    const int failed = real(out);
    if (!failed) strncpy(out->nodename, getenv("HOST_NAME"), sizeof out->nodename - 1);
    return failed;
}
"""


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    """The environment of a process on a host of that name."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "host.c").write_text(SHIM)
    made = subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "host.so", folder / "host.c", "-ldl"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return lambda name: {"LD_PRELOAD": str(folder / "host.so"), "HOST_NAME": name,
                         "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
