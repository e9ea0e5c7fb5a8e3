"""A browser without scripts: it keeps cookies, follows no redirect, and sends forms with the token of its page."""

import dataclasses
import functools
import http.client
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from cadenza.parts.site.cookies import SESSION_COOKIE
from tests.service import EMAIL, PASSWORD, Service

TIMEOUT_S = 200.0
CSRF = re.compile(r'data-csrf="([0-9a-f]*)"')
HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')
CARRIED_TO = re.compile(r'<form method="post" action="([^"]+)" class="stack">')
TAG = re.compile(r"<[^>]+>")
API = "/platform/api"
TRIES = 1000

Fields = Mapping[str, str | Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Seen:
    """What came back."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @functools.cached_property
    def text(self) -> str:
        return self.body.decode()

    @property
    def words(self) -> str:
        """The text of the page without its tags, with single spaces."""
        return " ".join(unescape(TAG.sub(" ", self.text)).split())

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def location(self) -> str:
        return self.headers.get("location", "")


class Visitor:
    """One browser, at an address of its own. `headers` are sent with every request."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self.port = port
        self.cookies: dict[str, str] = {}
        self.csrf = ""  # of the last page of this session that was seen
        address = ".".join(["10", *(str(secrets.randbelow(254) + 1) for _ in range(3))])
        self._headers = {"accept": "text/html", "x-forwarded-for": address, **(headers or {})}

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Seen:
        return self.send("GET", path, b"", headers or {})

    def post(self, path: str, fields: Fields | None = None, headers: Mapping[str, str] | None = None) -> Seen:
        """Send a form, with the token of a page of this session unless the fields have one."""
        if not self.csrf and "csrf" not in (fields or {}):
            self.get("/reset", headers)
        body = urlencode({"csrf": self.csrf, **(fields or {})}, doseq=True).encode()
        form = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://127.0.0.1:{self.port}"}
        return self.send("POST", path, body, {**form, **(headers or {})})

    def confirm(self, asked: Seen, password: str = PASSWORD) -> Seen:
        """Give the password on the page that asks for it, with the form that goes on."""
        [action] = CARRIED_TO.findall(asked.text)
        fields: dict[str, list[str]] = {}
        for name, value in HIDDEN.findall(asked.text):
            fields.setdefault(name, []).append(unescape(value))
        return self.post(action, {**fields, "proof_password": password})

    def api(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Seen:
        """Call an endpoint below /platform/api as a script of our own pages does."""
        sent = {"content-type": "application/json", "accept": "application/json", "x-cadenza-csrf": self.csrf}
        encoded = b"" if body is None else json.dumps(body).encode()
        return self.send(method, API + path, encoded, {**sent, **(headers or {})})

    def sign_in(self, email: str = EMAIL, password: str = PASSWORD) -> Seen:
        """Sign in by the form. The token is then that of the signed-in browser."""
        self.get("/sign-in")
        seen = self.post("/sign-in", {"email": email, "password": password})
        assert seen.status == 303, seen.words
        self.get("/settings")
        return seen

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Seen:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request(
                method, path, body, {**self._headers, **({"cookie": cookie} if cookie else {}), **headers}
            )
            response = connection.getresponse()
            body = response.read()
            for line in response.headers.get_all("set-cookie", []):
                self._keep(line)
            seen = Seen(response.status, {name.lower(): value for name, value in response.headers.items()}, body)
        finally:
            connection.close()
        if found := CSRF.search(body.decode(errors="replace")):
            self.csrf = found[1]
        return seen

    def _keep(self, line: str) -> None:
        for name, morsel in SimpleCookie(line).items():
            if self.cookies.get(name) != morsel.value and name == SESSION_COOKIE:
                self.csrf = ""
            if morsel["max-age"] == "0":
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = morsel.value


def signed_in(service: Service, email: str = EMAIL, headers: Mapping[str, str] | None = None) -> Visitor:
    """A browser that is signed in to this account."""
    visitor = Visitor(service.port, headers)
    visitor.sign_in(email)
    return visitor


def from_elsewhere() -> dict[str, str]:
    """The header of a trusted proxy, for a visitor from a network of its own."""
    a, b, c = secrets.token_bytes(3)
    return {"x-forwarded-for": f"10.{a}.{b}.{c}"}


def until_refused(ask: Callable[[], Seen]) -> list[Seen]:
    """The replies up to the first 429. On a slow machine there are more of them: the rate is refilled meanwhile."""
    replies = list[Seen]()
    while len(replies) < TRIES and (not replies or replies[-1].status != 429):
        replies.append(ask())
    return replies
