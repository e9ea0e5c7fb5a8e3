"""Reads the Dockerfile, and builds what it builds without Docker: in a folder, with this machine's Python.

The absolute paths of the image are moved into the folder. Steps that install Debian packages are not run.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import msgspec

from tests.deploy.files import DEPLOY, ROOT

STEP_S = 240.0
PATHS = ("/opt/cadenza", "/build", "/var/lib/cadenza")
KNOWN = {
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "RUN",
    "STOPSIGNAL",
    "USER",
    "WORKDIR",
}


class Step(msgspec.Struct, frozen=True):
    """One instruction, with its continued lines joined."""

    name: str
    text: str


class Dockerfile(msgspec.Struct, frozen=True):
    """The steps of each stage, the last stage last. Each begins with FROM."""

    stages: list[list[Step]]

    def setting(self, name: str) -> str:
        """The text of the one step of this name in the last stage."""
        (found,) = (step.text for step in self.stages[-1] if step.name == name)
        return found

    def command(self, name: str) -> list[str]:
        """A command of the last stage in exec form."""
        words = json.loads(self.setting(name))
        assert all(isinstance(word, str) for word in words)
        return list(words)


def read_dockerfile() -> Dockerfile:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    steps = [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]
    assert {step.name for step in steps} <= KNOWN
    starts = [index for index, step in enumerate(steps) if step.name == "FROM"]
    return Dockerfile([steps[start:end] for start, end in zip(starts, [*starts[1:], len(steps)], strict=True)])


class Build:
    """The file system of the image, as far as our files are in it, under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workdir = folder

    def run(self, dockerfile: Dockerfile) -> None:
        for stage in dockerfile.stages:
            for step in stage:
                self._take(step)

    def inside(self, path: str) -> Path:
        """Where a path of the image is on this machine."""
        return self._folder / path.lstrip("/") if path.startswith("/") else self._workdir / path

    def _take(self, step: Step) -> None:
        match step.name:
            case "WORKDIR":
                self._workdir = self.inside(step.text)
                self._workdir.mkdir(parents=True, exist_ok=True)
            case "COPY" if not step.text.startswith("--from=build"):  # both stages share the folder
                self._copy(shlex.split(step.text))
            case "RUN" if "apt-get" not in step.text:
                self._run(step.text)

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        for source in sources:
            goal = self.inside(target) / ("" if (ROOT / source).is_dir() else Path(source).name)
            goal.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, goal, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, goal)

    def _run(self, command: str) -> None:
        moved = re.sub(rf"(?<![\w.])({'|'.join(PATHS)})\b", lambda path: str(self.inside(path[1])), command)
        if os.getuid() != 0:
            moved = moved.replace("-o 10001 -g 10001 ", "")
        done = subprocess.run(
            ["sh", "-ec", moved], cwd=self._workdir, capture_output=True, text=True, timeout=STEP_S, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
