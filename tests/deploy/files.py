"""The files of deploy/, read as the programs that use them read them."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cadenza.config import Settings, load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CONFIG_PATH = "/etc/cadenza/cadenza.toml"
SECRETS = {"PGPASSWORD": "a-password", "METRICS_TOKEN": "a-token", "CADENZA_SECRET_KEY": "k" * 32}
SETTLE_S = 20.0  # after drain_s: streams are cut and charged, connections close, the embedded model ends

Table = dict[str, Any]


def compose() -> Table:
    """The compose file, with its anchors resolved."""
    return dict(_yaml(DEPLOY / "compose.yaml")[0])


def gateways() -> dict[str, Table]:
    return {name: one for name, one in compose()["services"].items() if name.startswith("gateway")}


def manifests() -> list[Table]:
    return [document for path in sorted(KUBERNETES.glob("*.yaml")) for document in _yaml(path)]


def manifest(kind: str, name: str) -> Table:
    """The one manifest of this kind and name."""
    (found,) = (one for one in manifests() if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


def pod_of(workload: Table) -> Table:
    return dict(workload["spec"]["template"]["spec"])


def alert_rules() -> list[Table]:
    return [rule for group in _yaml(DEPLOY / "alerts.yaml")[0]["groups"] for rule in group["rules"]]


def unit() -> dict[str, list[str]]:
    """The settings of the systemd unit; a setting may be there several times."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "cadenza.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def config_texts() -> dict[str, str]:
    """Where it is deployed -> the config file there."""
    kubernetes = manifest("ConfigMap", "cadenza")["data"]["cadenza.toml"]
    return {"compose": (DEPLOY / "cadenza.toml").read_text(), "kubernetes": kubernetes}


def systemd_config() -> str:
    return (DEPLOY / "systemd.toml").read_text()


def load(text: str, folder: Path, variables: Mapping[str, str]) -> Settings:
    """The settings of a config file, as the service loads them."""
    file = folder / "cadenza.toml"
    file.write_text(text)
    return load_settings(str(file), variables, folder)


def server_table(place: str) -> Table:
    return dict(tomllib.loads(config_texts()[place])["server"])


def project_version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _yaml(path: Path) -> list[Table]:
    return list(yaml.safe_load_all(path.read_text()))
