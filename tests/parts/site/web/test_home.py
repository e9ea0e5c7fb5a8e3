"""The first page and the pages that say what went wrong, as a browser without scripts gets them."""

from tests.visitor import Visitor


def test_the_first_page(stranger: Visitor, visitor: Visitor) -> None:
    """It has the address of the API and the prices, and no sign-up while that is closed. An account gets the chat."""
    assert (visitor.get("/").status, visitor.get("/").location) == (303, "/chat")
    assert "/sign-up" not in stranger.get("/").text
    words = stranger.get("/").words
    assert "The operator of this service creates the accounts." in words
    assert f"Base address http://127.0.0.1:{stranger.port}/v1" in words
    assert "mezzo Light everyday chat. $0.10 $0.21 $0.02" in words
    assert "forte The default. Recommended for code and files. $1.07 $3.45 as input" in words
    assert "fortissimo The highest class. $3.45 $17.25 as input" in words


def test_the_host_of_a_request_is_escaped(stranger: Visitor) -> None:
    """The base address is made from the request, so a hostile host name must not become markup."""
    seen = stranger.get("/", {"host": 'a"><script>alert(1)</script>'})
    assert "<script>alert" not in seen.text


def test_an_address_without_a_page_has_the_menu(visitor: Visitor, stranger: Visitor) -> None:
    """The page of a 404 names its status and has the same menu as other pages: that of a visitor, or of an account."""
    seen = stranger.get("/no-such-page")
    assert "Error 404 Not found There is nothing at this address." in seen.words
    assert ("Sign in" in seen.words, "Sign out" in seen.words) == (True, False)
    seen = visitor.get("/no-such-page")
    assert seen.status == 404
    assert ('href="/keys"' in seen.text, "Sign out" in seen.words) == (True, True)
    assert visitor.post("/sign-out").status == 303
