"""The check of the store by `cadenza doctor`: it is there or can be made, is sound, has our schema and takes writes.

It neither creates nor migrates a store. Its one write changes nothing.
"""

import os
import shutil
from pathlib import Path

from cadenza.cli.doctor.check import Check
from cadenza.store.address import open_store
from cadenza.store.migrate import schema_state
from cadenza.store.store import Store, StoreUnavailable, check_write

FREE_BYTES_MIN = 16 * 1024 * 1024  # a new store takes less than one; its write-ahead log may grow to this


async def check_store(url: str) -> Check:
    store = open_store(url)
    try:
        if store.path is not None and not store.path.exists():
            return _check_place(store.path)
        return await _check_existing(store)
    except StoreUnavailable as error:
        return _fault(error.problem, error.advice)
    except OSError as error:
        return _fault(f"{error.filename or store.path} cannot be used: {error.strerror}", "Check its owner and mode.")
    finally:
        await store.close()


async def _check_existing(store: Store) -> Check:
    found = await schema_state(store)
    if found.state == "ahead":
        todo = "Run the newer version of Cadenza that migrated it."
        return _fault(f"its schema, {found.revision}, is newer than this program", todo)
    if damage := await store.find_damage():
        todo = "Stop the service, keep the file, and put a backup in its place."
        return _fault(f"{store.path} is damaged: {damage}", todo)
    if found.state != "empty":
        await check_write(store)
    if found.is_usable:
        return Check("store", "ok", f"takes writes; schema {found.revision} ({found.state})")
    if store.is_shared_by_machines:
        return _fault(f"reachable, but its schema is {found.state}", "Run 'cadenza migrate'.")
    todo = "The next start migrates it, after a copy."
    return Check("store", "ok", f"reachable; schema {found.revision} ({found.state})", todo)


def _check_place(path: Path) -> Check:
    """Whether the first start can create the store: the nearest folder that exists must take files."""
    folder = next(parent for parent in path.parents if parent.exists())
    if not folder.is_dir():
        return _fault(f"{folder} is not a folder", "Move it away, or give the store another path in [store].")
    if not os.access(folder, os.W_OK | os.X_OK):
        todo = "Let this user write there, or give the store another path in [store]."
        return _fault(f"this user cannot write to the folder {folder}", todo)
    if shutil.disk_usage(folder).free < FREE_BYTES_MIN:
        return _fault(f"the disk of {folder} is full", "Free space on it.")
    return Check("store", "ok", f"{path} does not exist yet", "The first start creates it.")


def _fault(found: str, todo: str) -> Check:
    return Check("store", "fault", found, todo or "The service refuses requests while its store is down.")
