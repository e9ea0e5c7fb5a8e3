"""The archive of an account on both databases: everything about it is there, and nothing secret or of anybody else."""

import csv
import io
import json
import re
import zipfile

import pytest
from sqlalchemy import Column, MetaData, Table, Text

from cadenza.control.account.export import begin_export, describe, shown_fields, write_archive
from cadenza.core.records import COMMAND_LINE, Usage
from cadenza.pace import Pace
from cadenza.store.columns import Exported, shown
from cadenza.store.schema import metadata
from cadenza.store.store import Store
from cadenza.store.tables.personal_data import EXPORTED, LEFT_OUT, PAGE, ExportedTable
from tests.store.moves import finish, make_hold, take
from tests.store.rows import NOW_MS, rows_of, run_sql
from tests.store.test_erasure import EMAIL, OTHER, OTHER_EMAIL, OWNER, SECRET, filled

__all__ = ["filled"]
OWNED = {"account_id", "redeemed_by", "key_id", "email", "actor"}  # columns that refer to a person


async def export(store: Store) -> zipfile.ZipFile:
    account = await begin_export(store, EMAIL, COMMAND_LINE, NOW_MS)
    parts = [part async for part in write_archive(store, account, NOW_MS, Pace())]
    archive = zipfile.ZipFile(io.BytesIO(b"".join(parts)))
    assert archive.testzip() is None
    return archive


def read_csv(archive: zipfile.ZipFile, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(archive.read(name).decode())))


def test_every_table_is_exported_or_left_out() -> None:
    """A new table that refers to an account, a key or an address is not one of the service. No secret is exported."""
    personal = {name for name, table in metadata.tables.items() if OWNED & set(table.c.keys())}
    assert personal == {one.table.name for one in EXPORTED} | LEFT_OUT.keys()
    for one in EXPORTED:
        assert not {"digest", "password_hash", "secret", "public_key"} & one.fields.keys()


def test_a_column_is_exported_or_left_out() -> None:
    """A new column of an exported table fails until the schema says what it means to the owner."""
    decided = [Column("id", Text, primary_key=True, info=shown("id")), Column("account_id", Text)]
    about = Exported("new.json", "New rows.", kept="kept")
    assert ExportedTable(Table("decided", MetaData(), *decided), about).fields == {"id": "id"}
    with pytest.raises(AssertionError, match=r"what forgotten\.name means"):
        ExportedTable(Table("forgotten", MetaData(), Column("name", Text)), about)


async def test_an_archive_has_everything_and_no_secrets(filled: Store) -> None:
    """Each table of the owner has its rows; no hash, no digest, and no address or row of another account is there."""
    hold = make_hold("r1")
    await take(filled, hold)
    await finish(filled, hold, Usage(100, 7))
    archive = await export(filled)
    manifest = json.loads(archive.read("manifest.json"))
    counts = {file["name"]: file["rows"] for file in manifest["files"]}
    for one in EXPORTED:
        mine = [row for row in await rows_of(filled, one.table) if getattr(row, one.owner) == OWNER]
        found = read_csv(archive, one.file) if one.file.endswith(".csv") else json.loads(archive.read(one.file))
        assert (len(found), counts[one.file]) == (len(mine), len(mine)), one.file
        assert all([*row] == [*shown_fields(one)] for row in found)
    everything = b"".join(archive.read(name) for name in archive.namelist())
    for word in (OTHER, OTHER_EMAIL, '"hash"', "key_b", (b"a" * 32).hex(), "a" * 32):
        assert word.encode() not in everything, word
    assert SECRET.encode() in everything
    [last] = [row for row in read_csv(archive, "statement.csv") if row["kind"] == "charge"]
    assert last["balance"] == "0.99999879"
    assert (last["amount"], last["completion_id"]) == ("-0.00000121", "r1")
    [request] = read_csv(archive, "usage.csv")
    assert (request["cost"], request["started_at"], request["stream"]) == ("0.00000121", "2027-01-15T08:00:00Z", "True")
    events = json.loads(archive.read("audit_events.json"))
    assert {event["actor"] for event in events if event["event"] == "account.class"} == {"an operator"}
    assert events[-1]["event"] == "account.export"


async def test_the_text_explains_every_field(filled: Store) -> None:
    """README.txt has each file with each of its fields."""
    text = (await export(filled)).read("README.txt").decode()
    assert text == describe(await begin_export(filled, EMAIL, COMMAND_LINE, NOW_MS), NOW_MS)
    for one in EXPORTED:
        part = text.partition(f"\n{one.file}\n")[2].partition("\n\n")[0]
        assert re.findall(r"^    (\w+) ", part, re.MULTILINE) == [*shown_fields(one)], one.file


async def test_rows_are_read_page_by_page(filled: Store) -> None:
    """More rows than a page has, some at the same time: each is there once, in order, and the parts are small."""
    await run_sql(
        filled,
        f"""WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {PAGE + 500})
        INSERT INTO usage (completion_id, account_id, key_id, class_id, provider, model, prompt_tokens, cached_tokens,
        completion_tokens, cost_nano, estimated, status, stream, started_at, duration_ms, request_id, input_nano,
        output_nano, short_nano, source)
        SELECT 'r' || (i + 10000), '{OWNER}', 'key_a', 'forte', '', '', 0, 0, 0, 0, status.no, 200, status.no, i / 7, 1,
        '', 1, 1, 0, 'request' FROM n, (SELECT is_capped AS no FROM keys LIMIT 1) status""",
    )
    found = [row["completion_id"] for row in read_csv(await export(filled), "usage.csv")]
    assert found == [f"r{10_000 + number}" for number in range(1, PAGE + 501)]
