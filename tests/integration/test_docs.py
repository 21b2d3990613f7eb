"""Every session in the documentation is run, and must print what the page says."""

import os
import re
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = ["README.md", "docs/elsewhere.md", "docs/pauses.md", "docs/runbook.md", "docs/then.md"]


def sessions(page):
    """The shell blocks of a page as one script, and the blocks of output that follow them."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as text:
        blocks = re.findall(r"```(\w*)\n(.*?)```", text.read(), re.S)
    script, expected = [], []
    for (kind, body), before in zip(blocks, [("", "")] + blocks):
        if kind == "sh":
            script.append(body)
        elif kind == "" and before[0] == "sh":
            expected.append(body)
    return "\n".join(script), "".join(expected)


def normal(text):
    """Without what differs from run to run: times, rates, and who it was."""
    text = re.sub(r"\bby \S+@\S+:\d+", "by WHO", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d{3}( UTC|Z)", "TIME", text)
    return re.sub(r"in [\d.]+ s \(\d+/s\)", "in S s", text)


@pytest.mark.parametrize("page", PAGES)
def test_the_sessions_of_a_page_print_what_it_says(page, tmp_path):
    script, expected = sessions(page)
    assert script and expected
    script = script.replace("/tmp/try", str(tmp_path / "try"))
    env = {**os.environ, "PATH": os.path.dirname(os.environ["ONCE"]) + ":" + os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60, check=False)
    assert normal(done.stdout) == normal(expected)


def test_every_page_that_the_readme_names_exists():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as text:
        for link in re.findall(r"\]\(([^)#]+)\)", text.read()):
            assert os.path.exists(os.path.join(ROOT, link)), link


def test_every_event_of_the_log_is_on_its_page():
    """By name and level, in both directions."""
    found = {}
    for folder, _, files in os.walk(os.path.join(ROOT, "src")):
        for name in files:
            if not name.endswith(".c"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as text:
                source = text.read()
            for levels, event in re.findall(r'((?:ONCE_LOG_(?:ERROR|WARN|INFO|DEBUG)[ :]*)+),\s*"(\w+)"', source):
                found.setdefault(event, set()).update(level.lower() for level in re.findall(r"ONCE_LOG_(\w+)", levels))
            for event in re.findall(r'\.(?:event|works) = "(\w+)"', source):
                found.setdefault(event, set()).update({"warn", "debug"})
            for event in re.findall(r'_warn\(\w+, "(\w+)"', source):
                found.setdefault(event, set()).add("warn")
            for events in re.findall(r"\bevent = ([^;]*);", source) + re.findall(r"_event\(int status\)\n{([^}]*)}", source):
                for event in re.findall(r'"(\w+)"', events):
                    found.setdefault(event, set()).add("warn")
            for call in re.findall(r"once_log(?:_fields)?\((?:[^,;]*ONCE_LOG[^,;]*), *([^\",]+),", source):
                assert call in ("event", "t->works"), f"{name}: where does '{call}' get its name from?"
    with open(os.path.join(ROOT, "docs/logs.md"), encoding="utf-8") as text:
        rows = re.findall(r"^\| `(\w+)` \| ([a-z, ]+) \| ([^|]+) \| ([^|]+) \|$", text.read(), re.M)
    listed = {event: set(levels.split(", ")) for event, levels, *_ in rows}
    assert [event for event, *_ in rows] == sorted(listed), "in order, each once"
    told = {event: levels - ({"debug"} if event in ("store_failed", "source_failed", "store_works", "source_works") else set()) for event, levels in found.items()}
    assert listed == told


def names_in_tests():
    """Every test in the tree, by the name that it reports."""
    names = set()
    for folder, _, files in os.walk(os.path.join(ROOT, "tests")):
        for name in files:
            if name.endswith((".c", ".py")):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as text:
                    names |= set(re.findall(r"\b[a-z][a-z0-9_]{12,}\b", text.read()))
    return names


def test_every_guarantee_names_a_test_that_exists():
    names = names_in_tests()
    with open(os.path.join(ROOT, "docs/guarantees.md"), encoding="utf-8") as text:
        rows = [line for line in text if line.startswith("|") and "`" in line]
    assert len(rows) > 40
    for row in rows:
        tests = re.findall(r"`([a-z0-9_]{12,})`", row.rsplit("|", 2)[1])
        assert tests, row
        for test in tests:
            assert test in names, f"{test} is named by the page and is not in tests/"
        number = re.match(r"\| (\d+) \|", row)
        if number:
            assert any(f"f{int(number[1]):02d}_" in test + "_" for test in tests), f"no test of this row carries its number: {row}"
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", "".join(rows), re.M)]
    assert numbers == sorted(numbers), "a fault is looked for by its number"
    faults = [tuple(row.split("|")[1:3]) for row in rows if re.match(r"\| \d+ \|", row)]
    assert len(set(faults)) == len(faults), "a fault stands there once"


NUMBERED = re.compile(r'(?:static void |def |")((?:test_)?((?:f\d{2,3}_)+)[a-z]\w+)(?=[("])')
COUNTS = re.compile(r"(### How many tests carry a number\n.*?```\n)(.*?)(?=```)", re.S)


def count_numbers():
    """How many tests carry the number of a fault: functions, and what the simulator reports."""
    names = {}
    for folder, _, files in os.walk(os.path.join(ROOT, "tests")):
        for name in files:
            if name.endswith((".c", ".py")):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as text:
                    names.update(NUMBERED.findall(text.read()))
    counts = {}
    for numbers in names.values():
        for number in {int(digits) for digits in re.findall(r"\d+", numbers)}:
            counts[number] = counts.get(number, 0) + 1
    return counts


def test_every_number_of_a_test_has_its_row_and_no_fault_loses_tests():
    path = os.path.join(ROOT, "docs/guarantees.md")
    with open(path, encoding="utf-8") as text:
        page = text.read()
    counts = count_numbers()
    if os.environ.get("ONCE_UPDATE_DOCS"):
        cells = [f"{number:>4}: {count:<4}" for number, count in sorted(counts.items())]
        lines = "".join("".join(cells[at:at + 10]).rstrip() + "\n" for at in range(0, len(cells), 10))
        page = COUNTS.sub(lambda found: found[1] + lines, page)
        with open(path, "w", encoding="utf-8") as text:
            text.write(page)
    before, _, listed, _ = COUNTS.split(page)
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", before, re.M)} == set(counts), "a row for every number, a test for every row"
    least = {int(number): int(count) for number, count in re.findall(r"(\d+): (\d+)", listed)}
    assert set(least) == set(counts), "ONCE_UPDATE_DOCS=1 writes the table"
    fewer = {number: (counts[number], least[number]) for number in least if counts[number] < least[number]}
    assert not fewer, f"tests have gone (fault: are, were): {fewer}"
