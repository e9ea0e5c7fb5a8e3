"""Heads that are slow to read for a careless program, of up to 64 KiB each: long fields, many fields, long targets."""

import dataclasses
import random
import re
import secrets
from collections.abc import Callable, Iterator
from functools import cache, partial

from cadenza.gateway.api import ENDPOINTS
from cadenza.parts.site.docs.openapi import PLATFORM
from cadenza.parts.site.routes import Page
from cadenza.parts.site.site_map import SITE
from cadenza.server.probes import API_PATHS, PATHS

HEAD_BYTES = 64 * 1024
OTHERS_BYTES = 512  # of the request line and the fields that every head has
OTHER_PATHS = ("/nothing", "/v1/nothing", "//v1/models", "/v1/models/x", "/static/a/b", "/openapi.json")
ANOTHER = "{another}"  # in a value: another one each time that the head is sent, so that nothing keeps what it leads to
COOKIE = "cadenza_session="
# Field -> what is repeated in its value. An uneven one has its beginning before a vertical bar.
FIELDS = {
    "accept": ("text/html,", ",", "*/*;q=0.1,"),
    "accept-encoding": ("gzip,", ",", "gzip;q=0,"),
    "accept-language": ("en;q=0.1,", "-"),
    "access-control-request-headers": ("a,",),
    "authorization": (" ", "Bearer ", "Bearer |a", "Bearer cdz_|a", "Bearer sk-cdz-|a", "Basic |a=", "Bearer |\xff"),
    "connection": ("a,", "upgrade,"),
    "content-length": ("0",),
    "content-type": ("text/plain;|a=b;", ";", '"', "application/x-www-form-urlencoded;|charset=a;"),
    "cookie": (
        ";",
        "; ",
        "a;",
        "a=b;",
        " ",
        "=",
        '"',
        "cadenza_sessio;",
        COOKIE,
        f"{COOKIE};",
        f"{COOKIE}|a",
        f"{COOKIE}anonymous-|a",
        f'{COOKIE}"|\\',
        f'{COOKIE}"|\\"',
        f'{COOKIE}"|\\054',
        "cadenza_device=|.",
    ),
    "expect": ("100-continue,",),
    "forwarded": ("for=1;", ",", 'for="[::1]";'),
    "host": ("a", "a.", "[", ":", "%"),
    "if-none-match": ('"a",', 'W/"a",'),
    "origin": ("://", "http://a"),
    "range": ("bytes=|0-1,",),
    "sec-fetch-site": ("a",),
    "stripe-signature": (",", "v1=a,", "t=1,|v1=a,"),
    "traceparent": ("0-", "00-"),
    "tracestate": ("a=b,",),
    "transfer-encoding": (",", "a,", " ", "chunked,"),
    "upgrade": ("a,",),
    "user-agent": ("a(", "\xff"),
    "x-api-key": ("a", " a"),
    "x-cadenza-csrf": ("a", "\xff"),
    "x-forwarded-for": (",", "1,", "127.0.0.1,", "::1,", "::ffff:127.0.0.1, ", "1", ".", ":", "[", "1.", "\xff,"),
    "x-forwarded-proto": ("https,", " "),
    "x-request-id": ("a", "!"),
}
QUERIES = ("a=1&", "a&", "&", "%41&", "%", "%zz=", ";", "+", "%ff", "next=|/", "?", "a=", "\xff", "note=saved&")
TAILS = ("%41", "%", "/", "a/", "%2f", "%ff", "/..", "\xff", "%zz", "{", "%3f", "%c3%bc", "a", ";")
COUNTS = (250, 990, 16_000)

Place = tuple[str, str]  # a method and a path
Target = tuple[str, list[tuple[str, str]]]  # of a request, and further fields
Filled = Callable[[str, int], Target]  # adds this many bytes to a target, or in further fields


@dataclasses.dataclass(frozen=True)
class Head:
    """A request without a body, and what is odd about it."""

    label: str
    place: Place
    target: str
    fields: list[tuple[str, str]]

    @property
    def data(self) -> bytes:
        """Each time from another address, so that no limit of an address refuses it before it is read."""
        address = ".".join(["10", *(str(random.randint(1, 254)) for _ in range(3))])
        usual = {"host": "here", "accept": "text/html", "connection": "close", "x-forwarded-for": address}
        given = {name for name, _ in self.fields}
        fields = [*(field for field in usual.items() if field[0] not in given), *self.fields]
        lines = [f"{self.place[0]} {self.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), "", ""]
        text = "\r\n".join(lines).replace(ANOTHER, secrets.token_hex(8))
        return text.encode("latin-1") + (b"0\r\n\r\n" if "transfer-encoding" in given else b"")


def places() -> list[Place]:
    """All pages, forms, endpoints and probes, each with its method, and some that do not exist."""
    site = [(one.method, one.path if isinstance(one, Page) else PLATFORM + one.path) for one in SITE.routes]
    named = [(method, re.sub(r"\{\w+\}", "x", path)) for method, path in site]
    api = [(method, one.path) for one in ENDPOINTS for method in (*one.methods, "OPTIONS")]
    return sorted({*named, *api, *(("GET", path) for path in (*PATHS, *API_PATHS, *OTHER_PATHS))})


def plain_head(place: Place) -> Head:
    return Head("plain", place, place[1], [])


def random_heads(seed: int, count: int) -> Iterator[Head]:
    """Heads with one to three kinds of oddities, at any place."""
    chance, labels, everywhere = random.Random(seed), list(kinds()), places()
    for _ in range(count):
        chosen = chance.sample(labels, chance.choice((1, 1, 1, 2, 3)))
        yield make_head(chance.choice(everywhere), *chosen)


def make_head(place: Place, *labels: str) -> Head:
    """A head with these kinds of oddities, of as much of each as fits."""
    target, fields = place[1], list[tuple[str, str]]()
    for label in labels:
        target, more = kinds()[label](target, (HEAD_BYTES - OTHERS_BYTES) // len(labels))
        fields += more
    return Head(", ".join(labels), place, target, fields)


@cache
def kinds() -> dict[str, Filled]:
    """All kinds of oddities."""
    return dict(_kinds())


def _kinds() -> Iterator[tuple[str, Filled]]:
    for name, repeated in FIELDS.items():
        for text in repeated:
            yield f"{name}: {text}", partial(_fill_field, name, text)
    for start, texts in (("?", QUERIES), ("/", TAILS)):
        for text in texts:
            yield f"target {start}{text}", partial(_fill_target, start, text)
    for count in COUNTS:
        yield f"{count} fields", partial(_fill_many, "a", "", count)
    for name, text in (("x-forwarded-for", "127.0.0.1,::1,::1,127.0.0.1"), ("cookie", f'{COOKIE}"\\\\\\\\"')):
        for count in COUNTS[:2]:
            yield f"{count} {name}", partial(_fill_many, name, text, count)
    yield "gzip from another host", _ask_gzip


def _fill_field(name: str, text: str, target: str, size_bytes: int) -> Target:
    value = _repeat(text, 255 if name == "host" else size_bytes - len(name) - 4)
    return target, [(name, f"{value}chunked" if name == "transfer-encoding" else value)]


def _ask_gzip(target: str, _size_bytes: int) -> Target:
    return target, [("host", f"{ANOTHER}.example.org"), ("accept-encoding", "gzip")]


def _fill_target(start: str, text: str, target: str, size_bytes: int) -> Target:
    return target + start + _repeat(text, size_bytes), []


def _fill_many(name: str, value: str, count: int, target: str, size_bytes: int) -> Target:
    line_bytes = len(f"{name}: {value}\r\n")
    return target, [(name, value)] * min(count, size_bytes // line_bytes)


def _repeat(text: str, size_bytes: int) -> str:
    start, _, repeated = text.rpartition("|")
    return (start + repeated * (size_bytes // len(repeated) + 1))[: size_bytes - 8]
