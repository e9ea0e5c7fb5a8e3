"""The deployed config with a real Postgres that asks for a password."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.files import config_texts
from tests.environment import environment
from tests.postgres import running_postgres
from tests.service import CLI_S, program, wait_until

PASSWORD = "correct horse battery staple"
pytestmark = pytest.mark.slow(reason="starts a Postgres of its own")
RULES = "local all postgres trust\nlocal all all scram-sha-256\n"


@pytest.fixture(scope="module")
def store_url() -> Iterator[str]:
    """A database whose user cadenza has a password, by an address without it."""
    with running_postgres() as postgres, postgres.database() as address:
        name = address.partition("@/")[2].partition("?")[0]
        psql: list[str | Path] = [postgres.programs / "psql", "-q", "-w", "-h", postgres.folder, "-d", name, "-U"]
        made = f"CREATE ROLE cadenza LOGIN PASSWORD '{PASSWORD}'; ALTER DATABASE {name} OWNER TO cadenza;"
        (postgres.folder / "data" / "pg_hba.conf").write_text(RULES)
        subprocess.run([*psql, "postgres", "-c", made, "-c", "SELECT pg_reload_conf()"], check=True, timeout=CLI_S)
        without_password = [*psql, "cadenza", "-c", "SELECT 1"]
        wait_until(
            lambda: subprocess.run(without_password, check=False, timeout=CLI_S).returncode != 0, "the new rules"
        )
        yield f"postgresql://cadenza@/{name}?host={postgres.folder}"


def migrate(store_url: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    config = folder / "cadenza.toml"
    deployed = config_texts()["compose"]
    config.write_text(deployed.replace("postgresql://cadenza@postgres/cadenza", store_url))
    command = [program(), "migrate", "--config", str(config)]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=CLI_S, check=False
    )


def test_the_password_comes_from_the_environment(store_url: str, tmp_path: Path) -> None:
    """With the deployed config and the password in PGPASSWORD the schema is made."""
    done = migrate(store_url, tmp_path, PGPASSWORD=PASSWORD)
    assert "The store's schema is at revision" in done.stdout + done.stderr
    assert done.returncode == 0


def test_a_wrong_password_is_one_sentence(store_url: str, tmp_path: Path) -> None:
    """A wrong password ends the command with a sentence that does not repeat it."""
    done = migrate(store_url, tmp_path, PGPASSWORD="wrong-word")
    assert done.returncode == 1
    assert "cannot be used" in done.stderr
    assert "wrong-word" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
