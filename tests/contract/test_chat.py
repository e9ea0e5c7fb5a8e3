"""Chat through the OpenAI SDK, blocking and asynchronous, and over bare HTTP against closed schemas."""

import asyncio
from collections.abc import Iterable

import openai

from tests.loopback import Good, Json, LoopbackUpstream, Request, Sse, Step, chunk, completion, said
from tests.raw_client import MESSAGES, RawClient
from tests.schemas import check_stream

TEXT = "A short answer, with ünïcödé and 音楽 🎼."


class Echo:
    """An upstream that repeats the last message."""

    def steps(self, request: Request) -> Iterable[Step]:
        return Good(request.json["messages"][-1]["content"]).steps(request)


def test_plain_reply_through_the_sdk(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """A plain chat returns the upstream's text, finish reason and usage."""
    upstream.script(Good(TEXT))
    reply = client.chat.completions.create(model="forte", messages=[{"role": "user", "content": "hi"}])
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "forte"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 3
    counts = (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens)
    assert counts == (11, 7, 18)


def test_stream_through_the_sdk(client: openai.OpenAI, upstream: LoopbackUpstream) -> None:
    """A streamed chat arrives in several deltas that add up to the upstream's text."""
    upstream.script(Good(TEXT))
    with client.chat.completions.create(
        model="mezzo", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as stream:
        chunks = list(stream)
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(deltas) == TEXT
    assert len([delta for delta in deltas if delta]) > 1
    assert {chunk.model for chunk in chunks} == {"mezzo"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 18


def test_upstream_connections_are_reused(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Requests one after the other do not open a connection each."""
    before = upstream.open_connections
    for stream in (False, True) * 5:
        assert api.post({"messages": MESSAGES, "stream": stream}).status == 200
    assert upstream.open_connections <= before + 1


async def test_concurrent_streams_do_not_mix(async_client: openai.AsyncOpenAI, upstream: LoopbackUpstream) -> None:
    """Thirty concurrent streams each get the answer to their own question."""
    upstream.always(Echo())

    async def ask(question: str) -> str:
        stream = await async_client.chat.completions.create(
            model="forte", messages=[{"role": "user", "content": question}], stream=True
        )
        return "".join([choice.delta.content or "" async for part in stream for choice in part.choices])

    questions = [f"question {number} " * 20 for number in range(30)]
    assert await asyncio.gather(*map(ask, questions)) == questions


def test_long_replies_arrive_unchanged(api: RawClient, upstream: LoopbackUpstream) -> None:
    """Four megabytes of text arrive unchanged, streamed and plain."""
    text = "0123456789abcdé " * 260_000
    upstream.always(Sse([chunk({"role": "assistant"}), *[said(text[:16_000])] * 260, chunk(finish="stop")]))
    assert check_stream(api.chat(stream=True).body).text == text[:16_000] * 260
    upstream.always(Json(completion(text)))
    assert api.chat().json["choices"][0]["message"]["content"] == text
