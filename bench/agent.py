"""An agent's turn by the length of its body, for every gateway: `make bench ARGS="--parts agent"`.

The gateways take turns, each started anew in each round; figures are medians of the rounds. Each connection sends its
next request after a reply, so the time to the first token grows with the cost of a request.
"""

import functools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import uvloop

from bench.conversation import Conversation
from bench.figures import Cost, Line, Section
from bench.gateways.base import Running, running
from bench.load import Load, LoadResult, drive, percentile
from bench.machine import CannotRun
from bench.measure import Site, cost_of
from bench.workload import BURST, TEXT, Target

BODY_KB = (2, 40, 76, 200, 600)
TOOLS_KB = 40  # bodies from here on have tools
AT_ONCE = 8
CONVERSATIONS = 8
WARM_S = 0.5
CPU = "An agent's turn: CPU µs for each request"
FIRST = "An agent's turn: median time to the first token in ms, beyond that without a gateway"
NOTE = (
    f"Streams of {BURST.chunks} chunks at once, {AT_ONCE} connections. Bodies from {TOOLS_KB} kB on have 24 tools and a"
    " history of calls with their results."
)


Turn = tuple[Cost, float]  # what one gateway took for bodies of one length in one round, and the ms to the first token


def measure_agent(site: Site) -> list[Section]:
    site.step("agent's turns, directly to the upstream")
    direct_ms = {kb: percentile(_drive(Target(site.upstream_port), kb, site).first_ms, 50) for kb in BODY_KB}
    turns, failures = defaultdict[str, dict[int, list[Turn]]](dict), dict[str, str]()
    for number in range(site.pace.rounds):
        for gateway in site.gateways:
            site.step(f"{gateway.name}: agent's turns")
            try:
                gateway.install()
                with running(gateway, site.folder / f"agent-{gateway.name}-{number}", site.upstream_port) as started:
                    for kb in BODY_KB:
                        turns[gateway.name].setdefault(kb, []).append(_measure(started, kb, site))
            except (CannotRun, OSError) as reason:
                failures[gateway.name] = str(reason) or type(reason).__name__
    note = " ".join([NOTE, *(f"{name} was not measured: {reason}." for name, reason in failures.items())])
    return [
        Section(title=CPU, note=note, axis="body", lines=[_cost_line(kb, turns) for kb in BODY_KB]),
        Section(title=FIRST, note=note, axis="body", lines=[_first_line(kb, turns, direct_ms[kb]) for kb in BODY_KB]),
    ]


def _cost_line(kb: int, turns: Mapping[str, Mapping[int, Sequence[Turn]]]) -> Line:
    costs = {name: Cost.median([cost for cost, _ in of_gateway[kb]]) for name, of_gateway in turns.items()}
    errors = ", ".join(f"{name} ({cost.error})" for name, cost in costs.items() if cost.error)
    figures = {name: cost.cpu_us for name, cost in costs.items() if cost.cpu_us}
    return Line(subject=f"{kb} kB", size=kb, figures=figures, error=errors or None)


def _first_line(kb: int, turns: Mapping[str, Mapping[int, Sequence[Turn]]], direct_ms: float) -> Line:
    added_ms = {
        name: statistics.median(first_ms for _, first_ms in of_gateway[kb]) - direct_ms
        for name, of_gateway in turns.items()
        if any(cost.served for cost, _ in of_gateway[kb])
    }
    return Line(subject=f"{kb} kB", size=kb, figures={"without": direct_ms} | added_ms)


def _measure(started: Running, kb: int, site: Site) -> Turn:
    _drive(started.target, kb, site, WARM_S)
    before_s = started.tree.cpu_s
    result = _drive(started.target, kb, site)
    return cost_of(result, started.tree.cpu_s - before_s), percentile(result.first_ms, 50)


def _drive(target: Target, kb: int, site: Site, seconds: float | None = None) -> LoadResult:
    requests = _requests(target, kb)
    return uvloop.run(drive(Load(target.port, requests, BURST, AT_ONCE, seconds or site.pace.plain_s)))


def _requests(target: Target, kb: int) -> list[bytes]:
    size = 1000 * kb
    if kb < TOOLS_KB:
        return [target.request(BURST, TEXT * (size // len(TEXT)))]
    bodies = [one.body(target.model, BURST, size) for one in _conversations()]
    return [target.head(len(body)) + body for body in bodies]


@functools.cache
def _conversations() -> Sequence[Conversation]:
    return [Conversation(seed, 1000 * max(BODY_KB)) for seed in range(CONVERSATIONS)]
