"""The files of a request: all of them are read before the model is asked, or the request is refused."""

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from cadenza.core.records import Usage
from cadenza.fleet.presence import Presence
from cadenza.fleet.shared import MemoryState
from cadenza.gateway.gateway import Gateway, State
from cadenza.http.events import PING, EventReader
from cadenza.parts.grounding.files.reader import CHILD, DocumentReader, ReaderLimits
from cadenza.parts.grounding.gather import Gatherer
from cadenza.parts.grounding.grounder import ChatGrounder
from cadenza.parts.grounding.metrics import GroundingMetrics
from cadenza.upstreams.base import Piece
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import FUNDED_NANO, FundedStore, open_funded_store
from tests.unit.gateway.gateways import PROVIDER, Api, load_nothing, running, snapshot_of
from tests.unit.gateway.prompts import TOKENIZER
from tests.unit.gateway.scripted_upstream import ScriptedUpstream

FAULTY = "tests.parts.grounding.hostile.faulty_reader"
ANSWER = Piece("yes", "stop", Usage(1, 1))


class Files(Api):
    """A gateway with this reader of documents, and its upstream."""

    upstream: ScriptedUpstream

    async def ask(self, texts: Sequence[str], **fields: Any) -> Client:
        """Send files with these texts, and a question."""
        parts: list[dict[str, Any]] = [
            {
                "type": "file",
                "file": {"filename": f"{place}.txt", "file_data": base64.b64encode(text.encode()).decode()},
            }
            for place, text in enumerate(texts)
        ]
        client = Client()
        content = [*parts, {"type": "text", "text": "What does it say?"}]
        self.chat(client, body=msgspec.json.encode({"messages": [{"role": "user", "content": content}], **fields}))
        await client.serve(self.gateway)
        return client


@asynccontextmanager
async def files_of(
    funded: FundedStore, limits: ReaderLimits | None = None, module: str = CHILD
) -> AsyncIterator[Files]:
    upstream = ScriptedUpstream(ANSWER)
    reader = DocumentReader(funded.observer, limits, module)
    presence, snapshot = Presence(funded.store), snapshot_of({PROVIDER: upstream})
    state = State(funded.store, presence, MemoryState())
    gateway = Gateway(state, snapshot, load_nothing, funded.observer, TOKENIZER)
    gatherer = Gatherer(funded.store, funded.observer, GroundingMetrics(CollectorRegistry()), reader=reader)
    gateway.grounder = ChatGrounder(gatherer, gateway.ledger, gateway.rates)
    async with running(gateway, presence), AsyncExitStack() as stack:
        stack.push_async_callback(gatherer.stop)
        files = Files(funded, gateway)
        files.upstream = upstream
        yield files


def error_of(client: Client) -> str:
    message = msgspec.json.decode(client.bodies[0])["error"]["message"]
    assert isinstance(message, str)
    return message


@pytest.mark.parametrize(
    ("limits", "module"),
    [
        (ReaderLimits(task_s=0.001), CHILD),
        (ReaderLimits(), FAULTY),
        (ReaderLimits(), "tests.parts.grounding.no_such_module"),
    ],
    ids=["time", "exit", "start"],
)
async def test_a_file_that_cannot_be_read_now_is_a_429(funded: FundedStore, limits: ReaderLimits, module: str) -> None:
    """No model is asked without the file, and the client is told when to try again."""
    async with files_of(funded, limits, module) as files:
        client = await files.ask(["text", "exit"])
        assert client.status == 429
        assert error_of(client).startswith("The files were not read: ")
        assert int(client.headers[b"retry-after"]) >= 1
        assert files.upstream.asks == []


async def test_no_file_is_read_without_credit(tmp_path: Path) -> None:
    """The 402 comes before a process for it is even started."""
    async with (
        open_funded_store(tmp_path, 0) as poor,
        files_of(poor, module="tests.parts.grounding.no_such_module") as files,
    ):
        assert (await files.ask(["text"])).status == 402


async def test_a_stream_that_waits_for_its_files_has_pings(funded: FundedStore) -> None:
    """They come before credit is held; a file that then cannot be read is an event with the type of the 400."""
    async with files_of(funded, module=FAULTY) as files:
        files.gateway.in_flight.pings.every_s = 0.001  # a child takes much longer to start
        client = await files.ask(["text", "crash"], stream=True)
        assert (client.status, client.bodies[0]) == (200, PING)
        [event] = EventReader().feed(client.bodies[-1])
        assert msgspec.json.decode(event)["error"]["type"] == "invalid_request_error"
        assert [outcome.status for outcome in funded.observer.outcomes] == [400]
    assert await funded.funds() == (FUNDED_NANO, 0)


async def test_a_file_without_room_for_it_is_a_400(funded: FundedStore) -> None:
    """Where the messages leave no room, a file is not left out in silence."""
    async with files_of(funded) as files:
        client = await files.ask(["A long story. " * 500] * 12)
        assert (client.status, files.upstream.asks) == (400, [])
        assert "there is no room for it" in error_of(client)
