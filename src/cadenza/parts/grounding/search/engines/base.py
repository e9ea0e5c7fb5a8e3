"""What a search engine is, and why it may fail.

reason         meaning                                              counts as a fault of the engine
unreachable    it accepts no connection: name, network, TLS, proxy  yes
timeout        it did not answer in time                            yes
broken         it closed the connection too early, or is not HTTP   yes
too_large      it answered more than is read                        yes
not_json       it answered a web page, nothing, or broken JSON      yes
malformed      it answered JSON that has no results in it           yes
redirected     it redirects to another address                      yes
not_found      it does not know the path: the url is wrong          yes
json_disabled  it is a SearXNG without the format JSON              yes
key_refused    it does not accept the key                           yes
quota          it has no searches left for the key                  yes
failed         it answered another status                           yes
busy           its rate limit is reached                            opens the circuit at once
refused        it refuses this query                                no: it works
no_files       not asked: this process has no file descriptor left  no
credit         not asked: the account cannot pay for it             no
per_day        not asked: the account's daily quota is used up      no
resting        not asked: the circuit is open                       no
crowded        not asked: too many searches run                     no
"""

from typing import Protocol

from cadenza.parts.grounding.search.records import Hit


class Engine(Protocol):
    """A search engine. `search` raises EngineFailed with one of the reasons above."""

    name: str

    async def search(self, query: str, count: int) -> list[Hit]: ...

    async def close(self) -> None: ...
