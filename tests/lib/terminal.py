"""A run on a terminal, where it shows its progress line.

    with Terminal(p) as terminal:
        terminal.see("lag 4 ")          # waits until a part of what is shown matches
        ...
    assert terminal.status == 0         # it was asked to stop; `seen` is everything that it showed"""

import contextlib
import os
import pty
import re
import select
import subprocess
import time

from harness import ONCE, environment, read_terminal


class Terminal:
    def __init__(self, pipeline, *options, env=None):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([ONCE, "run", *options, pipeline.name], cwd=pipeline.folder, stdin=subprocess.DEVNULL, stdout=slave,
                                        stderr=slave, env=environment(extra=env, folder=pipeline.folder))
        os.close(slave)
        self.seen, self.status = "", None

    def see(self, pattern, deadline_s=40):
        end = time.monotonic() + deadline_s
        while not re.search(pattern, self.seen):
            assert time.monotonic() < end and self.process.poll() is None, f"not shown: {pattern}\n{self.seen[-600:]}"
            if select.select([self.master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # it has ended
                    self.seen += os.read(self.master, 65536).decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.process.terminate()
            self.seen += read_terminal(self.master, self.process)
            if kind is None:
                self.status = self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.master)
