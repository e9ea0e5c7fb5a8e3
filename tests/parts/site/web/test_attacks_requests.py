"""Requests that no browser sends: codecs that are slow, headers and bodies that cannot be read, a proxy's host."""

import base64
from collections.abc import Callable

import msgspec
import pytest

from cadenza.parts.site.visit import CHANGE_RATE
from tests.loopback import LoopbackUpstream
from tests.service import EMAIL, PASSWORD, Service
from tests.service_config import ServiceSpec, ordinary_spec
from tests.visitor import Visitor

BOUNDARY = "multipart/form-data; boundary=b; charset="
PART = b'--b\r\ncontent-disposition: form-data; name="email"\r\n\r\n%b\r\n--b--\r\n'


@pytest.mark.parametrize(("codec", "text"), [("idna", b"xn--" + b"a" * 60_000), ("punycode", b"-" + b"a" * 60_000)])
def test_a_form_cannot_name_a_slow_codec(stranger: Visitor, codec: str, text: bytes) -> None:
    """A multipart form is refused before its text is decoded, which takes seconds with some codecs."""
    seen = stranger.send("POST", "/sign-in", PART % text, {"content-type": BOUNDARY + codec})
    assert (seen.status, "application/x-www-form-urlencoded" in seen.words) == (400, True)


@pytest.mark.parametrize("origin", ["http://[", "http://[x]", "null", "", "http://127.0.0.1"])
def test_an_origin_that_cannot_be_read_is_foreign(visitor: Visitor, origin: str) -> None:
    """It is refused on a page, on an endpoint and by the chat, and is no error of ours."""
    sent = {"origin": origin}
    asked = {"messages": [{"role": "user", "content": "Hello"}]}
    assert visitor.post("/sign-out", {}, sent).status == 403
    assert visitor.api("PATCH", "/preferences", {}, sent).status == 403
    assert visitor.api("POST", "/chat", asked, sent).status == 403


def test_a_body_that_is_nested_too_deeply_is_refused(stranger: Visitor) -> None:
    """Neither our own JSON nor that of a passkey can exhaust the stack."""
    stranger.get("/sign-in")
    deep = b'{"credential":' + b'{"a":' * 9000 + b"1" + b"}" * 9001
    inner = base64.urlsafe_b64encode(b"[" * 30_000)
    for body in (deep, b'{"credential":{"response":{"clientDataJSON":"%b"}}}' % inner):
        seen = stranger.send("POST", "/platform/api/sign-in/passkey", body, {"x-cadenza-csrf": stranger.csrf})
        assert seen.status == 400


def test_what_other_sites_send_is_not_counted_as_a_change(visitor: Visitor) -> None:
    """A page elsewhere cannot use up the changes of a visitor who is signed in: its forms have no token."""
    for _ in range(CHANGE_RATE.burst + 1):
        assert visitor.api("PATCH", "/preferences", {"theme": "dark"}, {"x-cadenza-csrf": "x"}).status == 403
    assert visitor.api("PATCH", "/preferences", {"theme": "dark"}).status == 200


def test_no_redirect_leads_to_the_host_of_the_request(visitor: Visitor) -> None:
    """A slash at the end is another address, not a reason to name the host that the request named."""
    seen = visitor.get("/keys/", {"host": "evil.example"})
    assert (seen.status, seen.location) == (404, "")


def test_a_proxy_that_sends_another_host(
    upstream: LoopbackUpstream, start_service: Callable[[ServiceSpec], Service]
) -> None:
    """Forms of the site's own address are accepted, those of other sites are not."""
    spec = ordinary_spec(upstream.base_url)
    platform = '[platform]\nbase_url = "http://cadenza.example"\n'
    service = start_service(msgspec.structs.replace(spec, more_toml=spec.more_toml + platform))
    visitor = Visitor(service.port, {"host": "backend:1"})
    form = {"email": EMAIL, "password": PASSWORD}
    assert visitor.post("/sign-in", form, {"origin": "http://cadenza.example.evil"}).status == 403
    assert visitor.post("/sign-in", form, {"origin": "http://cadenza.example"}).status == 303
