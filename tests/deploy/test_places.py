"""The program in the place that each deployment gives it: it starts, answers, and writes where it may."""

import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from cadenza.cli.start import CONFIG_EXIT
from tests.deploy.confined import Confined, Place, confined
from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.files import (
    CONFIG_PATH,
    SECRETS,
    config_texts,
    gateways,
    manifest,
    pod_of,
    systemd_config,
    unit,
)
from tests.loopback import LoopbackUpstream
from tests.postgres import running_postgres
from tests.service import Serving
from tests.service_config import classes_spec

STOP_S = 60.0
WORKDIR = read_dockerfile().setting("WORKDIR")
HERE = ("--host", "127.0.0.1", "--port", "0")
pytestmark = pytest.mark.release(reason="starts the program in every place of a deployment")


class Deployed(msgspec.Struct, frozen=True):
    """A deployment: its place, the arguments of its processes, and whether its schema is migrated separately."""

    place: Place
    serve: tuple[str, ...]
    has_migration: bool


def systemd() -> Deployed:
    """What systemd makes of the unit: all is read-only but the folder of its state and private temporary folders."""
    found = unit()
    assert (found["ProtectSystem"], found["PrivateTmp"]) == (["strict"], ["yes"])
    writable = (f"/var/lib/{found['StateDirectory'][0]}", "/tmp", "/var/tmp")
    variables = dict(line.split("=", 1) for line in found["Environment"])
    place = Place({CONFIG_PATH: systemd_config()}, writable, variables, found["WorkingDirectory"][0])
    return Deployed(place, tuple(shlex.split(found["ExecStart"][0])[1:]), has_migration=False)


def compose() -> Deployed:
    gateway = next(iter(gateways().values()))
    assert gateway["read_only"]
    mounted = [volume.split(":") for volume in gateway["volumes"]]
    writable = (*(volume[1] for volume in mounted if volume[2:] != ["ro"]), *gateway["tmpfs"])
    variables = {**gateway["environment"], **SECRETS, "HOME": WORKDIR}
    place = Place({CONFIG_PATH: config_texts()["compose"]}, writable, variables, WORKDIR)
    return Deployed(place, tuple(read_dockerfile().command("CMD")), has_migration=True)


def kubernetes() -> Deployed:
    (container,) = pod_of(manifest("Deployment", "cadenza"))["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    writable = tuple(mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly"))
    variables = {one["name"]: one["value"] for one in container["env"]} | SECRETS | {"HOME": WORKDIR}
    place = Place({CONFIG_PATH: config_texts()["kubernetes"]}, writable, variables, WORKDIR)
    return Deployed(place, tuple(container["args"]), has_migration=True)


@pytest.fixture(scope="module")
def make_url() -> Iterator[Callable[[], str]]:
    """Makes addresses of empty databases, for a user who is not their owner."""
    with running_postgres() as postgres, ExitStack() as databases:
        postgres.folder.chmod(0o755)
        yield lambda: databases.enter_context(postgres.database())


@pytest.fixture(params=[systemd, compose, kubernetes], ids=lambda made: made.__name__)
def deployed(request: pytest.FixtureRequest, upstream: LoopbackUpstream) -> Iterator[tuple[Deployed, Confined]]:
    """The deployment with a provider on this machine, and a database if it needs one."""
    found: Deployed = request.param()
    config = found.place.files[CONFIG_PATH] + routes_of(upstream)
    if found.has_migration:
        url = request.getfixturevalue("make_url")()
        assert config.count("postgresql://cadenza@postgres/cadenza") == 1
        config = config.replace("postgresql://cadenza@postgres/cadenza", url)
    place = msgspec.structs.replace(found.place, files={CONFIG_PATH: config})
    with confined(place) as made:
        yield found, made


def routes_of(upstream: LoopbackUpstream) -> str:
    made = classes_spec(upstream.base_url).toml()
    return "\n" + made[made.index("[providers.") :]


def test_it_serves(deployed: tuple[Deployed, Confined], tmp_path: Path) -> None:
    """With its own config the service starts, is ready and stops."""
    found, made = deployed
    if found.has_migration:
        assert made.run("migrate")[0] == 0
    with (tmp_path / "out").open("wb") as out:
        process = made.start(*found.serve, *HERE, out=out)
    serving = Serving(process, tmp_path / "out")
    try:
        serving.wait_until_ready()
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("config", "code", "reason"),
    [("[store]\nurl = 1\n", CONFIG_EXIT, "cadenza.toml"), ("[limits]\nburst = 20\n", 1, "Read-only file system")],
    ids=["a mistake", "a store in a read-only folder"],
)
def test_a_config_that_cannot_work_is_one_sentence(config: str, code: int, reason: str) -> None:
    """Under systemd a mistake in the config has its own exit code, and a store that cannot be written is explained."""
    found = systemd()
    place = msgspec.structs.replace(found.place, files={CONFIG_PATH: config})
    with confined(place) as made:
        done = made.run(*found.serve, *HERE)
    assert (done[0], done[1].count("\n") <= 2) == (code, True), done
    assert reason in done[1]
