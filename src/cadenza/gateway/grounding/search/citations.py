"""Stand-in."""

from collections.abc import Sequence
from typing import Any

from cadenza.gateway.grounding.search.records import Source


class CitationFinder:
    def take(self, text: str) -> None: ...

    def annotations(self, sources: Sequence[Source]) -> list[dict[str, Any]]:
        return []


def find_citations(text: str, sources: Sequence[Source]) -> list[dict[str, Any]]:
    return []
