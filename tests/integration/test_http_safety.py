"""What `once` must never do over HTTP: send a request twice by itself, follow where it was not told to, believe a stranger, show a secret, or
let a message choose headers and paths."""

import base64
import functools
import json
import os
import socket
import ssl
import subprocess
import threading
import time

import pytest

from certificates import make_certificates
from connectproxy import ConnectProxy
from gateway import Gateway
from harness import counts
import httppipeline
from httppipeline import lookup

Paying = functools.partial(httppipeline.Paying, lease="30s")  # a busy machine takes its time


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("gateway")) as server:
        yield server


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """TLS with HTTP/2; its CA; a folder with a certificate for clients."""
    folder = tmp_path_factory.mktemp("secure")
    ca = make_certificates(folder)
    with Gateway(folder, tls=folder / "broker.pem", http2=True) as server:
        server.ca, server.certificates = ca, folder
        yield server


# ---- one request for each attempt ----

@pytest.mark.parametrize("cut_close", [False, True], ids=["reset", "closed"])
@pytest.mark.parametrize("method, way", [("post", "direct"), ("get", "direct"), ("post", "libcurl"), ("put", "libcurl"), ("delete", "libcurl"), ("get", "libcurl")])
def test_libcurl_does_not_repeat_a_request_by_itself(tmp_path, gateway, method, way, cut_close):
    """A gateway that charges and then resets a connection that was used before. libcurl would send the request again: a second charge that
    nobody counts. What could be redirected goes through libcurl."""
    account = gateway.account(honour=False)
    account.fault(reused=True, cut=0, cut_close=cut_close)
    p = Paying(tmp_path, account, n=12, method=method, path="/pay/${/id}", window=2, redirects=int(way == "libcurl"))
    summary = p.run(status=1)
    sent = account.requests()
    assert any(each["place"] > 1 for each in sent), "no connection was used twice"
    assert account.per_reference() == dict.fromkeys(p.keys(), 1) and len(sent) == 12
    lost = sum(each["place"] > 1 for each in sent)
    counts(summary, received=12, done=12 - lost, unknown=lost)


def test_a_body_of_nothing_is_not_repeated_either(tmp_path, gateway):
    account = gateway.account(honour=False)
    account.fault(reused=True, cut=0)
    p = Paying(tmp_path, account, n=6, window=1, body="none")
    p.run(status=1)
    assert account.per_reference() == dict.fromkeys(p.keys(), 1) and len(account.requests()) == 6


@pytest.mark.parametrize("how", ["refuse", "goaway", "cut"])
def test_http2_streams_are_not_repeated_by_libcurl(tmp_path, secure, how):
    """REFUSED_STREAM and GOAWAY say that nothing was done, and libcurl then sends the request again. This gateway has charged."""
    account = secure.account(honour=False)
    account.fault(reused=True, **{how: True if how != "cut" else 0})
    p = Paying(tmp_path, account, n=6, window=1, ca=secure.ca)
    p.run(status=1)
    assert account.per_reference() == dict.fromkeys(p.keys(), 1)
    p.one_request_per_attempt()
    assert {each["version"] for each in account.requests()} == {"2"} and any(each["place"] > 1 for each in account.requests())


def test_a_connection_that_closed_while_it_was_idle(tmp_path):
    """The gateway restarts between two calls. Nothing was sent on the dead connection, or it is unknown; never twice."""
    with Gateway(tmp_path) as gateway:
        account = gateway.account(honour=False)
        account.fault(path="/charges/k1", die="before", times=1)
        p = Paying(tmp_path / "p", account, n=4, window=1, unknown="retry", attempts=10000)
        with p.start() as running:
            gateway.process.wait()
            account.heal()
            gateway.start()
            ended = running.end()
    assert ended.status == 0 and ended.json["done"] == 4, ended
    assert set(account.per_reference()) == p.keys() and p.real_repeats() == 0
    p.one_request_per_attempt()


# ---- where it goes ----

def test_redirects_are_not_followed(tmp_path, gateway):
    account = gateway.account()
    statuses = (301, 302, 303, 307, 308)
    for status in statuses:
        account.fault(path=f"/charges/s{status}", status=status, headers={"Location": account.url("/elsewhere/evil")})
    p = Paying(tmp_path, account)
    p.write(*({"id": f"s{status}"} for status in statuses))
    summary = p.run(status=1)
    assert summary["unknown"] + summary["dead"] == 5 and summary["done"] == 0, summary
    assert len(account.requests()) == 5 and not account.charges()


def test_a_redirect_is_followed_where_it_is_asked_for(tmp_path, gateway):
    account = gateway.account()
    account.fault(path="/charges/k0", status=307, headers={"Location": account.url("/elsewhere/k0")})
    account.fault(path="/charges/k1", status=307, headers={"Location": account.url("/charges/k1")})
    account.fault(path="/charges/k2", status=307, headers={"Location": account.url("/elsewhere/k2").replace("127.0.0.1", "localhost")})
    p = Paying(tmp_path, account, n=3, redirects=1)
    summary = p.run(status=1)
    assert summary["done"] == 1 and account.per_reference() == {"k0": 1}, (summary, account.requests())
    again = [each for each in account.tries() if each["path"] == "/elsewhere/k0"]
    assert len(again) == 1 and json.loads(again[0]["body"])["id"] == "k0" and again[0]["key"] == p.explain("k0")[0]["idempotency_key"]
    assert len(account.requests()) == 2 + 2 + 1, "one hop, and never to another host"


RESOLVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (node && strcmp(node, "pay.test") == 0) {
        usleep(30000); /* as long as a name server takes */
        node = getenv("PAY_TEST");
    }
    return real(node, service, hints, out);
}
"""


@pytest.fixture(scope="module")
def resolving(tmp_path_factory):
    """The environment of a process to which pay.test is this address."""
    folder = tmp_path_factory.mktemp("resolver")
    (folder / "resolver.c").write_text(RESOLVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "resolver.so", folder / "resolver.c", "-ldl"], check=True)
    return lambda address: {"LD_PRELOAD": str(folder / "resolver.so"), "PAY_TEST": address}


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254"])
def test_a_name_that_leads_to_a_link_local_address_is_refused(tmp_path, resolving, address):
    """The addresses at which hosts of a cloud give out their credentials."""
    p = Paying(tmp_path, Nowhere(), path=None, post='"http://pay.test:9/latest"', attempts=2, more="patience: 200ms\n")
    ended = p.try_run("--log-format", "json", env=resolving(address))
    assert ended.status == 3 and "is paused" in ended.err and "link-local" in ended.err, ended
    counts(ended.json, received=1, waiting=1, paused=1)


def test_a_name_that_leads_elsewhere_works(tmp_path, gateway, resolving):
    """libcurl's resolver has sockets of its own, and the connection gets the descriptor of one: a late answer must be noticed all the same."""
    account = gateway.account()
    account.fault(after_s=0.5)
    p = Paying(tmp_path, account, path=None, post=f'"http://pay.test:{gateway.port}/{account.name}/charges/k0"', timeout="3s")
    counts(p.run(status=0, env=resolving("127.0.0.1")), received=1, done=1, attempts=1)
    assert account.per_reference() == {"k0": 1} and len(account.requests()) == 1


class Nowhere:
    def url(self, path=""):
        return "http://127.0.0.1:9" + path


def test_the_host_is_never_from_a_message(tmp_path):
    for url in ("http://${/host}/x", "http://a.${/host}/x", "${/url}", "http://127.0.0.1:${/port}/", "http://user@127.0.0.1/", "ftp://127.0.0.1/", "/x"):
        p = Paying(tmp_path, Nowhere(), path=None, post=f'"{url}"')
        ended = p.once("check", p.name)
        assert ended.status == 2 and f"{p.name}:" in ended.err + ended.out, (url, ended)


# ---- values of messages ----

def test_values_cannot_leave_their_place_in_the_path(tmp_path, gateway):
    """Encoded, or not sent at all: some servers decode before they look for '..'."""
    account = gateway.account()
    values = ["a/b", "%2e%2e", "?x=1", "#f", "é", " ", "a&b=c", "x\r\nX-Evil: 1", "a\tb", "a..b", ";p", "*"]
    steps = ["../up", "a/../../b", "\\..\\", "./x"]
    p = Paying(tmp_path, account, path="/charges/${/id}/end", query='{q: "${/id}"}')
    p.write(*({"id": value} for value in values + steps))
    counts(p.run(status=1), received=len(values + steps), done=len(values), dead=len(steps))
    sent = account.requests()
    assert len(sent) == len(values)
    for each in sent:
        path, query = each["path"].split("?")
        parts = path.split("/")
        assert len(parts) == 4 and parts[1] == "charges" and parts[3] == "end" and parts[2] not in (".", ".."), each["path"]
        assert query.startswith("q=") and not set("&=#\\ /") & set(query[2:]), each["path"]
        assert "x-evil" not in each["headers"]


@pytest.mark.parametrize("value", ["..", ".", "", "nul\0"])
def test_values_that_would_be_another_path_are_dead_letters(tmp_path, gateway, value):
    account = gateway.account()
    p = Paying(tmp_path, account, more='key: "${/key}"\n')
    text = open(os.path.join(tmp_path, p.name)).read().replace('key: "${/id}"\n', "")
    with open(os.path.join(tmp_path, p.name), "w") as file:
        file.write(text)
    p.write({"id": value, "key": "a"})
    summary = p.run()
    if summary["done"]:
        (sent,) = account.requests()
        assert value == "nul\0" and sent["path"] == "/charges/nul%00"
    else:
        counts(summary, received=1, dead=1)
        assert not account.requests()


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "nul\0x", "tab\tok", "del\x7f"])
def test_values_cannot_make_headers(tmp_path, gateway, value):
    account = gateway.account()
    p = Paying(tmp_path, account, path="/charges/h", headers='{X-Order: "${/order}"}')
    p.write({"id": "a", "order": value}, {"id": "b", "order": "fine é"})
    summary = p.run()
    assert summary["done"] + summary["dead"] == 2 and summary["done"] >= 1, summary
    assert all("x-evil" not in each["headers"] for each in account.requests())
    assert summary["dead"] == (0 if value.startswith("tab") and summary["done"] == 2 else 1), summary


# ---- whom it believes ----

def test_tls_is_verified(tmp_path, secure):
    account = secure.account()
    p = Paying(tmp_path / "without", account, attempts=2, more="patience: 200ms\n")
    ended = p.try_run(env={"SSL_CERT_FILE": "/nonexistent"})
    assert ended.status == 3 and "is paused" in ended.err and "certificate" in ended.err.lower(), ended
    counts(ended.json, received=1, waiting=1, paused=1)
    assert not account.requests()
    p = Paying(tmp_path / "with", account, ca=secure.ca)
    p.run(status=0)
    assert account.per_reference() == {"k0": 1} and account.requests()[0]["version"] == "2"


def test_tls_verifies_the_name(tmp_path, secure, resolving):
    account = secure.account()
    p = Paying(tmp_path, account, path=None, post=f'"https://pay.test:{secure.port}/{account.name}/charges"', ca=secure.ca, attempts=2, more="patience: 200ms\n")
    ended = p.try_run(env=resolving("127.0.0.1"))
    assert ended.status == 3 and "is paused" in ended.err, ended
    counts(ended.json, received=1, waiting=1, paused=1)
    assert not account.requests()


def test_a_client_certificate(tmp_path):
    ca = make_certificates(tmp_path)
    with Gateway(tmp_path, tls=tmp_path / "broker.pem", client_ca=ca) as gateway:
        account = gateway.account()
        p = Paying(tmp_path / "without", account, ca=ca, attempts=2)
        ended = p.try_run()
        assert ended.status != 0 or ended.json["done"] == 0, ended
        assert not account.requests()
        p = Paying(tmp_path / "with", account, ca=ca, certificate=tmp_path / "broker.crt", key=tmp_path / "broker.key")
        p.run(status=0)
        assert account.per_reference() == {"k0": 1}


def test_http2_carries_many_calls_on_few_connections(tmp_path, secure):
    account = secure.account()
    account.fault(after_s=0.05)
    p = Paying(tmp_path, account, n=100, window=32, ca=secure.ca)
    counts(p.run(status=0), received=100, done=100)
    sent = account.requests()
    assert {each["version"] for each in sent} == {"2"} and len({each["connection"] for each in sent}) <= 4
    assert account.per_reference() == dict.fromkeys(p.keys(), 1)
    other = secure.account()
    p = Paying(tmp_path / "one", other, n=3, ca=secure.ca, http2="false")
    p.run(status=0)
    assert {each["version"] for each in other.requests()} == {"1.1"}


# ---- through a proxy ----

@pytest.mark.parametrize("tls, http2", [(False, True), (False, False), (True, True)], ids=["http", "http_and_http1", "https"])
def test_https_goes_through_a_tunnel(tmp_path, secure, tls, http2):
    """The proxy learns where to, and nothing of the request. A tunnel that dies behind a charge is no reason to send that again."""
    account = secure.account(honour=False)
    account.fault(path="/charges/k2", cut=0)
    with ConnectProxy(secure.certificates / "broker.pem" if tls else None) as proxy:
        p = Paying(tmp_path, account, n=4, window=1, ca=secure.ca, bearer="env:TOKEN", proxy="env:PROXY", http2=str(http2).lower())
        ended = p.try_run("--log-level", "debug", env={**SECRETS, "PROXY": proxy.url(SECRETS["LOGIN"])})
    assert ended.status == 1, ended
    counts(ended.json, received=4, done=3, unknown=1, attempts=4)
    sent = account.requests()
    assert account.per_reference() == dict.fromkeys(p.keys(), 1) and len(sent) == 4
    assert {each["version"] for each in sent} == {"2" if http2 else "1.1"} and len(proxy.heads) >= 2
    login = base64.b64encode(SECRETS["LOGIN"].encode()).decode()
    for head in proxy.heads:
        assert head.startswith(f"CONNECT 127.0.0.1:{secure.port} HTTP/1.1\r\n") and f"\r\nProxy-Authorization: Basic {login}\r\n" in head, head
        assert "bearer" not in head.lower() and "idempotency" not in head.lower(), head
    for each in sent:
        assert each["headers"]["authorization"] == f"Bearer {SECRETS['TOKEN']}" and "proxy-authorization" not in each["headers"], each
        assert each["key"].encode() not in proxy.carried
    assert proxy.carried and SECRETS["TOKEN"].encode() not in proxy.carried
    for secret in (SECRETS["TOKEN"], SECRETS["LOGIN"], login):
        assert secret not in ended.out + ended.err


@pytest.mark.parametrize("stranger, tls", [("proxy", True), ("server", False), ("server", True)], ids=["proxy", "server", "server_behind_https"])
def test_tls_is_verified_through_a_tunnel(tmp_path, secure, stranger, tls):
    """The server's certificate, and before it that of the proxy: its login is for the proxy alone."""
    account = secure.account()
    own = tmp_path / "own"
    own.mkdir()
    ca = make_certificates(own)
    with ConnectProxy(own / "broker.pem" if tls else None) as proxy:
        p = Paying(tmp_path, account, ca=ca if stranger == "server" else secure.ca, proxy="env:PROXY", attempts=2, more="patience: 200ms\n")
        ended = p.try_run(env={"PROXY": proxy.url(SECRETS["LOGIN"])})
    assert not account.requests() and bool(proxy.heads) == (stranger == "server"), ended
    if stranger == "server" and tls:  # libcurl 7.88 does not say what is wrong with TLS inside of TLS
        assert ended.json["done"] == ended.json["unknown"] == 0 and "nothing was sent" in ended.err, ended
        return
    assert ended.status == 3 and "is paused" in ended.err and "certificate" in ended.err.lower(), ended
    counts(ended.json, received=1, waiting=1, paused=1)


class Chatterer:
    """HTTP/1.1 with TLS: answers each lookup with 200, and says 404 unasked a little later."""

    def __init__(self, certificate):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.num_tickets = 0
        self.listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.port, self.requests = self.listener.getsockname()[1], 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            while b"\r\n\r\n" in connection.recv(65536):
                self.requests += 1
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                time.sleep(0.05)
                connection.sendall(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n{}")
        except OSError:
            pass


def test_f81_what_one_server_speaks_says_nothing_of_another(tmp_path, secure):
    """The gateway speaks HTTP/2, and the one that is asked HTTP/1.1: what it says unasked is no answer to the next question."""
    chatterer = Chatterer(secure.certificates / "broker.pem")
    account = secure.account(honour=False)
    account.fault(path="/charges/k0", status=500, charge=True)
    account.fault(path="/charges/k1", status=500, charge=True, after_s=0.7)  # its question comes when the other one is long over
    p = Paying(tmp_path, account, n=2, ca=secure.ca, lookup=f'{{get: "https://127.0.0.1:{chatterer.port}/${{/id}}", after: 1ms}}')
    counts(p.run(status=0), received=2, done=2)
    chatterer.listener.close()
    assert {each["version"] for each in account.requests()} == {"2"} and account.per_reference() == {"k0": 1, "k1": 1}
    assert chatterer.requests == 2


# ---- secrets ----

SECRETS = {"TOKEN": "tok-3cf1a9", "API_KEY": "key-77be02", "LOGIN": "user:pass-91d4"}


def everything_printed(p, env):
    """All that any verb prints about it, with the log at its most talkative."""
    said = []
    for arguments in (("check",), ("run", "--log-level", "debug"), ("run", "--json", "--log-format", "json"), ("status",), ("status", "--json"),
                      ("list",), ("list", "--json", "--body"), ("list", "--unknown", "--json"), ("list", "--dead")):
        ended = p.once(arguments[0], *arguments[1:], p.name, env=env)
        said.append(ended.out + ended.err)
    for key in p.keys():
        ended = p.once("explain", p.name, key, env=env)
        said.append(ended.out + ended.err)
    return "\n".join(said)


@pytest.mark.parametrize("field", ["bearer", "basic"])
@pytest.mark.parametrize("how", ["env", "file"])
def test_secrets_are_sent_and_never_shown(tmp_path, gateway, how, field):
    """Also when the gateway says them back, in a reason or a result."""
    name = "TOKEN" if field == "bearer" else "LOGIN"
    login = base64.b64encode(SECRETS["LOGIN"].encode()).decode()
    secrets = [SECRETS["API_KEY"], SECRETS[name], *([login] if field == "basic" else [])]
    account = gateway.account()
    echo = json.dumps({"you_sent": secrets})
    account.fault(path="/charges/k0", status=201, body=echo, charge=True)
    account.fault(path="/charges/k1", status=400, body=echo)
    account.fault(path="/charges/k2", status=500, body=echo)
    account.fault(path="/charges/k3", raw=" ".join(secrets) + "\r\n\r\n")
    account.fault(path="/charges/k4", status=302, headers={"Location": "http://x/" + secrets[1]})
    for each, value in SECRETS.items():
        (tmp_path / each).write_text(value + "\n")
    p = Paying(tmp_path, account, n=5, headers=f'{{X-Api-Key: "{how}:API_KEY"}}', **{field: f"{how}:{name}"})
    said = everything_printed(p, SECRETS if how == "env" else {})
    for secret in secrets:
        assert secret not in said, f"{secret} is shown: {[line for line in said.splitlines() if secret in line]}"
    sent = account.requests()[-1]["headers"]
    assert sent["x-api-key"] == SECRETS["API_KEY"]
    assert sent["authorization"] == (f"Bearer {SECRETS['TOKEN']}" if field == "bearer" else f"Basic {login}")
    assert json.loads(p.explain("k0")[0]["result"]) == {"status": 201, "body": {"you_sent": ["***"] * len(secrets)}}


def test_secrets_do_not_go_to_another_host(tmp_path, gateway):
    account = gateway.account(honour=False)
    account.fault(method="POST", cut=0)
    other = account.url("/charges/${idempotency_key}").replace("127.0.0.1", "localhost")
    p = Paying(tmp_path, account, bearer="env:TOKEN", lookup=f'{{get: "{other}", after: 1ms}}')
    p.run(status=0, env=SECRETS)
    assert "authorization" not in account.lookups()[0]["headers"] and account.tries()[0]["headers"]["authorization"]
    same = gateway.account(honour=False)
    same.fault(method="POST", cut=0)
    p = Paying(tmp_path / "same", same, bearer="env:TOKEN", lookup=lookup(same))
    p.run(status=0, env=SECRETS)
    assert same.lookups()[0]["headers"]["authorization"] == f"Bearer {SECRETS['TOKEN']}"


TOKEN_COMMAND = """#!/bin/sh
echo asked >> asked
cat token
"""


def test_a_token_from_a_command_is_renewed_when_401_says_so(tmp_path, gateway):
    """Each 401 is heard before anything is charged, so the request may be sent again; the old and the new token are shown nowhere."""
    account = gateway.account(honour=False, token="first-7e1c55")
    p = Paying(tmp_path, account, n=3, window=1, bearer="{exec: [./token-command]}")
    (tmp_path / "token-command").write_text(TOKEN_COMMAND)
    (tmp_path / "token-command").chmod(0o755)
    (tmp_path / "token").write_text("first-7e1c55\n")
    said = p.once("run", "--log-level", "debug", p.name)
    assert said.status == 0, said
    (tmp_path / "token").write_text("second-90ab1f\n")
    account.set(token="second-90ab1f")
    account.fault(path="/charges/k4", status=401, times=1)  # it ends in the middle of a run
    p.write(*({"id": f"k{i}", "amount": i} for i in range(6)))
    ended = p.try_run("--log-level", "debug")
    assert ended.status == 0 and ended.json["done"] == 3, ended
    assert account.per_reference() == {f"k{i}": 1 for i in range(6)}
    assert "first-7e1c55" not in said.out + said.err + ended.out + ended.err and "second-90ab1f" not in ended.out + ended.err
