"""The config files of deploy/ and what surrounds them: secrets, ports, the time to drain."""

import tomllib
from pathlib import Path

import pytest

from cadenza.server.server import ServerLimits
from tests.deploy.files import (
    CONFIG_PATH,
    SECRETS,
    SETTLE_S,
    config_texts,
    gateways,
    load,
    manifest,
    pod_of,
    server_table,
    systemd_config,
    unit,
)

PLACES = sorted(config_texts())


@pytest.mark.parametrize("place", PLACES)
def test_config_is_accepted(place: str, tmp_path: Path) -> None:
    """Each config loads, and needs no secret beyond those that its deployment gives it."""
    settings = load(config_texts()[place], tmp_path, SECRETS)
    assert settings.missing_secrets == ()
    assert settings.store.url.startswith("postgresql://cadenza@")
    assert settings.shared_state.url.startswith("valkey://")


@pytest.mark.parametrize("place", PLACES)
def test_an_empty_secret_stops_the_start(place: str, tmp_path: Path) -> None:
    """A deployment whose secrets were not filled in is missing one, so that the service does not start."""
    settings = load(config_texts()[place], tmp_path, dict.fromkeys(SECRETS, ""))
    assert any("METRICS_TOKEN" in sentence for sentence in settings.missing_secrets)


@pytest.mark.parametrize("place", PLACES)
def test_config_has_no_password(place: str) -> None:
    """The address of the store has no password: it comes from the environment."""
    assert "://cadenza:" not in config_texts()[place]


def test_every_place_gives_the_secrets() -> None:
    """The compose file and the Kubernetes Secret set the same variables, and the containers get them."""
    for gateway in gateways().values():
        assert set(gateway["environment"]) == {*SECRETS, "CADENZA_CONFIG"}
    secret = manifest("Secret", "cadenza")
    assert secret["stringData"] == dict.fromkeys(SECRETS, "")
    for workload in (manifest("Deployment", "cadenza"), manifest("Job", "cadenza-migrate")):
        assert pod_of(workload)["containers"][0]["envFrom"] == [{"secretRef": {"name": "cadenza"}}]


def test_the_unit_has_a_config_that_it_can_use(tmp_path: Path) -> None:
    """The config for systemd needs no secrets, and its store is in the one folder that can be written."""
    settings = load(systemd_config(), tmp_path, {})
    (state,) = unit()["StateDirectory"]
    assert settings.missing_secrets == ()
    assert settings.store.url.startswith(f"sqlite:////var/lib/{state}/")


def test_every_place_names_the_config() -> None:
    """The config is mounted where CADENZA_CONFIG says."""
    for gateway in gateways().values():
        assert gateway["environment"]["CADENZA_CONFIG"] == CONFIG_PATH
        assert f"./cadenza.toml:{CONFIG_PATH}:ro" in gateway["volumes"]
    for workload in (manifest("Deployment", "cadenza"), manifest("Job", "cadenza-migrate")):
        pod = pod_of(workload)
        container = pod["containers"][0]
        assert {"name": "CADENZA_CONFIG", "value": CONFIG_PATH} in container["env"]
        assert {"name": "config", "mountPath": "/etc/cadenza", "readOnly": True} in container["volumeMounts"]
        assert {"name": "config", "configMap": {"name": "cadenza"}} in pod["volumes"]
    assert unit()["Environment"] == [f"CADENZA_CONFIG={CONFIG_PATH}"]


def test_settling_takes_less_than_is_allowed_for_it() -> None:
    """After the drain the server needs less time than every deployment adds to drain_s."""
    limits = ServerLimits()
    assert limits.interrupted_s + limits.close_s < SETTLE_S


def test_nothing_is_killed_while_it_drains() -> None:
    """Each deployment waits longer than drain_s and the time to settle before it kills a gateway."""
    drain_s = server_table("compose")["drain_s"]
    for gateway in gateways().values():
        assert float(gateway["stop_grace_period"].removesuffix("s")) >= drain_s + SETTLE_S
    pod = pod_of(manifest("Deployment", "cadenza"))
    _, pause_s = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    needed_s = server_table("kubernetes")["drain_s"] + SETTLE_S + float(pause_s)
    assert pod["terminationGracePeriodSeconds"] >= needed_s
    drain_s = tomllib.loads(systemd_config())["server"]["drain_s"]
    assert float(unit()["TimeoutStopSec"][0]) >= drain_s + SETTLE_S


def test_both_places_have_the_same_config() -> None:
    """The config of Kubernetes differs from that of the compose file in the trusted network alone."""
    compose, kubernetes = (
        [line for line in config_texts()[place].split("[server]")[1].splitlines() if "trusted_proxies" not in line]
        for place in PLACES
    )
    assert [line.partition("#")[0].rstrip() for line in compose] == [
        line.partition("#")[0].rstrip() for line in kubernetes
    ]
