#!/usr/bin/python3
"""RabbitMQ for tests: Debian's server on loopback, its data in a temporary folder, with an epmd of its own.

    tests/lib/rabbitmq.py serve    starts one, prints its address and its CA's file, and stops it at the end of standard input

`tools/check` starts one for a whole run and names it in ONCE_TEST_RABBITMQ (HOST:PORT) and ONCE_TEST_RABBITMQ_CA; a test that is run
alone starts its own. Every test makes queues of its own in it. A test that harms a server starts another one:

    with Server() as rabbitmq:
        queue = rabbitmq.queue()
        rabbitmq.kill()

A server has listeners at the port of its address and the next ones: AMQP, AMQP with TLS, the management API, Erlang's distribution, epmd.
Deliveries that are not acked for `consumer_timeout_ms` are taken back within a second or two."""

import atexit
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from certificates import make_certificates, make_client
from harness import encode, until
from jars import free_ports

SCRIPT = "/usr/lib/rabbitmq/bin/rabbitmq-server"
CONTROL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
STARTS_S = 90
USERS = {"alice": "alice secret/@:%"}  # beside guest; a password that must be quoted in a URL
QUORUM = {"x-queue-type": "quorum"}


_numbers = itertools.count()


def new_name(kind="queue"):
    return f"{kind}-{os.getpid()}-{random.randrange(1 << 32):08x}-{next(_numbers)}"


class Missing(Exception):
    """There is no RabbitMQ to be had here."""


def need():
    if not os.access(SCRIPT, os.X_OK):
        raise Missing("rabbitmq-server is not installed")
    try:
        import pika  # noqa: F401
    except ImportError as why:
        raise Missing("python3-pika is not installed") from why


class Client:
    """What tests do with a server: queues, messages, and what its management API tells."""

    def __init__(self, port, ca):
        self.port, self.ca = port, ca
        self.address = f"127.0.0.1:{port}"
        self.url = f"amqp://127.0.0.1:{port}"
        self.tls_port, self.management_port = port + 1, port + 2
        self.management = f"http://127.0.0.1:{port + 2}"

    def certificate(self, user):
        """A file without its ending: with .crt and .key, of a client that logs in by certificate."""
        return os.path.join(os.path.dirname(self.ca), user)

    # ---- AMQP ----

    @contextlib.contextmanager
    def channel(self, confirm=False):
        import pika
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=60))
        try:
            channel = connection.channel()
            if confirm:
                channel.confirm_delivery()
            yield channel
        finally:
            if connection.is_open:
                connection.close()

    def queue(self, name=None, **arguments):
        """A durable queue; arguments with '_' for '-'."""
        name = name or new_name()
        self.declare(name, {key.replace("_", "-"): value for key, value in arguments.items()})
        return name

    def declare(self, name, arguments=None, durable=True):
        with self.channel() as channel:
            channel.queue_declare(name, durable=durable, arguments=arguments or {})

    def delete(self, name):
        with self.channel() as channel:
            channel.queue_delete(name)

    def publish(self, queue, *messages, headers=None, exchange="", **properties):
        """Each is on disk when it returns."""
        import pika
        with self.channel(confirm=True) as channel:
            for message in messages:
                channel.basic_publish(exchange, queue, encode(message),
                                      pika.BasicProperties(delivery_mode=2, headers=headers, **properties), mandatory=True)

    def ready(self, queue):
        with self.channel() as channel:
            return channel.queue_declare(queue, passive=True).method.message_count

    def consumers(self, queue):
        with self.channel() as channel:
            return channel.queue_declare(queue, passive=True).method.consumer_count

    def take(self, queue):
        """What is ready, as (body, properties), acked."""
        found = []
        with self.channel() as channel:
            while True:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
                if method is None:
                    return found
                found.append((body, properties))

    # ---- management ----

    def api(self, path, method="GET", body=None):
        request = urllib.request.Request(f"{self.management}/api/{path}", method=method, data=None if body is None else json.dumps(body).encode())
        request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def about(self, queue):
        return self.api(f"queues/%2F/{urllib.parse.quote(queue, safe='')}")

    def policy(self, queue, **definition):
        """Definitions with '_' for '-'."""
        self.api(f"policies/%2F/{queue}", "PUT", {"pattern": f"^{queue}$", "apply-to": "queues", "priority": 1,
                                                  "definition": {key.replace("_", "-"): value for key, value in definition.items()}})

    def connections(self, queue):
        """The names of those that consume it. The server lists a new one after a while."""
        return [each["channel_details"]["connection_name"] for each in self.about(queue).get("consumer_details", []) if each.get("channel_details")]

    def close_connections(self, queue):
        """By the server, as an operator would do it."""
        for name in until(lambda: self.connections(queue), 30, "the server lists a connection of once"):
            with contextlib.suppress(urllib.error.HTTPError):
                self.api(f"connections/{urllib.parse.quote(name)}", "DELETE")


class Server(Client):
    def __init__(self, consumer_timeout_ms=1800000):
        need()
        self.folder = tempfile.mkdtemp(prefix="once-rabbitmq-")
        self.process = self.epmd = None
        self.consumer_timeout_ms = consumer_timeout_ms
        atexit.register(self.close)
        try:
            super().__init__(free_ports(5), make_certificates(self.folder))
            make_client(self.folder, "alice")
            self.node = f"once{self.port}@localhost"
            self._configure()
            self.start()
        except BaseException:
            self.close()
            raise

    def _path(self, name):
        return os.path.join(self.folder, name)

    def _write(self, name, text):
        with open(self._path(name), "w") as file:
            file.write(text)

    def _configure(self):
        self._write("rabbitmq.conf", f"""
listeners.tcp.1 = 127.0.0.1:{self.port}
listeners.ssl.1 = 127.0.0.1:{self.tls_port}
ssl_options.cacertfile = {self.ca}
ssl_options.certfile = {self._path("broker.crt")}
ssl_options.keyfile = {self._path("broker.key")}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
management.tcp.ip = 127.0.0.1
management.tcp.port = {self.management_port}
management.load_definitions = {self._path("definitions.json")}
vm_memory_high_watermark.absolute = 4GB
disk_free_limit.absolute = 1MB
collect_statistics_interval = 500
log.console = true
log.console.level = warning
log.file = false
""")
        self._write("advanced.config", "[{rabbit, [{consumer_timeout, %d}, {channel_tick_interval, 1000}, {quorum_tick_interval, 500}]}].\n"
                    % self.consumer_timeout_ms)
        self._write("plugins", "[rabbitmq_management,rabbitmq_auth_mechanism_ssl].\n")
        rights = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        self._write("definitions.json", json.dumps({
            "vhosts": [{"name": "/"}, {"name": "a/b"}],
            "users": [{"name": "guest", "password": "guest", "tags": "administrator"}]
            + [{"name": name, "password": password, "tags": ""} for name, password in USERS.items()],
            "permissions": [{"user": "guest", **rights}, {"user": "guest", **rights, "vhost": "a/b"}]
            + [{"user": name, **rights} for name in USERS]}))
        self._write(".erlang.cookie", f"{random.getrandbits(64):x}")
        os.chmod(self._path(".erlang.cookie"), 0o400)

    def _environment(self):
        return {
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "LANG": "C.UTF-8", "HOME": self.folder,
            "ERL_EPMD_PORT": str(self.port + 4), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node, "RABBITMQ_DIST_PORT": str(self.port + 3), "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": self._path("rabbitmq.conf"), "RABBITMQ_ADVANCED_CONFIG_FILE": self._path("advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": self._path("plugins"), "RABBITMQ_MNESIA_BASE": self._path("data"),
            "RABBITMQ_LOG_BASE": self._path("log"), "RABBITMQ_GENERATED_CONFIG_DIR": self._path("generated"),
            "RABBITMQ_SCHEMA_DIR": self._path("schema"), "RABBITMQ_PID_FILE": self._path("pid"),
            # With ALLOW_INPUT the script becomes the server, so that its id is ours; -noinput turns the input off again.
            "RABBITMQ_ALLOW_INPUT": "1", "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def _run(self, *arguments, log):
        with open(self._path(log), "ab") as out:
            return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *arguments], cwd=self.folder, env=self._environment(),
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def start(self):
        if not self.epmd:
            self.epmd = self._run("epmd", "-port", str(self.port + 4), "-address", "127.0.0.1", log="epmd.log")
        self.process = self._run(SCRIPT, log="server.log")
        until(self.is_up, STARTS_S, "RabbitMQ answers")

    def is_up(self):
        if self.process.poll() is not None:
            with open(self._path("server.log"), errors="replace") as file:
                raise Missing(f"the server ended with {self.process.returncode}: {file.read()[-1500:]}")
        try:
            for port in (self.port, self.tls_port):
                socket.create_connection(("127.0.0.1", port), 1).close()
            return self.api("aliveness-test/%2F")["status"] == "ok"
        except (OSError, ValueError):
            return False

    def control(self, *arguments):
        subprocess.run([CONTROL, "-n", self.node, *arguments], env=self._environment(), check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    def keep_quorum_queues(self):
        """Writes their directory to disk. RabbitMQ 3.10 does that every three minutes: after a kill before it, a quorum queue that is newer has lost its
        messages and never has a leader again."""
        self.control("eval", "ok = dets:sync(ra_directory_reverse).")

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

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        atexit.unregister(self.close)
        self.kill()
        if self.epmd:
            self.epmd.kill()
            self.epmd.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_shared = None


def shared():
    """The server of the whole run, or one of this process that ends with it."""
    global _shared
    if not _shared:
        given = os.environ.get("ONCE_TEST_RABBITMQ")
        _shared = Client(int(given.rsplit(":", 1)[1]), os.environ.get("ONCE_TEST_RABBITMQ_CA")) if given else Server()
    return _shared


def serve():
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with Server() as server:
        print(server.address, server.ca, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:] != ["serve"]:
        sys.exit("usage: tests/lib/rabbitmq.py serve")
    try:
        serve()
    except Missing as why:
        sys.exit(f"rabbitmq: {why}")
