"""The model's process: requests wait while it loads, it is restarted when it dies, and a broken model is reported."""

import os
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from cadenza.upstreams.embedded.upstream import SLOTS
from tests.cli.program import Server, serving
from tests.embedded.conftest import Account, Started
from tests.raw_client import RawClient, read_until

END_OF_TURN = "2"  # the token with which this model ends an answer
SHORT_TOKENS, LONG_TOKENS = 16, 4096
FIRST_TOKEN_S = 2.0
SLACK_S = 30.0  # for a busy machine; a route's default of 60 s would take longer
BROKEN_TOML = f"""
[providers.local]
kind = "embedded"
model_path = "broken.gguf"
retention = "zero"
[[classes.forte.routes]]
provider = "local"
timeouts = {{ first_token_s = {FIRST_TOKEN_S} }}
"""


def test_request_before_the_model_has_loaded(started: Started) -> None:
    """A request that arrives before the model has loaded waits for it and is served."""
    assert not started.had_loaded
    assert started.first_reply.status == 200


def test_model_that_died_is_restarted(server: Server, wire: RawClient) -> None:
    """When the model's process is killed another is started, and the next request waits for it and is served."""
    before = server.wait_for_model()
    os.kill(before, signal.SIGKILL)
    server.wait_for_output("process ended; starting it again")
    assert wire.chat(max_tokens=2).status == 200
    assert server.wait_for_model() != before


def test_client_that_disconnects_frees_its_slot(wire: RawClient) -> None:
    """Streams whose clients disconnect stop: a request for their slots is served long before they would have ended."""
    endless = {END_OF_TURN: -100}
    started_s = time.monotonic()
    assert wire.chat(max_tokens=SHORT_TOKENS, logit_bias=endless).status == 200
    short_s = time.monotonic() - started_s
    with ExitStack() as connections:
        for _ in range(SLOTS):
            chat = wire.open_chat(stream=True, max_tokens=LONG_TOKENS, logit_bias=endless)
            read_until(connections.enter_context(chat), b'"content":"')
    started_s = time.monotonic()
    assert wire.chat(max_tokens=SHORT_TOKENS, logit_bias=endless).status == 200
    assert time.monotonic() - started_s < short_s * LONG_TOKENS / SHORT_TOKENS / 4


def test_file_that_is_not_a_model(tmp_path: Path, account: Account) -> None:
    """With a broken model the service stays up, logs it, and answers chat with 502 after the first-token timeout."""
    folder = Path(shutil.copytree(account.folder, tmp_path / "broken"))
    (folder / "broken.gguf").write_text("This is not a model.")
    (folder / "cadenza.toml").write_text(BROKEN_TOML)
    with serving(folder) as server:
        server.wait_for_output("the embedded model did not load")
        wire = RawClient(server.port, account.key)
        started_s = time.monotonic()
        wire.chat().error(502, "api_error")
        assert time.monotonic() - started_s < FIRST_TOKEN_S + SLACK_S
        assert wire.get("/readyz").status == 200
        assert wire.get("/v1/models").status == 200
