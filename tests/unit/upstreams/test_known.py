"""Model servers are found on this machine by the list of their models."""

import socket

from cadenza.upstreams.known import ModelPlace, find_servers
from tests.loopback import Json, LoopbackUpstream, Status


def at(port: int, name: str = "llamacpp") -> ModelPlace:
    return ModelPlace(name, "llama.cpp", f"http://127.0.0.1:{port}/v1", dialect=name)


async def test_server_says_what_it_is(upstream: LoopbackUpstream) -> None:
    """A server is what its models say, wherever it listens; a closed port and a refusal are no servers."""
    model = {"id": "qwen", "owned_by": "vllm", "max_model_len": 32_768}
    port = int(upstream.base_url.rpartition(":")[2].partition("/")[0])
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        upstream.script(Json({"data": [model]}))
        [found] = await find_servers([at(port), at(bound.getsockname()[1])])
    assert (found.name, found.title, found.dialect) == ("vllm", "vLLM", "vllm")
    assert (found.models, found.windows) == (("qwen",), {"qwen": 32_768})
    upstream.script(Status(401))
    assert await find_servers([at(port)]) == []


async def test_ollama_gets_a_small_window(upstream: LoopbackUpstream) -> None:
    """Ollama drops what does not fit its window without an error, so its models get its default window."""
    port = int(upstream.base_url.rpartition(":")[2].partition("/")[0])
    upstream.script(Json({"data": [{"id": "llama3.2", "owned_by": "library"}]}))
    [found] = await find_servers([at(port)])
    assert (found.dialect, found.windows) == ("ollama", {"llama3.2": 4096})
