"""Install programs: Debian packages if we are root, Python and Node packages into folders of their own.

Everything comes through the registries' own clients. If an installation fails, CannotRun gives the reason.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.machine import CannotRun

ROOT = Path(__file__).parents[2]
WORK_DIR = ROOT / ".bench"  # ignored by git
PINS = Path(__file__).parents[1] / "peers"
INSTALL_S = 900


def debian_program(name: str, package: str) -> str:
    """The path of the program. If it is missing and we are root, install it first."""
    if found := _find(name):
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise CannotRun(f"{name} is not installed (on Debian: apt-get install {package})")
    run(["apt-get", "update", "--quiet=2"], f"the package list for {name}")
    run(["apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", package], package)
    if found := _find(name):
        return found
    raise CannotRun(f"{package} is installed but does not contain {name}")


def python_environment(name: str) -> Path:
    """The bin folder of a virtual environment with the pins of bench/peers/NAME.txt."""
    pins, place = PINS / f"{name}.txt", WORK_DIR / name
    stamp = place / "pins.txt"
    if not stamp.exists() or stamp.read_text() != pins.read_text():
        uv = str(Path(sys.executable).parent / "uv")
        run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(place)], f"an environment for {name}")
        python = str(place / "bin" / "python")
        options = ["--quiet", "--compile-bytecode", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        run([uv, "pip", "install", *options, "--python", python, "-r", str(pins)], name)
        stamp.write_text(pins.read_text())
    return place / "bin"


def pinned_version(name: str) -> str:
    """The pinned version of the package that the environment is named after."""
    lines = (PINS / f"{name}.txt").read_text().splitlines()
    pins = (line.split(";")[0].split("==") for line in lines if "==" in line)
    return next(version.strip(" \\") for package, version in pins if package.split("[")[0].strip() == name)


def node_package(name: str, package: str, version: str) -> Path:
    """The folder of an npm package, installed with its own prefix."""
    debian_program("node", "nodejs")
    npm = debian_program("npm", "npm")
    place = WORK_DIR / name
    installed, stamp = place / "node_modules" / package, place / "version.txt"
    if not stamp.exists() or stamp.read_text() != version:
        place.mkdir(parents=True, exist_ok=True)
        options = ["--silent", "--no-fund", "--no-audit", "--prefix", str(place)]
        run([npm, "install", *options, f"{package}@{version}"], name)
        stamp.write_text(version)
    return installed


def run(command: Sequence[str], what: str) -> None:
    env = dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, env=env, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"installing {what} took more than {INSTALL_S} s") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise CannotRun(f"could not install {what}: {said[-300:]}")


def _find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
