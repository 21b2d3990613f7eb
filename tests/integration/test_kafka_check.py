"""What `once` asks a Kafka without reading from it: `check`, `status`, `explain --message`, and the lag on the progress line."""

import os
import re
import time

import confluent_kafka
import pytest

import kafka
from harness import Pipeline, until
from kafkaclient import new_name
from terminal import Terminal

DAY_MS = 86400000
HANDLER = 'key: "${/id}"\nhandler: {sql: ["INSERT INTO t(id) VALUES (:id)"]}\n'


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


class Reading(Pipeline):
    """A pipeline whose source is Kafka; line 1 of `config` is line 4 of the file."""

    def __init__(self, folder, client, topics, config=HANDLER, brokers=None, more=""):
        self.group = new_name("group")
        self.kafka = f"{{brokers: {brokers or client.address}, topics: [{topics}]{more}}}"
        super().__init__(folder, config, "CREATE TABLE t(id);", consumer=self.group)

    def configure(self, config, consumer="c", store="sqlite:store.db", source=None):
        with open(os.path.join(self.folder, self.name), "w") as file:
            file.write(f"consumer: {consumer}\nstore: {store}\nsource: {{kafka: {self.kafka}}}\n" + config)

    def check(self, status=0, **more):
        """What is said about the source, with '! ' before a warning, and the error at the end."""
        ended = self.once("check", "--json", self.name, **more)
        assert ended.status == status, ended
        found = ended.json["findings"]
        said = [("! " if one["warning"] else "") + one["text"] for one in found if one["topic"] == "source"]
        return "\n".join(said) + "\n" + (ended.json.get("error") or "")


def lag(p):
    return p.once("status", "--json", p.name).json["lag"]


def warnings(text):
    return [line for line in text.split("\n") if line.startswith("! ")]


# ---- once check ----

def test_check_says_what_the_cluster_has(tmp_path, client):
    topic = client.topic(partitions=3, retention_ms=DAY_MS)
    client.produce(topic, *[{"id": n} for n in range(6)], partition=0)
    p = Reading(tmp_path, client, topic)
    text = p.check()
    assert f"topic '{topic}' has 3 partitions, read by 3 workers at most" in text
    assert f"topic '{topic}': retention.ms 1d" in text
    assert f"group '{p.group}' does not exist yet" in text
    assert f"group '{p.group}' has no offset for 3 of 3 partitions: they begin at the first message (start: earliest)" in text
    assert "read_committed" in text
    assert warnings(text) == []
    client.commit(p.group, topic, {0: 2, 1: 0, 2: 0})
    text = p.check()
    assert f"4 messages are behind the offsets of group '{p.group}'" in text
    assert f"group '{p.group}' is Empty and has 0 members" in text
    assert client.committed(p.group, topic) == {0: 2, 1: 0, 2: 0}, "a check commits nothing"


def test_check_names_topics_that_are_not_there(tmp_path, client):
    topic, missing = client.topic(retention_ms=DAY_MS), new_name("missing")
    pattern = f"^{missing}-.*"
    p = Reading(tmp_path, client, f'{topic}, {missing}, "{pattern}", "^{topic}$"')
    text = p.check()
    assert warnings(text) == [f"! topic '{missing}' does not exist; create it, or correct 'topics'",
                              f"! no topic matches '{pattern}'; nothing is read from it until there is one"]
    assert text.count(f"topic '{topic}' has 1 partition,") == 1, "once, though the pattern matches it, too"


@pytest.mark.parametrize("retention, kept", [(14 * DAY_MS, "14d"), (-1, "forever")])
def test_f22_remember_that_is_shorter_than_the_topic_keeps_is_refused(tmp_path, client, retention, kept):
    topic = client.topic(retention_ms=retention)
    p = Reading(tmp_path, client, topic, "remember: 7d\n" + HANDLER)
    text = p.check(status=2)
    assert f"p.yaml:4: 'remember' (7d) is shorter than topic '{topic}' keeps messages ({kept}, retention.ms)" in text
    assert f"raise 'remember' to {kept}" + (", or lower retention.ms" if retention > 0 else "") in text
    p.configure(f"remember: {kept}\n" + HANDLER, p.group)
    assert "shorter" not in p.check()


CALL = 'key: "${/id}"\nhandler:\n  http:\n    post: http://127.0.0.1:1/\n'


@pytest.mark.parametrize("config, line, timeout, lease, together, lower", [
    ("timeout: 10s\nlease: 30s\n" + HANDLER, 5, "10s, line 4", "30s, line 5", "40s", "lease"),
    (HANDLER, 5, "10s by default", "30s by default", "40s", "lease"),
    ("lease: 5s\n" + CALL + "    timeout: 1m\n", 9, "1m, line 9", "5s, line 4", "65s", "timeout"),
    ("timeout: 30s\n" + CALL + "  lease: 31s\n", 9, "30s, line 4", "31s, line 9", "61s", "lease"),
])
def test_f22_a_topic_that_forgets_before_an_attempt_ends_is_refused(tmp_path, client, config, line, timeout, lease, together, lower):
    """The line is that of the longer one, which is to be changed."""
    topic = client.topic(retention_ms=20000)
    text = Reading(tmp_path, client, topic, config).check(status=2)
    assert (f"p.yaml:{line}: topic '{topic}' keeps messages for 20s (retention.ms), less than 'timeout' ({timeout}) and 'lease' ({lease}) together "
            f"({together}): a message whose worker dies may be gone before it is delivered again; raise retention.ms to {together}, or lower '{lower}'") in text


def test_f22_retention_is_compared_with_all_retries_and_not_with_letters(tmp_path, client):
    topic = client.topic(retention_ms=DAY_MS)
    p = Reading(tmp_path, client, topic, "retry: {for: 2d}\n" + HANDLER)
    text = p.check()
    assert len(warnings(text)) == 1
    assert (f"! topic '{topic}' keeps messages for 1d (retention.ms), less than all retries may take ('retry': 2881m, p.yaml:4): if effects fail for that "
            "long and the store is full ('waiting_max')") in text
    assert "messages that wait for a retry, and dead letters, are in the store and are not dropped by time" in text
    p.configure("retry: {for: 23h}\n" + HANDLER, p.group)
    assert warnings(p.check()) == []


def test_f22_remember_that_is_shorter_than_all_retries_makes_letters(tmp_path, client):
    """The times of records are known, so that nothing runs again."""
    topic = client.topic(retention_ms=60000)
    p = Reading(tmp_path, client, topic, "remember: 1m\nretry: {attempts: 3, backoff: 1m..1h}\n" + HANDLER)
    found = p.once("check", "--json", p.name).json["findings"]
    assert [one["text"] for one in found if one["topic"] == "retention" and one["warning"]] == [
        "p.yaml:4: 'remember' (1m) is shorter than all retries may take (3m, 'retry' of p.yaml:5): a message that is delivered after that time becomes "
        "a dead letter, even if it was never handled; raise 'remember' to 3m, or lower 'retry'"]


def test_check_warns_of_what_deletes_messages_earlier(tmp_path, client):
    small = client.topic(retention_ms=DAY_MS, retention_bytes=1000000)
    both = client.topic(retention_ms=DAY_MS, cleanup_policy="compact,delete")
    compacted = client.topic(cleanup_policy="compact")
    p = Reading(tmp_path, client, f"{small}, {both}, {compacted}", "remember: forever\n" + HANDLER)
    found = warnings(p.check())
    assert len(found) == 3
    assert any(f"'{small}': retention.bytes 1000000 for each partition" in line for line in found)
    for topic in (both, compacted):
        assert any(f"'{topic}' is compacted" in line and "may be gone before it is handled" in line for line in found)
    assert f"topic '{compacted}': cleanup.policy=compact forever" in p.check()


def test_check_compares_the_size_of_messages(tmp_path, client):
    topic = client.topic(retention_ms=DAY_MS, max_message_bytes=5000000)
    p = Reading(tmp_path, client, topic)
    assert f"! topic '{topic}' takes messages of up to 5000000 bytes (max.message.bytes), more than 'message_max' (1048576)" in p.check()
    p.configure("message_max: 5MiB\n" + HANDLER, p.group)
    assert warnings(p.check()) == []


def test_offsets_that_are_out_of_range_are_named_with_both_ends(tmp_path, client):
    topic = client.topic(retention_ms=DAY_MS)
    client.produce(topic, *[{"id": n} for n in range(10)])
    p = Reading(tmp_path, client, topic)
    client.commit(p.group, topic, {0: 3})
    client.delete_records(topic, 0, 8)
    assert (f"! group '{p.group}' goes on in '{topic}/0' at offset 3, but the broker has 8 to 10: 5 messages or fewer were deleted "
            "before they were read; a run ends with that; 'out_of_range: earliest' goes on at the first message") in p.check()
    client.commit(p.group, topic, {0: 12})
    assert "at offset 12, but the broker has 8 to 10: the topic was made anew, or the broker lost its last messages" in p.check()


def test_check_and_status_compare_the_cursors_of_the_store(tmp_path, client):
    """The group's offsets say nothing then, unless they are gone."""
    topic = client.topic(partitions=2, retention_ms=DAY_MS)
    client.produce(topic, *[{"id": n} for n in range(10)], partition=0)
    p = Reading(tmp_path, client, topic, more=", cursor: true")
    with p.start() as worker:
        until(lambda: client.committed(p.group, topic).get(0) == 10, what="all are settled")
        worker.process.terminate()
        worker.end()
    client.commit(p.group, topic, {0: 4000})
    client.produce(topic, *[{"id": n} for n in range(10, 15)], partition=0)
    text = p.check()
    assert warnings(text) == [] and "5 messages are behind the offsets of the store" in text
    client.commit(p.group, topic, {0: 4})
    assert "5 messages are behind the offsets of the store" in p.check()
    assert lag(p) == {"left": 5, "not_known": 0, "streams": [{"name": f"{topic}/0", "left": 5}, {"name": f"{topic}/1", "left": 0}]}
    client.delete_records(topic, 0, 13)
    assert warnings(p.check()) == [f"! the cursor in the store goes on in '{topic}/0' at offset 10, but the broker has 13 to 15: 3 messages or "
                                   "fewer were deleted before they were read; a run ends with that; 'out_of_range: earliest' goes on at the first message"]
    client.forget(p.group)
    assert warnings(p.check()) == [f"! the store has read '{topic}/0' up to offset 10, but group '{p.group}' has no offset for it any more: the topic "
                                   "was made anew, or the group was deleted or has expired; a run ends with that; 'out_of_range: earliest' goes on at "
                                   "the first message"]
    assert lag(p)["streams"][0] == {"name": f"{topic}/0", "left": None}
    p.kafka = p.kafka.replace("cursor: true", "cursor: true, out_of_range: earliest")
    p.configure(HANDLER, p.group)
    assert lag(p)["streams"][0] == {"name": f"{topic}/0", "left": 2}


def test_check_names_the_other_members_of_the_group(tmp_path, client):
    topic, other = client.topic(retention_ms=DAY_MS), client.topic()
    p = Reading(tmp_path, client, topic)
    member = confluent_kafka.Consumer({**client.config, "group.id": p.group, "client.id": "someone", "partition.assignment.strategy": "range"})
    member.subscribe([topic, other])
    try:
        until(lambda: member.poll(0.1) or client.is_stable(p.group, 1), what="it is a member")
        found = warnings(p.check())
        assert client.is_stable(p.group, 1), "a check joins no group"
    finally:
        member.close()
    assert len(found) == 2
    assert f"! the members of group '{p.group}' share partitions by 'range', this pipeline by 'cooperative-sticky'" in found[0]
    assert f"has member 'someone' at /127.0.0.1, which reads '{topic}/0', '{other}/0'" in found[1] or \
        f"has member 'someone' at /127.0.0.1, which reads '{other}/0', '{topic}/0'" in found[1]
    assert "by its client.id it is another consumer" in found[1]


def test_check_is_at_peace_with_a_worker_of_the_same_pipeline(tmp_path, client):
    topic = client.topic(retention_ms=DAY_MS)
    p = Reading(tmp_path, client, topic)
    with p.start() as worker:
        until(lambda: client.is_stable(p.group, 1), what="the worker is a member")
        text = p.check()
        worker.process.terminate()
        worker.end()
    assert f"group '{p.group}' is Stable and has 1 member\n" in text
    assert f"has member 'once' at /127.0.0.1, which reads '{topic}/0'" in text
    assert warnings(text) == []


SASL = (", config: {security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.username: limited, "
        "sasl.password: env:KAFKA_PASSWORD}")


def test_check_says_which_right_is_missing(tmp_path, client):
    topic, closed = client.topic(retention_ms=DAY_MS), client.topic()
    p = Reading(tmp_path, client, f"{topic}, {closed}", brokers=kafka.sasl(client), more=SASL)
    password = {"KAFKA_PASSWORD": kafka.USERS["limited"]}
    client.allow(topic, "User:*", "all")
    client.deny(topic, "User:limited", "describe_configs")
    client.deny(closed, "User:limited", "describe")
    client.deny_group(p.group, "User:limited", "describe")
    found = until(lambda: [found for found in [warnings(p.check(env=password))] if len(found) == 3], what="the rules hold")[0]
    assert any(f"could not ask about topic '{closed}': the right DESCRIBE on it is missing" in line for line in found)
    assert any(f"could not read retention.ms of topic '{topic}': the right DESCRIBE_CONFIGS on the topic is missing" in line for line in found)
    assert any(f"could not ask for the members and offsets of group '{p.group}': the right DESCRIBE on it is missing" in line for line in found)


def test_check_says_that_a_password_is_refused(tmp_path, client):
    p = Reading(tmp_path, client, client.topic(), brokers=kafka.sasl(client), more=SASL)
    began = time.monotonic()
    text = p.check(status=3, env={"KAFKA_PASSWORD": "wrong"})
    assert time.monotonic() - began < 6, "it does not wait until the time for answers is over"
    assert f"p.yaml:3: the brokers ({kafka.sasl(client)}) refuse the connection: " in text
    assert "uthentication" in text and "wrong" not in text


def test_brokers_that_are_away_are_named_in_time(tmp_path, client):
    free = kafka.free_ports(1)
    p = Reading(tmp_path, client, "any", brokers=f"[127.0.0.1:{free}, 127.0.0.1:1]")
    began = time.monotonic()
    text = p.check(status=3)
    assert time.monotonic() - began < 20
    assert f"p.yaml:3: no broker answers (127.0.0.1:{free}, 127.0.0.1:1): " in text


# ---- once status ----

def test_status_shows_the_lag_of_each_partition_and_in_all(tmp_path, client):
    topic = client.topic(partitions=2)
    client.produce(topic, *[{"id": n} for n in range(5)], partition=0)
    client.produce(topic, *[{"id": n} for n in range(2)], partition=1)
    p = Reading(tmp_path, client, topic)
    p.check()  # makes the store
    client.commit(p.group, topic, {0: 4})
    ended = p.once("status", p.name)
    assert re.search(r"^  lag +3  messages in the source", ended.out, re.M), ended
    assert re.search(rf"^  stream +1  {topic}/0$", ended.out, re.M) and re.search(rf"^  stream +2  {topic}/1$", ended.out, re.M)
    assert lag(p) == {"left": 3, "not_known": 0, "streams": [
        {"name": f"{topic}/0", "left": 1}, {"name": f"{topic}/1", "left": 2}]}


def test_status_does_not_wait_for_a_broker_that_is_away(tmp_path, client):
    topic = client.topic()
    p = Reading(tmp_path, client, topic)
    p.check()
    p.kafka = f"{{brokers: 127.0.0.1:1, topics: {topic}}}"
    p.configure(HANDLER, p.group)
    began = time.monotonic()
    ended = p.once("status", p.name)
    assert time.monotonic() - began < 8
    assert ended.status == 0 and re.search(r"^  lag +\?  could not be read: no broker answers \(127.0.0.1:1\)", ended.out, re.M), ended
    assert "no broker answers" in lag(p)["error"]


def test_a_file_has_no_lag(tmp_path):
    p = Pipeline(tmp_path, HANDLER, "CREATE TABLE t(id);")
    p.run()
    assert lag(p) is None
    assert "lag" not in p.once("status", p.name).out


# ---- the progress line ----

def test_the_progress_line_shows_the_lag_of_each_partition(tmp_path, client):
    """One message that takes long holds back the offset of its partition."""
    topic = client.topic(partitions=2)
    client.produce(topic, *[{"id": n} for n in range(4)], partition=1)
    p = Reading(tmp_path, client, topic, 'key: "${/id}"\nhandler: {exec: [sh, -c, "while ! test -e go; do sleep 0.05; done"]}\n')
    with Terminal(p) as terminal:
        terminal.see(rf"lag 4 \({topic}/1 4\)")
        (tmp_path / "go").touch()
        terminal.see(r"4 done.*lag 0")
    assert terminal.status == 0
    assert "% read" not in terminal.seen


def test_the_progress_line_shows_the_longest_of_many_partitions(tmp_path, client):
    """In the order of what is left, whatever the order of partitions is; those that do not fit are counted, and one without messages is not."""
    topic = client.topic(partitions=6)
    for number, n in enumerate((3, 5, 0, 1, 4, 2)):
        client.produce(topic, *[{"id": f"{number}-{i}"} for i in range(n)], partition=number)
    p = Reading(tmp_path, client, topic, 'key: "${/id}"\nhandler: {exec: [sh, -c, "while ! test -e go; do sleep 0.05; done"]}\n')
    with Terminal(p) as terminal:
        terminal.see(rf"lag 15 \({topic}/1 5, {topic}/4 4, {topic}/0 3, 2 more\)")
        (tmp_path / "go").touch()
        terminal.see(r"15 done.*lag 0")
    assert terminal.status == 0


# ---- once explain ----

def test_a_message_is_explained_by_topic_partition_and_offset(tmp_path, client):
    topic = client.topic(partitions=2)
    client.produce(topic, {"id": "a"}, {"id": "a"}, partition=1)
    p = Reading(tmp_path, client, topic)
    with p.start() as worker:
        until(lambda: p.rows("SELECT id FROM t") and client.committed(p.group, topic).get(1) == 2, what="both are settled")
        worker.process.terminate()
        worker.end()
    for written, fate in ((f"{topic}/1/0", "first"), (f"{topic}/1:0", "first"), (f"{topic}/1/1", "duplicate")):
        ended = p.once("explain", "--json", p.name, "--message", written)
        assert ended.status == 0 and ended.json["message"]["fate"] == fate, ended
    assert "has no message at '7'" in p.once("explain", p.name, "--message", f"{topic}/1/7").err
    assert "are not coordinates" in p.once("explain", p.name, "--message", topic).err
