"""source: kafka and its settings: properties of librdkafka, names of members, certificates."""

import socket

import pytest

import kafka
from harness import Pipeline
from kafkapipeline import CONFIG, TABLE, KafkaPipeline, need_kafka, numbered

need_kafka()


@pytest.fixture(scope="module")
def client():
    return kafka.shared()


# ---- config ----

class Written(Pipeline):
    """A pipeline whose properties have lines of their own, from line 8; nothing is at its address."""

    def __init__(self, folder, *properties):
        source = "\n    brokers: 127.0.0.1:1\n    topics: t\n    config:\n" + "".join(f"      {each}\n" for each in properties)
        super().__init__(str(folder), CONFIG, TABLE, source=source)

    def configure(self, config, consumer="c", store="sqlite:store.db", source=None):
        with open(f"{self.folder}/{self.name}", "w") as file:
            file.write(f"consumer: {consumer}\nstore: {store}\nsource:\n  kafka:{source}{config}")


@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize("property, said", [
    ("no.such.property: 1", "'config': librdkafka has no property 'no.such.property'; its CONFIGURATION.md has the list"),
    ("security.protocol: none-of-them", "'config': 'security.protocol': Invalid value \"none-of-them\""),
    ("security.protocol: env:HUSH", "'config': 'security.protocol': librdkafka does not accept its value"),
    ("sasl.password: env:NOT_THERE", "variable 'NOT_THERE' is not set"),
])
def test_a_property_that_is_refused_is_named_with_its_line(tmp_path, verb, property, said):
    p = Written(tmp_path, "client.id: someone", property)
    ended = p.once(verb, p.name, env={"HUSH": "hush-hush"})
    assert ended.status == 2 and f"p.yaml:9: {said}" in ended.err, ended
    assert "hush-hush" not in ended.out + ended.err


def test_properties_that_refuse_each_other_do_not_show_a_secret(tmp_path):
    """librdkafka looks at all of them together when its client is made; what it says of the key is its own text."""
    p = Written(tmp_path, "security.protocol: SSL", "ssl.key.pem: env:HUSH")
    ended = p.once("check", p.name, env={"HUSH": "-----BEGIN hush-hush-----"})
    assert ended.status == 2 and "p.yaml:4: 'kafka': " in ended.err and "ssl.key.pem" in ended.err, ended
    assert "hush-hush" not in ended.out + ended.err


# ---- instance ----

def test_a_variable_of_the_instance_that_is_not_set_is_named(tmp_path, client):
    """Two workers without it would have one name."""
    p = KafkaPipeline(tmp_path, client, client.topic(), more='instance: "w-${host}-${env:NO_WORKER}"')
    for env in ({}, {"NO_WORKER": ""}):
        ended = p.once("run", p.name, env=env)
        assert ended.status == 2 and "p.yaml:3: variable 'NO_WORKER' is not set; 'instance' needs it" in ended.err, ended


def test_the_instance_has_the_host_and_the_variable(tmp_path, client):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, more='instance: "w-${host}-${env:WORKER}.a"', properties={"session.timeout.ms": 60000})
    client.produce(topic, *numbered(1))
    p.run_until(lambda: p.count() == 1, env={"WORKER": "7"})
    assert [member.instance for member in client.members(p.group)] == [f"w-{socket.gethostname()}-7.a"], "a stop is no leave"
