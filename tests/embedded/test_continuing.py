"""The embedded model goes on with an answer that another upstream began and did not finish."""

from pathlib import Path

from cadenza.core.tokens import count_tokens
from tests.cli.program import run, serving
from tests.contract.wire import Wire
from tests.loopback import LoopbackUpstream, Reset, Sse, said
from tests.schemas import check_stream

BEGUN = "The notes are"
MAX_TOKENS = count_tokens(BEGUN) + 8
TOML = """
[providers.acme]
kind = "openai"
base_url = "{base_url}"
retention = "zero"
[providers.local]
kind = "embedded"
retention = "zero"
[[classes.forte.routes]]
provider = "acme"
model = "large"
[[classes.forte.routes]]
provider = "local"
order = 1
continue = true
"""


def test_the_embedded_model_goes_on(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A stream that breaks off is finished by the model on this machine, in one answer within the one limit."""
    (tmp_path / "cadenza.toml").write_text(TOML.format(base_url=upstream.base_url))
    run(tmp_path, "account", "create", "a@example.org", "--credit", "1", "--password-stdin", given="password")
    key = run(tmp_path, "key", "create", "--account", "a@example.org").stdout.strip()
    upstream.script(Sse([said(BEGUN), Reset()]))
    with serving(tmp_path) as server:
        server.wait_for_model()
        wire = Wire(server.port, key)
        messages = [{"role": "user", "content": "Name the seven notes of the scale."}]
        stream = check_stream(wire.chat(messages=messages, stream=True, max_tokens=MAX_TOKENS, temperature=0).body)
        begun, more = stream.text[: len(BEGUN)], stream.text[len(BEGUN) :]
        assert begun == BEGUN
        assert more.strip()
        assert not more.lstrip().startswith("The"), "it began anew"
        assert count_tokens(BEGUN) < stream.usage["completion_tokens"] <= MAX_TOKENS
        assert 0 < stream.usage["prompt_tokens"] < 200
        assert b'cadenza_continued_total{provider="local"} 1.0' in wire.get("/metrics").body
