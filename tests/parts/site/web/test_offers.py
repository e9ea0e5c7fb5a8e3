"""What pages say about search, memory and files: what the service has, and what the account has turned off."""

from collections.abc import Iterator

import pytest

from tests.loopback import LoopbackUpstream
from tests.service import CREDIT_NANO, Service
from tests.service_config import RouteSpec, ServiceSpec
from tests.visitor import Visitor, signed_in

OFF = "[grounding]\nattachments = false\nmemory = false\n"


@pytest.fixture(scope="module")
def bare(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service without attachments, memory, index and images."""
    routes = {"forte": [RouteSpec("loopback")]}
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, routes, more_toml=OFF)) as running:
        yield running


def test_a_service_without_the_parts_says_so(bare: Service) -> None:
    """Nothing is offered that would fail, and saving the settings keeps what was chosen before."""
    visitor = signed_in(bare, bare.create_account(CREDIT_NANO))
    memory = visitor.get("/settings/memory").words
    assert "Memory is turned off on this service Replies do not use your notes." in memory
    assert "Memory is on" not in memory
    settings = visitor.get("/settings")
    assert "This service has no search engine." in settings.words
    assert "Memory is turned off on this service." in settings.words
    assert settings.text.count('type="checkbox" disabled') == 2
    kept = {"uses_search": "true", "uses_memory": "true"}
    assert all(f'type="hidden" name="{name}" value="true"' in settings.text for name in kept)
    chat = visitor.get("/chat").text
    assert 'title="Attach images" hidden>' in chat
    assert 'name="grounding"' not in chat
    assert "turned off" not in chat


def test_the_price_of_a_search_is_shown(bare: Service) -> None:
    """The settings and the docs say what a search costs before an account pays for one."""
    search = 'engine = "searxng"\nurl = "http://127.0.0.1:9"\nprice = "0.005"\nsearches_per_day = 20\n'
    config = bare.config.read_text()
    bare.config.write_text(f"{config}\n[grounding.search]\n{search}")
    try:
        bare.reload()
        visitor = signed_in(bare, bare.create_account(CREDIT_NANO))
        assert "A search costs $0.005." in visitor.get("/settings").words
        assert "Web search $0.005 for each search, at most 20 a day for each account" in visitor.get("/docs").words
    finally:
        bare.config.write_text(config)
        bare.reload()


def test_the_chat_follows_the_account(visitor: Visitor) -> None:
    """With memory only, the switch is for memory; once the account has turned it off, the page says where."""
    chat = visitor.get("/chat").text
    assert 'value="memory" checked>Memory</label>' in chat
    assert 'value="search"' not in chat
    visitor.api("PATCH", "/preferences", {"memory": False})
    assert "Memory is turned off in your settings" in visitor.get("/chat").words


def test_the_chat_says_what_a_class_costs(visitor: Visitor, email: str) -> None:
    """Each class with its prices, `auto` with those of the preferred one; a page has the account and its balance."""
    chat = visitor.get("/chat")
    terms = "$1.07 in, $3.45 out for a million tokens"
    assert chat.text.count(f'data-terms="{terms}') == 2  # forte, and auto
    assert f"{email} $5.00" in visitor.get("/keys").words
