"""Charges payments: one JSON line in, one JSON line out, for as long as the pipeline runs."""
import json
import sys

for line in sys.stdin:
    message = json.loads(line)
    reply = {"id": message["id"]}
    try:
        if message["body"]["amount"] > 1000:
            reply.update(outcome="rejected", reason="over the limit")
        else:
            # Every attempt at a message has the same idempotency key: pass it on to the gateway.
            reply.update(outcome="done", result={"receipt": "r-" + message["idempotency_key"][:8]})
    except KeyError as missing:
        reply.update(outcome="dead", reason=f"no field {missing}")
    print(json.dumps(reply), flush=True)
