"""The check of `cadenza doctor` for search: the web engine answers, or the index of local documents can be used."""

from cadenza.app import search_settings
from cadenza.cli.doctor.check import Check
from cadenza.cli.doctor.index_check import index_problem
from cadenza.config import Settings
from cadenza.config.settings import SearchSettings
from cadenza.core.errors import ControlError
from cadenza.grounding.index.index_file import index_exists
from cadenza.grounding.index.index_folders import indexed_folders
from cadenza.grounding.search.engines.build import build_web_engine, probe


async def check_search(settings: Settings) -> Check:
    search = settings.grounding.search
    if search.engine == "off":
        return Check("search", "ok", "turned off in the config: [grounding] has search = false")
    if search.api_key_env and not search.api_key:
        return Check("search", "warning", f"{search.engine} was not asked: its key is not set")
    if search.engine == "local":
        return check_index(search)
    engine = build_web_engine(search_settings(search))
    try:
        found = await probe(engine)
    finally:
        await engine.close()
    return Check("search", "ok" if found.works else "fault", found.detail)


def check_index(search: SearchSettings) -> Check:
    """Open the index, and say how much is in it."""
    if problem := index_problem(search):
        return Check("search", "fault", problem.found, problem.todo)
    if not index_exists(search.index):
        return Check("search", "ok", "off: there is no engine, and no index of local documents")
    try:
        folders = indexed_folders(search.index)
    except ControlError as error:
        return Check("search", "fault", f"local: {error}")
    documents = sum(folder.files - folder.unreadable for folder in folders)
    if not documents:
        return Check(
            "search", "warning", f"local: there are no documents in {search.index}", "Run 'cadenza index FOLDER'."
        )
    passages = sum(folder.passages for folder in folders)
    counts = ", ".join(
        f"{number:,} {noun}{'' if number == 1 else 's'}"
        for number, noun in ((len(folders), "folder"), (documents, "document"), (passages, "passage"))
    )
    return Check("search", "ok", f"local: {counts} in {search.index}")
