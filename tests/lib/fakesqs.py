"""A small SQS for tests, in a process of its own: the JSON protocol, with signatures, and faults on demand. The same server is an STS,
a container's credentials and an instance's metadata.

    with FakeSqs() as sqs:
        url = sqs.create("orders", VisibilityTimeout=30)
        sqs.send("orders", '{"id": 1}')
        sqs.fault("DeleteMessageBatch", entries=3)          # the next one fails for three of its entries
        ... start `once` with env=sqs.env() and endpoint sqs.address ...
        assert sqs.messages("orders") == []

What it checks and answers follows the documentation of SQS. Signatures are verified here by code of its own. Time is real, and
`advance(s)` moves the clock of the queues (visibility, delays), `skew(s)` that of the server (signatures, header Date).

Faults of `fault(action, ...)`, each for the next `times` calls of the action after `skip` calls:
    error=(status, type, text)     an error, nothing done
    entries=n                      n entries of a batch fail (InternalError), the others are done
    delay=s                        it answers later; it is done before
    cut=n                          the connection is reset after n bytes of the answer; done=False: nothing was done
    hang=True                      no answer, and the connection stays open; done=False: nothing was done
    garbage="text"                 this body, with status 200
`freeze()`: all connections of now answer nothing any more, and stay open; new ones work."""

import argparse
import calendar
import hashlib
import hmac
import http.client
import http.server
import json
import os
import re
import secrets
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

ACCOUNT = "000000000000"
BATCH = {"DeleteMessageBatch", "ChangeMessageVisibilityBatch", "SendMessageBatch"}
KEY, SECRET = "AKIDFAKE", "fake-secret-key"
HOURS_12 = 12 * 3600


class Error(Exception):
    def __init__(self, status, kind, text, query=None):
        super().__init__(text)
        self.status, self.kind, self.text, self.query = status, kind, text, query


def sqs_error(kind, text, status=400, query=None):
    return Error(status, f"com.amazonaws.sqs#{kind}", text, query)


def no_queue():
    return sqs_error("QueueDoesNotExist", "The specified queue does not exist.", query="AWS.SimpleQueueService.NonExistentQueue;Sender")


def bad_receipt(text="The input receipt handle is invalid."):
    return sqs_error("ReceiptHandleIsInvalid", text, query="ReceiptHandleIsInvalid;Sender")


def bad_value(text):
    return sqs_error("InvalidParameterValueException", text, query="InvalidParameterValue;Sender")


# ---- signatures ----

def sha256(data):
    return hashlib.sha256(data).hexdigest()


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signature(secret, stamp, scope, canonical):
    date, region, service, _ = scope.split("/")
    key = mac(mac(mac(mac(("AWS4" + secret).encode(), date), region), service), "aws4_request")
    return mac(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode())}").hex()


def verify(keys, service, now, method, path, headers, body):
    """The access key id; an Error if the request is not signed as it must be."""
    def coral(name, text):
        return Error(403 if name.startswith("Inv") or name.startswith("Unr") else 400, f"com.amazon.coral.service#{name}", text)

    form = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/, ]+)/([^, ]+), SignedHeaders=([^, ]+), Signature=([0-9a-f]{64})",
                        headers.get("Authorization") or "")
    if not form:
        raise coral("MissingAuthenticationTokenException", "Missing Authentication Token")
    key_id, scope, names, given = form.groups()
    stamp = headers.get("X-Amz-Date") or ""
    if not re.fullmatch(r"\d{8}T\d{6}Z", stamp) or not re.fullmatch(rf"{stamp[:8]}/[a-z0-9-]+/{service}/aws4_request", scope):
        raise coral("InvalidSignatureException", "Credential should be scoped to a valid region and service.")
    signed = names.split(";")
    wanted = {"host", "x-amz-date"} | ({"x-amz-target", "content-type"} if service == "sqs" else set())
    if headers.get("X-Amz-Security-Token"):
        wanted.add("x-amz-security-token")
    if signed != sorted(signed) or not wanted <= set(signed):
        raise coral("InvalidSignatureException", "'Host' or another header must be signed.")
    key = keys.get(key_id)
    if not key or (key["token"] or "") != (headers.get("X-Amz-Security-Token") or ""):
        raise coral("UnrecognizedClientException", "The security token included in the request is invalid.")
    off = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) - now
    parts = urllib.parse.urlsplit(path)
    query = "&".join("=".join(pair) for pair in sorted(tuple((each.split("=", 1) + [""])[:2]) for each in parts.query.split("&") if each))
    canonical = "\n".join([method, urllib.parse.quote(parts.path, safe="/~"), query,
                           *(f"{name}:{' '.join(','.join(headers.get_all(name)).split())}" for name in signed), "", names, sha256(body)])
    if not hmac.compare_digest(given, signature(key["secret"], stamp, scope, canonical)):
        raise coral("InvalidSignatureException",
                    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and "
                    f"signing method. Consult the service documentation for details. The Canonical String was {canonical}")
    if off < -900:
        raise coral("InvalidSignatureException", f"Signature expired: {stamp} is now earlier than allowed")
    if off > 900:
        raise coral("InvalidSignatureException", f"Signature not yet current: {stamp} is still later than allowed")
    if key["until"] is not None and key["until"] <= now:
        raise coral("ExpiredTokenException", "The security token included in the request is expired")
    return key_id


# ---- queues ----

class Queue:
    """Messages in order. One is a dict: id, body, attributes, system, sent, visible, receipt, receives, first, group, out."""

    def __init__(self, name, attributes):
        self.name, self.fifo = name, name.endswith(".fifo")
        self.attributes = {"VisibilityTimeout": "30", "MessageRetentionPeriod": "345600", "DelaySeconds": "0",
                           "ReceiveMessageWaitTimeSeconds": "0", "MaximumMessageSize": "1048576",
                           "QueueArn": f"arn:aws:sqs:eu-central-1:{ACCOUNT}:{name}", **attributes}
        if self.fifo:
            self.attributes.setdefault("ContentBasedDeduplication", "false")
        self.messages = []
        self.sequence = 0
        self.deduplicated = {}
        self.attempts = {}  # what a receive got, by its ReceiveRequestAttemptId

    def redrive(self):
        policy = self.attributes.get("RedrivePolicy")
        return json.loads(policy) if policy else None


class Sqs:
    """The state, under one lock. `now()` is the time of the queues."""

    def __init__(self):
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.queues, self.keys = {}, {KEY: {"secret": SECRET, "token": None, "until": None}}
        self.log, self.faults = [], []
        self.ahead = self.skew = 0.0
        self.lifetime, self.issued = 3600.0, 0
        self.container_token, self.role, self.imds_tokens = None, "fake-role", set()
        self.frozen = self.connections = 0
        self.waiting = {}  # by the name of the queue: receives under way

    def now(self):
        return time.time() + self.ahead

    def server_now(self):
        return time.time() + self.skew

    def queue(self, url):
        name = (url or "").rstrip("/").rsplit("/", 1)[-1]
        if name not in self.queues:
            raise no_queue()
        return self.queues[name]

    # -- actions, each (body) -> answer --

    def CreateQueue(self, r):
        name = r["QueueName"]
        self.queues.setdefault(name, Queue(name, {key: str(value) for key, value in (r.get("Attributes") or {}).items()}))
        return {"QueueUrl": f"{self.address}/{ACCOUNT}/{name}"}

    def GetQueueUrl(self, r):
        return {"QueueUrl": f"{self.address}/{ACCOUNT}/{self.queue(r['QueueName']).name}"}

    def DeleteQueue(self, r):
        del self.queues[self.queue(r["QueueUrl"]).name]
        return {}

    def PurgeQueue(self, r):
        self.queue(r["QueueUrl"]).messages.clear()
        return {}

    def SetQueueAttributes(self, r):
        self.queue(r["QueueUrl"]).attributes.update(r["Attributes"])
        return {}

    def GetQueueAttributes(self, r):
        q, now = self.queue(r["QueueUrl"]), self.now()
        names = r.get("AttributeNames") or []
        known = dict(q.attributes, CreatedTimestamp="1700000000", LastModifiedTimestamp="1700000000")
        known["ApproximateNumberOfMessages"] = str(sum(m["visible"] <= now for m in q.messages))
        known["ApproximateNumberOfMessagesNotVisible"] = str(sum(m["visible"] > now and m["receipt"] is not None for m in q.messages))
        known["ApproximateNumberOfMessagesDelayed"] = str(sum(m["visible"] > now and m["receipt"] is None for m in q.messages))
        if q.fifo:
            known["FifoQueue"] = "true"
        return {"Attributes": {name: value for name, value in known.items() if "All" in names or name in names}}

    def send_one(self, q, r):
        body = r.get("MessageBody") or ""
        if not body:
            raise sqs_error("MissingRequiredParameterException", "The request must contain the parameter MessageBody.")
        group, unique = r.get("MessageGroupId"), r.get("MessageDeduplicationId")
        if q.fifo and not group:
            raise sqs_error("MissingRequiredParameterException", "The request must contain the parameter MessageGroupId.")
        if q.fifo and not unique:
            unique = sha256(body.encode())
        if q.fifo and unique in q.deduplicated:
            return q.deduplicated[unique]
        now = self.now()
        q.sequence += 1
        message = {"id": str(secrets.token_hex(16)), "body": body, "attributes": r.get("MessageAttributes") or {}, "sent": now,
                   "visible": now + float(r.get("DelaySeconds") or q.attributes["DelaySeconds"]), "receipt": None, "receives": 0,
                   "first": None, "group": group, "unique": unique, "sequence": f"{q.sequence:020}"}
        q.messages.append(message)
        answer = {"MessageId": message["id"], "MD5OfMessageBody": hashlib.md5(body.encode()).hexdigest()}
        if q.fifo:
            q.deduplicated[unique] = answer
        self.changed.notify_all()
        return answer

    def SendMessage(self, r):
        return self.send_one(self.queue(r["QueueUrl"]), r)

    def bury(self, q, message, policy):
        q.messages.remove(message)
        target = self.queues.get(policy["deadLetterTargetArn"].rsplit(":", 1)[-1])
        if target:
            target.messages.append(dict(message, receipt=None, visible=self.now()))

    def take(self, q, limit, hide_s):
        """Messages to give out now. FIFO: none of a group that has one out, and several of one group in order."""
        now, found, policy = self.now(), [], q.redrive()
        busy = {m["group"] for m in q.messages if m["visible"] > now} if q.fifo else set()
        for m in list(q.messages):
            if len(found) == limit:
                break
            if m["visible"] > now or (q.fifo and m["group"] in busy):
                continue
            if policy and m["receives"] >= int(policy["maxReceiveCount"]):
                self.bury(q, m, policy)
                continue
            m.update(receives=m["receives"] + 1, receipt=secrets.token_urlsafe(24), visible=now + hide_s, out=now)
            m["first"] = m["first"] or now
            found.append(m)
        return found

    def again(self, q, attempt, hide_s):
        """What an attempt that is repeated gets: the same messages under the same receipts, as long as they are hidden by it."""
        now, got = self.now(), q.attempts.get(attempt, [])
        held = [m for m, receipt in got if m in q.messages and m["receipt"] == receipt and m["visible"] > now]
        if len(held) < len(got):
            return []
        for m in held:
            m["visible"] = now + hide_s
        return held

    def shown(self, q, m, r):
        system = {"SenderId": "AIDAFAKE", "SentTimestamp": str(int(m["sent"] * 1000)), "ApproximateReceiveCount": str(m["receives"]),
                  "ApproximateFirstReceiveTimestamp": str(int(m["first"] * 1000))}
        if q.fifo:
            system.update(MessageGroupId=m["group"], MessageDeduplicationId=m["unique"], SequenceNumber=m["sequence"])
        asked = set(r.get("MessageSystemAttributeNames") or []) | set(r.get("AttributeNames") or [])
        wanted = r.get("MessageAttributeNames") or []
        answer = {"MessageId": m["id"], "ReceiptHandle": m["receipt"], "Body": m["body"],
                  "MD5OfBody": hashlib.md5(m["body"].encode()).hexdigest()}
        system = {name: value for name, value in system.items() if "All" in asked or name in asked}
        own = {name: value for name, value in m["attributes"].items()
               if any(each in ("All", ".*", name) or (each.endswith(".*") and name.startswith(each[:-2])) for each in wanted)}
        return {**answer, **({"Attributes": system} if system else {}), **({"MessageAttributes": own} if own else {})}

    def ReceiveMessage(self, r):
        q = self.queue(r["QueueUrl"])
        limit = int(r.get("MaxNumberOfMessages", 1))
        wait_s = float(r.get("WaitTimeSeconds", q.attributes["ReceiveMessageWaitTimeSeconds"]))
        hide_s = float(r.get("VisibilityTimeout", q.attributes["VisibilityTimeout"]))
        if not 1 <= limit <= 10 or not 0 <= wait_s <= 20 or not 0 <= hide_s <= HOURS_12:
            raise bad_value("Value for parameter is invalid.")
        attempt = r.get("ReceiveRequestAttemptId") if q.fifo else None
        repeated = self.again(q, attempt, hide_s)
        if repeated:
            return {"Messages": [self.shown(q, m, r) for m in repeated]}
        until = time.monotonic() + wait_s
        self.waiting[q.name] = self.waiting.get(q.name, 0) + 1
        try:
            while True:
                if self.queues.get(q.name) is not q:
                    raise no_queue()
                found = self.take(q, limit, hide_s)
                left = until - time.monotonic()
                if found and attempt:
                    q.attempts[attempt] = [(m, m["receipt"]) for m in found]
                if found or left <= 0:
                    return {"Messages": [self.shown(q, m, r) for m in found]} if found else {}
                self.changed.wait(min(left, 0.05))
        finally:
            self.waiting[q.name] -= 1

    def find(self, q, receipt):
        """The message that this is the last receipt of."""
        if not receipt or not re.fullmatch(r"[A-Za-z0-9_-]{32}", receipt):
            raise bad_receipt()
        return next((m for m in q.messages if m["receipt"] == receipt), None)

    def delete_one(self, q, r):
        m = self.find(q, r.get("ReceiptHandle"))
        if q.fifo and (not m or m["visible"] <= self.now()):
            raise bad_value(f"Value {r['ReceiptHandle']} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.")
        if m:  # an older receipt of a standard queue: success, and nothing is deleted
            q.messages.remove(m)
        return {}

    def change_one(self, q, r):
        m, now, seconds = self.find(q, r.get("ReceiptHandle")), self.now(), r.get("VisibilityTimeout")
        if not isinstance(seconds, int) or not 0 <= seconds <= HOURS_12:
            raise bad_value("Value for parameter VisibilityTimeout is invalid.")
        if not m or m["visible"] <= now:
            raise sqs_error("MessageNotInflight", "The specified message isn't in flight.",
                            query="AWS.SimpleQueueService.MessageNotInflight;Sender")
        if now + seconds > m["out"] + HOURS_12:
            raise bad_value("Total VisibilityTimeout for the message is beyond the limit [43200 seconds]")
        m["visible"] = now + seconds
        self.changed.notify_all()
        return {}

    def DeleteMessage(self, r):
        return self.delete_one(self.queue(r["QueueUrl"]), r)

    def ChangeMessageVisibility(self, r):
        return self.change_one(self.queue(r["QueueUrl"]), r)

    def batch(self, r, one, failing=0):
        q, entries = self.queue(r["QueueUrl"]), r.get("Entries") or []
        if not entries:
            raise sqs_error("EmptyBatchRequest", "There should be at least one entry in the request.")
        if len(entries) > 10:
            raise sqs_error("TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10.")
        ids = [entry.get("Id") or "" for entry in entries]
        if len(set(ids)) < len(ids):
            raise sqs_error("BatchEntryIdsNotDistinct", "Two or more batch entries have the same Id.")
        if not all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", each) for each in ids):
            raise sqs_error("InvalidBatchEntryId", "A batch entry id can only contain alphanumeric characters, hyphens and underscores.")
        good, bad = [], []
        for place, entry in enumerate(entries):
            try:
                if place < failing:
                    raise Error(500, "x#InternalError", "We encountered an internal error.")
                good.append({"Id": entry["Id"], **one(q, entry)})
            except Error as why:
                code = why.kind.split("#")[-1].replace("Exception", "")
                bad.append({"Id": entry["Id"], "Code": code, "Message": why.text, "SenderFault": why.status < 500})
        return {"Successful": good, "Failed": bad}

    def DeleteMessageBatch(self, r, failing=0):
        return self.batch(r, self.delete_one, failing)

    def ChangeMessageVisibilityBatch(self, r, failing=0):
        return self.batch(r, self.change_one, failing)

    def SendMessageBatch(self, r, failing=0):
        return self.batch(r, self.send_one, failing)

    # -- credentials --

    def issue(self):
        self.issued += 1
        key = {"id": f"ASIAFAKE{self.issued:04}", "secret": secrets.token_urlsafe(30), "token": secrets.token_urlsafe(60),
               "until": self.server_now() + self.lifetime}
        self.keys[key["id"]] = key
        return key, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(key["until"]))

    def sts(self, method, path, headers, body):
        form = {name: values[0] for name, values in urllib.parse.parse_qs(body.decode()).items()}
        action = form.get("Action")
        if action == "AssumeRole":
            verify(self.keys, "sts", self.server_now(), method, path, headers, body)
        elif action != "AssumeRoleWithWebIdentity" or not form.get("WebIdentityToken"):
            raise Error(400, "x#InvalidAction", "Could not find operation")
        key, until = self.issue()
        return (f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><AssumedRoleUser><Arn>{form["RoleArn"]}</Arn>'
                f'</AssumedRoleUser><Credentials><AccessKeyId>{key["id"]}</AccessKeyId><SecretAccessKey>{key["secret"]}</SecretAccessKey>'
                f'<SessionToken>{key["token"]}</SessionToken><Expiration>{until}</Expiration></Credentials></{action}Result></{action}Response>')

    def credentials(self, **more):
        key, until = self.issue()
        return {**more, "AccessKeyId": key["id"], "SecretAccessKey": key["secret"], "Token": key["token"], "Expiration": until}

    # -- what tests ask --

    def control(self, r):
        do = r.pop("do")
        if do == "fault":
            self.faults.append({"times": 1, "skip": 0, "done": True, **r})
        elif do == "set":
            for name, value in r.items():
                setattr(self, name, value)
            self.changed.notify_all()
        elif do == "freeze":
            self.frozen = self.connections
        elif do == "expire":
            for key in self.keys.values():
                if key["token"]:
                    key["until"] = 0
        elif do == "redrive":  # what StartMessageMoveTask does: new ids, as if sent anew
            source, target = self.queues[r["source"]], self.queues[r["to"]]
            for m in source.messages:
                target.messages.append(dict(m, id=secrets.token_hex(16), receives=0, receipt=None, first=None, visible=self.now()))
            source.messages.clear()
            self.changed.notify_all()
        return {}

    def state(self):
        now = self.now()
        return {"log": self.log, "waiting": self.waiting, "faults": len(self.faults), "connections": self.connections,
                "queues": {name: [{"id": m["id"], "body": m["body"], "receives": m["receives"], "group": m["group"],
                                   "hidden": max(0.0, m["visible"] - now)} for m in q.messages] for name, q in self.queues.items()}}

    def fault_for(self, action):
        for fault in self.faults:
            if fault["action"] not in (action, "*"):
                continue
            if fault["skip"] > 0:
                fault["skip"] -= 1
                continue
            fault["times"] -= 1
            if fault["times"] == 0:
                self.faults.remove(fault)
            return fault
        return None


# ---- HTTP ----

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    sqs = None

    def setup(self):
        super().setup()
        with self.sqs.lock:
            self.sqs.connections += 1
            self.number = self.sqs.connections

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return super().date_time_string(timestamp if timestamp is not None else self.sqs.server_now())

    def answer(self, status, body, kind="application/x-amz-json-1.0", extra=(), cut=None):
        data = body if isinstance(body, bytes) else body.encode()
        head = [f"HTTP/1.1 {status} {http.client.responses.get(status, '?')}", f"Date: {self.date_time_string()}", f"Content-Type: {kind}",
                f"Content-Length: {len(data)}", *(f"{name}: {value}" for name, value in extra)]
        whole = ("\r\n".join(head) + "\r\n\r\n").encode() + data
        self.wfile.write(whole if cut is None else whole[:cut])
        self.wfile.flush()
        if cut is not None:
            self.reset()

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def hang(self):
        """The connection stays open, and nothing comes, until the client closes it."""
        self.close_connection = True
        try:
            while self.connection.recv(4096):
                pass
        except OSError:
            pass

    def refuse(self, why):
        extra = [("x-amzn-query-error", why.query)] if why.query else []
        self.answer(why.status, json.dumps({"__type": why.kind, "message": why.text}), extra=extra)

    def perform(self, action, body, fault):
        """(status, answer) of an action that is done now. Under the lock."""
        request = json.loads(body)
        if fault and fault.get("entries") and action in BATCH:
            return getattr(self.sqs, action)(request, fault["entries"])
        return getattr(self.sqs, action)(request)

    def serve_sqs(self, body):
        action = (self.headers.get("X-Amz-Target") or "").split(".")[-1]
        record = {"action": action, "at": time.time(), "connection": self.number, "status": 0}
        with self.sqs.lock:
            self.sqs.log.append(record)
            if action not in ACTIONS:
                raise Error(400, "com.amazon.coral.service#UnknownOperationException", "")
            record["n"] = body.count(b'"Id"') if action in BATCH else 1
            record["key"] = verify(self.sqs.keys, "sqs", self.sqs.server_now(), self.command, self.path, self.headers, body)
            fault = self.sqs.fault_for(action) or {}
            if fault.get("error"):
                status, kind, text = fault["error"]
                record["status"] = status
                raise Error(status, kind if "#" in kind else f"com.amazonaws.sqs#{kind}", text)
            answer = self.perform(action, body, fault) if fault.get("done", True) else {}
            record["status"] = 200
            record["failed"] = len(answer.get("Failed", []))
            record["until"] = time.time()
        time.sleep(fault.get("delay", 0))
        if fault.get("hang"):
            self.hang()
        else:
            self.answer(200, fault.get("garbage") or json.dumps(answer), cut=fault.get("cut"))

    def serve_metadata(self):
        with self.sqs.lock:
            self.sqs.log.append({"action": f"{self.command} {self.path}", "at": time.time(), "status": 200})
            fault = self.sqs.fault_for(self.path)
            if fault:
                return self.answer(fault["error"][0], "")
            if self.path == "/container":
                if self.sqs.container_token not in (None, self.headers.get("Authorization")):
                    return self.answer(401, "{}")
                return self.answer(200, json.dumps(self.sqs.credentials()))
            if self.path == "/latest/api/token" and self.command == "PUT":
                self.sqs.imds_tokens.add(token := secrets.token_urlsafe(20))
                return self.answer(200, token, "text/plain")
            if self.headers.get("X-aws-ec2-metadata-token") not in self.sqs.imds_tokens:
                return self.answer(401, "")
            rest = self.path.removeprefix("/latest/meta-data/iam/security-credentials/")
            if rest == "":
                return self.answer(200, self.sqs.role, "text/plain")
            if rest == self.sqs.role:
                return self.answer(200, json.dumps(self.sqs.credentials(Code="Success")))
            return self.answer(404, "")

    def serve_sts(self, body):
        with self.sqs.lock:
            record = {"action": "sts", "at": time.time(), "status": 200, "signed": bool(self.headers.get("Authorization")), "form": body.decode()}
            self.sqs.log.append(record)
            fault = self.sqs.fault_for("sts")
            try:
                if fault:
                    raise Error(*fault["error"])
                text = self.sqs.sts(self.command, self.path, self.headers, body)
            except Error as why:
                record["status"] = why.status
                return self.answer(why.status, f"<ErrorResponse><Error><Type>Sender</Type><Code>{why.kind.split('#')[-1]}</Code>"
                                   f"<Message>{why.text}</Message></Error></ErrorResponse>", "text/xml")
        return self.answer(200, text, "text/xml")

    def serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/_"):
            with self.sqs.lock:
                return self.answer(200, json.dumps(self.sqs.state() if self.command == "GET" else self.sqs.control(json.loads(body))))
        if self.number <= self.sqs.frozen:
            self.sqs.log.append({"action": "frozen", "at": time.time(), "status": 0})
            return self.hang()
        try:
            if "X-Amz-Target" in self.headers:
                self.serve_sqs(body)
            elif self.path.startswith(("/container", "/latest/")):
                self.serve_metadata()
            else:
                self.serve_sts(body)
        except Error as why:
            self.refuse(why)
        return None

    do_GET = do_POST = do_PUT = serve


ACTIONS = {"CreateQueue", "GetQueueUrl", "DeleteQueue", "PurgeQueue", "SetQueueAttributes", "GetQueueAttributes", "SendMessage", "ReceiveMessage",
           "DeleteMessage", "ChangeMessageVisibility"} | BATCH


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass  # a client that went away


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    options = parser.parse_args()
    Handler.sqs = Sqs()
    server = Server(("127.0.0.1", options.port), Handler)
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*options.tls)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    Handler.sqs.address = f"{'https' if options.tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    print(server.server_address[1], flush=True)
    server.serve_forever()


# ---- for tests ----

class FakeSqs:
    """The process, and what a test asks of it."""

    def __init__(self, tls=None):
        self.tls = tls
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), *(["--tls", *tls] if tls else [])], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())
        self.address = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def env(self, **more):
        """Of a program that uses it: keys that do not end, and nothing of the user's own."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-central-1", "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", **more}

    def request(self, method, path, body=b"", headers=None):
        if self.tls:
            context = ssl.create_default_context(cafile=self.tls[0])
            context.check_hostname = False
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def control(self, **what):
        status, body = self.request("POST", "/_control", json.dumps(what))
        assert status == 200, body
        return json.loads(body)

    def state(self):
        return json.loads(self.request("GET", "/_state")[1])

    def call(self, action, key=(KEY, SECRET, None), stamp=None, **body):
        """An action, signed. (status, answer)"""
        data = json.dumps(body).encode()
        stamp = stamp or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {"content-type": "application/x-amz-json-1.0", "host": f"127.0.0.1:{self.port}", "x-amz-date": stamp,
                   "x-amz-target": f"AmazonSQS.{action}", **({"x-amz-security-token": key[2]} if key[2] else {})}
        names, scope = ";".join(sorted(headers)), f"{stamp[:8]}/eu-central-1/sqs/aws4_request"
        canonical = "\n".join(["POST", "/", "", *(f"{name}:{headers[name]}" for name in sorted(headers)), "", names, sha256(data)])
        headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={key[0]}/{scope}, SignedHeaders={names}, "
                                    f"Signature={signature(key[1], stamp, scope, canonical)}")
        status, answer = self.request("POST", "/", data, headers)
        return status, json.loads(answer)

    def ok(self, action, **body):
        status, answer = self.call(action, **body)
        assert status == 200, answer
        return answer

    def url(self, queue):
        return f"{self.address}/{ACCOUNT}/{queue}"

    def create(self, queue, **attributes):
        self.ok("CreateQueue", QueueName=queue, Attributes={name: str(value) for name, value in attributes.items()})
        return self.url(queue)

    def send(self, queue, *bodies, group=None, **more):
        """Returns the ids."""
        ids = []
        for begin in range(0, len(bodies), 10):
            entries = [{"Id": str(place), "MessageBody": body if isinstance(body, str) else json.dumps(body), **more,
                        **({"MessageGroupId": group(body) if callable(group) else group} if group else {}),
                        **({"MessageDeduplicationId": secrets.token_hex(8)} if group else {})}
                       for place, body in enumerate(bodies[begin:begin + 10])]
            answer = self.ok("SendMessageBatch", QueueUrl=self.url(queue), Entries=entries)
            assert not answer["Failed"], answer
            ids += [each["MessageId"] for each in answer["Successful"]]
        return ids

    def messages(self, queue):
        """All that it holds: id, body, receives, group, hidden (seconds)."""
        return self.state()["queues"].get(queue, [])

    def waiting(self, queue):
        """How many receives wait there. One whose client has gone goes on for its time, as at SQS, and takes what comes."""
        return self.state()["waiting"].get(queue, 0)

    def calls(self, action=None):
        return [each for each in self.state()["log"] if action in (None, each["action"])]

    def fault(self, action, **how):
        self.control(do="fault", action=action, **how)

    def advance(self, seconds):
        self.control(do="set", ahead=seconds)

    def skew(self, seconds):
        self.control(do="set", skew=seconds)

    def freeze(self):
        self.control(do="freeze")


if __name__ == "__main__":
    main()
