"""Runs the migrations: the numbered modules of `versions`, each with a function `upgrade(database, execute)`.

A new store is made as the schema is now (new_store.py), and needs none of them. A migration that only adds runs beside
processes of the release before. One that breaks them says so: `breaks_before` in its module is the first schema whose
programs can still use the store. It is refused while an older program runs on the store, and no older program starts on
the store afterwards.
"""

from importlib import import_module
from types import ModuleType

import msgspec
from sqlalchemy import text
from sqlalchemy.engine import Dialect

from cadenza.store.migrate import FILES, FIRST, HAS_TABLE, REVISIONS, VERSION
from cadenza.store.new_store import creation
from cadenza.store.statements import Statement
from cadenza.store.store import REVISION_TABLE, Transaction

REACHED = Statement(
    text(
        f"UPDATE {REVISION_TABLE} SET revision = :revision,"  # noqa: S608 our own name
        " oldest_program = CASE WHEN oldest_program < :needed THEN :needed ELSE oldest_program END"
    )
)


class Migrations(msgspec.Struct, frozen=True):
    """The migrations from the revision that was found, which is empty if there is no schema, oldest first."""

    found: str
    modules: dict[str, ModuleType]  # by revision

    @property
    def needed(self) -> str:
        """The first schema whose programs can use the new one. Empty if all can."""
        return max((getattr(one, "breaks_before", "") for one in self.modules.values()), default="")

    def run(self, tx: Transaction, dialect: Dialect) -> None:
        def execute(sql: str) -> None:
            tx.change(Statement(text(sql)), {})

        if not self.found:
            for statement in creation(dialect, REVISIONS[-1], self.needed or FIRST):
                execute(statement)
            return
        for revision, module in self.modules.items():
            module.upgrade(dialect.name, execute)
            tx.change(REACHED, {"revision": revision, "needed": self.needed})


def find_steps(tx: Transaction) -> Migrations:
    """The caller has locked out other migrations."""
    row = tx.row(VERSION, {}) if tx.row(HAS_TABLE, {"name": REVISION_TABLE}) else None
    found = str(row[0]) if row else ""
    paths = {revision: path for revision in REVISIONS for path in FILES.glob(f"{revision}_*.py") if revision > found}
    modules = {revision: import_module(f"{__name__}.versions.{path.stem}") for revision, path in paths.items()}
    return Migrations(found, modules)
