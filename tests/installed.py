"""Environments with client libraries, installed when a test first needs one, and kept in .venv-clients.

Python: the pins of requirements/clients, one environment for each major version of the OpenAI SDK that clients need.
Node: the pins of tests/node and of tests/node/agents; npm itself comes from Debian's packages if the tests run as root.
One test process fills an environment, and others that need it wait; several are filled at the same time. If one cannot
be made, `give_up` skips the test, or fails it in CI.
"""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tests.debian import CannotInstall, install, installed, skip_or_fail

ROOT = Path(__file__).parents[1]
PINS = ROOT / "requirements" / "clients"
STRIPE_PINS = ROOT / "requirements" / "localstripe"
SEARXNG_PINS = ROOT / "requirements" / "searxng"
NODE_PINS = ROOT / "tests" / "node"
AGENT_PINS = NODE_PINS / "agents"  # apart, because they are 760 MB of programs
PLACE = ROOT / ".venv-clients"
INSTALL_S = 150.0
PROGRAMS_S = 240.0
OPTIONS = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]


def give_up(reason: object) -> NoReturn:
    skip_or_fail(f"a client is not tested: {reason}")


def python_environment(name: str) -> Path:
    """The bin folder of the environment with the pins of requirements/clients/NAME.txt."""
    return _wheels_environment(name, PINS / f"{name}.txt")


def searxng_environment() -> Path:
    """The bin folder of the environment with SearXNG."""
    return _wheels_environment("searxng", SEARXNG_PINS / "searxng.txt")


def _wheels_environment(name: str, pins: Path) -> Path:
    folder = PLACE / name
    uv, python = str(Path(sys.executable).parent / "uv"), str(folder / "bin" / "python")

    def fill() -> None:
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], PLACE)
        _run([uv, "pip", "install", *OPTIONS, "--python", python, "-r", str(pins)], PLACE)

    _install_once(folder, pins, fill)
    return folder / "bin"


def localstripe_environment() -> Path:
    """The bin folder of the environment with localstripe, which has no wheel: it is built, with a pinned setuptools."""
    folder, pins = PLACE / "localstripe", STRIPE_PINS / "localstripe.txt"
    uv, python = str(Path(sys.executable).parent / "uv"), str(folder / "bin" / "python")
    built = ["--no-binary", "localstripe", "--build-constraints", str(STRIPE_PINS / "build.txt")]

    def fill() -> None:
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], PLACE)
        _run([uv, "pip", "install", *OPTIONS, *built, "--python", python, "-r", str(pins)], PLACE)

    _install_once(folder, pins, fill)
    return folder / "bin"


def node_environment(pins: Path = NODE_PINS) -> Path:
    """A folder whose node_modules has the packages of the pins. `node` is on the PATH then."""
    folder = PLACE / pins.name

    def fill() -> None:
        folder.mkdir(exist_ok=True)
        for file in pins.glob("*.json"):
            shutil.copy(file, folder)
        _run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder)

    if not (installed("node") and installed("npm")):
        install("nodejs", "npm", limit_s=PROGRAMS_S)
    _install_once(folder, pins / "package-lock.json", fill)
    return folder


def _install_once(folder: Path, pins: Path, fill: Callable[[], None]) -> None:
    """Fill the folder unless its stamp says that it was filled from these pins."""
    stamp = folder / "stamp"
    with _alone(folder):
        if not stamp.exists() or stamp.read_bytes() != pins.read_bytes():
            fill()
            shutil.copy(pins, stamp)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other test process is in such a block for this folder."""
    PLACE.mkdir(exist_ok=True)
    with (PLACE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], folder: Path) -> None:
    name = Path(command[0]).name
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=True)
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{name} {command[1]} took more than {INSTALL_S:.0f} s") from None
    except subprocess.CalledProcessError as failed:
        raise CannotInstall(f"{name} {command[1]} failed: {' '.join(failed.stderr.split())[-300:]}") from None
