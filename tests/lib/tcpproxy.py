"""A TCP proxy in front of any server (a port on loopback, (host, port), or the path of a socket file) that does to connections what
networks do.

    with Proxy("/tmp/x/.s.PGSQL.5432") as proxy:
        proxy.lose_reply_to = b"COMMIT\\0"      # of the next one: it reaches the server, its reply does not come back
        ... connect to 127.0.0.1:proxy.port ...

A client that needs no answers in between can be told from one that does:

        proxy.hold_from, proxy.hold_until = b"first\\0", b"last\\0"     # no answers from the one on, until it has sent the other
        ...
        assert proxy.held and not proxy.starved

Marks are bytes that a client sends. Every fault happens once and is counted in `lost`; those that are states last as long as they
are set."""

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
        self.reply_ends = b""      # how a whole reply ends, for lose_reply_to; empty: any part of it will do
        self.rewriting = None      # gives for each connection a function of a piece that the server says: what the client gets instead
        self.replacing = {}        # what a client says -> what the server gets instead
        self.hold_from = self.hold_until = None
        self.held = 0              # how often answers were held back until hold_until was sent
        self.starved = 0           # how often it was not
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

    def _await_reply(self, server):
        """It has answered: so it is done."""
        reply = b""
        while True:
            part = server.recv(1 << 16)
            reply = (reply + part)[-64:]
            if not part or reply.endswith(self.reply_ends):
                return

    def _hold(self, client, server, data):
        """Passes on what the client sends until it has sent hold_until, or waits for an answer, as it seems."""
        tail = data.partition(self.hold_from)[2]
        while self.hold_until not in tail:
            if not select.select([client], [], [], 10)[0]:
                self.starved += 1
                return True
            data = client.recv(1 << 16)
            if not data:
                return False
            server.sendall(data)
            tail = tail[-len(self.hold_until):] + data
        self.held += 1
        return True

    def _read(self, source, sink, count_name):
        """One piece, already passed on as far as it may; None: that is the end of the connection."""
        data = source.recv(1 << 16)
        if not data:
            return None
        if self.delay_s:
            time.sleep(self.delay_s)
        upto = self._count(count_name, data)
        if upto is None:
            return data
        sink.sendall(data[:upto])
        self.lost += 1
        return None

    def _pass_back(self, client, server, rewrite):
        data = self._read(server, client, "cut_after_received")
        if data is not None:
            client.sendall(rewrite(data) if rewrite else data)
        return data is not None

    def _pass_on(self, pair, before):
        """One piece of the client. False: that is the end of the connection. `before`: the piece before, as a mark may come in two."""
        client, server = pair
        data = self._read(client, server, "cut_after_sent")
        if data is None:
            return False
        longest = max(len(mark or b"") for mark in (self.cut_at, self.lose_reply_to, self.hush_after))
        seen = before[0][len(before[0]) - min(len(before[0]), max(longest - 1, 0)):] + data
        before[0] = data
        if self._meets(self.cut_at, seen):
            self.cut_at = None
            self.lost += 1
            return False
        for what, instead in self.replacing.items():
            data = data.replace(what, instead)
        server.sendall(data)
        if self.hold_from and self.hold_from in data and not self._hold(client, server, data):
            return False
        if self._meets(self.lose_reply_to, seen):
            self.lose_reply_to = None
            self._await_reply(server)
            self.lost += 1
            return False
        if self._meets(self.hush_after, seen):
            self.hush_after = None
            self._hushed.add(pair)
            self.lost += 1
        return True

    def _carry(self, pair):
        client, server = pair
        before = [b""]
        rewrite = self.rewriting() if self.rewriting else None
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
                    going = self._pass_on(pair, before)
                if going and server in ready and not self.silent and pair not in self._hushed:
                    going = self._pass_back(client, server, rewrite)
        except (OSError, ValueError):
            pass
        with self._lock:
            self._close(pair)
