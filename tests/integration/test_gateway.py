"""The payment gateway itself, seen by other clients than `once`: what its ledger says is what it did."""

import http.client
import json
import socket
import ssl
import subprocess
import threading
import time

import pytest

from certificates import make_certificates
from gateway import Gateway, http_date


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("gateway")) as server:
        yield server


class Client:
    """One connection, kept."""

    def __init__(self, account, timeout=10):
        self.account = account
        self.connection = http.client.HTTPConnection("127.0.0.1", account.gateway.port, timeout=timeout)

    def ask(self, method="POST", path="/charges", key="k", body='{"id": "r", "amount": 5}', **headers):
        self.connection.request(method, f"/{self.account.name}{path}", body, {"Idempotency-Key": key, "Once-Attempt": "1", **headers})
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers


def test_keys_are_honoured_or_not(gateway):
    for honour in (True, False):
        account = gateway.account(honour=honour)
        client = Client(account)
        first, second = client.ask()[:2], client.ask()[:2]
        assert first[0] == second[0] == 201
        assert (first == second) == honour and account.per_reference() == {"r": 1 if honour else 2}
        assert client.ask(key="other", body='{"id": "s"}')[0] == 201
        assert client.ask(body='{"id": "r", "amount": 6}')[0] == (422 if honour else 201)
    assert [each["charged"] for each in account.requests()] == [True] * 4 and [each["place"] for each in account.requests()] == [1, 2, 3, 4]
    assert client.ask("GET", "/charges/k")[0] == client.ask("GET", "/charges/r")[0] == 200 and client.ask("GET", "/charges/x")[0] == 404


def test_it_fails_before_and_after_charging(gateway):
    account = gateway.account()
    account.fault(times=1, status=500)
    account.fault(times=1, status=500, charge=True)
    client = Client(account)
    assert client.ask()[0] == 500 and account.charges() == []
    assert client.ask()[0] == 500 and account.per_reference() == {"r": 1}
    assert client.ask()[0] == 201 and account.per_reference() == {"r": 1}


def test_one_of_so_many_fails(gateway):
    """As often as that, and not at the same place each time."""
    account = gateway.account()
    account.fault(one_in=5, status=503)
    client = Client(account)
    statuses = [client.ask(key=f"k{n}")[0] for n in range(50)]
    places = [statuses[at:at + 5].index(503) for at in range(0, 50, 5)]
    assert statuses.count(503) == 10 and len(set(places)) > 1
    seen = account.requests()
    assert [each["fault"] for each in seen] == [1 if status == 503 else None for status in statuses]
    assert all(each["at"] <= each["over"] for each in seen)


def test_it_stalls_and_charges_later(gateway):
    account = gateway.account()
    account.fault(times=1, before_s=0.3)
    with pytest.raises(TimeoutError):
        Client(account, timeout=0.1).ask()
    client = Client(account)
    assert account.charges() == [] and client.ask("GET", "/charges/k")[0] == 404 and client.ask()[0] == 409
    while client.ask()[0] != 201:
        time.sleep(0.02)
    assert account.per_reference() == {"r": 1}


def test_the_reply_is_cut_at_any_byte(gateway):
    account = gateway.account(honour=False)
    whole = Client(account).ask()
    for n in (0, 1, 9, 20, 60, 100):
        account.heal()
        account.fault(times=1, cut=n)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            Client(account).ask()
    assert len(account.charges()) == 7 and whole[0] == 201


def test_a_reused_connection_is_reset_after_the_charge(gateway):
    account = gateway.account()
    account.fault(reused=True, cut=0)
    client = Client(account)
    assert client.ask()[0] == 201
    with pytest.raises(ConnectionError):
        client.ask(key="second", body='{"id": "s"}')
    assert account.per_reference() == {"r": 1, "s": 1}


def test_it_answers_wrongly_throttles_and_asks_for_a_token(gateway):
    account = gateway.account(token="new")
    client = Client(account)
    assert client.ask()[0] == 401 and client.ask(Authorization="Bearer old")[0] == 401 and client.ask(Authorization="Bearer new")[0] == 201
    account.set(token=None)
    account.fault(times=1, body='{"status": "declined"}', charge=False, status=200)
    account.fault(times=1, status=429, headers={"Retry-After": http_date(2)})
    account.fault(times=1, raw="nonsense\r\n\r\n")
    assert client.ask(key="x")[:2] == (200, b'{"status": "declined"}')
    status, _, headers = client.ask(key="x")
    assert status == 429 and headers["Retry-After"].endswith("GMT")
    with pytest.raises(http.client.BadStatusLine):
        client.ask(key="x", body='{"id": "z"}')
    assert account.per_reference() == {"r": 1, "z": 1}


def test_chance_has_a_seed(gateway):
    def answers(seed):
        account = gateway.account(seed=seed)
        account.fault(share=0.5, status=503)
        client = Client(account)
        return [client.ask(key=str(i))[0] for i in range(20)]

    first, other = answers(1), answers(2)
    assert answers(1) == first != other and {201, 503} == set(first)


def test_the_ledger_survives_a_kill(tmp_path):
    with Gateway(tmp_path) as gateway:
        account = gateway.account()
        account.fault(times=1, skip=1, die="after")
        Client(account).ask()
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            Client(account).ask(key="second", body='{"id": "s"}')
        while not gateway.ended():
            time.sleep(0.01)
        account.heal()
        with open(account.folder + "/ledger", "ab") as file:
            file.write(b'{"half')  # of a write that a kill interrupted
        gateway.restart()
        status, body, headers = Client(account).ask(key="second", body='{"id": "s"}')
        assert status == 201 and headers["Idempotent-Replayed"] and json.loads(body)["charge_id"] == "ch_2"
        Client(account).ask(key="third", body='{"id": "t"}')
        assert account.per_reference() == {"r": 1, "s": 1, "t": 1}


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure")
    ca = make_certificates(folder)
    with Gateway(folder, tls=folder / "broker.pem", client_ca=ca, http2=True) as server:
        yield server, ca, folder


def curl(secure, path, *more):
    gateway, ca, folder = secure
    ran = subprocess.run(["curl", "-sS", "--cacert", ca, "--cert", folder / "broker.crt", "--key", folder / "broker.key", "-w", "\n%{http_version} %{http_code}",
                          *more, gateway.address + path], capture_output=True, text=True, timeout=30)
    return ran.returncode, ran.stdout.splitlines()[-1]


def test_tls_client_certificates_and_both_versions(secure):
    gateway, ca, _ = secure
    account = gateway.account()
    body = json.dumps({"id": "r", "note": "x" * 100000})
    assert curl(secure, f"/{account.name}/charges", "-d", body, "-H", "Idempotency-Key: k") == (0, "2 201")
    assert curl(secure, f"/{account.name}/charges", "--http1.1", "-d", body, "-H", "Idempotency-Key: k") == (0, "1.1 201")
    account.fault(times=1, body="x" * 300000)
    assert curl(secure, f"/{account.name}/charges/k", "-o", "/dev/null") == (0, "2 200")
    assert account.per_reference() == {"r": 1}
    context = ssl.create_default_context(cafile=ca)
    with pytest.raises(OSError):
        with socket.create_connection(("127.0.0.1", gateway.port), 10) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as without:
            without.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert without.recv(1), "closed"
            raise AssertionError("served without a certificate")


def test_faults_of_http2(secure):
    gateway = secure[0]
    account = gateway.account()
    post = ("-d", '{"id": "r"}', "-H", "Idempotency-Key: k", "--max-time", "5")
    account.fault(times=1, goaway=True)
    account.fault(times=1, cut=5)
    assert curl(secure, f"/{account.name}/charges", *post)[0] != 0
    assert curl(secure, f"/{account.name}/charges", *post)[0] != 0
    account.fault(times=1, refuse=True)
    curl(secure, f"/{account.name}/charges", *post)
    assert account.per_reference() == {"r": 1} and len(account.tries()) >= 3


def test_requests_at_once(gateway):
    account = gateway.account()
    account.fault(times=8, after_s=0.2)
    began = time.monotonic()
    threads = [threading.Thread(target=Client(account).ask, kwargs={"key": str(i), "body": json.dumps({"id": i})}) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 1.2 and len(account.charges()) == 8
