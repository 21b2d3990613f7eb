"""A TCP proxy in front of a server (a port on loopback, or the path of a socket) that does to connections what networks do.

    with Proxy("/tmp/x/.s.PGSQL.5432") as proxy:
        proxy.lose_reply_to = b"COMMIT\\0"      # of the next one: it reaches the server, its reply does not come back
        proxy.cut_after = 5000                  # so many more bytes of clients, then it is cut in the middle of whatever it is
        proxy.drop = True                       # nothing gets through, and nobody is told
        ... connect to 127.0.0.1:proxy.port ..."""

import select
import socket
import threading
import time


class Proxy:
    def __init__(self, server):
        self.server = ("127.0.0.1", server) if isinstance(server, int) else server
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lose_reply_to = None  # bytes that a client sends; then the connection is cut, once
        self.cut_at = None         # the same, but they do not reach the server either
        self.after = b""           # only when a client has sent these bytes before
        self.skip = 0              # how many pass before
        self.cut_after = None      # bytes; then the connection is cut, once
        self.lost = 0              # how many were cut
        self.refuse = False        # new connections
        self.accepted = 0          # how many there were
        self.delay_s = 0           # of each piece, both ways
        self.drop = False          # pieces vanish, both ways, while this is set
        self._ending = False
        self._pairs = set()
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

    def pending(self):
        """Whether harm that was asked for has not been done yet."""
        return not (self.lose_reply_to is None and self.cut_at is None and self.cut_after is None)

    def _close(self, pair):
        self._pairs.discard(pair)
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

    def _cut_short(self, data):
        """What still reaches the server when the connection ends here, or None."""
        with self._lock:
            if self._meets(self.cut_at, data):
                self.cut_at = None
                return b""
            if self.cut_after is None or len(data) < self.cut_after:
                self.cut_after = None if self.cut_after is None else self.cut_after - len(data)
                return None
            data, self.cut_after = data[:self.cut_after], None
            return data

    def _loses(self, data):
        with self._lock:
            if not self._meets(self.lose_reply_to, data):
                return False
            self.lose_reply_to = None
            return True

    def _carry(self, pair):
        try:
            self._pump(*pair)
        except (OSError, ValueError):
            pass
        with self._lock:
            self._close(pair)

    def _pump(self, client, server):
        losing = False
        while True:
            ready, _, _ = select.select([client, server], [], [])
            for end in [end for end in (client, server) if end in ready]:
                data = end.recv(1 << 16)
                if not data:
                    return
                time.sleep(self.delay_s)
                if self.drop:
                    continue
                if end is server:
                    if losing:  # it has answered: so it is done
                        self.lost += 1
                        return
                    client.sendall(data)
                    continue
                rest = self._cut_short(data)
                server.sendall(data if rest is None else rest)
                if rest is not None:
                    self.lost += 1
                    return
                losing = losing or self._loses(data)
