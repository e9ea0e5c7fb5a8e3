"""Every kind of reply that an ASGI application can send: h11 reads each to its exact end, then the next one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from cadenza.parts.site.asgi import AsgiApp, Message, Receive, Send
from tests.parts.site.server.test_asgi import AdaptedSite
from tests.strict_replies import StrictReply, read_strictly
from tests.unit.http.raw_client import request

Parts = Sequence[tuple[bytes, bool | None]]  # body and more_body of each message; None: the field is left out
ENDINGS: dict[str, Parts] = {
    "whole": [(b"one", None)],
    "whole, said": [(b"one", False)],
    "empty": [(b"", None)],
    "streamed": [(b"one", True), (b"two", True), (b"three", False)],
    "streamed with an empty end": [(b"one", True), (b"", None)],
    "streamed with an empty start": [(b"", True), (b"one", True), (b"", False)],
    "streamed with empty parts": [(b"one", True), (b"", True), (b"", True), (b"two", None)],
    "only empty parts": [(b"", True), (b"", True), (b"", None)],
}
STATUSES = (200, 204, 206, 303, 304, 404, 500)
FIELDS: dict[str, list[tuple[bytes, bytes]]] = {
    "nothing": [],
    "length": [(b"content-length", b"{length}")],
    "other framing": [(b"Transfer-Encoding", b"chunked"), (b"connection", b"keep-alive"), (b"Content-Length", b"7")],
}


def app_of(parts: Parts, status: int = 200, fields: Sequence[tuple[bytes, bytes]] = ()) -> AsgiApp:
    length = str(sum(len(data) for data, _ in parts)).encode()
    headers = [(name, value.replace(b"{length}", length)) for name, value in fields]

    async def app(_scope: Message, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for data, has_more in parts:
            more = {} if has_more is None else {"more_body": has_more}
            await send({"type": "http.response.body", "body": data, **more})

    return app


async def exchange(apps: Sequence[AsgiApp], methods: Sequence[str]) -> list[StrictReply]:
    """The replies to one request to each application, all sent at once on one connection."""
    waiting = iter(apps)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await next(waiting)(scope, receive, send)

    async with AdaptedSite(app) as site:
        client = await site.connect()
        *others, last = methods
        sent = b"".join(request("/", method=method) for method in others)
        client.start_sending(sent + request("/", method=last, more="connection: close\r\n"))
        return read_strictly(await client.read_to_end(), methods)


async def test_every_reply_ends_where_its_length_says() -> None:
    """Every status, ending, method and set of headers, on one connection: the body is what the application sent."""
    cases = list(product(STATUSES, ENDINGS.values(), FIELDS.values(), ("GET", "HEAD", "POST")))
    replies = await exchange(
        [app_of(parts, status, fields) for status, parts, fields, _ in cases], [method for *_, method in cases]
    )
    for (status, parts, _, method), reply in zip(cases, replies, strict=True):
        has_body = method != "HEAD" and status not in (204, 304)
        assert reply.status == status
        assert reply.body == (b"".join(data for data, _ in parts) if has_body else b"")
        assert ("content-length" in reply.headers) + ("transfer-encoding" in reply.headers) == has_body or not has_body
        if status in (204, 304):
            assert not {"content-length", "transfer-encoding"} & reply.headers.keys()


@settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.sampled_from(["GET", "HEAD"])),
        min_size=1,
        max_size=8,
    )
)
def test_any_parts_arrive_as_sent(replies: list[tuple[list[bytes], str]]) -> None:
    """Any sequence of parts, empty ones among them, is the body that arrives."""
    apps = [app_of([(part, True) for part in parts[:-1]] + [(parts[-1], False)]) for parts, _ in replies]
    got = asyncio.run(exchange(apps, [method for _, method in replies]))
    assert [reply.body for reply in got] == [b"" if method == "HEAD" else b"".join(parts) for parts, method in replies]


async def test_responses_of_starlette(tmp_path: Any) -> None:
    """Its whole, streamed, empty and file responses, redirects and background tasks, to GET and HEAD."""
    (tmp_path / "file").write_bytes(b"x" * 200_000)
    done = asyncio.Event()

    async def parts(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"part"

    async def work() -> None:
        done.set()

    def responses() -> list[Response]:
        return [
            Response(),
            Response(b"whole"),
            Response(status_code=204),
            Response(status_code=304, headers={"etag": '"1"'}),
            JSONResponse({"a": 1}, 404),
            RedirectResponse("/other", 303),
            StreamingResponse(parts(0)),
            StreamingResponse(parts(3)),
            StreamingResponse(parts(3), 206, {"content-length": "12"}),
            FileResponse(tmp_path / "file"),
            Response(b"and then", background=BackgroundTask(work)),
        ]

    methods = ["GET"] * len(responses()) + ["HEAD"] * len(responses())
    got = await exchange([*responses(), *responses()], methods)
    bodies = [len(reply.body) for reply in got]
    assert bodies == [0, 5, 0, 0, 7, 0, 0, 12, 12, 200_000, 8] + [0] * len(responses())
    assert [reply.status for reply in got[:6]] == [200, 200, 204, 304, 404, 303]
    lengths = [reply.headers.get("content-length") for reply in got[len(responses()) :]]
    assert lengths == ["0", "5", None, None, "7", "0", "0", None, "12", "200000", "8"]
    await done.wait()


@contextlib.asynccontextmanager
async def received_from(app: AsgiApp) -> AsyncIterator[tuple[bytes, AdaptedSite]]:
    async with AdaptedSite(app) as site:
        client = await site.connect()
        client.start_sending(request("/", method="GET", more="connection: close\r\n"))
        yield await client.read_to_end(), site


async def test_a_reply_without_an_end_does_not_seem_complete() -> None:
    """An application that returns amid its reply: the client sees that it broke off, and the log has it."""
    async with received_from(app_of([(b"one", True)])) as (received, site):
        with pytest.raises(AssertionError, match="does not end"):
            read_strictly(received, ["GET"])
        assert "internal error" in site.log.getvalue()


@pytest.mark.parametrize("value", [b"a\r\nx-forged: 1", b"a\nb", b"a\rb"])
async def test_a_header_with_a_line_break_is_not_sent(value: bytes) -> None:
    """It would be a second header, or a second reply: the client gets a 500."""
    async with received_from(app_of([(b"one", None)], 200, [(b"x-given", value)])) as (received, _):
        [reply] = read_strictly(received, ["GET"])
        assert (reply.status, "x-forged" in reply.headers) == (500, False)


async def test_an_application_without_a_reply_is_a_500() -> None:
    """It returns before its reply begins, or sends a head and no body."""

    async def silent(_scope: Message, _receive: Receive, _send: Send) -> None:
        pass

    for app in (silent, app_of([])):
        async with received_from(app) as (received, _):
            assert read_strictly(received, ["GET"])[0].status == 500
