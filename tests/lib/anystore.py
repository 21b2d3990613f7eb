"""A pipeline on any store: `store` is each of them in turn. Nothing is read around the product."""

import os
import re

import pytest

import pgpipeline
import postgres
import redisserver
from harness import Pipeline


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store(request, tmp_path):
    """Where the messages are kept."""
    if request.param == "sqlite":
        yield "sqlite:store.db"
    elif request.param == "postgres":
        pgpipeline.need_postgres()
        yield postgres.shared().database(pgpipeline.new_name())
    else:
        if not redisserver.has_redis():
            pytest.skip("missing: redis")
        with redisserver.RedisServer(tmp_path) as server:
            yield server.url()


def server_of(url):
    """Where a proxy finds the server of a store."""
    if url.startswith("redis"):
        return int(re.search(r":(\d+)/", url).group(1))
    return os.path.join(re.search(r"host=([^&]*)", url).group(1), ".s.PGSQL.5432")


def behind(proxy, url):
    """The store as a client behind the proxy names it."""
    if url.startswith("redis"):
        return re.sub(r"127.0.0.1:\d+", f"127.0.0.1:{proxy.port}", url)
    return re.sub(r"@/", f"@127.0.0.1:{proxy.port}/", url.partition("?")[0])


class Any(Pipeline):
    def __init__(self, folder, store, config, consumer="c"):
        self.store = store
        super().__init__(folder, config, consumer=consumer, store=store)

    def configure(self, config, consumer="c", store=None, source="{path: in.ndjson}"):
        super().configure(config, consumer, store or self.store, source)

    def ask(self, *arguments):
        ended = self.once(arguments[0], "--json", *arguments[1:], self.name)
        assert ended.status in (0, 1), ended
        return ended.json

    def dead(self, *arguments):
        return self.ask("list", "--dead", *arguments)["messages"]

    def fate(self, line):
        return self.once("explain", "--json", self.name, "--message", f"in.ndjson:{line}").json["message"]
