"""source: kafka, one worker: what it reads, where it begins and goes on, and what each kind of message becomes. Effects are read in the
user's table, or in a file that a command writes; offsets are asked of the broker."""

import os
import time

import pytest

import kafka
from brokerpipeline import lines
from harness import counts, until
from kafkaclient import new_name
from kafkapipeline import CONFIG, KafkaPipeline, need_kafka, numbered

need_kafka()

# Each message is a line of a file outside of the store.
LEDGER = """
key: "${source:topic}/${source:partition}/${source:offset}"
handler:
  exec: [sh, -c, 'cat >/dev/null; printf "%%s\\n" "$*" >>%s/ledger', sh, %s]
"""


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


def ledger(folder):
    return lines(folder, "ledger")


# ---- the way of a message ----

def test_each_message_takes_effect_once_and_offsets_are_committed(tmp_path, client):
    topic = client.topic(partitions=3)
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(300), key=lambda n, _: f"k{n}")
    summary = p.run_until(lambda: p.count() == 300)
    counts(summary, received=300, done=300)
    assert summary["acked"] == 300
    p.check(300)
    assert p.committed() == {number: high for number, (_, high) in client.ends(topic).items()}
    client.produce(topic, *numbered(10, 300))
    counts(p.run_until(lambda: p.count() == 310), received=10, done=10)
    p.check(310)


def test_a_queue_that_was_full_is_filled_again_at_once(tmp_path, client):
    """librdkafka sleeps while the queues of a broker are full, and notices only after a second that they were emptied."""
    n = 30000
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic)
    settings = "{queued.max.messages.kbytes: 64, fetch.message.max.bytes: 60000}"
    p.configure(CONFIG, source=f'{{brokers: "{client.address}", topics: {topic}, group: {p.group}, config: {settings}}}')
    client.produce(topic, *({**message, "pad": 250 * "x"} for message in numbered(n)))
    summary = p.run_until(lambda: p.count() == n)
    counts(summary, received=n, done=n)
    assert summary["seconds"] < 12, summary


def test_templates_have_what_the_record_has(tmp_path, client):
    topic = client.topic(partitions=2)
    words = ["${source:key}", "${source:topic}", "${source:partition}", "${source:offset}", "${source:timestamp}", "${header:h}", "${/id}"]
    p = KafkaPipeline(tmp_path, client, topic, LEDGER % (tmp_path, ", ".join(f'"{word}"' for word in words)))
    client.produce(topic, {"id": "a"}, {"id": "b"}, partition=1, key="ann", headers=[("h", "first"), ("h", "last")], timestamp=1794853452812)
    p.run_until(lambda: len(ledger(tmp_path)) == 2)
    assert sorted(ledger(tmp_path)) == [f"ann {topic} 1 {offset} 1794853452812 last {id}" for offset, id in ((0, "a"), (1, "b"))]
    entry = p.explain(f"{topic}/1/0")[0]
    assert (entry["state"], entry["place"], entry["point"]) == ("done", f"{topic}/1", "0"), entry


def test_headers_whose_names_are_no_text_are_left_out(tmp_path, client):
    """JSON has no such names. The others are there, and a name that occurs several times has its last value."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, LEDGER % (tmp_path, '"${header:h}", "${header:grüß}", "x${header:empty}x"'))
    client.produce_raw(topic, {"id": "a"}, [(b"\xff", b"1"), (b"h", b"first"), (b"\xfe", b"2"), ("\ufffd".encode(), b"3"), ("grüß".encode(), "ö".encode()),
                                            (b"", b"no name"), (b"empty", b""), (b"h", b"last"), (b"once:source", b"{}")])
    p.run_until(lambda: len(ledger(tmp_path)) == 1 and p.lag() == 0)
    assert ledger(tmp_path) == ["last ö xx"]


def test_memory_is_bounded_by_what_is_read_ahead_of_each_partition(tmp_path, client):
    """Large messages, and a handler that takes none of them: what waits stays in the broker."""
    topic, size = client.topic(partitions=6), 200000
    p = KafkaPipeline(tmp_path, client, topic, 'key: "${/id}"\nbatch: {max: 1}\nhandler: {exec: [sleep, 100]}\n')
    client.produce(topic, *[dict(message, pad="x" * size) for message in numbered(300)], partition=lambda n, _: n % 6)
    with p.start() as running:
        p.wait(running, lambda: len(p.committed()) == 6, what="all partitions are read")
        most = 0
        end = time.monotonic() + 3
        while time.monotonic() < end:
            most = max(most, resident(running.process.pid))
            time.sleep(0.05)
        p.kill(running)
    assert most < 60 << 20, f"{most} bytes of {300 * size}"  # 6 x 3 MB, what the handler has, and the process itself


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_pattern_takes_topics_that_match(tmp_path, client):
    name = new_name()
    topics = [client.topic(f"{name}-{kind}") for kind in ("one", "two", "other")]
    p = KafkaPipeline(tmp_path, client, f'"^{name}-(one|two)$"')
    for number, topic in enumerate(topics):
        client.produce(topic, *numbered(5, 5 * number))
    p.run_until(lambda: p.count() == 10)
    p.check(10)
    late = client.topic(f"{name}-three")
    p.configure(CONFIG, source=f'{{brokers: "{client.address}", topics: "^{name}-", group: {p.group}, config: {{topic.metadata.refresh.interval.ms: 500}}}}')
    with p.start() as running:
        p.wait(running, lambda: p.count() == 15, what="the third topic")
        later = client.topic(f"{name}-four")
        client.produce(late, *numbered(5, 15))
        client.produce(later, *numbered(5, 20))
        p.wait(running, lambda: p.count() == 25, what="a topic that came while it ran")
        p.stop(running)
    p.check(25)


def test_tombstones_and_bodies_of_0_bytes_are_letters_that_say_so(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, CONFIG.replace("${/id}", "${coordinates}"))
    client.produce(topic, None, key="gone")
    client.produce(topic, b"", {"id": "m0", "n": 0})
    summary = p.run_until(lambda: p.count() == 1 and p.lag() == 0, status=1)
    counts(summary, received=3, done=1, dead=2)
    p.check(1)
    (first, why_none), (second, why_empty) = p.letters()
    assert (first, second) == (0, 1) and why_none != why_empty, p.letters()
    assert "no body" in why_none or "tombstone" in why_none, why_none
    assert p.committed() == {0: 3}, "a letter is settled"


def test_tombstones_that_are_skipped(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, beside="tombstones: skip")
    client.produce(topic, None, *numbered(2), None, key="k")
    counts(p.run_until(lambda: p.lag() == 0), received=4, done=2, skipped=2)
    p.check(2)


def test_tombstones_that_run_are_told_to_the_effect(tmp_path, client):
    """As a topic that is compacted says it: a record with a body is there, one without is gone."""
    topic = client.topic(cleanup_policy="compact")
    p = KafkaPipeline(tmp_path, client, topic, """
key: "${coordinates}"
order: "${source:key}"
handler:
  exec: [sh, -c, 'cat >/dev/null; echo "$1 $ONCE_TOMBSTONE" >>%s/ledger', sh, "${source:key}"]
""" % tmp_path, beside="tombstones: run")
    client.produce(topic, {"id": 1}, key="a")
    client.produce(topic, {"id": 2}, key="b")
    client.produce(topic, None, key="a")
    counts(p.run_until(lambda: len(ledger(tmp_path)) == 3 and p.lag() == 0), received=3, done=3)
    assert sorted(ledger(tmp_path)) == ["a 0", "a 1", "b 0"]
    assert [line for line in ledger(tmp_path) if line.startswith("a")] == ["a 0", "a 1"]


def test_bodies_of_any_bytes_reach_the_table_unchanged(tmp_path, client):
    topic = client.topic()
    bodies = [bytes(range(256)), b"", b'{"a":', "grüß".encode("latin-1")]
    p = KafkaPipeline(tmp_path, client, topic, 'key: "${source:offset}"\nhandler: {sql: "INSERT INTO b(body) VALUES (:once_body)"}\n',
                      tables="CREATE TABLE b(body BLOB);", beside="body: bytes")
    client.produce(topic, *bodies)
    counts(p.run_until(lambda: p.lag() == 0), received=4, done=4)
    assert sorted(bytes(body) for body, in p.rows("SELECT body FROM b")) == sorted(bodies)


def test_explain_reads_a_message_again(tmp_path, client):
    topic = client.topic(partitions=2)
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(3), *numbered(1), partition=1)
    p.run_until(lambda: p.lag() == 0)
    until(lambda: not client.members(p.group), what="the group is empty")
    committed = p.committed()
    told = [p.once("explain", "--json", "--message", f"{topic}/1:{offset}", p.name).json for offset in (1, 3)]
    assert [(each["message"]["key"], each["message"]["fate"]) for each in told] == [("m1", "first"), ("m0", "duplicate")], told
    gone = p.once("explain", "--message", f"{topic}/1:4", p.name)
    assert gone.status == 2 and f"{topic}/1" in gone.err, gone
    assert (p.committed(), client.members(p.group)) == (committed, []), "it is no member, and commits nothing"


def test_the_largest_message_to_the_byte(tmp_path, client):
    size = 4 << 20
    topic = client.topic(max_message_bytes=size + 1000)
    p = KafkaPipeline(tmp_path, client, topic, f"message_max: 4MiB\n{CONFIG}", properties={"fetch.max.bytes": 1 << 23})

    def of(length, id):
        head = f'{{"id": "{id}", "n": 1, "pad": "'.encode()
        return head + b"x" * (length - len(head) - 2) + b'"}'

    client.produce(topic, of(size, "fits"), of(size + 1, "too large"), of(100, "small"))
    counts(p.run_until(lambda: p.count() == 2 and p.lag() == 0, status=1), received=3, done=2, dead=1)
    assert sorted(p.ids()) == ["fits", "small"]
    assert [point for point, _ in p.letters()] == [1] and "message_max" in p.letters()[0][1]


# ---- where it begins ----

def test_start_latest_takes_only_what_comes_later(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more="start: latest")
    client.produce(topic, *numbered(5))
    with p.start() as running:
        sent = iter(range(5, 10000))

        def arrives():
            client.produce(topic, *numbered(1, next(sent)))
            return p.count() > 0

        p.wait(running, arrives, what="a message that came later")
        p.stop(running)
    assert not {f"m{n}" for n in range(5)}.intersection(p.ids())
    first = min(int(id[1:]) for id in p.ids())
    last = next(sent) + 1
    client.produce(topic, *numbered(1, last - 1))
    p.run_until(lambda: p.count() == last - first)
    assert sorted(int(id[1:]) for id in p.ids()) == list(range(first, last)), "nothing is left out behind the first"


def test_start_error_ends_the_run_and_names_the_partition(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more="start: error")
    client.produce(topic, *numbered(3))
    with p.start() as running:
        ended = running.end()
        said = p.said(running)
    assert ended.status == 2 and f"{topic}/0" in said and "start" in said, (ended, said)
    assert p.count() == 0 and p.committed() == {}
    client.commit(p.group, topic, {0: 1})
    p.run_until(lambda: p.count() == 2)
    assert sorted(p.ids()) == ["m1", "m2"]


def test_an_offset_whose_messages_are_gone_is_an_error_with_both_ends(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(20))
    client.commit(p.group, topic, {0: 4})
    client.delete_records(topic, 0, 11)
    with p.start() as running:
        ended = running.end()
        said = p.said(running)
    assert ended.status == 3, (ended, said)
    assert (f"'{topic}/0' goes on at offset 4, but the broker has 11 to 20; 7 messages or fewer are lost: the broker deleted them before they were read. "
            "To go on at the first message, write 'out_of_range: earliest'") in said, said
    assert p.count() == 0 and p.committed() == {0: 4}, "no silent jump"
    p.configure(CONFIG, source=p_source(client, topic, p.group, "out_of_range: earliest"))
    p.run_until(lambda: p.count() == 9)
    assert sorted(int(id[1:]) for id in p.ids()) == list(range(11, 20))


def p_source(client, topic, group, more):
    return f'{{brokers: "{client.address}", topics: [{topic}], group: {group}, {more}}}'


def test_an_offset_behind_the_end_is_an_error(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(3))
    client.commit(p.group, topic, {0: 50})
    with p.start() as running:
        ended = running.end()
        said = p.said(running)
    assert ended.status == 3 and f"'{topic}/0' goes on at offset 50, but the broker has 0 to 3; the topic was made anew" in said, (ended, said)
    assert p.count() == 0 and p.committed() == {0: 50}


# ---- a message that comes again ----

@pytest.mark.parametrize("killed", [False, True])
def test_f30_a_whole_topic_replayed_has_no_second_effect(tmp_path, client, killed):
    topic = client.topic(partitions=2)
    p = KafkaPipeline(tmp_path, client, topic, f"batch: {{max: 50}}\nlease: 1s\n{CONFIG}", properties={"session.timeout.ms": 1500})
    client.produce(topic, *numbered(500), key=lambda n, _: f"k{n}")
    if killed:
        with p.start(failpoint="ack_before:kill") as running:  # settled, and the broker does not know
            assert running.end().killed
        assert p.count() > 0
    p.run_until(lambda: p.count() == 500 and p.lag() == 0)
    until(lambda: not client.members(p.group), what="the group is empty")
    client.commit(p.group, topic, {0: 0, 1: 0})
    left = 500
    for point in ("claim_after:kill:3", "ack_before:kill") if killed else ():  # in the middle of the replay
        with p.start(failpoint=point) as running:
            assert running.end().killed, point
        left = p.lag()
        assert 350 <= left <= 500, "a batch has 50 messages"
    summary = p.run_until(lambda: p.lag() == 0)
    counts(summary, received=left, duplicates=left)
    assert summary["attempts"] == 0
    p.check(500)


def test_a_producer_that_sends_again_under_a_new_offset(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic)
    client.produce(topic, *numbered(50), *numbered(50), {"n": 7, "id": "m7"}, {"id": "m8", "n": -1})
    counts(p.run_until(lambda: p.lag() == 0, status=1), received=102, done=50, duplicates=51, dead=1, conflicts=1)
    p.check(50)
    assert [point for point, _ in p.letters()] == [101]


def test_nothing_of_an_aborted_transaction_takes_effect(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic)
    with p.start() as running:
        client.transaction(topic, *numbered(20, 1000), commit=False)
        client.transaction(topic, *numbered(20))
        p.wait(running, lambda: p.count() == 20)
        client.transaction(topic, *numbered(20, 1000), commit=False)
        client.produce(topic, *numbered(5, 20))
        p.wait(running, lambda: p.count() == 25)
        counts(p.stop(running), received=25, done=25)
    p.check(25)
    assert p.committed() == {0: client.ends(topic)[0][1]}, "holes are passed"


def test_f71_a_message_that_comes_back_too_late_is_a_letter(tmp_path, client):
    """Its entry has expired and is dropped: nothing but its time says that it is not new."""
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, f"remember: 3s\n{CONFIG}")
    with p.start() as running:
        p.wait(running, lambda: p.committed() == {0: 0}, what="it reads")
        client.produce(topic, *numbered(3))
        client.produce(topic, {"id": "old", "n": 0}, timestamp=int(time.time() * 1000) - 3600_000)
        p.wait(running, lambda: p.lag() == 0)
        counts(p.stop(running, status=1), received=4, done=3, dead=1, too_old=1)
    p.check(3)

    def dropped():
        assert p.once("sweep", p.name).status == 0
        return {p.explain(f"m{n}")[0]["state"] for n in range(3)} == {"absent"}

    until(dropped, what="the entries have expired")
    until(lambda: not client.members(p.group), what="the group is empty")
    client.commit(p.group, topic, {0: 0})
    counts(p.run_until(lambda: p.lag() == 0, status=1), received=4, dead=3, too_old=3, duplicates=1)  # the letter of the old one is there
    p.check(3)


# ---- cursor ----

@pytest.mark.parametrize("point", ["commit_before:kill:3", "commit_after:kill:3", "ack_before:kill:1"])  # an ack is of several batches
def test_the_cursor_is_in_the_stores_transaction(tmp_path, client, point):
    """The group's offsets are wrong in both directions, and it goes on where the store has got to."""
    topic = client.topic(partitions=2)
    p = KafkaPipeline(tmp_path, client, topic, f"batch: {{max: 20}}\nlease: 1s\n{CONFIG}", more="cursor: true", properties={"session.timeout.ms": 1500})
    client.produce(topic, *numbered(40), key=lambda n, _: f"k{n}")
    p.run_until(lambda: p.count() == 40)  # the store has both cursors
    client.produce(topic, *numbered(160, 40), key=lambda n, _: f"k{n}")
    with p.start(failpoint=point) as running:
        assert running.end().killed
    done = p.count()
    assert 40 <= done <= 200
    until(lambda: not client.members(p.group), what="its session has ended")
    client.commit(p.group, topic, {0: 0, 1: client.ends(topic)[1][1]})
    counts(p.run_until(lambda: p.count() == 200), received=200 - done, done=200 - done)
    p.check(200)
    until(lambda: not client.members(p.group), what="the group is empty")
    client.commit(p.group, topic, {0: 0, 1: 0})
    client.produce(topic, *numbered(1, 200), partition=0)
    counts(p.run_until(lambda: p.count() == 201), received=1, done=1)


# ---- listeners ----

@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_names_and_passwords(tmp_path, client, mechanism):
    topic = client.topic()
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": "env:SECRET"}
    p = KafkaPipeline(tmp_path, client, topic, properties=properties, brokers=kafka.sasl(client))
    client.produce(topic, *numbered(3))
    p.run_until(lambda: p.count() == 3, env={"SECRET": kafka.USERS["alice"]})
    p.check(3)
    client.produce(topic, *numbered(3, 3))
    with p.start(env={"SECRET": "not-the-password"}) as running:
        p.wait(running, lambda: "uthentication" in p.said(running), what="it says that it is refused")
        p.stop(running)
        assert "not-the-password" not in p.said(running)
    p.check(3)


def test_tls(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, properties={"security.protocol": "SSL", "ssl.ca.location": client.ca}, brokers=kafka.tls(client))
    client.produce(topic, *numbered(3))
    p.run_until(lambda: p.count() == 3)
    p.check(3)
