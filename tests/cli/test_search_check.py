"""Local search that cannot work: doctor and the start of the service say so."""

import json
from pathlib import Path

import pytest

from cadenza.cli.doctor.installation import check_index, check_search
from cadenza.cli.index import index_problem
from cadenza.config import load_settings
from cadenza.config.settings import SearchSettings
from cadenza.grounding.files.records import Section
from cadenza.grounding.index.local_index import StoredFile, open_writer
from tests.cli.program import run_here, serving

LOCAL = '[grounding.search]\nengine = "local"\nindex = "my.db"\n'
OFF = "[grounding]\nsearch = false\n"
UNNAMED = '[grounding.search]\nindex = "my.db"\n'
PROVIDER = """
[providers.acme]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
retention = "zero"

[[classes.forte.routes]]
provider = "acme"
model = "large"
"""


def search(folder: Path, config: str = LOCAL) -> SearchSettings:
    (folder / "cadenza.toml").write_text(config)
    return load_settings(None, {}, folder).grounding.search


def test_a_good_index_is_counted(tmp_path: Path) -> None:
    """Doctor says how many folders, documents and passages it has; an empty index is a warning."""
    with open_writer(tmp_path / "my.db") as writer:
        assert check_index(search(tmp_path)).state == "warning"
        folder = writer.put_folder("/srv", None, 0)
        writer.put_file(folder, StoredFile("a.md", 1, 1, b""), [Section("", "one"), Section("", "two")])
        writer.put_file(folder, StoredFile("b.md", 1, 1, b"", "it is empty"), [])
    check = check_index(search(tmp_path))
    assert (check.state, check.found) == (
        "ok",
        f"local: 1 folder, 1 document, 2 passages in {tmp_path / 'my.db'}",
    )
    assert index_problem(search(tmp_path)) is None


@pytest.mark.parametrize("config", [LOCAL, UNNAMED])
def test_a_missing_index_is_a_fault_if_the_config_asks_for_it(tmp_path: Path, config: str) -> None:
    """The path and the command are named. Without a section for search, a missing index means that search is off."""
    check = check_index(search(tmp_path, config))
    assert (check.state, check.found) == ("fault", f"local: there is no index at {tmp_path / 'my.db'}")
    assert "cadenza index FOLDER" in check.todo
    assert index_problem(search(tmp_path, config)) is not None
    assert check_index(search(tmp_path, "")).found.startswith("off: ")
    assert index_problem(search(tmp_path, "")) is None


async def test_search_that_is_turned_off_is_told(tmp_path: Path) -> None:
    """Doctor names the setting. The index is not looked at, even if it cannot be used."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "index.db").write_bytes(b"%PDF-1.7\n" * 100)
    assert index_problem(search(tmp_path, OFF)) is None
    check = await check_search(load_settings(None, {}, tmp_path))
    assert (check.state, check.found) == ("ok", "turned off in the config: [grounding] has search = false")


def test_an_index_that_cannot_be_used_is_a_fault(tmp_path: Path) -> None:
    """A folder, a file of another kind and a damaged index are faults, also where the config has no section."""
    index = tmp_path / "data" / "index.db"
    index.mkdir(parents=True)
    assert "Is a directory" in check_index(search(tmp_path, "")).found
    index.rmdir()
    with open_writer(index) as writer:
        writer.put_folder("/srv", None, 0)
    index.write_bytes(index.read_bytes()[:4096] + b"\xff" * 100_000)
    damaged = check_index(search(tmp_path, ""))
    assert (damaged.state, "cannot be used" in damaged.found) == ("fault", True)


def test_a_file_that_is_no_index_is_told_by_doctor_and_at_the_start(tmp_path: Path) -> None:
    """Doctor exits with 1, and the service starts with one warning in its log."""
    (tmp_path / "my.db").write_bytes(b"%PDF-1.7\n" * 100)
    (tmp_path / "cadenza.toml").write_text(LOCAL + PROVIDER)
    done = run_here(tmp_path, "doctor", "--json")
    [check] = [one for one in json.loads(done.stdout) if one["check"] == "search"]
    assert (done.returncode, check["state"]) == (1, "fault")
    assert check["found"] == f"local: {tmp_path / 'my.db'} is not a search index"
    with serving(tmp_path) as server:
        server.wait_for_output("local search cannot work")
        [warning] = [json.loads(line) for line in server.output.splitlines() if "local search cannot work" in line]
    assert (warning["level"], warning["reason"]) == ("warning", check["found"])
