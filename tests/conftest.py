"""The upstream and the service that tests share, a factory for other services, and the order of the files."""

import contextlib
import gc
import os
import re
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.debian import begin_to_install_all
from tests.forked import fork_server
from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.service_config import ServiceSpec, ordinary_spec
from tests.workers import Group, Line, run_in_workers

StartService = Callable[[ServiceSpec], Service]

# The files of these folders run for seconds, the rest for up to a minute.
SHORT = ("tests/unit/", "tests/contract/", "tests/parts/site/unit/", "tests/parts/site/sign_in/")
ALL_MARKED = re.compile(r"^pytestmark = (\[[^]]*|.*)pytest\.mark\.(slow|release)\(", re.MULTILINE)
ALL_NEED_PARTS = re.compile(r"^pytestmark = (\[[^]]*|.*)pytest\.mark\.parts\(", re.MULTILINE)
QUICK, SLOW = "not slow and not release", "slow and not release"
OF_THE_CORE = f"{QUICK} and not parts"
SLOW_WORKERS = 3  # of those that run quick and slow tests, they begin with the slow ones
FOR_RELEASE = re.compile(r"pytest\.mark\.release|^from tests\.parts\.site\.browser\.looks import", re.MULTILINE)
NEED_PACKAGES = ("tests/fleet/", "tests/store/", "tests/parts/", "tests/clients/")
LONGEST = (  # of the slow ones, which begin first
    "tests/parts/site/browser/",
    "tests/parts/retention/test_audit.py",
    "tests/clients/",
    "tests/docs/test_blocks.py",
    "tests/parts/evaluation/test_equal_candidates.py",
    "tests/fleet/",
)
# Files that share what takes seconds to make run in one process: Chromium, a fleet, a loaded model, the parsed source.
TOGETHER = re.compile(
    r"tests/(?:parts/site/(?:(?P<chats>browser/test_c)|(?P<browser>browser/))|(?P<model>parts/embedded/)"
    r"|(?P<fleet>fleet/test_(class|gateway|postgres|prices|revocation))|(?P<source>unit/(test_house|observe/test_fields)))"
)

# How long an example takes says nothing on a busy machine.
settings.register_profile("busy machine", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Each test process imports all tests, and tests start hundreds of processes: they share their bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job, and then by all programs too
gc.disable()  # until all tests are collected, none of which is garbage


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", default="0", help="how many processes run the tests; auto: two for each core")


def pytest_configure(config: pytest.Config) -> None:
    if _is_whole_run(config) and not config.option.collectonly:
        begin_to_install_all()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which no test is wanted: to import all takes each process many seconds."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    unwanted = {
        SLOW: lambda text: "pytest.mark.slow" not in text,
        "release": lambda text: FOR_RELEASE.search(text) is None,
        QUICK: lambda text: ALL_MARKED.search(text) is not None,
        OF_THE_CORE: lambda text: ALL_MARKED.search(text) is not None or ALL_NEED_PARTS.search(text) is not None,
    }.get(config.option.markexpr)
    return True if unwanted and unwanted(collection_path.read_text()) else None


def _is_whole_run(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    wanted = session.config.option.workers
    count = 2 * (os.cpu_count() or 1) if wanted == "auto" else int(wanted)  # twice, because many tests wait
    if count < 2 or session.testsfailed or session.config.option.collectonly:
        return None  # as pytest does it
    quick, slow = dict[str, Group](), dict[str, Group]()
    for item in session.items:
        together = TOGETHER.match(item.nodeid)
        name = (together and together.lastgroup) or item.nodeid.partition("::")[0]
        (slow if _is_slow(item) else quick).setdefault(name, []).append(item)
    fork_server()  # one for all workers
    if slow and quick:  # some slow tests wait for alerts and leases, and must not wait for a core as well
        lines = [Line([*slow.values()], SLOW_WORKERS), Line([*quick.values()], count - SLOW_WORKERS, niceness=10)]
    else:
        lines = [Line([*(slow or quick).values()], count)]
    run_in_workers(session, lines)
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the files, so that those that wait and those that compute run side by side.

    No long file begins among the last, and of the quick tests none that needs Debian's packages among the first.
    """

    def place(item: pytest.Item) -> float:
        path = item.nodeid.partition("::")[0]
        mixed = zlib.crc32(path.encode()) / 2**32
        if path.startswith(SHORT):
            return mixed
        if _is_slow(item):
            return 0 if path.startswith(LONGEST) else mixed * 0.65
        return 0.15 + mixed * 0.4 if path.startswith(NEED_PACKAGES) else mixed * 0.65

    items.sort(key=place)


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own. Pytest's fixture looks at all the folders there are, to number them."""
    named = re.sub(r"\W", "_", request.node.name)[:30]
    return Path(tempfile.mkdtemp(prefix=f"{named}-", dir=tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def backup() -> Iterator[LoopbackUpstream]:
    """A second upstream."""
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
