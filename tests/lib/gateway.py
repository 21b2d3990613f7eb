"""A payment gateway on loopback, in a process of its own (gatewayserver.py), with its charges in a ledger on disk.

    with Gateway(tmp_path) as gateway:
        account = gateway.account(honour=False)            # the gateway of one test: its own path, ledger, faults
        account.fault(status=500, charge=True, times=1)    # the next one is charged, and answered with 500
        ... `once` posts to account.url("/charges") ...
        assert account.per_key() == {"k0": 1}

`POST ACCOUNT/charges[/REFERENCE]` (any method but GET and HEAD, any path) charges, and answers 201 with a `charge_id`. The reference is the
last part of the path, or `id` of the body. `GET ACCOUNT/charges/X` answers 200 or 404: X is an idempotency key or a reference. An account
that honours keys charges once for each `Idempotency-Key`: while the first request of a key is at work, another gets 409; afterwards it
gets the same answer, and 422 when its body is another one. An account with `known` charges once for each reference: another key for it is
answered with that status, and with the charge that there is.

`fault(...)` makes one rule; the first rule that fits a request decides. Which requests:
    method, path, key        of these; `path` is a part of it
    times, skip              the next `times` (None: all) that fit, after `skip` of them
    share                    0..1: by chance, with the account's seed
    one_in=n                 one of each n that fit; the seed says which
    reused=True              only those that are not the first of their connection
What happens:
    charge=True|False        whether money moves (True unless `status` is given)
    before_s, after_s        how long it stalls before and after it charges; a number, or [from, to]. A charge happens although the
                             client has gone meanwhile, and does not if the gateway was killed
    status, headers, body    this answer; `@n` in `body` is the number of the request
    cut=n | "random"         the connection is reset after n bytes of the answer; cut_close=True: closed in order
    hang=True                no answer, and the connection stays open
    raw="text"               these bytes in place of an answer
    die="before"|"after"     the gateway kills itself, before or after it charges
    refuse=True, goaway=True of HTTP/2: RST_STREAM with REFUSED_STREAM; GOAWAY that names no stream

Everything is read from its files, also while it is down."""

import collections
import json
import os
import signal
import subprocess
import sys
import time

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gatewayserver.py")


def read_lines(path):
    """Whole lines of JSON; the last one may be half written."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def http_date(ahead_s):
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + ahead_s))


class Account:
    def __init__(self, gateway, name, **settings):
        self.gateway, self.name = gateway, name
        self.folder = os.path.join(gateway.folder, name)
        os.makedirs(self.folder)
        self.control = {"honour": True, "known": None, "token": None, "gives_up_s": None, "seed": 1, "faults": []}
        self._faults = 0
        self.set(**settings)

    def url(self, path=""):
        return f"{self.gateway.address}/{self.name}{path}"

    # ---- what it is told ----

    def set(self, **settings):
        """`honour` keys, the status of a reference that is `known` (None: it is charged again), the `token` that it wants (None: none), `gives_up_s` (a charge does not happen later than so long after its request
        was read), the `seed` of its faults."""
        self.control.update(settings)
        path = os.path.join(self.folder, "control")
        with open(path + ".new", "w") as file:
            json.dump(self.control, file)
        os.rename(path + ".new", path)

    def fault(self, **how):
        self._faults += 1
        self.set(faults=[*self.control["faults"], {"id": self._faults, **how}])

    def heal(self):
        self.set(faults=[])

    # ---- what happened ----

    def charges(self):
        """Of the ledger: id, key, reference, attempt, amount."""
        return read_lines(os.path.join(self.folder, "ledger"))

    def per_reference(self):
        return collections.Counter(charge["reference"] for charge in self.charges())

    def requests(self, method=None):
        """Each request that was read: n, at (monotonic), fault (its number, or None), method, path, key, attempt, headers, body, connection,
        place (on it), version, `charged`, and, when it came to that, `status` and `over`: when it was about to be answered."""
        found = {}
        for line in read_lines(os.path.join(self.folder, "requests")):
            found.setdefault((line["run"], line["n"]), {}).update(line)
        return [each for each in found.values() if method in (None, each["method"])]

    def heard(self):
        """A number that is another one when more requests were read or answered; costs less than `requests`."""
        path = os.path.join(self.folder, "requests")
        return os.path.getsize(path) if os.path.exists(path) else 0

    def tries(self):
        """Requests that ask for a charge."""
        return [each for each in self.requests() if each["method"] not in ("GET", "HEAD")]

    def lookups(self):
        return self.requests("GET")


class Gateway:
    def __init__(self, folder, tls=None, client_ca=None, http2=False):
        """`tls`: a file with key and certificate. `client_ca`: clients must show a certificate of it."""
        self.folder = os.path.join(folder, "gateway")
        os.makedirs(self.folder)
        self.arguments = [word for option, value in (("--tls", tls), ("--client-ca", client_ca)) if value for word in (option, str(value))]
        self.arguments += ["--http2"] if http2 else []
        self.port, self.process, self.accounts, self.starts = 0, None, 0, 0
        self.start()
        self.address = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        """Also after it was killed: at the same port, with what its files say."""
        self.starts += 1
        self.process = subprocess.Popen([sys.executable, "-I", SERVER, "--folder", self.folder, "--port", str(self.port), "--run", str(self.starts),
                                         *self.arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        said = self.process.stdout.readline()
        assert said, "the gateway did not start"
        self.port = int(said)

    def kill(self):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def ended(self):
        return self.process is None or self.process.poll() is not None

    def restart(self):
        self.kill()
        self.start()

    def account(self, **settings):
        self.accounts += 1
        return Account(self, f"a{self.accounts}", **settings)
