"""A proxy between clients and a Kafka of one broker, which sends them to itself: where the broker says its address, they read the proxy's.

    with KafkaProxy(client) as proxy:
        p = KafkaPipeline(tmp_path, client, topic, brokers=proxy.address)
        proxy.lose_reply_to = COMMIT"""

import struct

from kafkawire import OFFSET_COMMIT
from tcpproxy import Proxy

HOST = b"127.0.0.1"
# How a commit of offsets by librdkafka 2.0 begins: the request, its version, and the first bytes of a number that counts requests.
COMMIT = struct.pack(">hhh", OFFSET_COMMIT, 7, 0)


class KafkaProxy(Proxy):
    def __init__(self, client):
        port = int(client.address.rsplit(":", 1)[1])
        super().__init__(port)
        self.address = f"127.0.0.1:{self.port}"
        theirs, ours = (HOST + struct.pack(">i", number) for number in (port, self.port))
        self.rewriting = lambda: lambda data: data.replace(theirs, ours)
