"""docs/scale.md says what a Postgres that shards by account would refuse. Here every statement and table is asked."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

from sqlalchemy import Table, UniqueConstraint

import cadenza
from cadenza.parts.postgres.session import for_postgres
from cadenza.store.schema import metadata
from cadenza.store.statements import SelectByIds, Statement
from tests.docs.markdown import ROOT

SCALE = (ROOT / "docs" / "scale.md").read_text()
OF_ACCOUNTS = {table.name for table in metadata.sorted_tables if "account_id" in table.c} | {"accounts"}
TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|USING) \"?(\w+)")
CHANGES = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM) \"?(\w+)")
LOCKS = re.compile(r"\bFOR (?:NO KEY )?UPDATE\b")
ONE_ACCOUNT = re.compile(r"\b(?:account_id|accounts\.id) = \$|INTO accounts \(id,|INTO \w+ \([^)]*\baccount_id\b")
LISTED = re.compile(r"`(\w+\.\w+)`")


def test_what_changes_an_account_names_it() -> None:
    """A statement that changes or locks rows of accounts names one account, or the page lists it, and no other."""
    assert not_of_one_account() == listed("Statements that name no account", LISTED)


def test_unique_columns_without_the_account() -> None:
    """The page lists each unique column of the accounts' tables that is unique over all accounts, and no other."""
    assert set(unique_over_all()) == listed("Unique over all accounts", LISTED)


def not_of_one_account() -> set[str]:
    found = set[str]()
    for name, statement in statements():
        text = re.sub(r"\s+", " ", for_postgres(statement).text)
        changed = {*CHANGES.findall(text), *(TABLE.findall(text) if LOCKS.search(text) else ())}
        is_of_many = "unnest(" in text or not ONE_ACCOUNT.search(text)
        if changed & OF_ACCOUNTS and is_of_many:
            found.add(name)
    return found


def statements() -> Iterator[tuple[str, Statement]]:
    """All statements of all modules, with the names of the module and of the statement."""
    for module in pkgutil.walk_packages(cadenza.__path__, "cadenza."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                short = f"{module.name.rpartition('.')[2]}.{name}"
                yield from ((short, statement) for statement in within(value))


def within(value: object) -> Iterator[Statement]:
    if isinstance(value, Statement):
        yield value
    elif isinstance(value, SelectByIds):
        yield value.many
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from within(one)


def unique_over_all() -> Iterator[str]:
    for table in metadata.sorted_tables:
        if table.name in OF_ACCOUNTS:
            account = "id" if table.name == "accounts" else "account_id"
            yield from (f"{table.name}.{one[0]}" for one in unique_columns(table) if account not in one)


def unique_columns(table: Table) -> Iterator[list[str]]:
    yield [column.name for column in table.primary_key]
    yield from ([column.name for column in index.columns] for index in table.indexes if index.unique)
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield [column.name for column in constraint.columns]


def listed(heading: str, names: re.Pattern[str]) -> set[str]:
    """What the paragraph that begins with these words names."""
    _, found, rest = SCALE.partition(f"**{heading}")
    assert found, f"docs/scale.md: no paragraph begins with {heading!r}"
    return set(names.findall(rest.partition("\n\n")[0]))
