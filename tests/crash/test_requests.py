"""Requests over HTTP, and kills just before one is sent and just after it was answered: what the gateway charged against what is reported."""

import os

import pytest

from crashes import at_once
from gateway import Gateway
from harness import Pipeline, check_sum
from test_matrix import HTTP

N = 6
WAYS = {  # does the gateway honour keys; what the handler has
    "honoured": (True, "unknown: retry"),
    "looked_up": (False, "unknown: hold"),
    "held": (False, "unknown: hold"),
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("gateway")) as server:
        yield server


def pipeline(folder, account, way):
    lookup = f', lookup: {{get: "{account.url("/charges/${idempotency_key}")}", after: 10ms}}' if way == "looked_up" else ""
    os.makedirs(folder, exist_ok=True)
    p = Pipeline(str(folder), f'''
key: "${{/id}}"
lease: 1s
retry: {{backoff: 10ms..50ms}}
handler:
  http: {{post: "{account.url("/charges")}", window: 2{lookup}}}
  {WAYS[way][1]}
''')
    p.write(*({"id": f"k{n}"} for n in range(N)))
    return p


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("point", HTTP, ids=lambda point: ("f02_" if point.endswith("before") else "f05_f69_") + point)
def test_killed_at(tmp_path, gateway, point, way):
    def one(hit):
        account = gateway.account(honour=WAYS[way][0])
        p = pipeline(tmp_path / str(hit), account, way)
        ended = p.try_run(failpoint=f"{point}:kill:{hit}")
        assert ended.killed, f"{point} was not reached: {ended}"
        for _ in range(2):  # what was in flight is claimed until its lease ends; then the deliveries of the second run find it
            ended = p.try_run()
            check_sum(ended.json)
        charges = account.per_reference()
        assert set(charges.values()) <= {1}, "nobody pays twice"
        if way == "held":
            assert 0 < ended.json["unknown"] <= 2 and N - len(charges) <= ended.json["unknown"], ended
        else:
            assert ended.json["unknown"] == 0 and len(charges) == N, ended

    at_once(one, [1, 3])


@pytest.mark.parametrize("point, outcome", [("http_before", "retries"), ("http_after", "unknown")])
def test_f69_a_failure_reported_at(tmp_path, gateway, point, outcome):
    account = gateway.account(honour=False)
    p = pipeline(tmp_path, account, "held")
    ended = p.try_run(failpoint=f"{point}:error")
    assert ended.json[outcome] == 1 and set(account.per_reference().values()) == {1} and len(account.charges()) == N, ended
