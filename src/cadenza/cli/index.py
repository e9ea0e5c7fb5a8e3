"""cadenza index: the folders that the local search engine answers from."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from cadenza.config.settings import SearchSettings
from cadenza.core.errors import ControlError
from cadenza.grounding.files.reader import DocumentReader
from cadenza.grounding.index.indexing import Indexed, IndexTask, index_folder, remove_folder, scan_folder
from cadenza.grounding.index.local_index import index_exists, list_folders, why_not_an_index
from cadenza.observe import Observer, make_log
from cadenza.terminal.configured import load_config
from cadenza.terminal.console import config_option, json_option, now_ms, print_list, say, to_row

COLUMNS = ("folder", "url", "files", "unreadable", "passages", "indexed_at")
SMALLEST_MB = 0.1
UNREAD_SHOWN = 20
INTERRUPTED = 130


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--url", metavar="BASE", help="Where the files are published: answers link to BASE and the path.")
@click.option("--remove", is_flag=True, help="Take FOLDER out of the index.")
@click.option(
    "--index",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The index.",
    show_default="data/index.db beside the config file",
)
@json_option
@config_option
def index(
    folder: Path | None, url: str | None, remove: bool, index: Path | None, as_json: bool, config: str | None
) -> None:
    """Index the documents of FOLDER for the local search engine.

    Only new and changed files are read, and deleted ones are removed, so run it again whenever the folder has changed.
    A running service sees the change on its next request. Without FOLDER, list the indexed folders.
    """
    path, engine = _index_and_engine(index, config)
    if folder is None:
        if remove or url is not None:
            raise click.UsageError("--url and --remove need FOLDER.")
        _list(path, as_json=as_json, must_exist=index is not None)
    elif as_json:
        raise click.UsageError("--json is for the list of folders, without FOLDER.")
    elif remove:
        _remove(path, folder)
    else:
        _update(path, folder, _checked_url(url))
        if why_not := _why_not_searched(engine):
            say(f"These documents are not searched: {why_not}")


def _index_and_engine(index: Path | None, config: str | None) -> tuple[Path, str]:
    """The index, and the engine of the config. An index that --index names is for any service, so no config is read."""
    if index:
        return index, "local"
    search = load_config(config).grounding.search
    return search.index, search.engine


def _why_not_searched(engine: str) -> str | None:
    match engine:
        case "local":
            return None
        case "off":
            return "search is turned off in the config. Remove search = false from [grounding] to answer from them."
        case web_engine:
            return f'[grounding.search] has engine = "{web_engine}". Set engine = "local" to answer from them.'


def _checked_url(url: str | None) -> str | None:
    if url and not url.startswith(("https://", "http://")):
        raise click.UsageError("--url begins with https:// or http://.")
    return f"{url.rstrip('/')}/" if url else url


def _list(path: Path, *, as_json: bool, must_exist: bool) -> None:
    if not index_exists(path):
        missing = f"There is no index at {path}. 'cadenza index FOLDER' makes one."
        if must_exist:
            raise ControlError(missing)
        say(missing)
        if not as_json:
            return

    rows = [
        {
            "folder": folder.path,
            "url": folder.url or None,
            "files": folder.files - folder.unreadable,
            **to_row(folder, "unreadable", "passages", "indexed_at"),
        }
        for folder in list_folders(path)
    ]
    print_list(rows, COLUMNS, as_json=as_json)


def _remove(path: Path, folder: Path) -> None:
    removed = remove_folder(path, folder)
    say(f"Removed {removed.path} from the index: {_count(removed.files, 'file')}.")


def _update(path: Path, folder: Path, url: str | None) -> None:
    content = scan_folder(folder, path)
    try:
        with _progress(len(content.files)) as after_file:
            indexed = _run(path, IndexTask(content, url, now_ms()), after_file)
    except KeyboardInterrupt:
        say("Stopped. What was indexed so far is in the index; the next run goes on from there.")
        sys.exit(INTERRUPTED)
    _say_unread(indexed)
    say(
        f"Indexed {_count(indexed.files, 'file')}, {indexed.new:,} new, {indexed.changed:,} changed,"
        f" {indexed.removed:,} removed, {len(indexed.unread):,} could not be read;"
        f" {_count(indexed.passages, 'passage')}, {_size(indexed.size_bytes)}."
    )


def _run(path: Path, task: IndexTask, after_file: Callable[[], None]) -> Indexed:
    async def run(reader: DocumentReader) -> Indexed:
        try:
            return await index_folder(path, task, reader, after_file)
        finally:
            await reader.stop()

    with Path(os.devnull).open("w") as nowhere:  # what the log would say is in the list of unreadable files
        return asyncio.run(run(DocumentReader(Observer(make_log(nowhere)))))


@contextlib.contextmanager
def _progress(files: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=files, label="Indexing", file=sys.stderr) as bar:
        yield lambda: bar.update(1)


def _say_unread(indexed: Indexed) -> None:
    for one in indexed.unread[:UNREAD_SHOWN]:
        say(f"Could not read {_printable(one.path) or 'a folder'}: {one.reason}.")
    if (more := len(indexed.unread) - UNREAD_SHOWN) > 0:
        say(f"… and {more:,} more.")


def _printable(path: str) -> str:
    """A name without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else "�" for letter in path)


def _size(size_bytes: int) -> str:
    megabytes = size_bytes / 1_000_000
    return f"{megabytes:,.1f} MB" if megabytes >= SMALLEST_MB else f"{size_bytes / 1000:.0f} kB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def index_problem(search: SearchSettings) -> tuple[str, str] | None:
    """Why local search cannot work, and what to do: for the start of the service and for `cadenza doctor`.

    It looks at the first bytes of the file. A missing index is a problem only if the config asks for local search.
    """
    if search.engine != "local":
        return None
    if not index_exists(search.index) and not search.index.is_dir():
        todo = "Run 'cadenza index FOLDER' with this config file, or correct `index` in [grounding.search]."
        return (f"local: there is no index at {search.index}", todo) if search.wants_index else None
    if reason := why_not_an_index(search.index):
        todo = "Correct `index` in [grounding.search], or move the file away and run 'cadenza index FOLDER'."
        return (f"local: {search.index} {reason}", todo)
    return None
