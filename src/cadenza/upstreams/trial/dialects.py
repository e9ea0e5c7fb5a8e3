"""Which dialect fits what a trial has seen. Pure: it compares the answers with the table of dialects."""

import re

import msgspec

from cadenza.upstreams.dialects import DIALECTS, PLAIN, Dialect
from cadenza.upstreams.trial.asks import CALL_ID, Content


class Needs(msgspec.Struct, frozen=True):
    """What the upstream wants to be sent differently, as far as it was seen."""

    refused_fields: frozenset[str] = frozenset()  # of a request, `stream_options` included
    refuses_reasoning: bool = False
    null_content: Content = "null"  # the content that it accepts in place of null
    ignores_named_choice: bool = False
    refuses_call_id: bool = False  # one as clients send them; a shorter one is accepted

    @property
    def is_beyond_routes(self) -> bool:
        """Whether it needs something that no setting of a route does."""
        return self.null_content != "null" or self.ignores_named_choice or self.refuses_call_id


def misfits(dialect: Dialect, needs: Needs) -> int:
    """How many of the needs a dialect does not meet."""
    handled = {*dialect.omits, *dialect.renames} | (set() if dialect.stream_options else {"stream_options"})
    unmet = [
        needs.refuses_reasoning and dialect.reasoning != "drop",
        needs.null_content not in ("null", dialect.null_content),
        needs.ignores_named_choice and dialect.named_choice,
        needs.refuses_call_id and accepts_call_id(dialect),
    ]
    return len(needs.refused_fields - handled) + sum(unmet)


def accepts_call_id(dialect: Dialect) -> bool:
    """Whether the dialect sends a call id as clients send them."""
    return dialect.call_ids is None or re.fullmatch(dialect.call_ids, CALL_ID) is not None


def better_dialect(current: str, needs: Needs) -> str | None:
    """The dialect that meets more of the needs than the current one; of several, the one most like `plain`."""
    fitting = [name for name in DIALECTS if _is_for_any_host(DIALECTS[name])]
    best = min(fitting, key=lambda name: (misfits(DIALECTS[name], needs), _distance(DIALECTS[name])))
    return best if misfits(DIALECTS[best], needs) < misfits(DIALECTS[current], needs) else None


def _is_for_any_host(dialect: Dialect) -> bool:
    """Whether it adds no field, header or path that only its own host knows."""
    return not dialect.adds and dialect.key_header == "authorization" and not dialect.has_deployments


def _distance(dialect: Dialect) -> int:
    """In how many fields a dialect differs from `plain`, apart from the hosts."""
    names = [name for name in dialect.__struct_fields__ if name != "hosts"]
    return sum(getattr(dialect, name) != getattr(PLAIN, name) for name in names)
