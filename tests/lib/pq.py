"""SQL without the product and without a process for each statement: libpq, called from Python."""

import ctypes
import ctypes.util
import threading

_pq = ctypes.CDLL(ctypes.util.find_library("pq") or "libpq.so.5")
for _name, _result, *_arguments in (
        ("PQconnectdb", ctypes.c_void_p, ctypes.c_char_p), ("PQfinish", None, ctypes.c_void_p), ("PQstatus", ctypes.c_int, ctypes.c_void_p),
        ("PQerrorMessage", ctypes.c_char_p, ctypes.c_void_p), ("PQexec", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
        ("PQresultStatus", ctypes.c_int, ctypes.c_void_p), ("PQclear", None, ctypes.c_void_p), ("PQntuples", ctypes.c_int, ctypes.c_void_p),
        ("PQnfields", ctypes.c_int, ctypes.c_void_p), ("PQgetvalue", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
        ("PQsetNoticeProcessor", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)):
    getattr(_pq, _name).restype, getattr(_pq, _name).argtypes = _result, _arguments
_silent = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(lambda user, text: None)
FINE = (0, 1, 2)  # PGRES_EMPTY_QUERY, PGRES_COMMAND_OK, PGRES_TUPLES_OK


class Failed(AssertionError):
    """What the server, or the connection, said."""


class Connection:
    """Made when it is first needed, and anew when it was lost. One statement at a time, from any thread."""

    def __init__(self, url):
        self.url = url.replace("postgres://", "postgresql://", 1).encode()
        self.connection = None
        self.lock = threading.Lock()

    def __del__(self):
        self.close()

    def close(self):
        if self.connection:
            _pq.PQfinish(self.connection)
            self.connection = None

    def _connect(self):
        connection = _pq.PQconnectdb(self.url)
        if _pq.PQstatus(connection) != 0:
            why = _pq.PQerrorMessage(connection).decode()
            _pq.PQfinish(connection)
            raise Failed(why)
        _pq.PQsetNoticeProcessor(connection, ctypes.cast(_silent, ctypes.c_void_p), None)
        self.connection = connection

    def _run(self, sql):
        result = _pq.PQexec(self.connection, sql.encode())
        try:
            if _pq.PQresultStatus(result) not in FINE:
                raise Failed(_pq.PQerrorMessage(self.connection).decode())
            columns = range(_pq.PQnfields(result))
            return [tuple(_pq.PQgetvalue(result, row, column).decode() for column in columns) for row in range(_pq.PQntuples(result))]
        finally:
            _pq.PQclear(result)

    def rows(self, sql):
        """Of the last statement, as text; NULL is empty."""
        with self.lock:
            fresh = not self.connection
            if fresh:
                self._connect()
            try:
                return self._run(sql)
            except Failed:
                if _pq.PQstatus(self.connection) == 0:
                    raise
                self.close()
                if fresh:
                    raise
                self._connect()
                return self._run(sql)


def once(url, sql):
    """On a connection that ends with it."""
    connection = Connection(url)
    try:
        return connection.rows(sql)
    finally:
        connection.close()
