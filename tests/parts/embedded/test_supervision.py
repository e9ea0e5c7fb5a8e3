"""The model's process: requests wait while it loads, it is restarted when it dies, and a broken model is reported."""

import os
import re
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from cadenza.parts.embedded.upstream import SLOTS
from tests.cli.program import Server, model_process, serving, wait_until
from tests.parts.embedded.conftest import Account, Started
from tests.processes import cpu_s
from tests.raw_client import RawClient, Reply, read_all, read_until

END_OF_TURN = "2"  # the token with which this model ends an answer
SHORT_TOKENS, LONG_TOKENS = 16, 4096
FIRST_TOKEN_S = 2.0  # the client would not wait for the default of 300 s
pytestmark = pytest.mark.slow(reason="the real model is loaded again and again")
TAKEN = re.compile(rb"^cadenza_slots_taken [1-9]", re.MULTILINE)
BROKEN_TOML = f"""
[providers.local]
kind = "embedded"
model_path = "broken.gguf"
retention = "zero"
[[classes.forte.routes]]
provider = "local"
timeouts = {{ first_token_s = {FIRST_TOKEN_S} }}
"""


def test_request_right_after_the_start(started: Started) -> None:
    """A request that arrives as soon as the service listens, which is before the model has loaded, is served."""
    assert started.first_reply.status == 200


def test_request_waits_for_a_model_that_died(server: Server, wire: RawClient) -> None:
    """When the model's process is killed another is started; a request that arrives before it has loaded is served."""
    before = server.wait_for_model()
    os.kill(before, signal.SIGKILL)
    server.wait_for_output("process ended; starting it again")
    wait_until(lambda: model_process(server.pid) not in {None, before}, "another process", server)
    after = model_process(server.pid)
    assert after
    os.kill(after, signal.SIGSTOP)
    try:
        with wire.open_chat(max_tokens=2) as connection:
            wait_until(lambda: TAKEN.search(wire.get("/metrics").body) is not None, "the request being taken", server)
            os.kill(after, signal.SIGCONT)
            assert Reply(read_all(connection)).status == 200
    finally:
        os.kill(after, signal.SIGCONT)
    assert server.wait_for_model() == after


def test_client_that_disconnects_frees_its_slot(server: Server, wire: RawClient) -> None:
    """Streams whose clients disconnect stop: a request for their slots does not wait until they would have ended."""
    endless = {END_OF_TURN: -100}
    began_s = cpu_s(server.pid)
    assert wire.chat(max_tokens=SHORT_TOKENS, logit_bias=endless).status == 200
    short_s = cpu_s(server.pid) - began_s
    with ExitStack() as connections:
        for _ in range(SLOTS):
            chat = wire.open_chat(stream=True, max_tokens=LONG_TOKENS, logit_bias=endless)
            read_until(connections.enter_context(chat), b'"content":"')
    began_s = cpu_s(server.pid)
    assert wire.chat(max_tokens=SHORT_TOKENS, logit_bias=endless).status == 200
    assert cpu_s(server.pid) - began_s < short_s * LONG_TOKENS / SHORT_TOKENS / 4


def test_file_that_is_not_a_model(tmp_path: Path, account: Account) -> None:
    """With a broken model the service stays up, logs it, and answers chat with 502 after the first-token timeout."""
    folder = Path(shutil.copytree(account.folder, tmp_path / "broken"))
    (folder / "broken.gguf").write_text("This is not a model.")
    (folder / "cadenza.toml").write_text(BROKEN_TOML)
    with serving(folder) as server:
        server.wait_for_output("the embedded model did not load")
        wire = RawClient(server.port, account.key)
        wire.chat().error(502, "api_error")
        assert wire.get("/readyz").status == 200
        assert wire.get("/v1/models").status == 200
