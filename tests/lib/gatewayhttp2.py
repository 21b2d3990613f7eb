"""HTTP/2 of the payment gateway: one thread reads a connection, and each request has a thread of its own, as one may stall."""

import socket
import threading

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions


class Connection:
    def __init__(self, sock, number, bank, request_of):
        self.sock, self.number, self.bank, self.request_of = sock, number, bank, request_of
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.lock = threading.Condition()
        self.streams, self.requests, self.over = {}, 0, False

    def flush(self):
        """Under the lock."""
        data = self.h2.data_to_send()
        if data:
            self.sock.sendall(data)

    def run(self):
        with self.lock:
            self.h2.initiate_connection()
            self.flush()
        try:
            while not self.over and (data := self.sock.recv(65536)):
                with self.lock:
                    for event in self.h2.receive_data(data):
                        self.take(event)
                    self.flush()
                    self.lock.notify_all()
        except (OSError, h2.exceptions.ProtocolError):
            pass
        with self.lock:
            self.over = True
            self.lock.notify_all()

    def take(self, event):
        if isinstance(event, h2.events.RequestReceived):
            self.streams[event.stream_id] = (event.headers, bytearray())
        elif isinstance(event, h2.events.DataReceived):
            self.streams[event.stream_id][1].extend(event.data)
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            headers, body = self.streams.pop(event.stream_id)
            self.requests += 1
            fields = dict(headers)
            request = self.request_of(fields[":method"], fields[":path"], headers, bytes(body), self.number, self.requests, "2")
            stream = Stream(self, event.stream_id)
            threading.Thread(target=self.bank.serve, args=(request, stream), daemon=True).start()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.over = True

    def end(self):
        """At once: a thread that still reads from it would keep a socket that is only closed."""
        self.over = True
        self.sock.shutdown(socket.SHUT_RDWR)


class Stream:
    """What an account answers through."""

    def __init__(self, connection, number):
        self.connection, self.number = connection, number

    def reply(self, answer, fault, rng):
        c = self.connection
        try:
            with c.lock:
                if fault.get("hang"):
                    return
                if fault.get("goaway"):
                    c.h2.close_connection(last_stream_id=0)
                elif fault.get("refuse"):
                    c.h2.reset_stream(self.number, h2.errors.ErrorCodes.REFUSED_STREAM)
                elif "cut" in fault:
                    return self.cut(answer, fault, rng)
                else:
                    self.send(answer.status, answer, answer.body, end=True)
                c.flush()
        except (OSError, h2.exceptions.ProtocolError):  # the client has gone, or has given this stream up
            pass

    def cut(self, answer, fault, rng):
        """So many bytes of the body, then the whole connection is closed; 0: not even a status."""
        n = rng.randrange(len(answer.body) + 1) if fault["cut"] == "random" else fault["cut"]
        if n > 0:
            self.send(answer.status, answer, answer.body[:n], end=False)
            self.connection.flush()
        self.connection.end()

    def send(self, status, answer, body, end):
        c = self.connection
        c.h2.send_headers(self.number, [(":status", str(status)), ("content-type", "application/json"), *((name.lower(), value) for name, value in answer.headers)])
        while body and not c.over:
            room = min(c.h2.local_flow_control_window(self.number), c.h2.max_outbound_frame_size)
            if room == 0:
                c.lock.wait()
                continue
            c.h2.send_data(self.number, body[:room])
            body = body[room:]
            c.flush()
        if end:
            c.h2.end_stream(self.number)


def serve(sock, number, bank, request_of):
    Connection(sock, number, bank, request_of).run()
