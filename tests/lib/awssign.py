"""Signs requests with botocore, for comparison: reads a JSON text per line, writes the value of Authorization per line.

    {"method", "url", "headers": {name: value}, "body", "id", "secret", "token", "region", "service", "time"}"""

import json
import sys

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials


def authorization(r):
    request = AWSRequest(r["method"], r["url"], headers=r["headers"], data=r["body"].encode("latin-1"))
    auth = SigV4Auth(Credentials(r["id"], r["secret"], r["token"] or None), r["service"], r["region"])
    request.context["timestamp"] = r["time"]
    auth._modify_request_before_signing(request)
    canonical = auth.canonical_request(request)
    auth._inject_signature_to_request(request, auth.signature(auth.string_to_sign(request, canonical), request))
    return request.headers["Authorization"]


for line in sys.stdin:
    print(authorization(json.loads(line)))
