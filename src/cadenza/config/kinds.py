"""What a kind of provider has in common: what is usual for its routes, and which keys of the config it takes.

`openai` is the core's; another kind is a part's, which owns "kind NAME" and has its record as `KIND`.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from cadenza import parts

OWNED = "kind "


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults are those of an endpoint with many models."""

    context_tokens: int = 128_000
    max_output_tokens: int = 16_384
    first_token_s: float = 60.0
    dialect: str = ""  # of all its providers; empty: a provider says it, or its host tells
    model: str = ""  # of a provider without a model_path, which has one model; empty: each route names one
    character: str = ""  # of a class that only has such routes, where the config gives none
    keys: tuple[str, ...] = ()  # of a provider, which other kinds do not take
    is_local: bool = False  # the model runs on this machine: it costs nothing, and needs no address
    missing: Callable[[Path | None], str] = lambda _: ""  # a sentence if a model_path, or the model, cannot be run


OPENAI = Kind(keys=("base_url", "api_key_env", "api_key_file", "dialect", "api_version", "ca_file", "insecure"))
KEYS = (*OPENAI.keys, "model_path")  # of one kind or another
OF_PARTS = {own.removeprefix(OWNED): part for part in parts.PARTS for own in part.owns if own.startswith(OWNED)}
KINDS = ("openai", *OF_PARTS)
# Serves every class where the config names no provider.
BUILT_IN = next((name for name, part in OF_PARTS.items() if part.is_default))


def kind_of(name: str) -> Kind:
    """The kind of this name. An unknown one, or one of a part that is not installed, demands and refuses nothing."""
    if name == "openai":
        return OPENAI
    part = OF_PARTS.get(name)
    if part and part.is_installed:
        kind: Kind = part.load("kind").KIND
        return kind
    missing = part.missing if part else ""
    return Kind(model="unknown", keys=KEYS, is_local=True, missing=lambda _: missing and f"its kind {missing}")
