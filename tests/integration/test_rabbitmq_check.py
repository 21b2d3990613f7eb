"""source: rabbitmq and once check, once status: what is asked of the broker, and what is said when it does not answer."""

import re

import pytest

import rabbitmq
from harness import once, until
from brokerpipeline import CONFIG, numbered
from rabbitmqpipeline import RabbitPipeline, need_rabbitmq
from terminal import Terminal

need_rabbitmq()


@pytest.fixture(scope="module")
def client():
    return rabbitmq.shared()


class Checked(RabbitPipeline):
    def __init__(self, folder, client, queue, config=CONFIG, managed=True, more=""):
        more = ", ".join(each for each in (more, f'management: "{client.management}"' if managed else "") if each)
        super().__init__(folder, client, queue, config, more=more)

    def check(self, status=0, **more):
        ended = self.once("check", self.name, **more)
        assert ended.status == status, ended
        return ended.out + ended.err


def declared(client, **arguments):
    name = rabbitmq.new_name()
    client.declare(name, {key.replace("_", "-"): value for key, value in arguments.items()})
    return name


# ---- what the broker tells ----

def test_check_says_what_the_queue_is(tmp_path, client):
    queue = declared(client, x_queue_type="quorum")
    client.publish(queue, *numbered(3))
    text = Checked(tmp_path, client, queue, f"remember: forever\n{CONFIG}").check()
    assert f"queue '{queue}' has 3 messages ready and 0 consumers; workers share it" in text
    assert f"queue '{queue}' is a quorum queue" in text and f"queue '{queue}' has no delivery-limit" in text
    assert not re.search("^warning: source", text, re.M), text
    assert client.ready(queue) == 3


def test_check_refuses_a_stream(tmp_path, client):
    queue = declared(client, x_queue_type="stream")
    text = Checked(tmp_path, client, queue).check(status=2)
    assert f"p.yaml:3: queue '{queue}' is a stream, from which an ack removes nothing; use a classic or quorum queue" in text


def test_check_compares_the_ttl_of_arguments_and_policies(tmp_path, client):
    queue = declared(client, x_message_ttl=86400000 * 30)
    p = Checked(tmp_path, client, queue, f"remember: 7d\n{CONFIG}")
    assert f"'remember' (7d) is shorter than queue '{queue}' keeps messages (30d, message-ttl)" in p.check(status=2)
    client.policy(queue, message_ttl=10000)
    text = until(lambda: (said := p.check(status=2)) and "30d" not in said and said, 20, "the policy is there")
    assert f"queue '{queue}' keeps messages for 10s (message-ttl), less than 'timeout' (10s by default) and 'lease' (30s by default) together (40s)" in text
    assert "drops messages that wait longer than its message-ttl, because it has no dead-letter exchange" in text


def test_check_warns_if_messages_stay_longer_than_they_are_remembered(tmp_path, client):
    text = Checked(tmp_path, client, client.queue()).check()
    assert "keeps messages until they are acked (it has no message-ttl)" in text and "set 'remember: forever'" in text


def test_a_delivery_limit_without_a_dead_letter_exchange_is_an_error(tmp_path, client):
    queue = declared(client, x_queue_type="quorum", x_delivery_limit=3)
    p = Checked(tmp_path, client, queue, f"remember: forever\n{CONFIG}")
    text = p.check(status=2)
    assert f"p.yaml:3: queue '{queue}' drops a message after 4 deliveries (delivery-limit), because it has no dead-letter exchange" in text
    assert f"queue '{queue}' gives a message up after 4 deliveries (delivery-limit), fewer than 'retry.attempts'" in text
    with client.channel() as channel:
        channel.exchange_declare(queue, "fanout")
    client.policy(queue, dead_letter_exchange=queue)
    until(lambda: p.once("check", p.name).status == 0, 20, "with one it is none")
    assert "and has a dead-letter exchange" in p.check()


def test_check_warns_of_queues_that_lose_messages(tmp_path, client):
    queue = rabbitmq.new_name()
    with client.channel() as channel:
        channel.queue_declare(queue, durable=False, auto_delete=True, arguments={"x-expires": 3600000, "x-max-length": 10})
    text = Checked(tmp_path, client, queue).check()
    for words in ("is not durable", "when its last consumer goes (auto-delete)", "when it has no consumer for 1h (expires)",
                  "drops its oldest messages when it is full (max-length, overflow: drop-head)"):
        assert words in text, text
    queue = declared(client, x_max_length=10, x_overflow="reject-publish", x_single_active_consumer=True)
    text = Checked(tmp_path / "b", client, queue).check()
    assert "oldest messages" not in text and "has a single active consumer" in text


def test_check_compares_how_long_a_message_may_be_held(tmp_path, client):
    p = Checked(tmp_path, client, client.queue(), 'key: "${/id}"\ntimeout: 10m\nhandler: {exec: [cat]}\n', more="consumer_timeout: 5m")
    assert "lets a consumer hold a message for 5m at most (consumer_timeout), less than 'timeout' (10m" in p.check()


def test_check_names_a_consumer_timeout_of_the_queue(tmp_path, client):
    queue = declared(client, x_consumer_timeout=60000)  # RabbitMQ 3.12 and later heed it
    text = Checked(tmp_path, client, queue).check(status=2)
    assert "has a consumer-timeout of 1m, shorter than 'consumer_timeout' (30m)" in text and "write 'consumer_timeout: 1m'" in text


# ---- what it does not tell ----

def test_without_management_it_says_what_it_could_not_ask(tmp_path, client):
    queue = client.queue()
    text = Checked(tmp_path, client, queue, managed=False).check()
    assert f"could not read message-ttl of queue '{queue}': 'management' is not set; it was not compared with 'remember', 'timeout', 'lease' and 'retry'" in text
    assert f"could not read delivery-limit of queue '{queue}': 'management' is not set; it was not compared with 'retry.attempts'" in text


def test_a_management_api_that_does_not_answer(tmp_path, client):
    p = Checked(tmp_path, client, client.queue(), managed=False, more=f'management: "http://127.0.0.1:{rabbitmq.free_ports(1)}"')
    assert "'management': no answer from 'http://127.0.0.1:" in p.check()


def test_a_user_without_the_right_to_look(tmp_path, client):
    """Its password is in the environment, and shown nowhere."""
    secret = rabbitmq.USERS["alice"]
    p = Checked(tmp_path, client, client.queue())
    p.configure(CONFIG, source=f'{{url: "amqp://alice@{client.address}", password: env:SECRET, queue: {p.queue}, management: "{client.management}"}}')
    text = p.check(env={"SECRET": secret})
    assert "does not let user 'alice' look at the queue; give it the tag 'monitoring'" in text
    text = p.check(status=3, env={"SECRET": "wrong-one"})
    assert "cannot log in at" in text and "as 'alice'" in text and "ACCESS_REFUSED" in text
    assert secret not in text and "wrong-one" not in text


def test_a_url_that_is_a_reference_has_everything_in_it(tmp_path, client):
    from urllib.parse import quote
    p = Checked(tmp_path, client, "q", managed=False)
    with client.channel() as channel:
        channel.queue_declare("q", durable=True)
    p.configure(CONFIG, source="{url: env:AMQP_URL, queue: q, management: env:API_URL}")
    url = f"amqp://alice:{quote(rabbitmq.USERS['alice'], safe='')}@{client.address}/%2F"
    text = p.check(env={"AMQP_URL": url, "API_URL": f"http://guest:guest@127.0.0.1:{client.management_port}"})
    assert "is a classic queue" in text
    text = p.check(status=3, env={"AMQP_URL": f"amqp://guest:guest@{client.address}/a%2Fb", "API_URL": client.management})
    assert "there is no queue 'q' in the virtual host 'a/b'" in text
    text = p.check(status=2, env={"AMQP_URL": f"http://guest:secret-word@{client.address}", "API_URL": client.management})
    assert "p.yaml:3: 'url' leads to a text that is not a URL: it must begin with amqp:// or amqps://" in text and "secret-word" not in text


def test_a_queue_or_a_broker_that_is_not_there(tmp_path, client):
    p = Checked(tmp_path, client, "missing-queue")
    assert "p.yaml:3: there is no queue 'missing-queue' in the virtual host '/'; declare it, or correct 'queue'" in p.check(status=3)
    free = rabbitmq.free_ports(1)
    p.configure(CONFIG, source=f'{{url: "amqp://127.0.0.1:{free}", queue: q}}')
    assert f"p.yaml:3: cannot connect to '127.0.0.1:{free}'" in p.check(status=3)


# ---- once status ----

def test_status_shows_what_is_ready_and_what_is_delivered(tmp_path, client):
    queue = client.queue()
    client.publish(queue, *numbered(5))
    p = Checked(tmp_path, client, queue)
    p.check()  # makes the store
    with client.channel() as channel:
        channel.basic_get(queue)
        until(lambda: client.about(queue).get("messages_unacknowledged") == 1, 20, "the broker counts it")
        assert p.once("status", "--json", p.name).json["lag"] == {"left": 5, "not_known": 0, "streams": [
            {"name": queue, "left": 4}, {"name": f"{queue} (delivered, not acked)", "left": 1}]}
    p = Checked(tmp_path / "b", client, queue, managed=False)
    p.check()
    assert p.once("status", "--json", p.name).json["lag"]["streams"] == [{"name": queue, "left": 5}]


# ---- the progress line ----

def test_the_progress_line_shows_what_is_ready_or_not_acked(tmp_path, client):
    """Two of five are delivered, and wait for their effect."""
    queue = client.queue()
    client.publish(queue, *[{"id": n} for n in range(5)])
    p = RabbitPipeline(tmp_path, client, queue, 'key: "${/id}"\nhandler: {exec: [sh, -c, "while ! test -e go; do sleep 0.05; done"]}\n', more="prefetch: 2")
    with Terminal(p) as terminal:
        terminal.see(rf"lag 5 \({queue}: 3 ready, 2 of this worker not acked\)")
        (tmp_path / "go").touch()
        terminal.see(r"5 done.*lag 0")
    assert terminal.status == 0


def test_the_help_lists_the_fields():
    ended = once("help", "config")
    assert ended.status == 0 and "consumer_timeout" in ended.out
