"""The demonstration, small: its own totals must add up after every crash that it makes."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_f11_f70_the_demo_proves_itself():
    demo = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "demo"), "--payments", "20000", "--crashes", "5"],
                          capture_output=True, text=True, timeout=120, check=False)
    assert demo.returncode == 0, demo.stderr + demo.stdout
    rows = {line[2:36].strip(): line[36:].split() for line in demo.stdout.splitlines() if line.startswith("  ")}
    assert rows["crashes survived (SIGKILL)"][0] == "5", demo.stdout
    assert rows["payments that took effect"][0] == "20,000"
    assert rows["lost"][0] == rows["double"][0] == rows["accounts with a wrong balance"][0] == "0"
    assert int(rows["double"][1].replace(",", "")) > 1000, "the naive consumer charges twice"
