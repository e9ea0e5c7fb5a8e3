"""The extras of the package that are no parts: the modules that each brings, and what to say where one is missing."""

from importlib.util import find_spec

from cadenza.core.errors import ControlError

EXTRAS = {
    "evaluation": ("jsonschema_rs",),
}


def describe_missing(extra: str) -> str:
    return f"needs the extra '{extra}', which is not installed; run: pip install 'cadenza[{extra}]'"


def extra_with(module: str | None) -> str | None:
    """The extra that brings a module; None if none does."""
    package = (module or "").partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)


def is_installed(extra: str) -> bool:
    """Nothing of it is imported, which would take time and memory."""
    return all(map(find_spec, EXTRAS[extra]))


def require_extra(extra: str) -> None:
    """ControlError if it is not installed."""
    if not is_installed(extra):
        raise ControlError(f"This {describe_missing(extra)}")
