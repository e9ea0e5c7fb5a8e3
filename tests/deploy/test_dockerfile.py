"""The Dockerfile: its steps run, and what they build starts, answers and stops."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian import find_or_install
from tests.deploy.dockerfile import Build, read_dockerfile
from tests.deploy.files import DEPLOY, ROOT, server_table
from tests.environment import environment
from tests.service import Serving, wait_until

BASE = "${PYTHON_IMAGE}"
# In the base image: the C library's own, and those that Debian's apt needs.
BASE_LIBRARIES = {"libc", "libm", "libpthread", "libdl", "librt", "libgcc_s", "libstdc++", "ld-linux-x86-64"}
BASE_LIBRARIES |= {"ld-linux-aarch64", "libz"}
NEEDED = re.compile(r"^\s*NEEDED\s+(\S+?)\.so", re.MULTILINE)
STOP_S = 60.0
HEALTH_S = 60.0
DUMP_S = 120.0

builds_image = pytest.mark.release(reason="builds what an image holds from scratch")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    folder = tmp_path_factory.mktemp("image")
    build = Build(folder)
    build.run(read_dockerfile())
    yield build
    shutil.rmtree(folder)


@builds_image
@pytest.mark.timeout(600)  # the packages may have to be downloaded
def test_image_serves_and_stops(image: Build) -> None:
    """The built program starts with the image's command, passes the image's health check, and stops on its signal."""
    dockerfile, folder = read_dockerfile(), image.inside("/var/lib/cadenza")
    programs = image.inside("/opt/cadenza/bin")
    command = [*dockerfile.command("ENTRYPOINT"), *dockerfile.command("CMD"), "--host", "127.0.0.1", "--port", "0"]
    variables = environment(PATH=f"{programs}:{os.environ['PATH']}", HOME=str(folder), PYTHONPATH="")
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [programs / command[0], *command[1:]], cwd=folder, env=variables, stdout=out, stderr=out
        )
    serving = Serving(process, folder / "out")
    try:
        serving.wait_until_ready()
        assert serving.get("/healthz")[0] == 200
        wait_until(lambda: check_health(programs, serving.port) == 0, "the health check being passed")
        process.send_signal(signal.Signals[dockerfile.setting("STOPSIGNAL")])
        assert process.wait(STOP_S) == 0
    finally:
        process.kill()
        process.wait()


def check_health(programs: Path, port: int) -> int:
    """The exit code of the image's health check, asked of another port."""
    command = read_dockerfile().setting("HEALTHCHECK").partition("CMD ")[2]
    python, *words = json.loads(command)
    moved = [word.replace("8080", str(port)) for word in words]
    assert moved != words
    return subprocess.run([programs / python, *moved], timeout=HEALTH_S, check=False, capture_output=True).returncode


@builds_image
def test_health_check_finds_a_dead_service(image: Build) -> None:
    """The health check fails if nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert check_health(image.inside("/opt/cadenza/bin"), bound.getsockname()[1]) != 0


@builds_image
def test_libraries_are_in_the_image(image: Build) -> None:
    """Every shared library that a package needs is in a package, in the base image, or installed."""
    files = [path for path in image.inside("/opt/cadenza/lib").rglob("*.so*") if path.is_file()]
    own = {path.name.partition(".so")[0] for path in files}
    dump = subprocess.run(
        [find_or_install("objdump", "binutils"), "-p", *files],
        capture_output=True,
        text=True,
        timeout=DUMP_S,
        check=True,
    )
    installed = re.findall(r"\b(lib[a-z]+)\d\b", read_dockerfile().stages[-1][1].text)
    assert set(NEEDED.findall(dump.stdout)) - own - BASE_LIBRARIES - set(installed) == set()


def test_image_is_small_and_unprivileged() -> None:
    """The last stage has neither build tools nor root, and its port is that of the config."""
    dockerfile = read_dockerfile()
    assert [stage[0].text for stage in dockerfile.stages] == [f"{BASE} AS build", BASE]
    assert dockerfile.setting("COPY") == "--from=build /opt/cadenza /opt/cadenza"
    assert dockerfile.setting("USER") not in {"root", "0", "0:0"}
    assert dockerfile.setting("EXPOSE") == str(server_table("compose")["port"])


@pytest.mark.parametrize("base", ["", "python:3.11-slim", "python:3.11-slim@sha256:", "python@sha256:abc"])
def test_the_image_of_a_release_needs_a_digest(base: str) -> None:
    """A tag can be moved to another image, so a release with a tag alone is refused before anything is built."""
    command = ["make", "image", f"PYTHON_IMAGE={base}"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, "Name the base image by its digest" in done.stderr) == (2, True)


def test_dependencies_are_pinned() -> None:
    """Every package but our own is installed by its hash, as a wheel."""
    installs = [step.text for step in read_dockerfile().stages[0] if "pip install" in step.text]
    assert len(installs) == 3
    assert all("--require-hashes" in step for step in installs[:-1])
    assert "--only-binary :all:" in installs[1]
    assert installs[-1].endswith("--no-deps .")


def test_build_context_has_what_is_copied() -> None:
    """The ignore file lets through exactly the files that the Dockerfile copies."""
    copied = {
        source for step in read_dockerfile().stages[0] if step.name == "COPY" for source in step.text.split()[:-1]
    }
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    assert "*" in lines
    assert all((ROOT / source).exists() for source in copied)
