"""A pipeline whose effect is a charge at the payment gateway (gateway.py), and what the ledger says against what `once` says."""

import os

from anystore import Any

CONFIG = """
key: "${/id}"
lease: %(lease)s
unknown: %(unknown)s
retry: {attempts: %(attempts)d, backoff: 1ms..20ms}
%(more)shandler:
  http:
%(http)s
%(then)s"""


class Paying(Any):
    def __init__(self, folder, account, n=1, store="sqlite:store.db", consumer="c", lease=None, unknown="hold", attempts=50, more="", then="", path="/charges/${/id}",
                 method="post", **http):
        """`http`: fields of the effect, each as it stands in the file; `unknown_` is the list of statuses. `path` None: `http` has the method,
        too."""
        os.makedirs(folder, exist_ok=True)
        self.account, self.n, self.unknown = account, n, unknown
        fields = {**({method: f'"{account.url(path)}"'} if path else {}), "timeout": "5s", **http}
        lines = "\n".join(f"    {name.rstrip('_')}: {value}" for name, value in fields.items())
        lease = lease or ("300ms" if store.startswith("sqlite:") else "1s")  # the shortest that a server may have
        super().__init__(str(folder), store, CONFIG % {"lease": lease, "unknown": unknown, "attempts": attempts, "more": more, "http": lines, "then": then},
                         consumer)
        self.write(*[{"id": f"k{i}", "amount": i} for i in range(n)])

    def keys(self):
        return {f"k{i}" for i in range(self.n)}

    def lookup(self, path="/charges/${idempotency_key}", **fields):
        """The value of the field `lookup`."""
        return lookup(self.account, path, **fields)

    # ---- what is true of both ----

    def real_repeats(self):
        return sum(count - 1 for count in self.account.per_reference().values())

    def states(self):
        """State and reason of each key."""
        found = {}
        for key in sorted(self.keys()):
            (entry,) = self.explain(key)
            found[key] = (entry["state"], entry.get("reason"))
        return found

    def one_request_per_attempt(self):
        """Whatever happened, each attempt of a key was sent at most once."""
        sent = [(each["key"], each["attempt"]) for each in self.account.tries()]
        assert len(sent) == len(set(sent)), f"sent twice: {sorted(one for one in sent if sent.count(one) > 1)}"


def lookup(account, path="/charges/${idempotency_key}", **fields):
    given = {"get": f'"{account.url(path)}"', "after": "1ms", **fields}
    return "{" + ", ".join(f"{name}: {value}" for name, value in given.items()) + "}"
