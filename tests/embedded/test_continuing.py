"""The embedded model continues an answer that another upstream began and did not finish."""

from tests.loopback import LoopbackUpstream, Reset, Sse, said
from tests.raw_client import RawClient
from tests.schemas import check_stream
from tests.tokens import count_tokens

BEGUN = "The notes are"
MAX_TOKENS = count_tokens(BEGUN) + 8
QUESTION = [{"role": "user", "content": "Name the seven notes of the scale."}]


def test_the_embedded_model_continues_a_broken_stream(wire: RawClient, upstream: LoopbackUpstream) -> None:
    """A stream whose upstream dies is finished by the embedded model, as one answer within the one limit."""
    upstream.script(Sse([said(BEGUN), Reset()]))
    reply = wire.chat(model="fortissimo", messages=QUESTION, stream=True, max_tokens=MAX_TOKENS, temperature=0)
    stream = check_stream(reply.body)
    begun, more = stream.text[: len(BEGUN)], stream.text[len(BEGUN) :]
    assert begun == BEGUN
    assert more.strip()
    assert not more.lstrip().startswith("The"), "it started again"
    assert count_tokens(BEGUN) < stream.usage["completion_tokens"] <= MAX_TOKENS
    assert 0 < stream.usage["prompt_tokens"] < 200
    assert b'cadenza_continued_total{provider="local"} 1.0' in wire.get("/metrics").body
