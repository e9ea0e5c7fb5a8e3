"""Indexes of folders, as `cadenza index` makes them, for tests of what reads them."""

import time
from pathlib import Path

from cadenza.grounding.files.reader import DocumentReader
from cadenza.grounding.index.indexing import Indexed, IndexTask, index_folder, scan_folder
from cadenza.observe import Observer, make_log

HANDBOOK = Path(__file__).parent / "handbook"
NORDLYS = Path(__file__).parent / "nordlys"


async def index(path: Path, folder: Path, url: str | None = None) -> Indexed:
    """Bring the index at `path` up to date with the folder."""
    reader = DocumentReader(Observer(make_log()))
    task = IndexTask(scan_folder(folder, path), url, time.time_ns() // 1_000_000)
    try:
        return await index_folder(path, task, reader, lambda: None)
    finally:
        await reader.stop()


def write(folder: Path, **texts: str) -> Path:
    """Write files `name.md` into the folder, and return it."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text)
    return folder
