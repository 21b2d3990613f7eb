"""source: kafka and its settings: properties of librdkafka, names of members, certificates."""

import os
import socket

import pytest

import kafka
from certificates import make_certificates, make_client
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


# ---- certificates ----

SEALED = "sealed-with-this"


@pytest.fixture(scope="module")
def made(client, tmp_path_factory):
    """A folder with the certificate of a client by the brokers' CA, and in `strange` all that another CA makes."""
    folder = tmp_path_factory.mktemp("certificates")
    make_client(folder, "alice", os.path.dirname(client.ca), SEALED)
    strange = folder / "strange"
    strange.mkdir()
    make_certificates(strange)
    make_client(strange, "alice")
    return folder


def refused(p, **more):
    """What check says, which is asked for: a run tries again, as if the broker came back with another certificate."""
    ended = p.once("check", p.name, **more)
    assert ended.status == 3 and "p.yaml:3: the brokers (" in ended.err and ") refuse the connection: " in ended.err, ended
    assert SEALED not in ended.out + ended.err
    return ended.err


def test_a_broker_with_a_certificate_by_another_ca_is_refused(tmp_path, client, made):
    topic = client.topic()
    p = KafkaPipeline(tmp_path, client, topic, brokers=kafka.tls(client),
                      properties={"security.protocol": "SSL", "ssl.ca.location": made / "strange" / "ca.pem"})
    client.produce(topic, *numbered(1))
    assert "certificate verify failed" in refused(p)
    with p.start() as running:
        p.wait(running, lambda: "certificate verify failed" in p.said(running), what="a run says it, too")
        p.stop(running)
    assert p.count() == 0 and p.committed() == {}


def test_a_broker_under_another_name_is_refused(tmp_path, client):
    """Its certificate is for 127.0.0.1 and localhost, and 127.1 is the same address; that the CA is right is not enough."""
    brokers = kafka.tls(client).replace("127.0.0.1", "127.1")
    p = KafkaPipeline(tmp_path, client, client.topic(), brokers=brokers, properties={"security.protocol": "SSL", "ssl.ca.location": client.ca})
    assert "certificate verify failed" in refused(p)


def certified(folder, client, topic, where, key, password=None):
    properties = {"security.protocol": "SSL", "ssl.ca.location": client.ca}
    if where:
        properties.update({"ssl.certificate.location": where / "alice.crt", "ssl.key.location": where / key})
    if password:
        properties["ssl.key.password"] = "env:SEALED"
    return KafkaPipeline(folder, client, topic, brokers=kafka.certified(client), properties=properties)


def test_a_client_has_a_certificate_and_a_key_with_a_password(tmp_path, client, made):
    topic = client.topic()
    client.produce(topic, *numbered(3))
    p = certified(tmp_path, client, topic, made, "alice.sealed", "env:SEALED")
    p.run_until(lambda: p.count() == 3, env={"SEALED": SEALED})
    p.check(3)
    ended = p.once("check", p.name, env={"SEALED": "not-the-password"})
    assert ended.status == 2 and "p.yaml:3: 'kafka': " in ended.err and "ssl.key.location" in ended.err, ended
    assert "not-the-password" not in ended.out + ended.err


@pytest.mark.parametrize("where", [None, "strange"])
def test_a_client_without_a_certificate_by_the_brokers_ca_is_refused(tmp_path, client, made, where):
    """With TLS 1.3 it hears of that behind the handshake, when it reads the first answer."""
    p = certified(tmp_path, client, client.topic(), where and made / where, "alice.key")
    assert "SSL alert number" in refused(p)
    with p.start() as running:
        p.wait(running, lambda: "SSL alert number" in p.said(running), what="a run says it, too")
        p.stop(running)


def test_names_and_passwords_with_tls(tmp_path, client, made):
    topic = client.topic()
    properties = {"security.protocol": "SASL_SSL", "ssl.ca.location": client.ca, "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice",
                  "sasl.password": "env:SECRET"}
    p = KafkaPipeline(tmp_path, client, topic, properties=properties, brokers=kafka.sasl_tls(client))
    client.produce(topic, *numbered(3))
    p.run_until(lambda: p.count() == 3, env={"SECRET": kafka.USERS["alice"]})
    p.check(3)
    assert "uthentication" in refused(p, env={"SECRET": "not-the-password"})
    strange = KafkaPipeline(tmp_path / "strange", client, topic, properties={**properties, "ssl.ca.location": made / "strange" / "ca.pem"},
                            brokers=kafka.sasl_tls(client))
    assert "certificate verify failed" in refused(strange, env={"SECRET": kafka.USERS["alice"]})
