"""`[grounding]` and `[grounding.search]` in the config. Without a table files and notes are used, and no search."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from msgspec import field
from msgspec.structs import replace

from cadenza.config.checks import ADDRESS, NETWORKS, Secret
from cadenza.config.reader import ConfigReader, PartTable
from cadenza.config.settings import NO_PLAIN_HTTP, SENDABLE, Settings, is_public_http
from cadenza.core.config_keys import DOLLARS, ConfigTable, Like, Switch, Variable, above_zero, whole
from cadenza.core.content import Content

ENGINE_URLS = {"brave": "https://api.search.brave.com", "tavily": "https://api.tavily.com"}
EngineName = Literal["searxng", "brave", "tavily"]


# A key is one line, or two with its sentence.
# fmt: off
class SearchSettings(Content, ConfigTable, frozen=True):
    """The engine of web search."""

    engine: Annotated[Literal[EngineName, "off"], Like("searxng"), "without a table, none is asked"] = "off"
    url: Annotated[str | None, ADDRESS, Like("http://127.0.0.1:8888"), "of your SearXNG; the others have one"] = None
    api_key_env: Annotated[str | None, Variable("the key of the search engine", "BRAVE_API_KEY", *SENDABLE)] = None
    max_results: Annotated[int, whole(1, 20), "results that are quoted, at most"] = 5
    timeout_s: Annotated[float, above_zero(60), "a search that takes longer is left out"] = 6.0
    price_nano: Annotated[int, DOLLARS, Like("0.005"),
        "dollars for one search, charged to the account"] = field(default=0, name="price")
    searches_per_day: Annotated[int, whole(1, 1_000_000),
        "of one account: the burst, and the number that is added in a day"] = 1000
    allow_networks: Annotated[tuple[str, ...], NETWORKS, Like(["10.20.0.0/16"]),
        "private addresses whose pages may be read; by default none"] = ()
    api_key: Secret | None = None
    proxy: str | None = None  # to the engine, from the environment
    given: frozenset[str] = frozenset()  # the keys that the file has

    def mistakes(self) -> Iterable[tuple[str, str]]:
        if self.given and "engine" not in self.given:
            yield "engine", 'missing; it must be "searxng", "brave", "tavily" or "off"'
        if self.engine == "searxng" and not self.url:
            yield "url", 'missing; it must be the address of your SearXNG, like "http://127.0.0.1:8888"'
        if self.engine in ENGINE_URLS and not self.api_key_env:
            yield "api_key_env", "missing; it must name the environment variable that has the engine's key"
        if self.url and is_public_http(self.url):
            yield "url", NO_PLAIN_HTTP.format("queries")


class GroundingSettings(PartTable, frozen=True):
    attachments: Annotated[bool, "files in messages are read"] = True
    memory: Annotated[bool, "the notes of the account are used"] = True
    search: Annotated[SearchSettings, Switch("engine"),
        "`search = false` in [grounding] turns it off"] = SearchSettings()
    # fmt: on

    def completed(self, reader: ConfigReader) -> Self:
        url = self.search.url or ENGINE_URLS.get(self.search.engine)
        proxy = reader.proxy(url, ("grounding", "search", "url"))
        return replace(self, search=replace(self.search, given=frozenset(), url=url, proxy=proxy))

    @classmethod
    def given_in(cls, settings: Settings) -> Self:
        return settings.of(cls) or cls()


TABLES = {"grounding": Annotated[GroundingSettings, "what requests without tools get beside their messages"]}
