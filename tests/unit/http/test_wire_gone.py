"""Whether the client is still there: its leaving is noticed, once, by the request that it left, and by no other."""

import asyncio

import pytest

from cadenza.http.exchange import GONE_STATUS
from tests.unit.http.visits import WAIT_S, Client, request, tell, until

NOTICE_S = 3.0  # for a client's leaving to be noticed


def test_a_client_that_leaves_is_noticed_once() -> None:
    """Who watches is told, once, that the client is gone."""

    async def story(client: Client) -> None:
        await client.say(request("/wait"))
        await asyncio.wait_for(client.site.watching.wait(), WAIT_S)
        assert client.site.gone == []
        await client.leave()
        await until(lambda: client.site.is_quiet)
        assert client.site.gone == ["r-1"]
        assert client.site.exchanges[0].status == GONE_STATUS

    tell(story)


@pytest.mark.parametrize("before", [0, 2], ids=["first", "third"])
def test_what_serves_a_client_that_leaves_is_ended(before: int) -> None:
    """Whatever waits for something else ends at once when its client leaves, on a new connection and on a used one."""

    async def story(client: Client) -> None:
        for _ in range(before):
            await client.say(request("/whole"))
            await client.reply()
        await client.say(request("/wait"))
        await asyncio.wait_for(client.site.watching.wait(), WAIT_S)
        await client.leave()
        await asyncio.wait_for(client.site.left.wait(), NOTICE_S)
        assert client.site.gone == ["r-1"]

    tell(story)


def test_a_client_that_left_before_anyone_watched_is_noticed() -> None:
    """Who begins to watch after the client has gone learns it at once."""

    async def story(client: Client) -> None:
        await client.say(request("/late"))
        await until(lambda: client.site.asked == ["/late"])
        await client.leave()
        client.site.go.set()
        await asyncio.wait_for(client.site.left.wait(), NOTICE_S)
        assert client.site.asked == ["/late"]

    tell(story)


def test_leaving_after_the_reply_ends_nothing() -> None:
    """What is still to be done after a finished reply is done, though the client has left with it."""

    async def story(client: Client) -> None:
        await client.say(request("/answer-and-stay"))
        await client.reply()
        await client.leave()
        client.site.go.set()
        await asyncio.wait_for(client.site.passed.wait(), WAIT_S)

    tell(story)


def test_an_answered_request_does_not_hide_that_the_next_ones_client_leaves() -> None:
    """A request that ends after its reply, while the next one is served, leaves the watch of that one alone."""

    async def story(client: Client) -> None:
        await client.say(request("/answer-and-stay"))
        await client.reply()
        await client.say(request("/wait", request_id="r-2"))
        await asyncio.wait_for(client.site.watching.wait(), WAIT_S)
        client.site.go.set()
        await asyncio.wait_for(client.site.passed.wait(), WAIT_S)
        await client.leave()
        await asyncio.wait_for(client.site.left.wait(), NOTICE_S)
        assert client.site.gone == ["r-2"]

    tell(story)
