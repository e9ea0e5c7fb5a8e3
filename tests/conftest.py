"""The upstream and the service that tests share, a factory for other services, and the order of the files."""

import contextlib
import gc
import importlib
import os
import re
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.debian import begin_to_install_all
from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.service_config import ServiceSpec, ordinary_spec

StartService = Callable[[ServiceSpec], Service]

# The files of these folders run for seconds, the rest for up to a minute.
SHORT = ("tests/unit/", "tests/contract/")
ALL_MARKED = re.compile(r"^pytestmark = (\[[^]]*|.*)pytest\.mark\.(slow|release)\(", re.MULTILINE)
SLOW = "slow and not release"
FOR_RELEASE = re.compile(r"pytest\.mark\.release|^from tests\.browser\.looks import", re.MULTILINE)
NEED_PACKAGES = ("tests/fleet/", "tests/store/", "tests/parts/", "tests/clients/")
LONGEST = (  # of the slow ones, which begin first
    "tests/browser/",
    "tests/parts/retention/test_audit.py",
    "tests/clients/",
    "tests/docs/test_blocks.py",
    "tests/evaluation/test_equal_candidates.py",
    "tests/fleet/",
)
# Files that share what takes seconds to start run in one process: a Chromium, a fleet, a loaded model.
TOGETHER = re.compile(
    r"tests/(browser/test_c|browser/|parts/embedded/|fleet/test_(?=class|gateway|postgres|prices|revocation))"
)

# How long an example takes says nothing on a busy machine.
settings.register_profile("busy machine", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Each test process imports all tests, and tests start hundreds of processes: they share their bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job, and then by all programs too
gc.disable()  # until all tests are collected, none of which is garbage


def pytest_configure(config: pytest.Config) -> None:
    if _is_whole_run(config) and not hasattr(config, "workerinput") and not config.option.collectonly:
        begin_to_install_all()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import all tests, where several processes do so: each begins elsewhere, and compiles a part for the others."""
    work: dict[str, str] = getattr(session.config, "workerinput", {})
    if not work or not _is_whole_run(session.config):
        return
    root, folder = session.config.rootpath, Path(__file__).parent
    files = [file for file in sorted(folder.rglob("test_*.py")) if not pytest_ignore_collect(file, session.config)]
    begin = len(files) * int(work["workerid"].removeprefix("gw")) // int(work["workercount"])
    for file in files[begin:] + files[:begin]:
        with contextlib.suppress(Exception):  # pytest imports it again, and reports it
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which no test is wanted: to import all takes each process many seconds."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    unwanted = {
        SLOW: lambda text: "pytest.mark.slow" not in text,
        "release": lambda text: FOR_RELEASE.search(text) is None,
        "not slow and not release": lambda text: ALL_MARKED.search(text) is not None,
    }.get(config.option.markexpr)
    return True if unwanted and unwanted(collection_path.read_text()) else None


def _is_whole_run(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def pytest_xdist_auto_num_workers() -> int:
    """Four for two cores, because many tests wait for another process."""
    return 2 * (os.cpu_count() or 1)


class TogetherScheduling(LoadFileScheduling):  # type: ignore[misc]
    """A file, or a group of them, is run by one process."""

    def _split_scope(self, nodeid: str) -> str:
        group = TOGETHER.match(nodeid)
        return group[0] if group else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> TogetherScheduling:
    return TogetherScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mix the files, so that those that wait and those that compute run side by side.

    No long file begins among the last, and of the other tests none that needs Debian's packages among the first.
    """
    is_slow = config.option.markexpr == SLOW

    def place(item: pytest.Item) -> float:
        path = item.nodeid.partition("::")[0]
        mixed = zlib.crc32(path.encode()) / 2**32
        if path.startswith(SHORT):
            return mixed
        if is_slow:
            return 0 if path.startswith(LONGEST) else mixed * 0.65
        return 0.15 + mixed * 0.4 if path.startswith(NEED_PACKAGES) else mixed * 0.65

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """The ordinary service: every class on the shared upstream."""
    with Service(ordinary_spec(shared_upstream.base_url)) as running:
        yield running


@pytest.fixture
def upstream(shared_upstream: LoopbackUpstream) -> Iterator[LoopbackUpstream]:
    """The shared upstream, with nothing scripted and nothing recorded, before the test and after it."""
    shared_upstream.reset()
    yield shared_upstream
    shared_upstream.reset()


@pytest.fixture
def start_service() -> Iterator[StartService]:
    """Starts another service, which ends with the test."""
    with contextlib.ExitStack() as running:
        yield lambda spec: running.enter_context(Service(spec))
