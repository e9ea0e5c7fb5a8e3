"""`make test-pythons`: a quick selection of the tests on each Python from 3.11 to 3.15 but that of `.venv`.

An interpreter is one of the PATH, of pyenv or of uv. One that is not there is made of Debian's packages if apt can get
them from the machine's own mirror: they are unpacked into a folder with the C library that they need, beside the
system's. Interpreters and their environments stay in `.venv-pythons`. What was not found is named at the end.
"""

import hashlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-pythons"
MINORS = range(11, 16)
PINS = ["requirements/run.txt", "requirements/pythons.txt"]
SELECTION = [
    "tests/unit/core",
    "tests/unit/http",
    "tests/unit/ledger",
    "tests/unit/gateway/test_billing_hold.py",
    "tests/unit/gateway/test_billing_end.py",
    "tests/unit/gateway/test_meter.py",
    "tests/unit/gateway/large/test_counted.py",
    "tests/unit/observe/test_log.py",
    "tests/store/test_holds.py",
    "tests/contract/test_chat.py",
]
OPTIONS = ["-p", "no:cacheprovider", "-m", "not slow and not release", "-k", "not postgres"]
PLACES = [".pyenv/versions/{version}.*/bin", ".local/share/uv/python/cpython-{version}.*/bin"]  # in the home folder
SUITE = "testing"  # of Debian: it has the newest Pythons
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LOADERS = "usr/lib64/ld-linux-*.so.*", "usr/lib/ld-linux-*.so.*"
LIMIT_S = 400.0  # of one command
ASKED = "import sys; print(*sys.version_info[:3], sep='.')"
LAUNCHER = """\
#!/bin/sh
exec {loader} --library-path {libraries} --argv0 "$0" {python} "$@"
"""


class NotFound(Exception):
    """There is no such interpreter, and the message says why."""


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    outcomes = dict[str, str]()
    for version in (f"3.{minor}" for minor in MINORS):
        if version == own_version():
            outcomes[version] = "not run: it is the Python of .venv, which runs all tests"
            continue
        try:
            outcomes[version] = test_on(find(version) or unpack(version), version)
        except NotFound as reason:
            outcomes[version] = f"NOT FOUND: {reason}"
    for version, outcome in outcomes.items():
        print(f"Python {version}: {outcome}")  # noqa: T201 it is a command
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


def own_version() -> str:
    return "{}.{}".format(*sys.version_info)


def find(version: str) -> Path | None:
    """An interpreter that runs: a shim of pyenv may stand for one that is not installed."""
    return next((found for found in candidates(version) if run(found, "-c", ASKED).stdout.startswith(version)), None)


def candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    for place in PLACES:
        yield from sorted(Path.home().glob(f"{place.format(version=version)}/{name}"))
    for folder in os.get_exec_path():
        if (found := Path(folder) / name).exists():
            yield found
    if (unpacked := launcher(version)).exists():
        yield unpacked


def launcher(version: str) -> Path:
    return FOLDER / f"debian-{version}/usr/bin/start-python{version}"


def unpack(version: str) -> Path:
    """Get an interpreter and all that it depends on from Debian, with apt's own checks, into a folder."""
    if not shutil.which("apt-get") or not KEYRING.exists():
        raise NotFound("it is not installed here, and this is no Debian")
    apt, archives = FOLDER / "apt", FOLDER / "apt/cache/archives"
    for folder in (apt / "state/lists/partial", archives / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    (apt / "installed").write_text("")  # apt counts on nothing that the system has
    mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").stdout.split()
    if not mirror:
        raise NotFound("it is not installed here, and apt has no mirror")
    (apt / "sources").write_text(f"deb [signed-by={KEYRING}] {mirror[0]} {SUITE} main\n")
    settings = {
        "Dir::Etc::SourceList": apt / "sources",
        "Dir::Etc::SourceParts": "-",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "installed",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    for command in (["update"], ["-y", "--download-only", "install", f"python{version}"]):
        got = run("apt-get", "-qq", *options, *command)
        if got.returncode:
            raise NotFound(f"it is not installed here, and Debian's {SUITE} did not give it: {last_line(got.stderr)}")
    tree = FOLDER / f"debian-{version}"
    for package in archives.glob("*.deb"):
        run("dpkg-deb", "--extract", package, tree)
        package.unlink()
    loaders = [found for pattern in LOADERS for found in tree.glob(pattern)]
    if not loaders:
        raise NotFound("it is not installed here, and that of Debian has no loader")
    libraries = loaders[0].resolve().parent
    python = launcher(version)
    python.write_text(LAUNCHER.format(loader=loaders[0], libraries=libraries, python=tree / f"usr/bin/python{version}"))
    python.chmod(0o755)
    if not run(python, "-c", ASKED).stdout.startswith(version):
        raise NotFound("it is not installed here, and that of Debian does not run")
    return python


def test_on(interpreter: Path, version: str) -> str:
    """Make the environment, unless it is as the pins say, and run the selection in it. The outcome, in words."""
    environment = FOLDER / version
    stamp, pins = environment / "pins", hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in PINS))
    python = environment / "bin/python"
    if not stamp.exists() or stamp.read_text() != f"{interpreter} {pins.hexdigest()}":
        uv = Path(sys.executable).with_name("uv")
        into: list[str | Path] = ["--quiet", "--python", python, "--no-deps"]
        pinned = [part for name in PINS for part in ("-r", name)]
        commands: list[list[str | Path]] = [
            ["venv", "--quiet", "--clear", "--python", interpreter, environment],
            ["pip", "install", *into, "--require-hashes", "--only-binary", ":all:", *pinned],
            ["pip", "install", *into, "--editable", "."],
        ]
        for command in commands:
            made = run(uv, *command)
            if made.returncode:
                return f"FAILED to install: {made.stderr.strip()}"
        stamp.write_text(f"{interpreter} {pins.hexdigest()}")
    number, before_s = run(python, "-c", ASKED).stdout.strip(), cpu_s()
    ran = run(python, "-m", "pytest", *OPTIONS, *SELECTION)
    took = f"{number} ({interpreter}), {cpu_s() - before_s:.0f} s of CPU"
    if ran.returncode:
        print(ran.stdout, ran.stderr, sep="\n")  # noqa: T201
        return f"FAILED on {took}"
    return f"passed on {took}"


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Standard input is closed, and a command that cannot start or takes too long has failed."""
    try:
        return subprocess.run(
            [*map(str, command)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


if __name__ == "__main__":
    sys.exit(main())
