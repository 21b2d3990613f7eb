"""Replay of more letters than one transaction has, on PostgreSQL: while one lot is committed, the next is read over a second
connection. Lots are committed in the order of their letters."""

import pytest

import postgres
from harness import counts
from pgpipeline import PostgresPipeline, need_postgres, new_name

need_postgres()

LOT = 4096
N = 2 * LOT + 500
TABLES = """
CREATE TABLE t(n int GENERATED ALWAYS AS IDENTITY, id text, lane int); CREATE TABLE gate(is_open bool); INSERT INTO gate VALUES (false);
CREATE TABLE sessions(n bigint, pid int, PRIMARY KEY (n, pid));
"""
CONFIG = """
key: "${/id}"
dead_limit: off
%s
handler:
  sql: [{do: "INSERT INTO t(id, lane) SELECT :id, :lane FROM gate WHERE is_open", rows: 1, else: dead}]
"""


def pipeline(folder, n, more="", url=None):
    """With n letters, whose effects succeed from now on."""
    p = PostgresPipeline(str(folder), CONFIG % more, TABLES, url=url)
    p.write(*[{"id": f"p{i}", "lane": i % (n // 2)} for i in range(n)])
    counts(p.run(status=1), received=n, dead=n)
    p.execute("UPDATE gate SET is_open = true")
    return p


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """The name of a database with N letters."""
    name = new_name()
    p = pipeline(tmp_path_factory.mktemp("letters"), N, url=postgres.shared().database(name))
    p.sql.close()
    return name


@pytest.fixture
def p(tmp_path, letters):
    """A copy of it."""
    return PostgresPipeline(str(tmp_path), CONFIG % "", url=postgres.shared().database(new_name(), like=letters))


def watch_sessions(p):
    """Notes which session wrote the audit of each lot."""
    p.execute("""
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          INSERT INTO sessions SELECT min(letter), pg_backend_pid() FROM new_rows; RETURN NULL; END $$;
        CREATE TRIGGER note AFTER INSERT ON once_audit REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION note()""")


def sessions(p):
    return [pid for (pid,) in p.rows("SELECT pid FROM sessions ORDER BY n")]


def works_once(p, n=N):
    p.write()
    counts(p.run(status=0), received=0, resumed=n, done=n)
    assert p.value("SELECT count(*) FROM t") == n and p.value("SELECT count(DISTINCT id) FROM t") == n


def test_lots_take_turns_on_two_connections_and_are_reported_in_order(p):
    watch_sessions(p)
    ended = p.once("replay", "--json", p.name, "--all")
    assert ended.status == 0 and ended.json["counts"]["run"] == N, ended.err
    ids = [letter["letter"] for letter in ended.json["letters"]]
    assert ids == sorted(ids) and len(set(ids)) == N
    a, b, c = sessions(p)
    assert a == c != b
    works_once(p)


def test_named_letters_do_so_too(p):
    watch_sessions(p)
    ids = [id for (id,) in p.rows("SELECT id FROM once_letter ORDER BY id DESC LIMIT %d" % (LOT + 10))]
    ended = p.once("replay", "--json", p.name, *ids)
    assert ended.status == 0 and [letter["letter"] for letter in ended.json["letters"]] == [int(id) for id in ids], ended.err
    assert len(set(sessions(p))) == 2


@pytest.mark.parametrize("way", [["--all"], ["--all", "--dry-run"], ["--all", "--rate", "1000000"]])
def test_one_connection_is_enough(p, way):
    """A second one is not to be had; a dry run and a given rate do not ask for it."""
    role = new_name()
    p.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1; GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    p.configure(CONFIG % "", store=p.url.replace("postgres@", f"{role}@"))
    watch_sessions(p)
    p.execute("GRANT ALL ON sessions TO PUBLIC")
    ended = p.once("replay", "--json", p.name, *way)
    assert ended.status == 0 and ended.json["counts"]["run"] == N, ended.err
    assert len(set(sessions(p))) == (0 if "--dry-run" in way else 1)
    assert p.value("SELECT count(*) FROM once_letter") == (N if "--dry-run" in way else 0)


@pytest.mark.parametrize("lot", [1, 2])
def test_f35_no_lot_is_committed_behind_one_that_failed(p, lot):
    """Those before it are committed and reported, the one that was being read is rolled back."""
    first = p.value("SELECT min(id) FROM once_letter")
    p.execute(f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF NEW.letter = {first} + {(lot - 1) * LOT + 100} THEN RAISE EXCEPTION 'no audit today'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON once_audit FOR EACH ROW EXECUTE FUNCTION refuse()""")
    ended = p.once("replay", "--json", p.name, "--all")
    moved = (lot - 1) * LOT
    assert ended.status == 3 and "no audit today" in ended.err, ended
    assert p.value("SELECT count(*) FROM once_letter") == N - moved and p.value("SELECT count(*) FROM once_audit") == moved
    assert p.value("SELECT count(*) FROM once_live WHERE state = 2") == moved
    p.execute("DROP TRIGGER refuse ON once_audit")
    assert p.once("replay", "--json", p.name, "--all").json["counts"]["run"] == N - moved


@pytest.mark.parametrize("hit", [LOT + 1, 2 * LOT + 200])
def test_f35_killed_while_one_lot_is_committed_and_the_next_is_read(p, hit):
    assert p.once("replay", p.name, "--all", failpoint=f"replay_between:kill:{hit}").killed
    now = p.once("status", "--json", p.name).json
    assert now["dead"] + now["waiting"] == N and now["waiting"] % LOT == 0, "whole lots; a letter or a waiting message"
    assert p.once("replay", "--json", p.name, "--all").json["counts"]["run"] == now["dead"]
    works_once(p)


def test_lots_with_the_same_lanes_wait_for_each_other(tmp_path):
    """The second lot waits for the lanes that the first has locked until its commit; nothing waits for ever."""
    p = pipeline(tmp_path, LOT + 300, 'order: "${/lane}"')
    ended = p.once("replay", "--json", p.name, "--all", deadline_s=25)
    assert ended.status == 0 and ended.json["counts"]["run"] == LOT + 300, ended.err
    works_once(p, LOT + 300)
