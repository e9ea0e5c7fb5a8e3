"""Why the local search engine cannot work, for the start of the service and for `cadenza doctor`."""

import msgspec

from cadenza.config.settings import SearchSettings
from cadenza.grounding.index.local_index import index_exists, why_not_an_index


class IndexProblem(msgspec.Struct, frozen=True):
    """What is wrong with the index, and what to do."""

    found: str
    todo: str


def index_problem(search: SearchSettings) -> IndexProblem | None:
    """A look at the first bytes of the file. A missing index is a problem only if the config asks for local search."""
    if search.engine != "local":
        return None
    if not index_exists(search.index) and not search.index.is_dir():
        todo = "Run 'cadenza index FOLDER' with this config file, or correct `index` in [grounding.search]."
        return IndexProblem(f"local: there is no index at {search.index}", todo) if search.wants_index else None
    if reason := why_not_an_index(search.index):
        todo = "Correct `index` in [grounding.search], or move the file away and run 'cadenza index FOLDER'."
        return IndexProblem(f"local: {search.index} {reason}", todo)
    return None
