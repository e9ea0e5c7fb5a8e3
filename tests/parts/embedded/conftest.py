"""One running service for all tests of this folder, and the clients that ask it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import openai
import pytest

from tests.cli.program import Server, run_here, serving
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient, Reply

EMAIL = "owner@example.org"
PASSWORD = "seven words that nobody guesses"
TOML = """
[providers.acme]
kind = "openai"
base_url = "{base_url}"
retention = "zero"
[providers.local]
kind = "embedded"
retention = "zero"
[[classes.mezzo.routes]]
provider = "local"
[[classes.forte.routes]]
provider = "local"
[[classes.fortissimo.routes]]
provider = "acme"
model = "large"
[[classes.fortissimo.routes]]
provider = "local"
order = 1
continue = true
"""


class Account(msgspec.Struct, frozen=True):
    """A folder whose store has one account, and a key of that account."""

    folder: Path
    key: str


class Started(msgspec.Struct, frozen=True):
    """A service, and the reply to a request that was sent as soon as it listened."""

    server: Server
    folder: Path
    first_reply: Reply


@pytest.fixture(scope="session")
def account(tmp_path_factory: pytest.TempPathFactory) -> Account:
    folder = tmp_path_factory.mktemp("account")
    run_here(folder, "account", "create", EMAIL, "--credit", "5", "--password-stdin", given=PASSWORD)
    return Account(folder, run_here(folder, "key", "create", "--account", EMAIL).stdout.strip())


@pytest.fixture(scope="session")
def started(
    account: Account, shared_upstream: LoopbackUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    """mezzo and forte on the embedded model; fortissimo on the loopback, which the embedded model continues."""
    folder = Path(shutil.copytree(account.folder, tmp_path_factory.mktemp("embedded"), dirs_exist_ok=True))
    (folder / "cadenza.toml").write_text(TOML.format(base_url=shared_upstream.base_url))
    with serving(folder) as server:
        yield Started(server, folder, RawClient(server.port, account.key).chat(max_tokens=2))


@pytest.fixture
def server(started: Started) -> Server:
    return started.server


@pytest.fixture
def wire(server: Server, account: Account) -> RawClient:
    return RawClient(server.port, account.key)


@pytest.fixture
def client(server: Server, account: Account) -> Iterator[openai.OpenAI]:
    http_client = openai.DefaultHttpxClient(trust_env=False, verify=False)
    with openai.OpenAI(base_url=server.base_url, api_key=account.key, http_client=http_client) as made:
        yield made
