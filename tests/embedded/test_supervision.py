"""The model as the service keeps it: requests wait while it loads, it comes back, and a broken one is told."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from cadenza.upstreams.embedded.upstream import SLOTS
from tests.cli.program import LOADED, Server, run, serving
from tests.contract.wire import Wire, read_until

PROMPT_S = 10.0  # a freed slot answers in about a second; the streams that were left would go on for 30
END_OF_TURN = "2"  # the token with which this model ends what it says
FIRST_TOKEN_S = 2.0
BROKEN_TOML = f"""
[providers.local]
kind = "embedded"
model_path = "broken.gguf"
retention = "zero"
[[classes.forte.routes]]
provider = "local"
timeouts = {{ first_token_s = {FIRST_TOKEN_S} }}
"""


def test_request_before_the_model_has_loaded(tmp_path: Path) -> None:
    """A request that comes before the model has loaded waits for it and is served."""
    with serving(tmp_path) as server:
        assert LOADED not in server.output
        reply = Wire(server.port, server.key).chat(max_tokens=2)
        assert reply.status == 200
        assert LOADED in server.output


def test_model_that_died_comes_back(server: Server, wire: Wire) -> None:
    """When the model's process is killed another is started, and the next request waits for it and is served."""
    before = server.wait_for_model()
    os.kill(before, signal.SIGKILL)
    server.wait_for_output("process ended; starting it again")
    assert wire.chat(max_tokens=2).status == 200
    assert server.wait_for_model() != before


def test_one_who_leaves_frees_the_slot(server: Server, wire: Wire) -> None:
    """Streams that are left half-way stop: when they had taken every slot, the next request is served promptly."""
    endless = {"max_tokens": 1024, "logit_bias": {END_OF_TURN: -100}}
    with ExitStack() as leaving:
        for _ in range(SLOTS):
            connection = leaving.enter_context(wire.open_chat(stream=True, **endless))
            read_until(connection, b'"content":"')
    started_s = time.monotonic()
    assert wire.chat(max_tokens=2).status == 200
    assert time.monotonic() - started_s < PROMPT_S


def test_file_that_is_no_model(tmp_path: Path) -> None:
    """With a broken model the service stays up, says so in its log and answers chat with 502 in the time given."""
    (tmp_path / "broken.gguf").write_text("This is no model.")
    (tmp_path / "cadenza.toml").write_text(BROKEN_TOML)
    run(tmp_path, "account", "create", "a@example.org", "--credit", "1", "--password-stdin", given="password")
    key = run(tmp_path, "key", "create", "--account", "a@example.org").stdout.strip()
    with serving(tmp_path) as server:
        server.wait_for_output("the embedded model did not load")
        wire = Wire(server.port, key)
        started_s = time.monotonic()
        wire.chat().error(502, "api_error")
        assert time.monotonic() - started_s < FIRST_TOKEN_S + 2
        assert wire.get("/readyz").status == 200
        assert wire.get("/v1/models").status == 200
