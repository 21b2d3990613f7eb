"""docs/http.md and examples/http: every pipeline is accepted or run, and every test that the page names exists."""

import glob
import os
import re
import shutil
import sqlite3

import pytest

from gateway import Gateway
from harness import ROOT, once

SECRETS = {name: "not-shown" for name in ("PAY_TOKEN", "MAIL_TOKEN", "STOCK_KEY", "MAIL_KEY", "ACME_TOKEN")}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


PAGE = read("docs/http.md")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
REST = {"consumer": "docs", "store": "sqlite:docs.db", "source": "{file: {path: m.ndjson}}", "key": '"${/id}"'}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_pipeline_of_the_page_is_accepted(tmp_path, number):
    text = BLOCKS[number]
    text += "".join(f"{name}: {value}\n" for name, value in REST.items() if not re.search(rf"^{name}:", text, re.M))
    (tmp_path / "p.yaml").write_text(text)
    for name in ("pay-credentials", "bank-ca.pem", "client.pem", "client.key", "token"):
        (tmp_path / name).write_text("user:not-shown")
        (tmp_path / name).chmod(0o700)
    for name in ("m.ndjson", "payments.ndjson"):
        (tmp_path / name).write_text("")
    ended = once("check", "p.yaml", cwd=tmp_path, env=SECRETS)
    assert ended.status == 0 and "fenced: never lost" in ended.out, ended
    assert "not-shown" not in ended.out + ended.err


def test_every_test_that_the_page_names_exists():
    names = set(re.findall(r"\| `(\w+)` \|$", PAGE, re.M))
    assert len(names) > 8
    known = "".join(read(os.path.relpath(path, ROOT)) for kind in ("unit/test_http*.c", "integration/test_http*.py", "integration/test_pause.py")
                    for path in glob.glob(os.path.join(ROOT, "tests", kind)))
    assert {name for name in names if not re.search(rf"\b(def|TEST)\b *\(?{name}\b", known)} == set()


def test_the_page_quotes_what_the_product_says():
    sources = "".join(read(os.path.relpath(path, ROOT)) for path in glob.glob(os.path.join(ROOT, "src", "effect", "**", "http*", "*.c"), recursive=True) +
                      glob.glob(os.path.join(ROOT, "src", "effect", "http*.c")))
    sources = re.sub(r'"\n\s*"', "", sources)
    for words in ("no answer within %s", "no connection within %s", "the connection was closed before an answer came", "nothing was sent",
                  ", but 'done_if' is not met", "a value makes a step '.' or '..' in the path of the URL",
                  "has a control character, which no header can carry", "the command of 'bearer' ended with status %d"):
        assert words in sources, words
        assert re.split("%|^, ", words)[-1 if words[0] == "," else 0].strip() in PAGE, words


class Example:
    """A pipeline of examples/http, against a gateway in place of its servers."""

    def __init__(self, name, folder, hosts):
        self.folder, self.name = folder / "example", name
        shutil.copytree(os.path.join(ROOT, "examples", "http"), self.folder)
        text = read(f"examples/http/{name}").replace("after: 20s", "after: 100ms").replace("1s..1h", "10ms..20ms")
        for host, account in hosts.items():
            assert host in text
            text = text.replace(host, account.url())
        (self.folder / name).write_text(text)

    def change(self, old, new):
        path = self.folder / self.name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def run(self):
        assert once("check", self.name, cwd=self.folder, env=SECRETS).status == 0
        ended = once("run", "--json", self.name, cwd=self.folder, env=SECRETS)
        assert "not-shown" not in ended.err
        return ended.json


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("gateway")) as server:
        yield server


def test_example_charge_asks_before_it_charges_again(tmp_path, gateway):
    account = gateway.account(honour=False, token="not-shown")
    example = Example("charge.yaml", tmp_path, {"https://pay.example": account})
    example.change("rejected: [402]", "rejected: [402]\n    window: 1")  # one after the other
    account.fault(status=402, charge=False, method="POST", skip=2)      # p3 comes last
    account.fault(cut=0, method="POST", skip=1, times=1)                # p2 is charged, and its answer is lost
    summary = example.run()
    assert (summary["done"], summary["rejected"], summary["duplicates"]) == (2, 1, 1), summary
    assert account.per_reference() == {"p1": 1, "p2": 1} and len(account.lookups()) == 1
    charges = {charge["reference"]: charge["id"] for charge in account.charges()}
    with sqlite3.connect(example.folder / "charges.db") as db:
        assert dict(db.execute("SELECT payment_id, charge_id FROM charges")) == charges
    assert len({each["key"] for each in account.tries()}) == 3
    assert example.run()["attempts"] == 0


def test_example_email_is_sent_again_under_the_same_key(tmp_path, gateway):
    account = gateway.account(honour=True)
    example = Example("email.yaml", tmp_path, {"https://mail.example": account})
    account.fault(cut=0, times=1)  # sent, and the answer is lost
    summary = example.run()
    assert (summary["done"], summary["duplicates"], summary["repeats"]) == (2, 1, 1), summary
    assert len(account.charges()) == 2 and len(account.tries()) == 3


def test_example_webhooks_wait_for_the_customer_who_is_down(tmp_path, gateway):
    acme, globex = gateway.account(), gateway.account()
    example = Example("webhooks.yaml", tmp_path, {"https://hooks.acme.example": acme, "https://globex.example": globex})
    globex.fault(status=503, headers={"Retry-After": "1"}, charge=False, times=2)
    summary = example.run()
    assert (summary["done"], summary["duplicates"], summary["retries"]) == (4, 1, 2), summary
    assert (len(acme.tries()), len(globex.tries())) == (2, 4)
    assert {each["path"].rsplit("/", 1)[1] for each in globex.tries()} == {"order.placed", "order.shipped"}
