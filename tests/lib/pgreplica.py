"""A PostgreSQL server with a streaming replica, which can be left behind, killed and promoted."""

import os
import signal
import time

import postgres


class Replica(postgres.Server):
    """Follows `primary`; `promote` makes it one."""

    def __init__(self, primary):
        self.primary = primary
        super().__init__(hot_standby="on", max_wal_senders="10")

    def _make_data(self):
        self._run("pg_basebackup", "-D", self.data, "-d", f"host={self.primary.folder} user=postgres", "-R", "-X", "stream", "-c", "fast", "--no-sync")

    def start(self):
        super().start()
        self.until("SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'", "1")

    def until(self, question, answer, server=None, deadline_s=30):
        end = time.monotonic() + deadline_s
        while (server or self).query(question, quiet=True) != answer:
            assert time.monotonic() < end, f"{question} is not {answer}"
            time.sleep(0.02)

    def catch_up(self):
        lsn = self.primary.query("SELECT pg_current_wal_lsn()")
        self.until(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'", "t")

    def _receivers(self):
        found = []
        for pid in postgres.children_of(self.process.pid):
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    if "walreceiver" in file.read():
                        found.append(pid)
            except OSError:  # ended meanwhile
                pass
        return found

    def fall_behind(self):
        """From here on nothing arrives, and nothing is confirmed."""
        self.stopped = self._receivers()
        assert self.stopped
        for pid in self.stopped:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self):
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)

    def promote(self):
        """After the primary was killed."""
        for pid in self._receivers():
            try:
                os.kill(pid, signal.SIGTERM)  # before it reads what may have arrived
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        self.query("SELECT pg_promote()")
        self.until("SELECT pg_is_in_recovery()", "f")


class Pair:
    def __init__(self, synchronous):
        self.primary = postgres.Server()
        self.replica = None
        try:
            self.replica = Replica(self.primary)
            if synchronous:
                self.primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
                self.primary.query("SELECT pg_reload_conf()")
                self.replica.until("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1", self.primary)
        except BaseException:
            self.close()
            raise

    def url(self, database):
        """Of whichever of the two can be written to."""
        return f"postgres://postgres@/{database}?host={self.primary.folder},{self.replica.folder}&target_session_attrs=read-write"

    def fail_over(self):
        self.primary.kill()
        self.replica.promote()

    def close(self):
        for server in (self.replica, self.primary):
            if server:
                server.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
