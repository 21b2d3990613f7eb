"""A proxy that makes tunnels (CONNECT), over http:// or, with a certificate, over https://.

    with ConnectProxy() as proxy:
        ... a client calls https://127.0.0.1:PORT/ through proxy.url("user:password") ...
        assert proxy.heads[0].startswith("CONNECT 127.0.0.1:PORT HTTP/1.1")

`heads` are the requests for tunnels, `carried` is what clients have sent through them."""

import select
import socket
import ssl
import threading


class ConnectProxy:
    def __init__(self, certificate=None):
        """`certificate`: a file with key and certificate."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.scheme, self.heads, self.carried, self.context = "http", [], b"", None
        if certificate:
            self.scheme, self.context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate)
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def url(self, login):
        return f"{self.scheme}://{login}@127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            with client, self.context.wrap_socket(client, server_side=True) if self.context else client as ours:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    byte = ours.recv(1)
                    if not byte:
                        return
                    head += byte
                self.heads.append(head.decode("latin-1"))
                host, _, port = head.split()[1].decode().rpartition(":")
                with socket.create_connection((host, int(port))) as server:
                    ours.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    self.carry(ours, server)
        except OSError:  # one of the two has gone, or does not like our certificate
            pass

    def carry(self, client, server):
        """Until one of them has nothing more to say."""
        while True:
            waits = isinstance(client, ssl.SSLSocket) and client.pending()
            ready = [client] if waits else select.select([client, server], [], [])[0]
            for end in ready:
                data = end.recv(65536)
                if not data:
                    return
                if end is client:
                    self.carried += data
                (server if end is client else client).sendall(data)
