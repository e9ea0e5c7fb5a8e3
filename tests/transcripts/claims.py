"""All claims of the transcripts, and the services that play them: one for each config."""

from collections.abc import Callable
from contextlib import ExitStack

from tests.loopback import LoopbackUpstream
from tests.service_config import ServiceSpec, ordinary_spec
from tests.transcripts.playing import modes, play
from tests.transcripts.reading import FOLDER, Claim, read_transcript
from tests.transcripts.stages import InProcess, Process, StoreStage, opened_stage

TRANSCRIPTS = [read_transcript(path) for path in sorted(FOLDER.glob("*.txt"))]
CLAIMS = {f"{one.name}: {claim.sentence}": (one, claim) for one in TRANSCRIPTS for claim in one.claims}


def is_charged(claim: Claim) -> bool:
    """Whether the claim says what is charged."""
    return any("$" in turn.lines for case in claim.cases for turn in case.turns)


CHEAP = [name for name, (_, claim) in CLAIMS.items() if not claim.is_costly]
CHARGED = [name for name in CHEAP if is_charged(CLAIMS[name][1])]
NEED_PARTS = [name for name in CLAIMS if name.startswith("with_parts: ")]
CASES_ELSEWHERE = 3  # of a claim: what differs between them is not the transport or the store


class Stages:
    """Services of one kind, each started when its config is first needed."""

    def __init__(
        self,
        kind: type[InProcess | Process],
        upstream: LoopbackUpstream,
        stack: ExitStack,
        new_store: Callable[[], str] | None = None,
    ) -> None:
        """`new_store` returns the address of a store with the schema; else each service has a SQLite file."""
        self._kind = kind
        self._upstream = upstream
        self._stack = stack
        self._new_store = new_store
        self._opened: dict[str, StoreStage] = {}

    def play(self, name: str) -> None:
        """Play all cases of a claim, plain and as a stream; elsewhere the first ones, in the last of these ways."""
        transcript, claim = CLAIMS[name]
        if transcript.config not in self._opened:
            base_url = self._upstream.base_url
            own = ServiceSpec({"loopback": base_url}, {}, transcript.config)
            url = self._new_store() if self._new_store else ""
            opening = opened_stage(self._kind, own if transcript.config else ordinary_spec(base_url), url)
            self._opened[transcript.config] = self._stack.enter_context(opening)
        is_elsewhere = self._kind is not InProcess
        for case in claim.cases[:CASES_ELSEWHERE] if is_elsewhere else claim.cases:
            for stream in modes(case)[-1:] if is_elsewhere else modes(case):
                try:
                    play(self._opened[transcript.config], self._upstream, case, stream=stream)
                except (AssertionError, KeyError) as error:
                    place = f"{claim.file}:{case.line}{', as a stream' if stream else ''}"
                    raise AssertionError(f"{place}: {error}") from error
