"""The site itself: its headers, its static files, and what it says about addresses that it does not have."""

import re
from importlib.resources import files

import pytest

from tests.raw_client import RawClient, Reply
from tests.service import Service
from tests.visitor import Visitor

STATIC = files("cadenza.parts.site").joinpath("static")
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'"


def test_every_page_forbids_framing_and_foreign_content(stranger: Visitor) -> None:
    """A page carries a policy without inline scripts, cannot be framed and is not kept by caches."""
    for path in ("/", "/sign-in", "/no-such-page"):
        headers = stranger.get(path).headers
        assert headers["content-security-policy"].startswith(POLICY)
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


def test_browsers_stay_with_https(stranger: Visitor) -> None:
    """Where a trusted proxy says that the browser speaks TLS, every reply says to go on so; else none does."""
    for path in ("/", "/no-such-page", "/settings", "/openapi.json", "/platform/api/account"):
        assert stranger.get(path, {"x-forwarded-proto": "https"}).headers["strict-transport-security"]
        assert "strict-transport-security" not in stranger.get(path).headers


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/health", "/readyz"])
def test_probes_and_metrics_are_safe_from_dns_rebinding(service: Service, path: str) -> None:
    """A browser on this machine whose page has another name gets 421; an address and localhost get the reply."""
    client = RawClient(service.port, None)
    for host, status in (("evil.example", 421), ("127.0.0.1", 200), ("localhost:8080", 200), ("[::1]:8080", 200)):
        raw = client.send_raw(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        assert Reply(raw).status == status, host


def test_a_trusted_proxy_may_name_any_host(stranger: Visitor) -> None:
    """It passes on the name that it was asked by, which need not be in the config."""
    assert stranger.get("/readyz", {"host": "chat.example.org"}).status == 200


def test_static_files_are_kept_forever(stranger: Visitor) -> None:
    """The address of a static file changes with its content, so browsers keep it; an unknown name is a 404."""
    found = re.search(r'href="(/static/[0-9a-f]+/cadenza\.css)"', stranger.get("/").text)
    assert found
    seen = stranger.get(found[1])
    assert (seen.status, "immutable" in seen.headers["cache-control"]) == (200, True)
    assert stranger.get("/static/0/no-such-file.css").status == 404
    assert stranger.get("/static/0/..%2fsite.py").status == 404


def test_fonts_are_ours_and_small(stranger: Visitor) -> None:
    """Each font of the style sheets is served, uncompressed, with the licence beside it; all have less than 200 kB."""
    found = re.search(r'href="(/static/[0-9a-f]+/)cadenza\.css"', stranger.get("/").text)
    assert found
    sheets = "".join(stranger.get(found[1] + name).text for name in ("cadenza.css", "home.css"))
    names = re.findall(r'src: url\("([a-z-]+\.woff2)"\); [^}]*font-display: swap', sheets)
    assert set(names) == {path.name for path in STATIC.iterdir() if path.name.endswith(".woff2")}
    fonts = [stranger.get(found[1] + name, {"accept-encoding": "gzip"}) for name in names]
    assert {(font.status, font.headers["content-type"], font.body[:4]) for font in fonts} == {
        (200, "font/woff2", b"wOF2")
    }
    assert sum(len(font.body) for font in fonts) < 200_000
    licence = stranger.get(found[1] + "OFL.txt").text
    assert [name for name in names if name not in licence] == []


def test_an_unknown_address_is_told_so(stranger: Visitor) -> None:
    """A browser gets a page, a program the error object."""
    assert "nothing at this address" in stranger.get("/no-such-page").words
    reply = stranger.get("/no-such-page", {"accept": "*/*"})
    assert (reply.status, reply.json["error"]["type"]) == (404, "invalid_request_error")
