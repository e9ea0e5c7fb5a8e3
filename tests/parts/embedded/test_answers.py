"""The real model behind the real API: whole, streamed and continued answers, their counts, and no content kept."""

from collections.abc import Iterable

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
from openai.types.completion_usage import CompletionUsage

from tests.cli.program import Server
from tests.loopback import LoopbackUpstream, Reset, Sse, said
from tests.raw_client import RawClient
from tests.schemas import check_stream
from tests.tokens import count_tokens

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
OUTPUT_TOKENS = 8
CANARY = "zugzwang-canary-82"
BEGUN = "The notes are"
BEGUN_TOKENS = count_tokens(BEGUN)
pytestmark = pytest.mark.slow(reason="the real model answers")


def test_whole_answer(client: openai.OpenAI) -> None:
    """The SDK gets an answer within its token limit, under the name of the class."""
    reply = client.chat.completions.create(model="mezzo", messages=HELLO, max_tokens=OUTPUT_TOKENS)
    assert reply.model == "mezzo"
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason in {"stop", "length"}
    _check_usage(reply.usage)


def test_streamed_answer(client: openai.OpenAI) -> None:
    """A stream has content in pieces, then its counts."""
    with client.chat.completions.create(model="forte", messages=HELLO, max_tokens=OUTPUT_TOKENS, stream=True) as stream:
        _check_chunks(list(stream))


def test_repeated_prompt_is_cached(client: openai.OpenAI) -> None:
    """The second of two equal requests reports that part of its prompt was cached, and counts it all the same."""
    question: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Which seven notes make a scale?"}]
    first, second = (
        client.chat.completions.create(model="forte", messages=question, max_tokens=2).usage for _ in range(2)
    )
    assert first is not None
    assert second is not None
    assert second.prompt_tokens == first.prompt_tokens
    assert second.prompt_tokens_details is not None
    assert 0 < (second.prompt_tokens_details.cached_tokens or 0) <= second.prompt_tokens


def test_content_is_not_stored(server: Server, wire: RawClient) -> None:
    """Questions and answers are neither in the server's output nor in its data."""
    messages = [{"role": "user", "content": f"Repeat this word: {CANARY}"}]
    for stream in (False, True):
        reply = wire.chat(messages=messages, max_tokens=OUTPUT_TOKENS, stream=stream)
        assert reply.status == 200
        server.wait_for_output(reply.headers["x-request-id"])
    kept = [path for path in server.folder.rglob("*") if path.is_file()]
    assert "cadenza.db" in {path.name for path in kept}
    assert [path.name for path in kept if CANARY.encode() in path.read_bytes()] == []


def test_the_embedded_model_continues_a_broken_stream(wire: RawClient, upstream: LoopbackUpstream) -> None:
    """A stream whose upstream dies is finished by the embedded model, as one answer within the one limit."""
    upstream.script(Sse([said(BEGUN), Reset()]))
    messages = [{"role": "user", "content": "Name the seven notes of the scale."}]
    limit = BEGUN_TOKENS + OUTPUT_TOKENS
    reply = wire.chat(model="fortissimo", messages=messages, stream=True, max_tokens=limit, temperature=0)
    stream = check_stream(reply.body)
    begun, more = stream.text[: len(BEGUN)], stream.text[len(BEGUN) :]
    assert begun == BEGUN
    assert more.strip()
    assert not more.lstrip().startswith("The"), "it started again"
    assert BEGUN_TOKENS < stream.usage["completion_tokens"] <= limit
    assert 0 < stream.usage["prompt_tokens"] < 200
    assert b'cadenza_continued_total{provider="local"} 1.0' in wire.get("/metrics").body


def _check_usage(usage: CompletionUsage | None) -> None:
    assert usage is not None
    assert usage.prompt_tokens > 0
    assert 0 < usage.completion_tokens <= OUTPUT_TOKENS
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None


def _check_chunks(chunks: Iterable[ChatCompletionChunk]) -> None:
    *parts, last = chunks
    assert "".join(part.choices[0].delta.content or "" for part in parts)
    assert parts[-1].choices[0].finish_reason in {"stop", "length"}
    assert last.choices == []
    _check_usage(last.usage)
