"""The chat of the web application: a session stands in for a key, with the money and the limits of any request."""

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest

from cadenza.parts.site.cookies import csrf_token
from tests.account import FORTE_INPUT_NANO, FORTE_OUTPUT_NANO, PROMPT_TOKENS
from tests.conftest import StartService
from tests.loopback import ROLE, STOP, USAGE, LoopbackUpstream, Pause, Sse, Status, chunk, said, usage_chunk
from tests.parts.site.web.chat_client import PATH, ChatClient, event_of, html_of, text_of
from tests.parts.site.web.operators import balance_nano, change_store
from tests.raw_client import Reply, read_all, read_until
from tests.service import CREDIT_NANO, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.tokens import count_tokens
from tests.visitor import Visitor, signed_in

COST_NANO = USAGE["prompt_tokens"] * FORTE_INPUT_NANO + USAGE["completion_tokens"] * FORTE_OUTPUT_NANO  # type: ignore[operator]
KEYS = """
    SELECT keys.name, keys.origin, keys.prefix, usage.cost_nano, usage.status, usage.completion_id
    FROM usage JOIN keys ON keys.id = usage.key_id JOIN accounts ON accounts.id = usage.account_id
    WHERE accounts.email = ? ORDER BY usage.started_at"""
COUNT_KEYS = """
    SELECT COUNT(*) AS keys FROM keys JOIN accounts ON accounts.id = account_id WHERE email = ? AND origin = 'web'"""
SUSPEND = "UPDATE accounts SET suspended_at = 1 WHERE email = ?"
HALF = "UPDATE sessions SET stage = 'second_factor' WHERE account_id = (SELECT id FROM accounts WHERE email = ?)"


@pytest.fixture
def chat(visitor: Visitor) -> ChatClient:
    return ChatClient(visitor)


def test_a_reply_arrives_as_text_and_as_html(
    chat: ChatClient, upstream: LoopbackUpstream, service: Service, email: str
) -> None:
    """The text comes in pieces, each complete block as clean HTML, and the end says tokens, cost and class."""
    pieces = ["# Tit", "le\n", "\nSome **bo", "ld** text.\n\n```py\nx", " = 1\n```\n", "<script>alert(1)</script>"]
    upstream.script(Sse([ROLE, *map(said, pieces), STOP, usage_chunk()]))
    reply = chat.send()
    assert (reply.status, reply.is_done) == (200, True)
    assert text_of(reply) == "".join(pieces)
    html = html_of(reply)
    assert "<h3>Title</h3>" in html
    assert "<strong>bold</strong>" in html
    assert '<span class="language">py</span>' in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert sum(event["units"] for event in reply.events if event["type"] == "block") == len("".join(pieces))
    assert event_of(reply, "start")["class"] == "forte"
    usage = event_of(reply, "usage")
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["class"]) == (11, 7, "forte")
    assert usage["cost"] == f"{COST_NANO / 10**9:.9f}".rstrip("0")
    assert balance_nano(service, email) == CREDIT_NANO - COST_NANO


def test_a_file_is_measured_before_it_is_sent(chat: ChatClient, service: Service, email: str) -> None:
    """Its parts, its tokens and the fewest that a question takes; it costs nothing."""
    rows = "".join(f"ORD-{number},Customer{number},{number}.50\n" for number in range(1233))
    reply = chat.measure("orders & more.csv", f"order,customer,amount\n{rows}".encode())
    assert reply.status == 200
    assert reply.json["parts"] == "1,233 rows"
    assert reply.json["tokens"] > 10_000
    assert reply.json["least_tokens"] < 4_000
    small = chat.measure("a.txt", b"The vault opens at noon.").json
    assert (small["parts"], small["tokens"]) == ("", small["least_tokens"])
    assert balance_nano(service, email) == CREDIT_NANO


def test_a_file_that_cannot_be_read_is_refused_before_it_is_sent(chat: ChatClient) -> None:
    """In the words of the page, with the name of the file; and only for a page of ours, with a session."""
    reply = chat.measure("scan.png", b"\x89PNG\r\n\x1a\n" + b"x" * 50)
    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("scan.png cannot be read: it is a PNG image")
    assert chat.measure("a.txt", b"text", {"cookie": ""}).status == 401
    assert chat.measure("a.txt", b"text", {"x-cadenza-csrf": "x", "sec-fetch-site": "cross-site"}).status == 403


def test_reasoning_and_refusals_are_apart(chat: ChatClient, upstream: LoopbackUpstream) -> None:
    """What a model thinks or refuses arrives as events of its own, and never as HTML."""
    thought, refused = chunk({"reasoning_content": "Let me <b>think</b>."}), chunk({"refusal": "No."})
    upstream.script(Sse([ROLE, thought, refused, said("*Yes*"), STOP, usage_chunk()]))
    reply = chat.send()
    assert event_of(reply, "reasoning")["text"] == "Let me <b>think</b>."
    assert event_of(reply, "refusal")["text"] == "No."
    assert html_of(reply) == "<p><em>Yes</em></p>\n"


def test_a_block_is_sent_while_the_rest_is_still_generated(chat: ChatClient, upstream: LoopbackUpstream) -> None:
    """HTML of the first paragraph arrives before the upstream sends the second."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("First *paragraph*.\n\n"), pause, said("Second."), STOP]))
    with chat.open() as connection:
        begun = read_until(connection, b"<em>paragraph</em>")
        pause.release()
        assert "Second." in text_of(Reply(begun + read_all(connection)))


def test_usage_is_that_of_the_web_chat(
    chat: ChatClient, upstream: LoopbackUpstream, service: Service, email: str
) -> None:
    """All chats of an account are metered under one key of the web application, which nobody knows."""
    for _ in range(2):
        assert chat.send().is_done
    rows = service.ledger.query(KEYS, email)
    assert [(row["name"], row["origin"], row["prefix"]) for row in rows] == [("Web chat", "web", "web-chat----")] * 2
    assert service.ledger.query(COUNT_KEYS, email)[0]["keys"] == 1
    assert sum(row["cost_nano"] for row in rows) == CREDIT_NANO - balance_nano(service, email)
    service.ledger.check_rules()


def test_the_class_is_the_one_that_was_picked(chat: ChatClient, upstream: LoopbackUpstream) -> None:
    """`auto` is served by the account's class, any other id by that class; an unknown one is a 400."""
    assert event_of(chat.send(model="auto"), "usage")["class"] == "forte"
    assert event_of(chat.send(model="mezzo"), "usage")["class"] == "mezzo"
    assert "does not exist" in chat.send(model="no-such").error(400)


def test_a_file_goes_with_a_message(chat: ChatClient, upstream: LoopbackUpstream, service: Service) -> None:
    """It is read as in the API: its text reaches the model, a header tells the page, and nothing of it is kept."""
    data = base64.b64encode(b"zyxcontentzyx " * 10_000).decode()
    file = {"filename": "zyxnamezyx.txt", "file_data": f"data:text/plain;base64,{data}"}
    parts = [{"type": "file", "file": file}, {"type": "text", "text": "When?"}]
    reply = chat.send({"x-cadenza-grounding": "none"}, messages=[{"role": "user", "content": parts}])
    assert (reply.is_done, reply.headers["x-cadenza-grounding"]) == (True, "attachments=1 cut=1")
    read, asked = upstream.requests[0].json["messages"][-1]["content"]
    assert 'name="zyxnamezyx.txt"' in read["text"]
    assert asked["text"] == "When?"
    for path in service.files():
        content = path.read_bytes()
        assert b"zyxnamezyx" not in content
        assert b"zyxcontentzyx" not in content


def test_an_image_needs_a_route_that_takes_it(chat: ChatClient, upstream: LoopbackUpstream) -> None:
    """Without such a route the page gets a 400 in plain words, and no upstream is asked."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    reply = chat.send(messages=[{"role": "user", "content": [image]}])
    assert reply.error(400) == "forte takes no images. Remove them."
    assert reply.headers["x-should-retry"] == "false"
    assert upstream.requests == []


def test_a_stopped_reply_is_charged_for_what_was_delivered(
    chat: ChatClient, upstream: LoopbackUpstream, service: Service, email: str
) -> None:
    """Leaving closes the upstream; the page can ask what the reply cost, and another account cannot."""
    upstream.script(Sse([ROLE, said("first words"), Pause()]))
    with chat.open() as connection:
        begun = Reply(read_until(connection, b"first words"))
    upstream.wait_for_disconnect()
    path = f"/chat/{event_of(begun, 'start')['id']}/cost"
    wait_until(lambda: chat.visitor.api("GET", path).status == 200, "the charge")
    cost = chat.visitor.api("GET", path).json
    cost_nano = PROMPT_TOKENS * FORTE_INPUT_NANO + count_tokens("first words") * FORTE_OUTPUT_NANO
    assert cost["cost"] == f"{cost_nano / 10**9:.9f}".rstrip("0")
    assert balance_nano(service, email) == CREDIT_NANO - cost_nano
    other = signed_in(service, service.create_account(0))
    assert other.api("GET", path).status == 404
    by_request = f"/chat/{begun.headers['x-request-id']}/cost"
    assert chat.visitor.api("GET", by_request).json == cost
    assert other.api("GET", by_request).status == 404


def test_a_reply_that_breaks_off_ends_with_an_error(chat: ChatClient, upstream: LoopbackUpstream) -> None:
    """What was delivered is rendered; then an error event says that the reply is not whole."""
    upstream.script(Sse([ROLE, said("Some *words*")], done=False))
    reply = chat.send()
    assert "<em>words</em>" in html_of(reply)
    assert "broke off" in reply.events[-1]["error"]["message"]
    assert not reply.is_done


def test_without_a_session_there_is_no_chat(stranger: Visitor, upstream: LoopbackUpstream) -> None:
    """No cookie, an anonymous one and a made-up one get 401, whatever token they carry; no upstream is asked."""
    stranger.get("/sign-in")
    anonymous = stranger.cookies["cadenza_session"]
    for cookie in ("", anonymous, "made-up", "A" * 5000, "ä"):
        stranger.cookies, stranger.csrf = {"cadenza_session": cookie}, csrf_token(cookie)
        assert "Sign in" in ChatClient(stranger).send().error(401, "authentication_error")
    assert upstream.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {"x-cadenza-csrf": ""},
        {"x-cadenza-csrf": "0" * 64},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_another_site_cannot_spend(chat: ChatClient, upstream: LoopbackUpstream, headers: dict[str, str]) -> None:
    """A request without our token, with a wrong one, or from a foreign origin is refused before anything is spent."""
    chat.send(headers).error(403, "permission_error")
    assert upstream.requests == []


def test_the_token_of_another_session_is_refused(chat: ChatClient, service: Service) -> None:
    """The token belongs to one session, even among those of one account."""
    other = signed_in(service, service.create_account(0))
    chat.send({"x-cadenza-csrf": other.csrf}).error(403, "permission_error")


def test_other_sites_may_not_read(chat: ChatClient, upstream: LoopbackUpstream) -> None:
    """No reply has CORS headers, a preflight is refused, and other methods get 405."""
    assert "access-control-allow-origin" not in chat.send().headers
    assert "access-control-allow-origin" not in chat.send({"x-cadenza-csrf": ""}).headers
    for method in ("OPTIONS", "GET", "PUT"):
        seen = chat.visitor.send(method, PATH, b"", {})
        assert (seen.status, "access-control-allow-headers" in seen.headers) == (405, False)


def test_a_session_that_signs_out_is_refused(chat: ChatClient, upstream: LoopbackUpstream) -> None:
    """A running reply finishes and is charged; the next request is refused."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first"), pause, said(" second"), STOP]))
    visitor = chat.visitor
    cookies, csrf = dict(visitor.cookies), visitor.csrf
    with chat.open() as connection:
        begun = read_until(connection, b"first")
        assert visitor.post("/sign-out").status == 303
        pause.release()
        assert Reply(begun + read_all(connection)).is_done
    visitor.cookies, visitor.csrf = cookies, csrf
    chat.send().error(401, "authentication_error")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("change", [SUSPEND, HALF], ids=["suspended", "half a sign-in"])
def test_a_session_that_may_not_chat_is_refused(
    chat: ChatClient, upstream: LoopbackUpstream, service: Service, email: str, change: str
) -> None:
    """The next request gets 401: of a suspended account, and of a session whose second factor is not given yet."""
    assert chat.send().is_done
    change_store(service, change, (email,))
    chat.send().error(401, "authentication_error")
    assert len(upstream.requests) == 1


def test_an_account_without_credit_gets_402(service: Service, upstream: LoopbackUpstream) -> None:
    """It is refused before an upstream is asked, also with a large conversation, and the first credit helps at once."""
    email = service.create_account(0)
    visitor = signed_in(service, email)
    client = ChatClient(visitor)
    client.send().error(402, "insufficient_quota")
    client.send(messages=[{"role": "user", "content": "x" * 200_000}]).error(402, "insufficient_quota")
    assert upstream.requests == []
    service.give_credit(email, CREDIT_NANO)
    assert client.send().is_done


def test_a_chat_counts_against_the_rate(start_service: StartService, upstream: LoopbackUpstream) -> None:
    """The web application's key has the rate of any key: beyond it 429, and when to retry."""
    routes = {"forte": [RouteSpec("loopback")]}
    limits = {"requests_per_second": 0.01, "burst": 2}
    service = start_service(ServiceSpec({"loopback": upstream.base_url}, routes, limits=limits))
    visitor = signed_in(service)
    client = ChatClient(visitor)
    assert [client.send().status for _ in range(2)] == [200, 200]
    refused = client.send()
    refused.error(429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) > 1


def test_a_fault_of_the_upstream_is_a_502(chat: ChatClient, upstream: LoopbackUpstream) -> None:
    """Before the first byte an error is the error object, and nothing is charged."""
    upstream.always(Status(500))
    chat.send().error(502, "api_error")


def test_two_first_chats_share_one_key(
    chat: ChatClient, upstream: LoopbackUpstream, service: Service, email: str
) -> None:
    """Requests that come at the same time make one key of the web application."""
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: chat.send().is_done, range(8)))
    assert service.ledger.query(COUNT_KEYS, email)[0]["keys"] == 1


def test_markdown_can_be_rendered_alone(visitor: Visitor) -> None:
    """An imported text is rendered like a reply: clean HTML, at most 64 KiB at once, and only for an account."""
    seen = visitor.api("POST", "/render", {"texts": ["**a**", "[x](javascript:alert(1)) <img src=x onerror=1>"]})
    first, second = seen.json["data"]
    assert first == "<p><strong>a</strong></p>\n"
    assert "<img" not in second
    assert "<a" not in second
    assert visitor.api("POST", "/render", {"texts": ["x" * 65_536]}).status == 413
    assert visitor.api("POST", "/render", {"texts": [""] * 101}).status == 400
    assert visitor.api("POST", "/render", {"texts": [], "more": 1}).status == 400
    assert visitor.api("POST", "/render", {"texts": []}, {"x-cadenza-csrf": ""}).status == 403
    assert Visitor(visitor.port).api("POST", "/render", {"texts": []}).status == 401


def test_no_content_is_kept(chat: ChatClient, upstream: LoopbackUpstream, service: Service) -> None:
    """Neither the store nor the log has a word of the conversation."""
    upstream.script(Sse([ROLE, said("zyxreplyzyx *a*\n\n"), STOP]))
    assert chat.send(messages=[{"role": "user", "content": "zyxpromptzyx"}]).is_done
    for path in service.files():
        content = path.read_bytes()
        assert b"zyxreplyzyx" not in content
        assert b"zyxpromptzyx" not in content
