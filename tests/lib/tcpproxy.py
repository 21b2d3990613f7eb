"""A TCP proxy in front of a server (a path: a socket file) that does to connections what networks do.

    with Proxy("/tmp/x/.s.PGSQL.5432") as proxy:
        proxy.lose_reply_to = b"COMMIT\\0"      # of the next one: it reaches the server, its reply does not come back
        ... connect to 127.0.0.1:proxy.port ..."""

import select
import socket
import threading


class Proxy:
    def __init__(self, server):
        self.server = server
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lose_reply_to = None  # bytes that a client sends; then the connection is cut, once
        self.cut_at = None         # the same, but they do not reach the server either
        self.after = b""           # only when a client has sent these bytes before
        self.skip = 0              # how many pass before
        self.lost = 0              # how many were cut
        self.refuse = False        # new connections
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

    def _carry(self, pair):
        client, server = pair
        try:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    data = client.recv(1 << 16)
                    if not data:
                        break
                    if self._meets(self.cut_at, data):
                        self.cut_at = None
                        self.lost += 1
                        break
                    server.sendall(data)
                    if self._meets(self.lose_reply_to, data):
                        self.lose_reply_to = None
                        server.recv(1 << 16)  # it has answered: so it is done
                        self.lost += 1
                        break
                if server in ready:
                    data = server.recv(1 << 16)
                    if not data:
                        break
                    client.sendall(data)
        except (OSError, ValueError):
            pass
        with self._lock:
            self._close(pair)
