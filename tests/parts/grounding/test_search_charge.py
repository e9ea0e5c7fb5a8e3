"""A web search: when it is made, its charge as a line of its own, its limit per account and day, and its failures."""

import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from cadenza.core.money import parse_dollars
from cadenza.core.records import Cap
from tests.loopback import LoopbackUpstream, Status
from tests.parts.site.web.chat_client import ChatClient, event_of
from tests.raw_client import RawClient, Reply
from tests.scripted_searxng import ANSWER, ScriptedSearxng, running_searxng
from tests.service import CREDIT_NANO, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.visitor import Visitor

PRICE_NANO = 5_000_000
PER_DAY = 3


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[ScriptedSearxng]:
    with running_searxng() as running:
        yield running


@pytest.fixture
def engine(shared_engine: ScriptedSearxng) -> ScriptedSearxng:
    shared_engine.answer = ANSWER
    shared_engine.queries.clear()
    return shared_engine


@pytest.fixture(scope="module")
def searching(shared_engine: ScriptedSearxng, shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A search has a price, and an account has few of them."""
    routes = {"forte": [RouteSpec("loopback")]}
    toml = f'{shared_engine.toml}timeout_s = 60\nprice = "0.005"\nsearches_per_day = {PER_DAY}\n'
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, routes, toml)) as service:
        yield service


class Asker:
    """An account of one test, and what it was charged."""

    def __init__(self, service: Service, credit_nano: int = CREDIT_NANO, cap: Cap | None = None) -> None:
        self.email = service.create_account(credit_nano)
        self.key = service.create_key(self.email, cap=cap)
        self.api = RawClient(service.port, self.key)
        self._database = service.folder / "data" / "cadenza.db"

    def ask(self, topic: str = "the Zurbaran form") -> str:
        return self.say(f"Search the web: what is the latest news about {topic}?")

    def say(self, content: str) -> str:
        """What the header of the reply says."""
        reply = self.api.chat(messages=[{"role": "user", "content": content}])
        assert reply.status == 200, reply.body
        return reply.headers.get("x-cadenza-grounding", "")

    @property
    def charges(self) -> list[tuple[str, int]]:
        """The class and the cost of each charge, oldest first."""
        rows = """SELECT u.class_id, -e.amount_nano FROM entries e JOIN usage u USING (completion_id)
            JOIN accounts a ON a.id = e.account_id WHERE a.email = ? AND e.kind = 'charge' ORDER BY e.id"""
        with closing(sqlite3.connect(self._database)) as store:
            return list(store.execute(rows, (self.email,)))

    @property
    def searches(self) -> list[int]:
        return [cost_nano for class_id, cost_nano in self.charges if class_id == "search"]


@pytest.fixture
def asker(searching: Service, engine: ScriptedSearxng, upstream: LoopbackUpstream) -> Asker:
    return Asker(searching)


def test_the_words_of_a_message_decide(asker: Asker, engine: ScriptedSearxng, upstream: LoopbackUpstream) -> None:
    """Without a model call: the upstream sees the requests alone, and a settled question is not searched."""
    assert asker.say("Explain how photosynthesis works.") == ""
    assert asker.say("What is the weather in Bergen today?") == "search=1"
    assert (len(upstream.requests), len(engine.queries)) == (2, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_page_that_could_not_be_read_is_not_cited(
    asker: Asker, searching: Service, upstream: LoopbackUpstream, stream: bool
) -> None:
    """The model is told so. No header, annotation or metric says that something was added."""
    text = "Summarise http://10.1.2.3/a please"
    reply = asker.api.chat(messages=[{"role": "user", "content": text}], stream=stream)
    assert (reply.status, reply.headers.get("x-cadenza-grounding")) == (200, None)
    assert b"annotations" not in reply.body
    content = upstream.requests[-1].json["messages"][-1]["content"]
    assert content.startswith("The page http://10.1.2.3/a could not be read")
    assert content.endswith(text)
    assert 'cadenza_grounding_total{part="search",result="nothing"}' in searching.process.get("/metrics")[1]


def test_a_search_is_a_line_of_its_own(asker: Asker, searching: Service) -> None:
    """The ledger has the search and the chat; usage by model shows the search without tokens; the check holds."""
    assert asker.ask() == "search=1"
    assert [class_id for class_id, _ in asker.charges] == ["search", "forte"]
    assert asker.searches == [PRICE_NANO]
    shown = {one.pop("model"): one for one in asker.api.get("/v1/usage?group_by=model").json["data"]}
    assert shown["search"] == {
        "requests": 1,
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "cost": "0.005",
    }
    assert searching.cli("ledger", "check").returncode == 0


def test_a_request_that_asks_for_a_search_gets_one(asker: Asker) -> None:
    """`web_search_options` searches for any question, and is charged; without a search it is named."""
    haiku = {"messages": [{"role": "user", "content": "Write a haiku about rain."}], "web_search_options": {}}
    reply = asker.api.chat(**haiku)
    assert reply.headers["x-cadenza-grounding"] == "search=1"
    assert "x-cadenza-ignored" not in reply.headers
    off = asker.api.post(haiku, {"x-cadenza-grounding": "none"})
    with_tools = asker.api.chat(**haiku, tools=[{"type": "function", "function": {"name": "look"}}])
    assert [one.headers["x-cadenza-ignored"] for one in (off, with_tools)] == ["web_search_options"] * 2
    assert asker.searches == [PRICE_NANO]


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview"])
def test_a_tool_that_searches_is_our_search(asker: Asker, kind: str) -> None:
    """Alone it is the search that decides by itself; beside another tool it is dropped and named."""
    other = {"type": "function", "name": "look"}

    def respond(content: str, *tools: dict[str, str]) -> Reply:
        body = {"model": "forte", "input": content, "tools": [{"type": kind}, *tools]}
        return asker.api.request("POST", "/v1/responses", json.dumps(body).encode())

    searched = respond("What is the weather in Oslo today?")
    assert searched.headers["x-cadenza-grounding"] == "search=1"
    haiku, with_other = respond("Write a haiku about rain."), respond("What is the weather in Oslo today?", other)
    assert "x-cadenza-ignored" not in {**searched.headers, **haiku.headers}
    assert "x-cadenza-grounding" not in haiku.headers
    assert with_other.headers["x-cadenza-ignored"] == f"tools.{kind}"
    assert asker.searches == [PRICE_NANO]


def test_the_chat_page_shows_the_cost_with_the_search(asker: Asker, searching: Service) -> None:
    """The cost below a reply is what the account paid for it, the search included."""
    visitor = Visitor(searching.port)
    visitor.sign_in(asker.email)
    content = "Search the web: what is the latest news about the cost?"
    reply = ChatClient(visitor).send(messages=[{"role": "user", "content": content}])
    assert parse_dollars(event_of(reply, "usage")["cost"]) == sum(cost_nano for _, cost_nano in asker.charges)
    assert asker.searches == [PRICE_NANO]


def test_a_client_that_leaves_pays_for_the_search(asker: Asker, searching: Service, engine: ScriptedSearxng) -> None:
    """The engine was asked, so the search is charged although its client left before the answer."""
    engine.answer = None
    body = json.dumps({"model": "forte", "messages": [{"role": "user", "content": "Search the web for the leaver"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {asker.key}\r\n"
    with socket.create_connection(("127.0.0.1", searching.port)) as client:
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        wait_until(lambda: bool(engine.queries), "the search")
    wait_until(lambda: asker.searches == [PRICE_NANO], "the charge of the search")
    assert asker.charges == [("search", PRICE_NANO)]


def test_a_search_that_fails_is_told_and_free(
    asker: Asker, engine: ScriptedSearxng, upstream: LoopbackUpstream
) -> None:
    """The client gets `search=failed` and the model a sentence; the account pays for the chat alone."""
    engine.answer = (500, "text/plain", b"")
    assert asker.ask("a search that fails") == "search=failed"
    assert "A search for my question failed." in upstream.requests[-1].json["messages"][-1]["content"]
    assert [class_id for class_id, _ in asker.charges] == ["forte"]


def test_searches_have_a_limit_per_account(asker: Asker, searching: Service, engine: ScriptedSearxng) -> None:
    """Beyond it the engine is not asked, and nothing is charged for it; another account can still search."""
    headers = [asker.ask(f"topic {number}") for number in range(PER_DAY + 1)]
    assert headers == ["search=1"] * PER_DAY + ["search=failed"]
    assert len(asker.searches) == len(engine.queries) == PER_DAY
    assert Asker(searching).ask("topic 1") == "search=1"


def test_a_higher_limit_counts_at_once(asker: Asker, searching: Service) -> None:
    """An account that has used up its searches can search again after a reload with a higher limit."""
    assert [asker.ask(f"a limit {number}") for number in range(PER_DAY + 1)][-1] == "search=failed"
    text = searching.config.read_text()
    searching.config.write_text(text.replace(f"searches_per_day = {PER_DAY}", f"searches_per_day = {2 * PER_DAY}"))
    try:
        searching.reload()
        assert asker.ask("a higher limit") == "search=1"
    finally:
        searching.config.write_text(text)
        searching.reload()


def test_a_kept_result_is_charged_like_a_search(asker: Asker, searching: Service, engine: ScriptedSearxng) -> None:
    """The engine is asked once for two accounts with the same question, and both pay: neither learns of the other."""
    other = Asker(searching)
    assert [one.ask("one question of two") for one in (asker, other)] == ["search=1"] * 2
    assert (len(engine.queries), asker.searches, other.searches) == (1, [PRICE_NANO], [PRICE_NANO])


@pytest.mark.parametrize("is_capped", [False, True], ids=["credit", "cap"])
def test_a_search_never_costs_the_answer(
    searching: Service, engine: ScriptedSearxng, upstream: LoopbackUpstream, is_capped: bool
) -> None:
    """An account or a cap that cannot pay for both gets its answer without a search."""
    little_nano = PRICE_NANO + 3_000_000
    asker = Asker(searching, CREDIT_NANO if is_capped else little_nano, Cap(little_nano) if is_capped else None)
    assert asker.ask("what it cannot pay for") == ""
    assert [class_id for class_id, _ in asker.charges] == ["forte"]
    assert not engine.queries


def test_a_repeated_request_pays_for_its_search_once(
    asker: Asker, searching: Service, upstream: LoopbackUpstream
) -> None:
    """A retry with the key of a request that its model refused is answered, with sources that are paid for."""
    body = {
        "model": "forte",
        "messages": [{"role": "user", "content": "Search the web: what is the latest news about retries?"}],
    }
    upstream.script(Status(400))
    assert asker.api.post(body, {"idempotency-key": "one"}).status == 400
    again = asker.api.post(body, {"idempotency-key": "one"})
    assert (again.status, again.headers["x-cadenza-grounding"]) == (200, "search=1")
    assert asker.api.post(body, {"idempotency-key": "one"}).status == 409
    assert [class_id for class_id, _ in asker.charges] == ["search", "forte"]
    assert searching.cli("ledger", "check").returncode == 0
