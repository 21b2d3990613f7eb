"""Requests of the Kafka protocol that the Python client does not have, or for which it would join the group that it asks about.

    for answer in call("127.0.0.1:9092", OFFSET_FETCH, 1, string("group") + array([...])): ...

Each is sent on a connection of its own, in the oldest version that says enough. The layouts are those of the protocol guide."""

import collections
import socket
import struct

PRODUCE, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, DELETE_RECORDS, CREATE_ACLS, DELETE_ACLS, \
    DELETE_GROUPS = 0, 2, 3, 8, 9, 10, 15, 21, 30, 31, 42
TIMEOUT_S = 20

# For ACLs.
TOPIC, GROUP, LITERAL, DENY, ALLOW = 2, 3, 3, 2, 3
OPERATIONS = {"all": 2, "read": 3, "write": 4, "create": 5, "describe": 8, "describe_configs": 10, "alter_configs": 11}


Member = collections.namedtuple("Member", "id instance client host metadata assignment")  # of a group


NO_LEADER = 5
SOON = {NO_LEADER, 6, 14, 15, 16}  # no leader or coordinator yet, or one that is still reading


class Refused(AssertionError):
    def __init__(self, what, code):
        super().__init__(f"{what}: error {code}")
        self.code = code


def i8(value):
    return struct.pack(">b", value)


def i16(value):
    return struct.pack(">h", value)


def i32(value):
    return struct.pack(">i", value)


def i64(value):
    return struct.pack(">q", value)


def string(text):
    return i16(-1) if text is None else i16(len(text.encode())) + text.encode()


def array(parts):
    parts = list(parts)
    return i32(len(parts)) + b"".join(parts)


class Answer:
    def __init__(self, data):
        self.data, self.at = data, 0

    def _number(self, form, size):
        self.at += size
        return struct.unpack_from(form, self.data, self.at - size)[0]

    def i8(self):
        return self._number(">b", 1)

    def i16(self):
        return self._number(">h", 2)

    def i32(self):
        return self._number(">i", 4)

    def i64(self):
        return self._number(">q", 8)

    def bytes(self, size=None):
        size = self.i32() if size is None else size
        self.at += max(size, 0)
        return self.data[self.at - size:self.at] if size >= 0 else None

    def string(self):
        text = self.bytes(self.i16())
        return None if text is None else text.decode()

    def array(self, read):
        return [read(self) for _ in range(self.i32())]


def call(address, api, version, body):
    """`address` may be several, with commas: the first that answers."""
    *others, last = address.split(",")
    for one in others:
        try:
            return _call(one, api, version, body, 2)
        except OSError:
            continue
    return _call(last, api, version, body, TIMEOUT_S)


def _call(address, api, version, body, timeout_s):
    request = i16(api) + i16(version) + i32(1) + string("once-tests") + body
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        connection.sendall(i32(len(request)) + request)
        with connection.makefile("rb") as replies:
            size = replies.read(4)
            reply = replies.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
    if len(reply) < 4:
        raise ConnectionError(f"{address} closed the connection")
    answer = Answer(reply)
    assert answer.i32() == 1, "an answer to another request"
    return answer


def metadata(address, *topics):
    """{node: "host:port"}, and for each topic {partition: leader}; -1 is no leader. A topic that does not exist is left out."""
    answer = call(address, METADATA, 1, array(string(topic) for topic in topics))
    nodes = {}
    for node, host, port, _ in answer.array(lambda a: (a.i32(), a.string(), a.i32(), a.string())):
        nodes[node] = f"{host}:{port}"
    answer.i32()  # the controller

    def partition(a):
        a.i16()
        number, leader = a.i32(), a.i32()
        a.array(Answer.i32), a.array(Answer.i32)
        return number, leader

    found = answer.array(lambda a: (a.i16(), a.string(), a.i8(), dict(a.array(partition))))
    return nodes, {name: partitions for error, name, _, partitions in found if error in (0, 5)}


def coordinator(address, group):
    """The broker that keeps the offsets of a group; Refused while there is none."""
    answer = call(address, FIND_COORDINATOR, 0, string(group))
    error, _, host, port = answer.i16(), answer.i32(), answer.string(), answer.i32()
    if error:
        raise Refused(f"coordinator of '{group}'", error)
    return f"{host}:{port}"


def committed(address, group, topic, partitions):
    """{partition: offset} of those that have one."""
    body = string(group) + array([string(topic) + array(map(i32, partitions))])
    answer = call(coordinator(address, group), OFFSET_FETCH, 2, body)
    each = lambda a: (a.i32(), a.i64(), a.string(), a.i16())  # noqa: E731
    topics, failed = answer.array(lambda a: (a.string(), a.array(each))), answer.i16()
    if failed:
        raise Refused(f"offsets of '{group}'", failed)
    for number, _, _, error in topics[0][1]:
        if error:
            raise Refused(f"offset of {topic}/{number}", error)
    return {number: offset for number, offset, _, _ in topics[0][1] if offset >= 0}


def commit(address, group, topic, offsets):
    """Sets offsets of a group without members."""
    parts = [i32(number) + i64(offset) + string(None) for number, offset in offsets.items()]
    body = string(group) + i32(-1) + string("") + i64(-1) + array([string(topic) + array(parts)])
    answer = call(coordinator(address, group), OFFSET_COMMIT, 2, body)
    for number, error in answer.array(lambda a: (a.string(), a.array(lambda b: (b.i32(), b.i16()))))[0][1]:
        if error:
            raise Refused(f"commit of {topic}/{number}", error)


def delete_group(address, group):
    answer = call(coordinator(address, group), DELETE_GROUPS, 0, array([string(group)]))
    answer.i32()
    for name, error in answer.array(lambda a: (a.string(), a.i16())):
        if error:
            raise Refused(f"delete group '{name}'", error)


def group(address, name):
    """(state, members)."""
    answer = call(coordinator(address, name), DESCRIBE_GROUPS, 4, array([string(name)]) + i8(0))
    answer.i32()
    member = lambda a: Member(a.string(), a.string(), a.string(), a.string(), a.bytes(), a.bytes())  # noqa: E731
    [(error, _, state, _, _, members, _)] = answer.array(
        lambda a: (a.i16(), a.string(), a.string(), a.string(), a.string(), a.array(member), a.i32()))
    if error:
        raise Refused(f"group '{name}'", error)
    return state, members


def offset_at(address, topic, number, time):
    """The offset at a time; -1 is the end, -2 the start."""
    body = i32(-1) + array([string(topic) + array([i32(number) + i64(time)])])
    answer = call(address, LIST_OFFSETS, 1, body)
    [(_, [(_, error, _, offset)])] = answer.array(lambda a: (a.string(), a.array(lambda b: (b.i32(), b.i16(), b.i64(), b.i64()))))
    if error:
        raise Refused(f"offsets of {topic}/{number}", error)
    return offset


def delete_records(address, topic, number, before):
    body = array([string(topic) + array([i32(number) + i64(before)])]) + i32(TIMEOUT_S * 1000)
    answer = call(address, DELETE_RECORDS, 0, body)
    answer.i32()
    [(_, [(_, low, error)])] = answer.array(lambda a: (a.string(), a.array(lambda b: (b.i32(), b.i64(), b.i16()))))
    if error:
        raise Refused(f"delete records of {topic}/{number}", error)
    return low


def _varint(value):
    value, text = value << 1, b""  # of numbers that are not negative
    while value >= 128:
        text, value = text + bytes([value & 127 | 128]), value >> 7
    return text + bytes([value])


def _sized(data):
    return _varint(len(data)) + data


def _crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def produce(address, topic, number, key, value, headers, time_ms):
    """One record, with any bytes as the names of its headers: a list of (bytes, bytes)."""
    names = b"".join(_sized(name) + _sized(data) for name, data in headers)
    record = _sized(b"\0\0\0" + _sized(key) + _sized(value) + _varint(len(headers)) + names)
    rest = i16(0) + i32(0) + i64(time_ms) + i64(time_ms) + i64(-1) + i16(-1) + i32(-1) + i32(1) + record
    batch = i32(-1) + i8(2) + struct.pack(">I", _crc32c(rest)) + rest
    batch = i64(0) + i32(len(batch)) + batch
    body = string(None) + i16(-1) + i32(TIMEOUT_S * 1000) + array([string(topic) + array([i32(number) + i32(len(batch)) + batch])])
    answer = call(address, PRODUCE, 3, body)
    [(_, [(_, error, _, _)])] = answer.array(lambda a: (a.string(), a.array(lambda b: (b.i32(), b.i16(), b.i64(), b.i64()))))
    if error:
        raise Refused(f"produce to {topic}/{number}", error)


def delete_acl(address, name, principal, operation, allow, kind=TOPIC):
    rule = i8(kind) + string(name) + i8(LITERAL) + string(principal) + string("*")
    rule += i8(OPERATIONS[operation]) + i8(ALLOW if allow else DENY)
    answer = call(address, DELETE_ACLS, 1, array([rule]))
    answer.i32(), answer.i32()
    error, text = answer.i16(), answer.string()
    if error:
        raise Refused(f"{operation} for {principal}: {text}", error)


def create_acl(address, name, principal, operation, allow, kind=TOPIC):
    rule = i8(kind) + string(name) + i8(LITERAL) + string(principal) + string("*")
    rule += i8(OPERATIONS[operation]) + i8(ALLOW if allow else DENY)
    answer = call(address, CREATE_ACLS, 1, array([rule]))
    answer.i32()
    [(error, text)] = answer.array(lambda a: (a.i16(), a.string()))
    if error:
        raise Refused(f"{operation} for {principal}: {text}", error)
