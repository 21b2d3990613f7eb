"""Several consumers of one source in one store: each processes every message."""

import os

import pytest

from harness import Pipeline, counts, once, until
from hosts import on_host  # noqa: F401 (a fixture)
from oldstore import old_store

CONFIG = """
key: "${/id}"
batch: {max: 5}
lease: 300ms
handler: {sql: "INSERT INTO %s(id) VALUES (:id)"}
"""
TABLES = "CREATE TABLE IF NOT EXISTS a(id INTEGER); CREATE TABLE IF NOT EXISTS b(id INTEGER);"


def consumers(folder, cursor):
    source = "{path: in.ndjson%s}" % (", cursor: true" if cursor else "")
    a = Pipeline(folder, CONFIG % "a", TABLES, consumer="a", source=source, name="a.yaml")
    b = Pipeline(folder, CONFIG % "b", consumer="b", source=source, name="b.yaml")
    return a, b


def lines(first, last):
    return [{"id": i} for i in range(first, last + 1)]


def ids(p, table):
    return [i for (i,) in p.rows(f"SELECT id FROM {table} ORDER BY id")]


@pytest.mark.parametrize("cursor", [False, True])
def test_f98_two_consumers_of_one_source(tmp_path, cursor):
    a, b = consumers(tmp_path, cursor)
    a.write(*lines(1, 12))
    counts(a.run(status=0), received=12, done=12)
    for p in (a, b):
        assert p.once("check", p.name).status == 0
    counts(b.run(status=0), received=12, done=12)
    a.append(*lines(13, 15))
    again = 3 if cursor else 15
    for p in (b, a):
        counts(p.run(status=0), received=again, done=3, duplicates=again - 3)
    assert ids(a, "a") == ids(a, "b") == list(range(1, 16))


def test_f98_both_hold_a_cursor_at_the_same_time(tmp_path):
    follow = "{path: in.ndjson, cursor: true, follow: true}"
    a, b = consumers(tmp_path, True)
    a.configure(CONFIG % "a", consumer="a", source=follow)
    b.configure(CONFIG % "b", consumer="b", source=follow)
    a.write(*lines(1, 10))
    os.chmod(a.source, 0o444)  # a source is often not ours to write
    with a.start() as first, b.start() as second:
        until(lambda: len(ids(a, "a")) == len(ids(a, "b")) == 10, what="ten messages each")
        for p, holder in ((a, first), (b, second)):
            other = p.try_run()
            assert other.status == 3 and f"process {holder.process.pid} on " in other.err, other
        for running in (first, second):
            running.send(15)
            counts(running.end().json, received=10, done=10)
    assert ids(a, "a") == ids(a, "b") == list(range(1, 11))


def test_f98_a_killed_run_of_one_is_not_the_others(tmp_path):
    a, b = consumers(tmp_path, True)
    a.write(*lines(1, 10))
    assert a.try_run(failpoint="effect_before:kill:3").killed
    clean = b.try_run()
    assert clean.status == 0 and "unclean" not in clean.err, clean
    unclean = a.try_run()
    assert unclean.status == 0 and "unclean" in unclean.err, unclean
    assert ids(a, "a") == ids(a, "b") == list(range(1, 11))


def test_f75_f98_a_renamed_consumer_is_asked_about_a_second_one_is_not(tmp_path):
    a, b = consumers(tmp_path, False)
    a.write(*lines(1, 3))
    a.run(status=0)
    a.configure(CONFIG % "a", consumer="renamed")
    for verb in ("check", "run"):
        ended = a.once(verb, a.name)
        assert ended.status == 2 and "a.yaml: the consumer of this file was 'a' in this store and is 'renamed' now" in ended.err, ended
        assert "--confirm-scope-change" in ended.err
    assert ids(a, "a") == [1, 2, 3]
    b.run(status=0)
    # Both were here from the same file: neither starts from nothing, so nobody is asked again.
    a.run("--confirm-scope-change", status=0)
    a.configure(CONFIG % "a", consumer="a")
    counts(a.run(status=0), received=3, duplicates=3)
    a.configure(CONFIG % "a", consumer="renamed")
    counts(a.run(status=0), received=3, duplicates=3)
    # One fact for each file that was used last, however often it moved.
    for name in ("c.yaml", "d.yaml"):
        os.rename(tmp_path / a.name, tmp_path / name)
        a.name = name
        a.run(status=0)
    assert a.value("SELECT count(*) FROM once_fact WHERE name LIKE 'file/%'") == 2
    assert a.value("SELECT count(*) FROM once_fact WHERE name LIKE 'consumer/%'") == 3


def test_f98_facts_of_an_old_store_are_found(tmp_path):
    folder = tmp_path / "old"
    old_store(folder)
    with open(folder / "pipeline.yaml") as file:
        text = file.read()
    (folder / "pipeline.yaml").write_text(text.replace("1h..1h", "1ms..1ms").replace("attempts: 9", "attempts: 2"))
    with open(folder / "in.ndjson", "a") as file:
        file.write('{"id":"new","type":"run"}\n')
    (folder / "other.yaml").write_text(text.replace("consumer: pay", "consumer: other"))
    ended = once("forget", "pipeline.yaml", "waits", cwd=folder)
    assert ended.status == 0, ended
    ended = once("run", "--json", "pipeline.yaml", cwd=folder)
    assert ended.status == 1 and "unclean" in ended.err, ended  # the run mark
    counts(ended.json, received=1, done=1)  # the cursor, and no question
    ended = once("run", "--json", "pipeline.yaml", cwd=folder)
    assert "unclean" not in ended.err, ended  # the mark is noticed once
    counts(ended.json, received=0)
    (folder / "handler.sh").write_text("true\n")
    ended = once("run", "--json", "other.yaml", cwd=folder)
    assert ended.json["received"] == 13, ended


RENAMED = "and is 'renamed' now, which would start with no history"


def test_f75_a_consumer_that_is_renamed_on_another_host_is_asked_about(tmp_path, on_host):  # noqa: F811
    a, b = consumers(tmp_path, False)
    a.write(*lines(1, 3))
    a.run(status=0, env=on_host("pod-1"))
    a.configure(CONFIG % "a", consumer="renamed")
    for verb in ("check", "run"):
        ended = a.once(verb, a.name, env=on_host("pod-2"))
        assert ended.status == 2 and RENAMED in ended.err, ended
    assert ids(a, "a") == [1, 2, 3]
    b.run(status=0, env=on_host("pod-3"))


def test_f75_a_file_behind_a_link_that_is_set_anew(tmp_path):
    """As the files of a mounted volume are changed."""
    a, _ = consumers(tmp_path, False)
    a.write(*lines(1, 3))
    for version in ("v1", "v2"):
        os.mkdir(tmp_path / version)
    os.rename(tmp_path / "a.yaml", tmp_path / "v1" / "a.yaml")
    os.symlink("v1/a.yaml", tmp_path / "a.yaml")
    a.run(status=0)
    os.remove(tmp_path / "a.yaml")
    os.symlink("v2/a.yaml", tmp_path / "a.yaml")
    a.configure(CONFIG % "a", consumer="renamed")
    ended = a.try_run()
    assert ended.status == 2 and RENAMED in ended.err, ended
    # In other words, and without the link.
    a.configure(CONFIG % "a", consumer="a")
    a.run(status=0)
    a.configure(CONFIG % "a", consumer="renamed")
    for name in ("./a.yaml", ".//v2/a.yaml", tmp_path / "a.yaml", tmp_path / "v2" / "a.yaml"):
        ended = a.once("run", name)
        assert ended.status == 2 and RENAMED in ended.err, (name, ended)


def test_f98_one_path_with_another_source_is_another_pipeline(tmp_path, on_host):  # noqa: F811
    """Containers have each a file of the same path."""
    a, _ = consumers(tmp_path, False)
    a.write(*lines(1, 3))
    a.run(status=0, env=on_host("pod-1"))
    (tmp_path / "other.ndjson").write_text('{"id": 7}\n')
    a.configure(CONFIG % "b", consumer="b", source="{path: other.ndjson}")
    counts(a.run(status=0, env=on_host("pod-2")), received=1, done=1)


def test_f75_a_consumer_that_is_renamed_with_the_upgrade_is_asked_about(tmp_path):
    folder = tmp_path / "old"
    old_store(folder)
    text = (folder / "pipeline.yaml").read_text().replace("1h..1h", "1ms..1ms").replace("attempts: 9", "attempts: 2")
    (folder / "handler.sh").write_text("echo ran >>ran\n")
    (folder / "pipeline.yaml").write_text(text.replace("consumer: pay", "consumer: renamed"))
    (folder / "second.yaml").write_text(text.replace("consumer: pay", "consumer: second"))
    for _ in range(2):  # what is refused leaves nothing that would be an answer
        for verb in ("check", "run"):
            ended = once(verb, "pipeline.yaml", cwd=folder)
            assert ended.status == 2 and "the consumer of this source was 'pay'" in ended.err and RENAMED in ended.err, ended
    assert not os.path.exists(folder / "ran")
    ended = once("run", "--json", "--confirm-scope-change", "pipeline.yaml", cwd=folder)
    assert ended.json["received"] == 12, ended
    # It was answered: neither this one nor a second file is asked again.
    for name in ("pipeline.yaml", "second.yaml"):
        ended = once("run", "--json", name, cwd=folder)
        assert ended.status in (0, 1) and "confirm" not in ended.err, ended
