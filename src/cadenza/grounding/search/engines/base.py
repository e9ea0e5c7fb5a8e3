"""What a search engine is, and why it may fail.

reason         the engine                                        counts against it
unreachable    accepts no connection: name, network, TLS, proxy  yes
timeout        did not answer in time                            yes
broken         closed the connection too early, or is not HTTP   yes
too_large      answered more than is read                        yes
not_json       answered a web page, nothing, or broken JSON      yes
malformed      answered JSON that has no results in it           yes
redirected     sends us to another address                       yes
not_found      does not know the path: the url is wrong          yes
json_disabled  is a SearXNG without the format JSON              yes
key_refused    does not accept the key                           yes
quota          has no searches left for the key                  yes
failed         answered another status                           yes
busy           asks to be left alone for a while (`EngineBusy`)  yes, at once
refused        refuses this query                                no: it works
unusable       is the local one, and its file is no index        yes; it never rests
no_files       was not asked: this process has no file left      no
credit         was not asked: the account cannot pay for it      no
per_day        was not asked: the account has made its searches  no
resting        was not asked: it failed too often                no
crowded        was not asked: too many searches run              no
closed         was closed while it was asked                     no
"""

from typing import Protocol

from cadenza.grounding.search.records import EngineFailed, Hit

COUNT_MAX = 20  # the most results that Brave and Tavily give


class Engine(Protocol):
    """A search engine. `search` raises EngineFailed with one of the reasons above."""

    name: str

    async def search(self, query: str, count: int) -> list[Hit]: ...

    async def close(self) -> None: ...


class EngineBusy(EngineFailed):
    """The engine has a rate limit and says so. Without a `rest_s` it does not say for how long."""

    def __init__(self, rest_s: float | None = None) -> None:
        super().__init__("busy")
        self.rest_s = rest_s


def fit_count(count: int) -> int:
    return min(max(count, 1), COUNT_MAX)
