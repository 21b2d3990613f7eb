"""The process of the payment gateway; gateway.py says what it does and how it is told.

Files of an account: `control` (what tests ask for, read again when it has changed), `ledger` (a line for each charge, synced before anybody
hears of it), `requests` (a line for each request when it was read, and one when it is over)."""

import argparse
import hashlib
import http.client
import http.server
import json
import os
import random
import re
import signal
import socket
import struct
import sys
import threading
import time


class Log:
    """Lines of JSON, each written at once; half a line of a process that was killed is cut off."""

    def __init__(self, path, sync):
        self.sync = sync
        self.file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        data = b"".join(iter(lambda: os.read(self.file, 1 << 20), b""))
        whole = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
        os.ftruncate(self.file, len(whole))
        self.lines = [json.loads(line) for line in whole.splitlines()]

    def write(self, line):
        os.write(self.file, json.dumps(line).encode() + b"\n")
        if self.sync:
            os.fsync(self.file)


class Request:
    def __init__(self, method, path, headers, body, connection, place, version):
        self.version = version
        self.method, self.headers, self.body = method, {name.lower(): value for name, value in headers}, body
        self.account, _, rest = path.lstrip("/").partition("/")
        self.path = "/" + rest
        self.connection, self.place = connection, place
        self.key = self.headers.get("idempotency-key")
        self.until = None  # when the gateway gives up to charge

    def reference(self):
        """What this payment is called by the one who asks."""
        try:
            named = json.loads(self.body).get("id")
        except (ValueError, AttributeError):
            named = None
        last = self.path.split("?")[0].rstrip("/").split("/")[-1]
        return str(named) if named is not None else last

    def amount(self):
        try:
            return json.loads(self.body).get("amount")
        except (ValueError, AttributeError):
            return None

    def is_question(self):
        return self.method in ("GET", "HEAD") and not self.path.startswith("/pay")  # a charge by GET exists, too


class Answer:
    def __init__(self, status, body, headers=()):
        self.status, self.headers = status, list(dict(headers).items())
        self.body = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self.json = not isinstance(body, (bytes, str))


class Account:
    def __init__(self, folder, run):
        self.folder, self.run = folder, run
        self.lock = threading.Lock()
        self.ledger = Log(os.path.join(folder, "ledger"), sync=True)
        self.seen = Log(os.path.join(folder, "requests"), sync=False)
        self.charges, self.by_key, self.at_work, self.count, self.used = {}, {}, set(), 0, {}
        self.control_id, self.control, self.rng = None, None, None
        for charge in self.ledger.lines:
            self.enter(charge)

    def enter(self, charge):
        self.charges.setdefault(charge["reference"], charge)
        if charge["key"]:
            self.by_key.setdefault(charge["key"], charge)

    def read_control(self):
        path = os.path.join(self.folder, "control")
        status = os.stat(path)
        if (status.st_ino, status.st_mtime_ns) == self.control_id:
            return
        self.control_id = (status.st_ino, status.st_mtime_ns)
        with open(path) as file:
            self.control = json.load(file)
        if self.rng is None:
            self.rng = random.Random(f"{self.control['seed']}/{self.run}")

    def begin(self, request):
        """The number of this request, and the fault that it meets."""
        with self.lock:
            self.read_control()
            request.until = time.monotonic() + (self.control["gives_up_s"] or float("inf"))
            self.count += 1
            fault = self.pick(request)
            self.seen.write({"run": self.run, "n": self.count, "at": time.monotonic(), "fault": fault.get("id"), "method": request.method,
                             "path": request.path, "key": request.key, "attempt": int(request.headers.get("once-attempt") or 0), "headers": request.headers,
                             "body": request.body.decode("latin-1")[:10000], "connection": request.connection, "place": request.place, "version": request.version, "charged": False})
            return self.count, fault

    def pick(self, request):
        for fault in self.control["faults"]:
            fits = (fault.get("method") in (None, request.method) and fault.get("path", "") in request.path and fault.get("key") in (None, request.key)
                    and (not fault.get("reused") or request.place > 1) and self.rng.random() < fault.get("share", 1))
            if not fits:
                continue
            used = self.used[fault["id"]] = self.used.get(fault["id"], 0) + 1
            if "one_in" in fault and not self.is_turn(fault, used):
                continue
            if used > fault.get("skip", 0) and (fault.get("times") is None or used <= fault.get("skip", 0) + fault["times"]):
                return fault
        return {}

    def is_turn(self, fault, used):
        """Of each `one_in` requests it is one, and chance says only which."""
        group, place = divmod(used - 1, fault["one_in"])
        return random.Random(f"{self.control['seed']}/{self.run}/{fault['id']}/{group}").randrange(fault["one_in"]) == place

    def end(self, number, **what):
        with self.lock:
            self.seen.write({"run": self.run, "n": number, "over": time.monotonic(), **what})

    def seconds(self, fault, name):
        value = fault.get(name, 0)
        return self.rng.uniform(*value) if isinstance(value, list) else value

    # ---- what a gateway does ----

    def refused(self, request):
        token = self.control["token"]
        if token and request.headers.get("authorization") != f"Bearer {token}":
            return Answer(401, {"error": "who are you?"})
        return None

    def look_up(self, request):
        name = request.path.split("?")[0].rstrip("/").split("/")[-1]
        with self.lock:
            charge = self.by_key.get(name) or self.charges.get(name)
        return Answer(200, told(charge)) if charge else Answer(404, {"error": "no such charge"})

    def charge(self, request, fault, number):
        """Under the account's own rule about keys. The answer of a gateway that works."""
        digest = hashlib.sha256(request.body).hexdigest()
        honoured = self.control["honour"] and request.key
        with self.lock:
            before = self.by_key.get(request.key) if honoured else None
            if before:
                return Answer(201, told(before), {"Idempotent-Replayed": "true"}) if before["body"] == digest else Answer(422, {"error": "another body"})
            if honoured and request.key in self.at_work:
                return Answer(409, {"error": "it is at work"})
            self.at_work.add(request.key)
        try:
            time.sleep(self.seconds(fault, "before_s"))
            with self.lock:
                if time.monotonic() > request.until:
                    return Answer(504, {"error": "given up"})
                before = self.charges.get(request.reference()) if self.control["known"] else None
                if before:
                    return Answer(self.control["known"], told(before))
                charge = {"id": f"ch_{len(self.ledger.lines) + 1}", "key": request.key, "reference": request.reference(), "amount": request.amount(),
                          "attempt": int(request.headers.get("once-attempt") or 0), "body": digest}
                self.ledger.write(charge)
                self.ledger.lines.append(charge)
                self.enter(charge)
                self.seen.write({"run": self.run, "n": number, "charged": True})
        finally:
            with self.lock:
                self.at_work.discard(request.key)
        return Answer(201, told(charge))

    def serve(self, request, transport):
        number, fault = self.begin(request)
        answer = self.refused(request)
        if answer is None and fault.get("die") == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if answer is None and request.is_question():
            answer = self.look_up(request)
            time.sleep(self.seconds(fault, "before_s"))
        elif answer is None and fault.get("charge", "status" not in fault):
            answer = self.charge(request, fault, number)
        elif answer is None:
            time.sleep(self.seconds(fault, "before_s"))
            answer = Answer(200, "")
        if fault.get("die") == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds(fault, "after_s"))
        if "status" in fault or "body" in fault:
            body = fault["body"].replace("@n", str(number)) if "body" in fault else answer.body
            answer = Answer(fault.get("status", answer.status), body, fault.get("headers", {}))
        self.end(number, status=None if fault.get("hang") else answer.status)
        transport.reply(answer, fault, self.rng)


def told(charge):
    return {"charge_id": charge["id"], "status": "succeeded", "reference": charge["reference"], "amount": charge["amount"]}


class Bank:
    """All accounts, each made when it is first used."""

    def __init__(self, folder, run):
        self.folder, self.run, self.accounts, self.lock, self.connections = folder, run, {}, threading.Lock(), 0

    def account(self, name):
        with self.lock:
            if name not in self.accounts and re.fullmatch("[a-z0-9]+", name) and os.path.exists(os.path.join(self.folder, name, "control")):
                self.accounts[name] = Account(os.path.join(self.folder, name), self.run)
            return self.accounts.get(name)

    def connected(self):
        with self.lock:
            self.connections += 1
            return self.connections

    def serve(self, request, transport):
        account = self.account(request.account)
        if account:
            account.serve(request, transport)
        else:
            transport.reply(Answer(404, {"error": "no such account"}), {}, None)


# ---- HTTP/1.1 ----

def cut_length(fault, whole, rng):
    cut = fault.get("cut")
    return rng.randrange(len(whole)) if cut == "random" else cut


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 65536
    bank = None

    def setup(self):
        super().setup()
        self.number, self.place = self.bank.connected(), 0

    def handle(self):
        if getattr(self.connection, "selected_alpn_protocol", lambda: None)() == "h2":
            import gatewayhttp2  # pylint: disable=import-outside-toplevel
            return gatewayhttp2.serve(self.connection, self.number, self.bank, Request)
        try:
            return super().handle()
        except OSError:  # the client has gone
            return None

    def log_message(self, *_):
        pass

    def read_body(self):
        if (self.headers.get("Transfer-Encoding") or "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def has_gone(self):
        """The client, before its request was read: nobody waits for this charge."""
        if not isinstance(self.connection, socket.socket) or hasattr(self.connection, "cipher"):
            return False
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def any(self):
        self.place += 1
        body = self.read_body()
        if len(body) < int(self.headers.get("Content-Length") or 0) or self.has_gone():
            self.close_connection = True
            return
        self.bank.serve(Request(self.command, self.path, self.headers.items(), body, self.number, self.place, "1.1"), self)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = any

    def reply(self, answer, fault, rng):
        if fault.get("hang"):
            return self.hang()
        whole = fault["raw"].encode("latin-1") if "raw" in fault else self.written(answer)
        cut = cut_length(fault, whole, rng)
        if cut == 0 and not fault.get("cut_close"):
            return self.reset()
        self.wfile.write(whole[:cut])
        self.wfile.flush()
        if cut is not None and not fault.get("cut_close"):
            return self.reset()
        self.close_connection = cut is not None or "raw" in fault or self.close_connection
        return None

    def written(self, answer):
        names = {name.lower() for name, _ in answer.headers}
        head = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, 'Unheard Of')}", *(f"{name}: {value}" for name, value in answer.headers)]
        head += ["Content-Type: application/json"] if "content-type" not in names else []
        head += [f"Content-Length: {len(answer.body)}"] if answer.status not in (204, 304) and "content-length" not in names else []
        return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1") + (b"" if self.command == "HEAD" or answer.status in (204, 304) else answer.body)

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def hang(self):
        """Until the client closes."""
        self.close_connection = True
        while self.connection.recv(4096):
            pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
    tls = None

    def finish_request(self, request, client_address):
        if self.tls:
            try:
                request = self.tls.wrap_socket(request, server_side=True)
            except OSError:  # a client that does not like our certificate, or shows none
                return
        super().finish_request(request, client_address)

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def tls_context(arguments):
    import ssl  # pylint: disable=import-outside-toplevel
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(arguments.tls)
    context.set_alpn_protocols((["h2"] if arguments.http2 else []) + ["http/1.1"])
    if arguments.client_ca:
        context.load_verify_locations(arguments.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--tls")
    parser.add_argument("--client-ca")
    parser.add_argument("--http2", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    Handler.bank = Bank(arguments.folder, arguments.run)
    server = Server(("127.0.0.1", arguments.port), Handler)
    server.tls = tls_context(arguments) if arguments.tls else None
    print(server.server_address[1], flush=True)
    server.serve_forever(poll_interval=60)


if __name__ == "__main__":
    main()
