"""A TCP proxy in front of any server (a port on loopback, (host, port), or the path of a socket file) that does to connections what
networks do.

    with Proxy("/tmp/x/.s.PGSQL.5432") as proxy:
        proxy.lose_reply_to = b"COMMIT\\0"      # of the next one: it reaches the server, its reply does not come back
        ... connect to 127.0.0.1:proxy.port ...

Marks are bytes that a client sends in one piece. Every fault happens once and is counted in `lost`; those that are states last as
long as they are set."""

import select
import socket
import threading
import time


class Proxy:
    def __init__(self, server):
        self.server = ("127.0.0.1", server) if isinstance(server, int) else server
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        # once
        self.lose_reply_to = None  # a mark: the server gets it and answers, then the connection is cut
        self.hush_after = None     # the same, but the connection stays, and nothing comes through it any more
        self.cut_at = None         # a mark that does not reach the server
        self.cut_after_sent = None      # so many bytes of a client have passed: it is cut there
        self.cut_after_received = None  # the same for what servers say
        self.after = b""           # marks count only when a client has sent these bytes before
        self.skip = 0              # how many marks pass before
        self.lost = 0
        self.accepted = 0          # connections
        # states
        self.refuse = False        # new connections
        self.silent = False        # nothing passes in either direction, and nobody is told; later it does
        self.delay_s = 0           # of every piece
        self._ending = False
        self._pairs = set()
        self._hushed = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ending = True
        self.listener.close()
        self.cut_all()

    def cut_all(self):
        with self._lock:
            for pair in list(self._pairs):
                self._close(pair)

    def hush_all(self):
        """What is connected now: nothing comes through it any more, and nobody is told. New connections work."""
        with self._lock:
            self._hushed |= self._pairs

    def pending(self):
        """Whether a fault that was asked for has not happened yet."""
        faults = (self.lose_reply_to, self.hush_after, self.cut_at, self.cut_after_sent, self.cut_after_received)
        return any(fault is not None for fault in faults)

    def _close(self, pair):
        self._pairs.discard(pair)
        self._hushed.discard(pair)
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _accept(self):
        while not self._ending:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            self.accepted += 1
            server = socket.socket(socket.AF_UNIX if isinstance(self.server, str) else socket.AF_INET)
            try:
                server.connect(self.server)
            except OSError:
                client.close()
                server.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            threading.Thread(target=self._carry, args=(pair,), daemon=True).start()

    def _meets(self, mark, data):
        if not mark:
            return False
        if self.after:
            if self.after not in data:
                return False
            data = data.partition(self.after)[2]
            self.after = b""
        if mark not in data:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        return True

    def _count(self, name, data):
        """How many bytes of this piece may pass before a cut; None: all."""
        with self._lock:
            left = getattr(self, name)
            if left is None:
                return None
            setattr(self, name, None if left <= len(data) else left - len(data))
            return left if left <= len(data) else None

    def _pass(self, source, sink, count_name, pair):
        """One piece. False: that is the end of the connection."""
        data = source.recv(1 << 16)
        if not data:
            return False
        if self.delay_s:
            time.sleep(self.delay_s)
        upto = self._count(count_name, data)
        if upto is not None:
            sink.sendall(data[:upto])
            self.lost += 1
            return False
        from_client = source is pair[0]
        if from_client and self._meets(self.cut_at, data):
            self.cut_at = None
            self.lost += 1
            return False
        sink.sendall(data)
        if from_client and self._meets(self.lose_reply_to, data):
            self.lose_reply_to = None
            sink.recv(1 << 16)  # it has answered: so it is done
            self.lost += 1
            return False
        if from_client and self._meets(self.hush_after, data):
            self.hush_after = None
            self._hushed.add(pair)
            self.lost += 1
        return True

    def _carry(self, pair):
        client, server = pair
        try:
            going = True
            while going:
                if self.silent or pair in self._hushed:
                    time.sleep(0.02)
                    if client.fileno() < 0:
                        break
                    continue
                ready, _, _ = select.select([client, server], [], [], 0.05)
                if client in ready:
                    going = self._pass(client, server, "cut_after_sent", pair)
                if going and server in ready and not self.silent and pair not in self._hushed:
                    going = self._pass(server, client, "cut_after_received", pair)
        except (OSError, ValueError):
            pass
        with self._lock:
            self._close(pair)
