"""The compose file: what it names exists, and its parts agree."""

import re
from ipaddress import ip_address, ip_network

import pytest
import yaml

from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.files import DEPLOY, ROOT, SECRETS, compose, gateways, server_table

TOP_LEVEL = {"name", "services", "networks", "secrets", "volumes", "x-gateway"}
SERVICE = {
    "build",
    "cap_drop",
    "command",
    "depends_on",
    "environment",
    "healthcheck",
    "image",
    "mem_limit",
    "networks",
    "ports",
    "profiles",
    "read_only",
    "restart",
    "secrets",
    "security_opt",
    "shm_size",
    "stop_grace_period",
    "stop_signal",
    "tmpfs",
    "ulimits",
    "user",
    "volumes",
}
OBSERVERS = {"prometheus", "grafana"}  # of the profile `observe`
IMAGES = {
    "cadenza",
    "postgres:17",
    "valkey/valkey:8",
    "nginx:stable",
    "prom/prometheus:v3.5.0",
    "grafana/grafana:12.1.1",
}
SERVICES = sorted(compose()["services"])


def test_no_key_is_unknown() -> None:
    """The file and its services have only keys of the compose specification that are known here."""
    assert set(compose()) <= TOP_LEVEL
    assert {key for service in compose()["services"].values() for key in service} <= SERVICE


def test_images_are_known() -> None:
    """The images are ours, and those of the programs around it; ours is built from the Dockerfile of this folder."""
    services = compose()["services"].values()
    assert {service["image"] for service in services} == IMAGES
    for service in services:
        if service["image"] == "cadenza":
            assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        else:
            assert "build" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_can_be_met(name: str) -> None:
    """A service waits for services that exist, and for health only where there is a health check."""
    services = compose()["services"]
    for other, how in services[name].get("depends_on", {}).items():
        match how["condition"]:
            case "service_healthy":
                is_ours = services[other]["image"] == "cadenza"
                assert "healthcheck" in services[other] or (is_ours and read_dockerfile().setting("HEALTHCHECK"))
            case "service_completed_successfully":
                assert services[other]["command"] == ["migrate"]
                assert "restart" not in services[other]
            case condition:
                pytest.fail(f"unknown condition: {condition}")


def test_gateways_wait_for_the_schema() -> None:
    """No gateway starts before the schema is there, and nginx starts after all gateways."""
    for gateway in gateways().values():
        assert gateway["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert set(compose()["services"]["nginx"]["depends_on"]) == set(gateways())


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_exist(name: str) -> None:
    """A mounted file is in this folder and read-only; a named volume is declared."""
    for volume in compose()["services"][name].get("volumes", []):
        source, _, target = volume.partition(":")
        if source.startswith("./"):
            assert (DEPLOY / source).is_file()
            assert target.endswith(":ro")
        else:
            assert source in compose()["volumes"]


def test_addresses_are_those_of_nginx() -> None:
    """Each gateway has an address of its own in the trusted network, and nginx knows all of them."""
    (pool,) = compose()["networks"]["cadenza"]["ipam"]["config"]
    network = ip_network(pool["subnet"])
    addresses = [gateway["networks"]["cadenza"]["ipv4_address"] for gateway in gateways().values()]
    assert len(set(addresses)) == len(addresses) >= 2
    assert all(ip_address(address) in network for address in addresses)
    assert server_table("compose")["trusted_proxies"] == [str(network)]
    port = server_table("compose")["port"]
    named = re.findall(r"^ +server (\S+) .*# (\w+)$", (DEPLOY / "nginx.conf").read_text(), re.MULTILINE)
    assert named == [(f"{address}:{port}", name) for address, name in zip(addresses, gateways(), strict=True)]


def test_only_nginx_is_reachable() -> None:
    """One service publishes a port, on loopback: nginx, where it listens. With the profile `observe` two more do."""
    published = {name: one["ports"] for name, one in compose()["services"].items() if "ports" in one}
    assert published == {
        "nginx": ["127.0.0.1:8080:8080"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    assert {name for name, one in compose()["services"].items() if one.get("profiles") == ["observe"]} == OBSERVERS
    assert "listen 8080;" in (DEPLOY / "nginx.conf").read_text()


def test_secrets_come_from_the_environment() -> None:
    """A password or token is a variable that must be set, never a value in the file."""
    values = {
        (name, value)
        for service in compose()["services"].values()
        for name, value in service.get("environment", {}).items()
        if name in {*SECRETS, "POSTGRES_PASSWORD"}
    }
    assert {re.sub(r"^\$\{(\w+):\?.+\}$", r"\1", value) for _, value in values} == {
        "POSTGRES_PASSWORD",
        "METRICS_TOKEN",
        "CADENZA_SECRET_KEY",
    }
    header = (DEPLOY / "compose.yaml").read_text().partition("\nname:")[0]
    assert "for name in POSTGRES_PASSWORD METRICS_TOKEN CADENZA_SECRET_KEY; do" in header


def test_database_is_the_one_in_the_config() -> None:
    """Postgres creates the user and the database that the config names, under the name of its service."""
    variables = compose()["services"]["postgres"]["environment"]
    url = f"postgresql://{variables['POSTGRES_USER']}@postgres/{variables['POSTGRES_DB']}"
    assert f'url = "{url}"' in (DEPLOY / "cadenza.toml").read_text()


def test_prometheus_scrapes_every_gateway() -> None:
    """Under the job that the alert rules name, with the token of the gateways, and with the rules of this folder."""
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    service, port = compose()["services"]["prometheus"], server_table("compose")["port"]
    assert job["job_name"] == "cadenza"
    assert job["static_configs"] == [{"targets": [f"{name}:{port}" for name in gateways()]}]
    assert job["authorization"] == {"credentials_file": f"/run/secrets/{service['secrets'][0]}"}
    assert compose()["secrets"] == {"metrics_token": {"environment": server_table("compose")["metrics_token_env"]}}
    mounted = {target.removesuffix(":ro") for _, _, target in (one.partition(":") for one in service["volumes"])}
    assert set(config["rule_files"]) <= mounted


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    """Its files name the service and the folder; nobody can sign in, so nobody can change anything."""
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasources.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yaml").read_text())["providers"]
    service = compose()["services"]["grafana"]
    folder = provider["options"]["path"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert f"./grafana/cadenza.json:{folder}/cadenza.json:ro" in service["volumes"]
    assert service["environment"]["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert service["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_containers_cannot_do_much() -> None:
    """What is reached runs without capabilities, with a read-only file system, and not as root."""
    for name, service in compose()["services"].items():
        if name in {*gateways(), "nginx", *OBSERVERS}:
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
        if name in {*gateways(), "nginx"}:
            assert service["ulimits"]["nofile"] == 65_536
    assert compose()["services"]["nginx"]["user"] == "nginx"
    assert read_dockerfile().setting("USER") == "10001:10001"
