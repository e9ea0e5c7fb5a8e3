"""The pages and endpoints of keys: what they show once, what they refuse, and whose keys they touch."""

import re
from html import unescape
from typing import Any

import pytest

from cadenza.control.client_settings import CLIENTS
from cadenza.core.codes import is_well_formed
from cadenza.core.records import SCOPES
from tests.parts.site.web.operators import audit_events_of, change_store
from tests.raw_client import RawClient
from tests.service import Service, now_ms
from tests.visitor import Seen, Visitor, until_refused

SECRET = re.compile(r'<code class="secret" id="secret">([^<]+)</code>')
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
REFERENCE = re.compile(r'name="reference" value="([^"]+)"')
FIELD = re.compile(r'name="(name|requests_per_second|burst|cap)" value="([^"]*)"')
BAD_RATE = "Requests a second: must be a number above 0 and up to 1,000,000"
FULL = {
    "name": "laptop",
    "scopes": ["inference", "usage"],
    "expires": "30",
    "requests_per_second": "2.5",
    "burst": "7",
    "cap": "5.00",
    "cap_period": "month",
}
ADD_KEY = """
    INSERT INTO keys (id, account_id, name, prefix, digest, scopes, created_at)
    SELECT ?, id, ?, 'sk-cdz-00000', randomblob(32), '', ? FROM accounts WHERE email = ?"""


def secret_in(seen: Seen) -> str:
    found = SECRET.search(seen.text)
    assert found, seen.words
    return unescape(found[1])


def create(visitor: Visitor, **fields: Any) -> str:
    seen = visitor.post("/keys", {"name": "laptop", "scopes": [*SCOPES], **fields})
    assert seen.status == 200, seen.words
    return secret_in(seen)


def first_key(visitor: Visitor) -> dict[str, Any]:
    """The newest key of the account, as the endpoint shows it."""
    found: dict[str, Any] = visitor.api("GET", "/keys").json["data"][0]
    return found


def add_keys(service: Service, email: str, count: int, created_at: int) -> None:
    """Put active keys into the store, each a millisecond older than the one before."""
    rows = [(f"key_{email[:16]}{number:05}", f"many {number}", created_at - number, email) for number in range(count)]
    change_store(service, ADD_KEY, *rows)


def test_a_new_key_is_shown_once_and_works(service: Service, visitor: Visitor) -> None:
    """The reply to the form has the key, filled into the snippets; nothing else has it, and nothing keeps the reply."""
    seen = visitor.post("/keys", FULL)
    secret = secret_in(seen)
    assert is_well_formed(secret.encode())
    assert seen.headers["cache-control"] == "no-store"
    assert seen.text.count(secret) >= 5
    assert f'base_url="http://127.0.0.1:{service.port}/v1"' in unescape(seen.text)
    assert RawClient(service.port, secret).chat().status == 200
    assert secret not in "".join(visitor.get(path).text for path in ("/keys", f"/keys/{first_key(visitor)['id']}"))
    assert secret not in " ".join(visitor.cookies.values())
    for path in service.files():
        assert secret.encode() not in path.read_bytes()


def test_a_key_has_what_its_form_says(visitor: Visitor) -> None:
    """Name, scopes, expiry, rate and cap of the form are those of the key, on the page and in JSON."""
    secret = create(visitor, **FULL)
    key = first_key(visitor)
    assert key["prefix"] == secret[:12]
    assert (key["name"], key["scopes"], key["state"]) == ("laptop", ["inference", "usage"], "active")
    assert (key["requests_per_second"], key["burst"]) == (2.5, 7)
    assert key["cap"] == {"limit": "5.00", "period": "month", "spent": "0.00"}
    words = visitor.get("/keys").words
    for expected in (f"{secret[:12]}…", "inference usage", "2.5 a second, burst 7", "$0.00 of $5.00 this month"):
        assert expected in words


def test_all_scopes_are_ticked_at_first(visitor: Visitor) -> None:
    """A form in which none is ticked is refused, with the reason; what was ticked stays so."""
    assert visitor.get("/keys/new").text.count(" checked>") == 3
    seen = visitor.post("/keys", {"name": "laptop"})
    assert (seen.status, "Tick at least one scope." in seen.words, " checked>" in seen.text) == (400, True, False)
    assert visitor.post("/keys", {"scopes": ["usage"], "requests_per_second": "x"}).text.count(" checked>") == 1
    seen = visitor.post("/keys", {"scopes": ["usage"], "cap": "ten"})
    assert "Spend cap, Dollars: 'ten' is not an amount of dollars; write it like 5.00." in unescape(seen.text)
    assert visitor.api("GET", "/keys").json["data"] == []


@pytest.mark.parametrize(("page", "scope"), [("/keys", "usage"), ("/settings/tokens", "usage:read")])
def test_a_reload_makes_no_second_secret(visitor: Visitor, page: str, scope: str) -> None:
    """A form that is sent twice is refused; the form that is shown then makes another key or token."""
    [reference] = REFERENCE.findall(visitor.get(f"{page}/new").text)
    form = {"name": "one", "scopes": [scope], "reference": reference}
    assert visitor.post(page, form).status == 200
    again = visitor.post(page, form)
    assert (again.status, "before. A" in again.words) == (400, True)
    [reference] = REFERENCE.findall(again.text)
    assert visitor.post(page, {**form, "reference": reference}).status == 200


def test_a_key_without_inference_gets_a_first_request_that_works(visitor: Visitor) -> None:
    """The snippets ask for what the key may do: the models, or the usage."""
    assert "/v1/models" in visitor.post("/keys", {"scopes": ["models"]}).text
    seen = visitor.post("/keys", {"scopes": ["usage"]})
    assert "/v1/usage" in seen.text
    assert "chat/completions" not in seen.text


def test_a_new_key_comes_with_the_settings_of_clients(service: Service, visitor: Visitor) -> None:
    """Each client that reads a file has a tab with what the file needs, filled in; a key that may not chat has none."""
    seen = visitor.post("/keys", {"scopes": ["inference"]})
    text, secret = unescape(seen.text), secret_in(seen)
    for client in CLIENTS.values():
        assert client.fill(f"http://127.0.0.1:{service.port}", secret).strip() in text
        assert f"<code>{client.file}</code>" in text or not client.file
    assert "Connect a program" not in visitor.post("/keys", {"scopes": ["usage"]}).text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"requests_per_second": "fast"}, f"{BAD_RATE}, not 'fast'."),
        ({"requests_per_second": "-1"}, f"{BAD_RATE}, not -1.0."),
        ({"cap": "5", "cap_period": "week"}, 'Period: must be "total" or "month", not \'week\'.'),
    ],
)
def test_a_bad_field_is_explained_beside_what_was_typed(visitor: Visitor, fields: dict[str, Any], reason: str) -> None:
    """The form comes back with the reason and with what was typed, and no key is created."""
    seen = visitor.post("/keys", {**FULL, **fields})
    assert seen.status == 400
    assert reason in unescape(seen.text)
    assert 'role="alert"' in seen.text
    assert 'value="laptop"' in seen.text
    assert visitor.api("GET", "/keys").json["data"] == []


def test_hostile_names_are_text(visitor: Visitor) -> None:
    """A name with markup is shown as it was typed, on every page that has it."""
    pages = [visitor.post("/keys", {"scopes": ["inference"], "name": HOSTILE})]
    key = first_key(visitor)
    assert key["name"] == HOSTILE
    pages += [visitor.get(path) for path in ("/keys", f"/keys/{key['id']}")]
    pages += [visitor.post("/keys", {"scopes": ["inference"], "name": HOSTILE, "requests_per_second": "x"})]
    for seen in pages:
        assert "<script>alert" not in seen.text
        assert "<img src=x" not in seen.text
        assert HOSTILE in unescape(seen.text)


def test_name_rate_and_cap_can_be_changed(service: Service, visitor: Visitor, email: str) -> None:
    """A change is on the page at once, counts for the next request, and the audit log has only what changed."""
    secret = create(visitor)
    path = f"/keys/{first_key(visitor)['id']}"
    assert visitor.post(path, {"name": "server", "cap": "0"}).location == f"{path}?note=key-saved"
    assert "server" in visitor.get(path).words
    refused = RawClient(service.port, secret).chat()
    assert (refused.status, refused.json["error"]["type"]) == (402, "insufficient_quota")
    visitor.post(path, {"name": "server", "requests_per_second": "3", "cap": ""})
    assert RawClient(service.port, secret).chat().status == 200
    visitor.post(path, {"name": "server", "requests_per_second": "3"})
    events = ["key.create", "key.rename", "key.cap", "key.limit", "key.cap"]
    assert [(event, by) for by, event, _ in audit_events_of(service, email)] == [(event, email) for event in events]


def test_a_form_that_is_saved_as_it_is_changes_nothing(visitor: Visitor) -> None:
    """It has each limit with all its digits."""
    rate = "123456.789"
    create(visitor, requests_per_second=rate, burst="1000000", cap="1234567.000000001")
    key = first_key(visitor)
    path = f"/keys/{key['id']}"
    fields = dict(FIELD.findall(visitor.get(path).text))
    assert visitor.post(path, fields).location == f"{path}?note=key-saved"
    assert (first_key(visitor), key["requests_per_second"]) == (key, float(rate))


def test_a_bad_change_is_explained_and_changes_nothing(visitor: Visitor) -> None:
    """The page comes back with the reason, with what was typed, and with the key as it was."""
    create(visitor)
    key = first_key(visitor)
    seen = visitor.post(f"/keys/{key['id']}", {"name": "server", "cap": "much"})
    assert (seen.status, 'value="server"' in seen.text) == (400, True)
    assert first_key(visitor) == key


def test_a_revoked_key_is_refused_on_its_next_request(service: Service, visitor: Visitor, email: str) -> None:
    """The form revokes at once; the page leads to a first key then, and a second revocation changes nothing."""
    secret = create(visitor)
    key = first_key(visitor)
    assert RawClient(service.port, secret).chat().status == 200
    assert visitor.post(f"/keys/{key['id']}/revoke").location == "/keys?note=key-revoked"
    assert RawClient(service.port, secret).chat().status == 401
    empty = visitor.get("/keys")
    assert ("No active keys" in empty.words, 'href="/keys/new"' in empty.text) == (True, True)
    assert "revoked" in visitor.get("/keys?show=all").words
    assert "Revoke this key" not in visitor.get(f"/keys/{key['id']}").words
    visitor.post(f"/keys/{key['id']}/revoke")
    assert [event for _, event, _ in audit_events_of(service, email)] == ["key.create", "key.revoke"]


def test_the_endpoints_do_what_the_pages_do(service: Service, visitor: Visitor) -> None:
    """A key is created, shown, changed and revoked with JSON; what is left out of a change stays."""
    body = {"name": "ci", "scopes": ["inference"], "expires": "90", "burst": 3, "cap": {"limit": "1.5"}}
    made = visitor.api("POST", "/keys", body).json
    assert is_well_formed(made.pop("secret").encode())
    assert (made["object"], made["state"], made["last_used_at"]) == ("key", "active", None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["expires_at"])
    assert made["cap"] == {"limit": "1.50", "period": "total", "spent": "0.00"}
    path = f"/keys/{made['id']}"
    assert visitor.api("GET", path).json == made
    changed = visitor.api("PATCH", path, {"requests_per_second": 2.0, "cap": None}).json
    assert changed == {**made, "requests_per_second": 2.0, "cap": None}
    change = {"name": "ci 2", "burst": None}
    assert visitor.api("PATCH", path, change).json == {**changed, **change}
    assert visitor.api("DELETE", path).json["state"] == "revoked"


def test_an_account_with_many_keys_gets_pages(service: Service, visitor: Visitor, email: str) -> None:
    """Pages and lists have some keys each, newest first, and following them shows every key once."""
    add_keys(service, email, 120, now_ms())
    seen, names = visitor.get("/keys"), list[str]()
    names += re.findall(r">(many \d+)<", seen.text)
    while more := re.search(r'rel="next" href="([^"]+)"', seen.text):
        seen = visitor.get(unescape(more[1]))
        names += re.findall(r">(many \d+)<", seen.text)
    assert names == [f"many {number}" for number in range(120)]
    first = visitor.api("GET", "/keys?limit=100&state=active").json
    rest = visitor.api("GET", f"/keys?limit=100&before={first['data'][-1]['id']}").json
    assert [(len(one["data"]), one["has_more"]) for one in (first, rest)] == [(100, True), (20, False)]
    for query in ("limit=0", "limit=101", "limit=0000000019999", "limit=x", "state=old"):
        assert visitor.api("GET", f"/keys?{query}").status == 400


def test_an_account_has_at_most_a_thousand_active_keys(service: Service, visitor: Visitor, email: str) -> None:
    """One more is refused with the reason; after a revocation there is room for one again."""
    add_keys(service, email, 1000, now_ms() - 48 * 60 * 60 * 1000)
    assert "at most 1,000 active keys" in visitor.post("/keys", {"scopes": ["inference"], "name": "one more"}).words
    assert visitor.api("POST", "/keys", {}).status == 400
    visitor.api("DELETE", f"/keys/{first_key(visitor)['id']}")
    create(visitor)


def test_changes_of_keys_are_limited_in_number(service: Service, email: str) -> None:
    """An account that changes its keys without end gets 429, while it can still look at them."""
    visitor = Visitor(service.port, {"x-forwarded-for": "203.0.113.15"})  # a network of its own
    visitor.sign_in(email)
    visitor.api("POST", "/keys", {"name": "x"})
    path = f"/keys/{first_key(visitor)['id']}"
    *served, seen = until_refused(lambda: visitor.api("PATCH", path, {"name": "x"}))
    assert {one.status for one in served} == {200}
    assert (seen.status, seen.json["error"]["type"]) == (429, "rate_limit_error")
    assert "changes of keys" in seen.json["error"]["message"]
    assert int(seen.headers["retry-after"]) >= 1
    assert visitor.api("GET", path).status == 200
