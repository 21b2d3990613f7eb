#!/usr/bin/python3
"""Apache Kafka for tests, in KRaft mode: one Java process per broker on loopback, its data in a temporary folder.

    tests/lib/kafka.py serve    starts one, prints its address and its CA's file, and stops it at the end of standard input
    tests/lib/kafka.py jars     copies Kafka into the cache by Maven, unless it is there (tools/setup calls it)

`tools/check` starts one for a whole run and names it in ONCE_TEST_KAFKA (HOST:PORT) and ONCE_TEST_KAFKA_CA; a test that is run alone
starts its own. Every test makes topics and groups of its own in it. A test that harms a broker starts another one:

    with Cluster(brokers=3) as kafka:
        topic = kafka.topic(replicas=3)
        kafka.brokers[0].kill()

Each broker has five listeners, at the port of its address and those behind it: PLAINTEXT, SASL (PLAIN, SCRAM-SHA-256, OAUTHBEARER with
tokens that are not signed), TLS, SASL with TLS, and TLS with a certificate of the client. Who connects without a name may do everything;
others what no rule denies (Client.deny)."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import jars
import kafkawire as wire
from certificates import make_certificates
from harness import until
from jars import Missing, free_ports
from kafkaclient import Client

FIXTURES = jars.fixtures("kafka")
USERS = {"alice": "alice-secret", "limited": "limited-secret"}  # of the SASL listener
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms128m", "-Xmx256m", "-Xshare:auto",
        f"-Dlog4j.configuration=file:{FIXTURES}/log4j.properties"]
CLUSTER_ID = "b25jZS10ZXN0cy1rYWZrYQ"
STARTS_S = 90
LISTENERS = {"PLAINTEXT": "PLAINTEXT", "SASL": "SASL_PLAINTEXT", "TLS": "SSL", "SASLTLS": "SASL_SSL", "CERTIFIED": "SSL", "CONTROLLER": "PLAINTEXT"}


def login(listener):
    """The mechanisms of a listener with SASL."""
    module, name = "org.apache.kafka.common.security", f"listener.name.{listener.lower()}"
    return {
        f"{name}.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required "
                                          + " ".join(f'user_{user}="{password}"' for user, password in USERS.items()) + ";",
        f"{name}.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        f"{name}.oauthbearer.sasl.jaas.config": f'{module}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="nobody";',
    }


SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "broker.heartbeat.interval.ms": "500",
    "leader.imbalance.check.interval.seconds": "2",
    # Small: one user, a few topics.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    # Rights, for those who have a name.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    **login("SASL"),
    **login("SASLTLS"),
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "listener.name.certified.ssl.client.auth": "required",
}


# ---- brokers ----

class Broker:
    """One Java process. It is ended with its parent, whatever happens to that."""

    def __init__(self, cluster, node, port):
        self.cluster, self.node, self.port = cluster, node, port
        self.address = f"127.0.0.1:{port}"
        self.folder = os.path.join(cluster.folder, f"broker-{node}")
        self.properties = os.path.join(cluster.folder, f"broker-{node}.properties")
        self.log = os.path.join(cluster.folder, f"broker-{node}.log")
        self.process = None

    def configure(self, voters, settings):
        texts = [f"{name}://127.0.0.1:{self.port + behind}" for behind, name in enumerate(LISTENERS)]
        settings = {**settings, "node.id": self.node, "controller.quorum.voters": voters, "log.dirs": self.folder,
                    "listeners": ",".join(texts), "advertised.listeners": ",".join(texts[:-1]),
                    "ssl.keystore.location": os.path.join(self.cluster.folder, "broker.pem"), "ssl.truststore.location": self.cluster.ca}
        with open(self.properties, "w") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())

    def _java(self, *arguments):
        with open(self.log, "ab") as log:
            return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *JAVA, "-cp", f"{jars.folder('kafka')}/*", *arguments], cwd=self.cluster.folder,
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def format(self):
        scram = [word for name, password in USERS.items() for word in ("--add-scram", f"SCRAM-SHA-256=[name={name},password={password}]")]
        self.process = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", self.properties, *scram)

    def launch(self):
        self.process = self._java("kafka.Kafka", self.properties)

    def ended(self):
        """The words of one that ended without being asked; otherwise nothing."""
        if self.process.poll() is None:
            return ""
        with open(self.log) as file:
            return f"the broker ended with {self.process.returncode}: {file.read()[-1500:]}"

    def is_up(self):
        if self.ended():
            raise Missing(self.ended())
        try:
            return self.node in wire.metadata(self.address)[0]
        except OSError:
            return False

    def start(self):
        self.launch()
        until(self.is_up, STARTS_S, f"broker {self.node} answers")

    def stop(self):
        """As its operator would do it."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(STARTS_S)

    def kill(self):
        """As by kill -9."""
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    def send(self, number):
        self.process.send_signal(number)


class Cluster(Client):
    def __init__(self, brokers=1, session_ms=9000, **settings):
        """`session_ms`: after this a broker that is silent is none; a killed one can come back only then. Settings with '_' for '.'."""
        jars.need("kafka")
        self.folder = tempfile.mkdtemp(prefix="once-kafka-")
        self.brokers = []
        atexit.register(self.close)
        try:
            self.ca = make_certificates(self.folder)
            self._make(brokers, {"broker.session.timeout.ms": session_ms, **{name.replace("_", "."): value for name, value in settings.items()}})
            super().__init__(",".join(broker.address for broker in self.brokers))
            self.start()
        except BaseException:
            self.close()
            raise

    def _make(self, n, settings):
        ports = len(LISTENERS)
        first = free_ports(ports * n)
        self.brokers = [Broker(self, node, first + ports * (node - 1)) for node in range(1, n + 1)]
        voters = ",".join(f"{broker.node}@127.0.0.1:{broker.port + ports - 1}" for broker in self.brokers)
        copies = {f"{topic}.replication.factor": n for topic in ("offsets.topic", "transaction.state.log")}
        copies.update({"default.replication.factor": n, "transaction.state.log.min.isr": min(n, 2), "min.insync.replicas": min(n, 2)})
        for broker in self.brokers:
            broker.configure(voters, {**SETTINGS, **copies, **settings})
            broker.format()
        for broker in self.brokers:
            if broker.process.wait(STARTS_S) != 0:
                raise Missing(broker.ended())

    def start(self):
        """All that do not run, and waits until groups can be used."""
        for broker in self.brokers:
            if broker.process.poll() is not None:
                broker.launch()
        for broker in self.brokers:
            until(broker.is_up, STARTS_S, f"broker {broker.node} answers")
        until(self._has_coordinator, STARTS_S, "groups have a coordinator")

    def _has_coordinator(self):
        try:
            return wire.coordinator(self.address, "any")
        except (OSError, wire.Refused):
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        atexit.unregister(self.close)
        for broker in self.brokers:
            broker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Given(Client):
    """The one that tools/check has started; not ours to stop."""

    def __init__(self, address, ca):
        super().__init__(address)
        self.ca = ca


_shared = None


def shared():
    """The broker of the whole run, or one of this process that ends with it."""
    global _shared
    if not _shared:
        given = os.environ.get("ONCE_TEST_KAFKA")
        _shared = Given(given, os.environ.get("ONCE_TEST_KAFKA_CA")) if given else Cluster()
    return _shared


def sasl(client):
    """The addresses of the other listeners."""
    return _listener(client, "SASL")


def tls(client):
    return _listener(client, "TLS")


def sasl_tls(client):
    return _listener(client, "SASLTLS")


def certified(client):
    """Of the one that asks for a certificate by the CA in client.ca (certificates.make_client)."""
    return _listener(client, "CERTIFIED")


def _listener(client, name):
    host, port = client.address.split(",")[0].rsplit(":", 1)
    return f"{host}:{int(port) + list(LISTENERS).index(name)}"


def serve():
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with Cluster() as cluster:
        print(cluster.address, cluster.ca, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:] not in (["serve"], ["jars"]):
        sys.exit("usage: tests/lib/kafka.py serve|jars")
    try:
        jars.copy("kafka") if sys.argv[1] == "jars" else serve()
    except Missing as why:
        sys.exit(f"kafka: {why}")
