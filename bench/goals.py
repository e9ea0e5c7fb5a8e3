"""The performance goals, and whether they are met. A limit relative to a peer needs that peer to be measured."""

from collections.abc import Iterator

import msgspec

from bench import agent, alone, mix
from bench.figures import GatewayFigures, Results

PLAIN_US = 250.0  # about the least for Python with every feature on
BESIDE_PEERS = (
    ("plain request, 0.75 × TensorZero", "plain", "TensorZero", 0.75),
    ("plain request, 1/80 of LiteLLM", "plain", "LiteLLM", 1 / 80),
    ("stream, chunks 5 ms apart, 0.7 × TensorZero", "spaced", "TensorZero", 0.7),
    ("stream, chunks at once, 0.35 × TensorZero", "burst", "TensorZero", 0.35),
)
FIRST_P50_MS = 0.8
FIRST_P99_MS = 3.0
FIRST_AT_ONCE = 64
RSS_MB = 80.0
IDLE_STREAM_KB = 40.0
COLD_START_S = 0.8
NEIGHBOURS = "Chats beside another account's load, "  # of a section, with its store
TIMES_ALONE = 3.0
MORE_MS = 20.0
MIX_OF_TENSORZERO = 0.6
LITELLM_OVER_MIX = 20
MIX_FIRST_P99_MS = 5.0
AGENT_OF_VLLM_ROUTER = 1.0
AGENT_FIRST_OF_VLLM_ROUTER = 1.5
PROTOCOL_OF_CHAT = 1.15


class Goal(msgspec.Struct, frozen=True):
    """A limit and the measured value; None if unknown."""

    name: str
    limit: float | None
    measured: float | None
    unit: str

    @property
    def verdict(self) -> str:
        if self.limit is None or self.measured is None:
            return "not measured"
        return "met" if self.measured <= self.limit else "not met"


def goals(results: Results) -> list[Goal]:
    own = results.find("Cadenza")
    return [
        *(_goals(results, own) if own else ()),
        *_agent_goals(results),
        *_mix_goals(results),
        *_neighbour_goals(results),
        *_protocol_goals(results),
    ]


def _goals(results: Results, own: GatewayFigures) -> Iterator[Goal]:
    yield Goal("plain request", PLAIN_US, cpu_us(own, "plain"), "µs")
    for name, kind, peer, factor in BESIDE_PEERS:
        yield Goal(name, _times(cpu_us(results.find(peer), kind), factor), cpu_us(own, kind), "µs")
    added = own.added_at(FIRST_AT_ONCE)
    for percent, limit_ms in ((50, FIRST_P50_MS), (99, FIRST_P99_MS)):
        measured_ms = getattr(added, f"first_p{percent}_ms", None)
        yield Goal(f"added time to first token, 64 streams, p{percent}", limit_ms, measured_ms, "ms")
    yield Goal("resident memory under load", RSS_MB, own.rss_load_mb, "MB")
    yield Goal("memory per idle open stream", IDLE_STREAM_KB, _idle_stream_kb(results), "kB")
    yield Goal("cold start", COLD_START_S, own.cold_start_s, "s")


def _agent_goals(results: Results) -> Iterator[Goal]:
    rows = (
        (agent.CPU, "CPU time", AGENT_OF_VLLM_ROUTER, "µs"),
        (agent.FIRST, "added first token", AGENT_FIRST_OF_VLLM_ROUTER, "ms"),
    )
    for title, what, factor, unit in rows:
        for line in (line for section in results.beside if section.title == title for line in section.lines):
            name = f"agent's turn of {line.subject}, {what}, {factor} × vllm-router"
            their, own = line.figures.get("vllm-router"), line.figures.get("Cadenza")
            if line.size and line.size >= agent.TOOLS_KB:
                yield Goal(name, _times(their, factor), own, unit)


def _mix_goals(results: Results) -> Iterator[Goal]:
    sections = (section for section in results.beside if section.title == mix.TITLE)
    figures = {line.subject: line.figures for section in sections for line in section.lines}
    their_us, slow_us = (figures.get(name, {}).get("cpu_us") for name in (mix.TENSORZERO, mix.LITELLM))
    for name in (one for one in mix.OWN if one in figures):
        own, what = figures[name], f"{mix.TITLE}, {name.removeprefix('Cadenza, ')}"
        limit_us = _times(their_us, MIX_OF_TENSORZERO)
        yield Goal(f"{what}: CPU time, {MIX_OF_TENSORZERO} × TensorZero", limit_us, own.get("cpu_us"), "µs")
        limit_us = _times(slow_us, 1 / LITELLM_OVER_MIX)
        yield Goal(f"{what}: CPU time, 1/{LITELLM_OVER_MIX} of LiteLLM", limit_us, own.get("cpu_us"), "µs")
        yield Goal(f"{what}: added first token, p99", MIX_FIRST_P99_MS, own.get("first_p99_ms"), "ms")
        yield Goal(f"{what}: mischarged", 0.0, own.get("mischarged"), "requests")


def _neighbour_goals(results: Results) -> Iterator[Goal]:
    for section in (section for section in results.beside if section.title.startswith(NEIGHBOURS)):
        for line in section.lines:
            limit_ms = _times(line.figures.get("alone_p99_ms"), TIMES_ALONE)
            name = f"{section.title.removeprefix(NEIGHBOURS)}, a chat beside {line.subject}, p99"
            yield Goal(name, limit_ms and limit_ms + MORE_MS, line.figures.get("beside_p99_ms"), "ms")


def _protocol_goals(results: Results) -> Iterator[Goal]:
    sections = (section for section in results.sections if section.title == alone.STREAMS_BY_PROTOCOL)
    costs_us = {line.subject: line.figures.get("cpu_us") for section in sections for line in section.lines}
    chat_us = costs_us.pop("chat", None)
    for name, cost_us in costs_us.items():
        yield Goal(f"{name} stream, {PROTOCOL_OF_CHAT} × a chat's", _times(chat_us, PROTOCOL_OF_CHAT), cost_us, "µs")


def cpu_us(of: GatewayFigures | None, kind: str) -> float | None:
    """Of a kind of request: a field of the figures."""
    return getattr(getattr(of, kind, None), "cpu_us", None)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _idle_stream_kb(results: Results) -> float | None:
    """At the largest number of streams tried."""
    found = [line.figures.get("rss_kb_per_stream") for section in results.sections for line in section.lines]
    return next((value for value in reversed(found) if value is not None), None)
