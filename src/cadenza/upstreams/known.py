"""Where models are usually served: the addresses of providers, and the ports of model servers on this machine.

`cadenza init` offers them. A provider is here only if it offers zero retention, as far as we know.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from cadenza.upstreams.base import Probe
from cadenza.upstreams.dialects import DIALECTS, dialect_of
from cadenza.upstreams.openai import OpenAIUpstream

TIMEOUT_S = 1.0  # a server on this machine answers within milliseconds
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "library": "ollama"}  # -> dialect
OLLAMA_WINDOW = 4096  # its default; it drops what does not fit, without an error


class ModelPlace(msgspec.Struct, frozen=True):
    """An endpoint that speaks the OpenAI format, and what is known about it before it is asked for an answer."""

    name: str
    title: str
    base_url: str
    key_env: str | None = None  # the variable that usually has the key
    dialect: str = ""  # empty: the host tells it
    models: tuple[str, ...] = ()
    windows: Mapping[str, int] = {}  # of these models, in tokens

    @property
    def spoken(self) -> str:
        """The dialect that is used."""
        return self.dialect or dialect_of(self.base_url)


HOSTED = (
    ModelPlace("openai", "OpenAI", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    ModelPlace("anthropic", "Anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    ModelPlace("gemini", "Gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    ModelPlace("mistral", "Mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    ModelPlace("groq", "Groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    ModelPlace("together", "Together", "https://api.together.ai/v1", "TOGETHER_API_KEY"),
    ModelPlace("openrouter", "OpenRouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
)
LOCAL = (
    ModelPlace("ollama", "Ollama", "http://127.0.0.1:11434/v1", dialect="ollama"),
    ModelPlace("vllm", "vLLM", "http://127.0.0.1:8000/v1", dialect="vllm"),
    ModelPlace("llamacpp", "llama.cpp", "http://127.0.0.1:8080/v1", dialect="llamacpp"),
    ModelPlace("sglang", "SGLang", "http://127.0.0.1:30000/v1", dialect="sglang"),
    ModelPlace("lmstudio", "LM Studio", "http://127.0.0.1:1234/v1", dialect="plain"),
)
TITLES = {place.name: place.title for place in LOCAL}


async def find_servers(places: Sequence[ModelPlace] = LOCAL) -> list[ModelPlace]:
    """The places at which a server lists its models. What it is, it says itself, wherever it listens."""
    servers = await asyncio.gather(*map(_look, places))
    return [server for server in servers if server]


async def _look(place: ModelPlace) -> ModelPlace | None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            probe = await list_models(place, None)
    except TimeoutError:
        return None
    if not probe.models:
        return None
    kind = OWNERS.get(probe.owner, place.name)
    dialect = kind if kind in DIALECTS else place.dialect
    server = ModelPlace(kind, TITLES.get(kind, place.title), place.base_url, None, dialect)
    return with_models(server, probe)


def with_models(place: ModelPlace, probe: Probe) -> ModelPlace:
    """With what it lists. A server at an address that is not known says by its models what it is."""
    if place.spoken == "plain" and probe.owner in OWNERS:
        place = msgspec.structs.replace(place, dialect=OWNERS[probe.owner])
    windows = dict.fromkeys(probe.models, OLLAMA_WINDOW) if place.spoken == "ollama" else probe.windows
    return msgspec.structs.replace(place, models=probe.models, windows=windows)


async def list_models(place: ModelPlace, api_key: str | None, proxy: str | None = None) -> Probe:
    upstream = OpenAIUpstream(place.base_url, api_key, DIALECTS[place.spoken], proxy)
    try:
        return await upstream.probe()
    finally:
        await upstream.stop()
