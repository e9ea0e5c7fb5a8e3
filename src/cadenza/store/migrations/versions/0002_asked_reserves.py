"""An index of the reserves that another process asks for: a process that keeps many of them finds these at once."""

from collections.abc import Callable


def upgrade(database: str, execute: Callable[[str], object]) -> None:  # noqa: ARG001 the same for both
    execute("CREATE INDEX ix_reserves_asked ON reserves (process) WHERE is_asked")
