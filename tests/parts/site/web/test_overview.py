"""The operator's overview: its sentence names what is wrong, its plots and its search find what happened."""

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.loopback import Good, LoopbackUpstream, Pause, Sse, Status
from tests.loopback.chunks import ROLE, said
from tests.parts.site.web.operators import account_id_of, make_operator
from tests.raw_client import RawClient
from tests.service import EMAIL, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.visitor import Visitor


@pytest.fixture(scope="module")
def small(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service with one slot and one provider, and an operator."""
    routes = {"forte": [RouteSpec("acme", "large")]}
    with Service(ServiceSpec({"acme": shared_upstream.base_url}, routes, limits={"concurrency": 1})) as service:
        make_operator(service, EMAIL)
        yield service


def sentence(operator: Visitor) -> str:
    """What the overview says first."""
    words = operator.get("/operator").text
    return words.partition('id="state">')[2].partition("<")[0]


def test_the_plots_have_a_table(small: Service, upstream: LoopbackUpstream) -> None:
    """A request of this minute and an error are in the last row of the hour and of the day."""
    operator, api = Visitor(small.port), RawClient(small.port, small.key)
    operator.sign_in()
    assert api.chat().status == 200
    assert api.chat(model="unknown").status == 400
    for span in ("hour", "day"):
        rows = operator.get(f"/operator?span={span}").text.partition('aria-label="The plots as a table"')[2]
        assert '<td class="number">1</td>' in rows.partition("</tbody>")[0]
    assert operator.get("/operator").text.count('role="img"') == 5


def test_one_search_finds_everything(small: Service, upstream: LoopbackUpstream) -> None:
    """An account, a key, a completion id and a request id are found; a key that was pasted is not shown again."""
    operator, api = Visitor(small.port), RawClient(small.port, small.key)
    operator.sign_in()
    reply = api.chat()

    def found(text: str) -> str:
        seen = operator.post("/operator/search", {"text": text})
        assert small.key not in seen.text
        return seen.location or seen.words

    account = f"/operator/accounts/{account_id_of(small, EMAIL)}"
    request = f"/operator/requests/{reply.json['id']}"
    assert (found(EMAIL), found(account.rpartition("/")[2])) == (account, account)
    assert (found(reply.json["id"]), found(reply.headers["x-request-id"])) == (request, request)
    assert all(EMAIL in found(text) for text in (small.key, small.key[:12]))
    assert "Nothing found" in found("nobody@example.org")
    assert "Nothing found" in found("\x00ü")


def test_an_outage_is_named(small: Service, upstream: LoopbackUpstream) -> None:
    """All is well at first. Then it is out of slots, its store is locked, its provider is down, and each is said."""
    operator, api = Visitor(small.port), RawClient(small.port, small.key)
    operator.sign_in()
    assert api.chat().status == 200
    good = ("All is well", "The event loop is late")  # under load
    wait_until(lambda: sentence(operator).startswith(good), "good health")

    pause = Pause()
    upstream.script(Sse([ROLE, said("a"), pause, said("b")]))
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(api.chat, stream=True)
        pause.wait_until_reached()
        assert "1 of 1 slots are taken" in sentence(operator)
        pause.release()
        held.result()

    with contextlib.closing(sqlite3.connect(small.store, isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        wait_until(lambda: sentence(operator).startswith("The store takes no writes"), "the sentence of the store")
        store.execute("ROLLBACK")
    wait_until(lambda: "store takes no writes" not in sentence(operator), "the store to take writes again")

    upstream.always(Status(500))
    for _ in range(3):
        assert api.chat().status == 502
    problems = {one["kind"]: one for one in operator.api("GET", "/operator/overview").json["problems"]}
    words = "A route fails. acme/large: it answers with an error (failed, status 500)."
    assert (problems["route_fails"]["words"], problems["no_route"]["severity"]) == (words, "page")
    page = operator.get("/operator")
    assert f"{words} See the provider's status page." in page.words
    assert "502" in page.words
    upstream.always(Good())
