"""The systemd unit: systemd accepts it, and it does what the docs say."""

import re
import subprocess
from pathlib import Path

import pytest

from cadenza.cli.start import CONFIG_EXIT
from tests.debian import find_or_install
from tests.deploy.files import DEPLOY, unit

VERIFY_S = 60.0
EXPOSURE_MAX = 2.0
PROGRAM = "/opt/cadenza/bin/cadenza"


@pytest.fixture
def checked_unit(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine."""
    text = (DEPLOY / "cadenza.service").read_text()
    assert f"ExecStart={PROGRAM} serve\n" in text
    file = tmp_path / "cadenza.service"
    file.write_text(text.replace(PROGRAM, "/bin/true"))
    return file


def analyze(*arguments: str) -> str:
    program = find_or_install("systemd-analyze", "systemd")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=VERIFY_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_systemd_accepts_it(checked_unit: Path) -> None:
    """`systemd-analyze verify` has nothing to say about the unit."""
    assert analyze("verify", str(checked_unit)) == ""


def test_it_is_hardened(checked_unit: Path) -> None:
    """`systemd-analyze security` rates the exposure of the unit as low."""
    found = re.search(r"exposure level for \S+: ([0-9.]+)", analyze("security", "--offline=true", str(checked_unit)))
    assert found
    assert float(found[1]) <= EXPOSURE_MAX


def test_workers_are_not_signalled_twice() -> None:
    """Only the main process gets SIGTERM from systemd; it drains, and SIGHUP reloads the config."""
    assert unit()["KillMode"] == ["mixed"]
    assert unit()["KillSignal"] == ["SIGTERM"]
    assert unit()["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_a_mistake_in_the_config_is_not_tried_again() -> None:
    """The exit code of a mistake in the config ends the restarts, and all others end after half an hour."""
    assert unit()["RestartPreventExitStatus"] == [str(CONFIG_EXIT)]
    assert unit()["Restart"] == ["on-failure"]
    (starts,), (interval_s,), (pause_s,) = (
        map(int, unit()[name]) for name in ("StartLimitBurst", "StartLimitIntervalSec", "RestartSec")
    )
    assert 1800 <= starts * pause_s < interval_s


def test_it_needs_no_notification() -> None:
    """The service does not speak systemd's protocol, so the unit does not wait for it."""
    assert unit()["Type"] == ["exec"]


def test_many_connections_are_allowed() -> None:
    """The unit allows as many files as the service uses at most."""
    assert unit()["LimitNOFILE"] == ["65536"]
