"""URLs that strangers name: what is taken for the URL of a page, and how it is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.grounding.search.pages.addresses import URL_CHARS_MAX, Target, parse_target, redirect_target
from cadenza.parts.grounding.search.records import FetchFailed

REFUSED = [
    "", "/", "site.example", "//site.example/", "ftp://site.example/", "file:///etc/passwd", "gopher://site.example/",
    "javascript:alert(1)", "data:text/html,hi", "unix:///run/a.sock", "http:", "http://", "http:///path", "http:/path",
    "https://user@site.example/", "https://user:secret@site.example/", "https://@site.example/",
    "https://8.8.8.8@127.0.0.1/", "http://site.example:0x50/", "http://site.example:99999/", "http://site.example:-1/",
    "http://site.example:80:80/", "http://site.example\\@127.0.0.1/", "http://site.example\r\nx: y/", "http://a b/",
    "http://site.example/\r\nhost: other", "http://site.example/\x00", "http://\tsite.example/", "http://site..example/",
    "http://site.example../", "http://.site.example/", "http://./", "http://-a.example/", "http://a-.example/",
    "http://a%2eexample/", "http://127.0.0.1%2f/", "http://site.example%00/", "http://[::1/", "http://::1]/",
    "http://[::1%eth0]/", "http://[fe80::1%25eth0]/", "http://[v1.a]/", "http://[127.0.0.1]/", "http://[]/",
    "http://*.example/", "http://a$b.example/", f"http://{'a' * 64}.example/", f"http://{'a.' * 130}example/",
    "http://site.example/\ud800", "http://\ud800.example/", f"http://site.example/{'a' * URL_CHARS_MAX}",
]  # fmt: skip
ODD_IPV4 = [
    "0x7f.1", "0x7f.0.0.1", "0x7f000001", "0X7F.1", "2130706433", "017700000001", "0177.0.0.1", "0177.1", "127.1",
    "127.0.1", "127.0.0.01", "127.0.0.1.2", "127.0.0.256", "127.0.0.0x1", "0", "0x", "1", "a.1", "site.example.1",
    "site.0x7f", "127.0.0.1..", "00.0.0.0", "１２７.1", "127。1", "①②⑦.1", "0x7f.1.", "127.0.0.0001",
]  # fmt: skip


def refusal(url: str) -> str:
    with pytest.raises(FetchFailed) as failed:
        parse_target(url)
    return failed.value.reason


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_that_is_not_one_of_a_page(url: str) -> None:
    """Other schemes, credentials, control characters and malformed hosts or ports are refused."""
    assert refusal(url) == "refused"


@pytest.mark.parametrize("host", ODD_IPV4)
def test_odd_notations_of_ipv4(host: str) -> None:
    """An IPv4 address is taken in dotted decimal only; other notations are refused before a name is looked up."""
    assert refusal(f"http://{host}/") == "refused"


@pytest.mark.parametrize(
    ("given_host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1.", "127.0.0.1"), ("[::1]", "::1"), ("[0:0::1]", "::1"),
     ("[::ffff:127.0.0.1]", "::ffff:7f00:1"), ("１２７.0.0.1", "127.0.0.1"), ("127。0。0。1", "127.0.0.1")],
)  # fmt: skip
def test_a_host_that_is_an_address(given_host: str, address: str) -> None:
    """A host that is an address in any spelling of Unicode is known as one, so that it is checked as one."""
    target = parse_target(f"http://{given_host}/")
    assert str(target.literal) == target.host == address


@pytest.mark.parametrize(
    ("url", "wanted"),
    [("HTTP://Site.EXAMPLE", "http://site.example/"), ("https://site.example:443/a", "https://site.example/a"),
     ("https://site.example:80/", "https://site.example:80/"), ("http://site.example.:80/?", "http://site.example/"),
     ("http://site.example/a#part", "http://site.example/a"), ("http://site.example?q=1", "http://site.example/?q=1"),
     ("http://bücher.example/ü?ü", "http://xn--bcher-kva.example/%C3%BC?%C3%BC"),
     ("http://BÜCHER.example", "http://xn--bcher-kva.example/"), ("http://straße.example/",
     "http://xn--strae-oqa.example/"), ("http://a.example/%41 b", "http://a.example/%41%20b"),
     ("http://a_b.example/", "http://a_b.example/"), ("http://[2001:DB8::1]:8080/", "http://[2001:db8::1]:8080/"),
     ("http://site.example:/", "http://site.example/")],
)  # fmt: skip
def test_how_a_url_is_written(url: str, wanted: str) -> None:
    """A host is in lower case and ASCII, without its last dot; a path is ASCII; there is no fragment."""
    assert parse_target(url).url == wanted


@given(st.text(alphabet=st.characters(), max_size=60), st.sampled_from(["http://", "https://a.example/", "//", ""]))
def test_any_text_as_a_url(text: str, start: str) -> None:
    """Any text is refused or becomes a request line of printable ASCII, which is taken apart the same way again."""
    try:
        target = parse_target(start + text)
    except FetchFailed:
        return
    assert target.url.isascii()
    assert target.url.isprintable()
    assert " " not in target.url
    assert parse_target(target.url) == target


SECURE = parse_target("https://site.example/a/b?c")


@pytest.mark.parametrize(
    ("location", "wanted"),
    [("/d", "https://site.example/d"), ("d", "https://site.example/a/d"), ("?d", "https://site.example/a/b?d"),
     ("//other.example/d", "https://other.example/d"), ("https://other.example", "https://other.example/"),
     ("../../../d", "https://site.example/d"), ("/ü d", "https://site.example/%C3%BC%20d")],
)  # fmt: skip
def test_where_a_redirect_leads(location: str, wanted: str) -> None:
    """A location is relative to the URL that redirects."""
    assert redirect_target(SECURE, location.encode()).url == wanted


@pytest.mark.parametrize(
    ("location", "reason"),
    [(b"http://site.example/", "downgrade"), (b"HTTP://other.example/", "downgrade"), (b"ftp://a.example/", "refused"),
     (b"file:///etc/passwd", "refused"), (b"https://a:b@c.example/", "refused"), (b"https://2130706433/", "refused"),
     (b"\xff", "refused"), (b"https://[", "refused"), (b"javascript:1", "refused")],
)  # fmt: skip
def test_a_redirect_that_is_not_followed(location: bytes, reason: str) -> None:
    """A redirect from https to http, to another scheme, or to a URL that is refused anyway is not followed."""
    with pytest.raises(FetchFailed) as failed:
        redirect_target(SECURE, location)
    assert failed.value.reason == reason


def test_a_redirect_from_http_to_https() -> None:
    """An upgrade from http to https is followed."""
    assert redirect_target(Target("http", "a.example", 80, "/"), b"https://a.example/").scheme == "https"
