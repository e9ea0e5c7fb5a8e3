"""[retention]: how long things are kept."""

from pathlib import Path

import pytest

from cadenza.config import ConfigError, load_settings
from cadenza.core.retention import RetentionLimits


def load(folder: Path, text: str) -> RetentionLimits:
    (folder / "cadenza.toml").write_text(f"[retention]\n{text}\n")
    return load_settings(None, {}, folder).retention


def test_limits_are_read(tmp_path: Path) -> None:
    """What is not given is as before the section was there: requests and audit events are kept."""
    assert load(tmp_path, "") == RetentionLimits(30, 7, None, None, 300, 600)
    given = "session_days = 2\nsession_idle_days = 1\naudit_event_days = 90\nusage_days = 400\npage_s = 0"
    assert load(tmp_path, given) == RetentionLimits(2, 1, 90, 400, 300, 0)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("session_days = 3", "session_idle_days: must not be above session_days, which is 3"),
        ("usage_days = 7", "usage_days: must be a whole number from 32 to"),
        ("audit_event_days = 0", "audit_event_days: must be a whole number from 30 to"),
        ("usage_day = 90", 'unknown key; did you mean "usage_days"?'),
    ],
)
def test_a_mistake_says_what_to_write(tmp_path: Path, given: str, problem: str) -> None:
    """Also if two limits contradict each other."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, given)
    assert problem in str(caught.value)
