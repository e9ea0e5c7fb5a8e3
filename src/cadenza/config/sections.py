"""The sections of the file, read into Settings. The tables of checks name every key that there is.

A section with mistakes still yields a record, so that reading goes on and finds the others:
the settings may be used only once the reader has no problems.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from cadenza.config.character import DEFAULT_CHARACTER, read_character
from cadenza.config.checks import (
    Checks,
    Table,
    integer,
    positive,
    price,
    shared_url,
    store_url,
    table,
    text,
)
from cadenza.config.lines import KeyPath
from cadenza.config.reader import Reader
from cadenza.config.routing import class_tables, read_classes, read_providers
from cadenza.config.settings import (
    DEFAULT_PRICES,
    Limits,
    Server,
    Settings,
    SharedState,
    Store,
)
from cadenza.core.money import Price
from cadenza.core.records import CLASSES

FAULT_VARIABLE = "CADENZA_FAULT_POINT"
SECTIONS = ("server", "store", "shared_state", "limits", "character", "prices", "providers", "classes")
SERVER: Checks = {"host": text, "port": integer(0, 65_535), "workers": integer(1, 64), "drain_s": positive}
STORE: Checks = {"url": store_url, "region": text}
SHARED_STATE: Checks = {"url": shared_url}
LIMITS: Checks = {"requests_per_second": positive, "burst": integer(1), "concurrency": integer(1)}
PRICE: Checks = {"input": price, "output": price, "cached_input": price}


def read_settings(raw: Table, reader: Reader, source: Path | None, environ: Mapping[str, str]) -> Settings:
    empty: Table = {name: {} for name in SECTIONS}
    sections = empty | reader.table(raw, (), dict.fromkeys(SECTIONS, table))
    if not sections["providers"] and not sections["classes"]:
        sections |= _embedded_default()
    providers = read_providers(sections["providers"], reader, environ)
    character = read_character(sections["character"], ("character",), DEFAULT_CHARACTER, reader)
    return Settings(
        source=source,
        server=Server(**reader.table(sections["server"], ("server",), SERVER)),
        store=_read_store(sections["store"], reader),
        shared_state=SharedState(**reader.table(sections["shared_state"], ("shared_state",), SHARED_STATE)),
        limits=Limits(**reader.table(sections["limits"], ("limits",), LIMITS)),
        prices=_read_prices(sections["prices"], reader),
        providers=providers,
        classes=read_classes(sections["classes"], providers, character, reader),
        fault_point=environ.get(FAULT_VARIABLE),
    )


def _embedded_default() -> Table:
    """What a file that names no provider and no class means: every class on the embedded model."""
    return {
        "providers": {"local": {"kind": "embedded", "retention": "zero"}},
        "classes": {class_id: {"routes": [{"provider": "local"}]} for class_id in CLASSES},
    }


def _read_store(raw: Table, reader: Reader) -> Store:
    store = Store(**reader.table(raw, ("store",), STORE))
    scheme, _, path = store.url.partition(":///")
    if scheme != "sqlite":
        return store
    return msgspec.structs.replace(store, url=f"sqlite:///{(reader.folder / path).resolve()}")


def _read_prices(raw: Table, reader: Reader) -> dict[str, Price]:
    given = class_tables(raw, ("prices",), reader)
    return {
        class_id: _read_price(given.get(class_id, {}), ("prices", class_id), default, reader)
        for class_id, default in DEFAULT_PRICES.items()
    }


def _read_price(raw: Table, at: KeyPath, default: Price, reader: Reader) -> Price:
    """A cached price above the input price would cost more than was held: given, a mistake; a default, dropped."""
    given = reader.table(raw, at, PRICE)
    input_nano = given.get("input", default.input_nano)
    cached_nano = given.get("cached_input", default.cached_input_nano)
    if cached_nano is not None and cached_nano > input_nano:
        cached_nano = None
        if "cached_input" in given:
            reader.problem((*at, "cached_input"), "must not be above the price of input")
    return Price(input_nano, given.get("output", default.output_nano), cached_nano)
