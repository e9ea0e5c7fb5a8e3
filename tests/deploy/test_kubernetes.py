"""The Kubernetes manifests: fields and types by the published API, and what the docs promise of them."""

import importlib
import tomllib
from ipaddress import ip_network

import msgspec
import pytest

from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.files import Table, config_texts, manifest, manifests, pod_of, project_version, server_table

KINDS = {"ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service"}
IDS = [f"{one['kind']} {one['metadata']['name']}" for one in manifests()]
WORKLOADS = [one for one in manifests() if one["kind"] in {"Deployment", "Job"}]


def pruned(value: object) -> object:
    """Without the fields that are not set."""
    if isinstance(value, dict):
        return {name: pruned(field) for name, field in value.items() if field is not None}
    return [pruned(item) for item in value] if isinstance(value, list) else value


def check(document: Table) -> None:
    """Build the object from the types of the API: wrong types raise, and unknown fields are lost."""
    group, _, version = document["apiVersion"].rpartition("/")
    models = importlib.import_module(f"lightkube.models.{group.partition('.')[0] or 'core'}_{version}")
    built = msgspec.convert(document, getattr(models, document["kind"]))
    assert pruned(msgspec.to_builtins(built)) == document


@pytest.mark.parametrize("document", manifests(), ids=IDS)
def test_fields_and_types_are_those_of_the_api(document: Table) -> None:
    """A manifest is an object of its kind: no field is unknown or missing, and each has the right type."""
    check(document)


def test_prometheus_finds_the_gateways() -> None:
    """The pods are annotated with the port on which the gateways listen."""
    annotations = manifest("Deployment", "cadenza")["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(server_table("kubernetes")["port"]),
        "prometheus.io/path": "/metrics",
    }


def test_kinds_are_those_of_the_docs() -> None:
    """There is one manifest of each kind that the docs describe, and a Valkey."""
    assert {one["kind"] for one in manifests()} == KINDS
    assert len(IDS) == len(set(IDS))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one["metadata"]["name"])
def test_pods_cannot_do_much(workload: Table) -> None:
    """A pod runs without root, capabilities, a service account and a writable file system, within its memory."""
    pod = pod_of(workload)
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}


@pytest.mark.parametrize("name", ["cadenza", "cadenza-migrate"])
def test_image_is_of_this_version(name: str) -> None:
    """Our pods run the image of this version, as the user that the Dockerfile names, with a command that it has."""
    pod = pod_of(next(one for one in WORKLOADS if one["metadata"]["name"] == name))
    (container,) = pod["containers"]
    security = pod["securityContext"]
    assert container["image"] == f"cadenza:{project_version()}"
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == read_dockerfile().setting("USER")
    assert container["args"] in (["serve"], ["migrate"])
    assert "command" not in container


def test_selectors_find_the_pods() -> None:
    """The Deployment, the Service and the budget select the labels of the gateways, which no other pod has."""
    gateway = manifest("Deployment", "cadenza")
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    assert gateway["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Service", "cadenza")["spec"]["selector"] == labels
    assert manifest("PodDisruptionBudget", "cadenza")["spec"]["selector"]["matchLabels"] == labels
    (spread,) = pod_of(gateway)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    assert [one for one in WORKLOADS if one["spec"]["template"]["metadata"]["labels"] == labels] == [gateway]


def test_probes_ask_the_right_questions() -> None:
    """Readiness asks /readyz, liveness asks /healthz, on the port of the config."""
    (container,) = pod_of(manifest("Deployment", "cadenza"))["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["ports"] == [{"name": "http", "containerPort": server_table("kubernetes")["port"]}]
    (port,) = manifest("Service", "cadenza")["spec"]["ports"]
    assert port["targetPort"] == "http"


def test_a_gateway_is_replaced_only_after_its_successor_is_ready() -> None:
    """An update takes no gateway away before another is ready, and a disruption takes one of them at most."""
    spec = manifest("Deployment", "cadenza")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert manifest("PodDisruptionBudget", "cadenza")["spec"]["maxUnavailable"] == 1
    assert spec["replicas"] >= 2


def test_valkey_is_the_one_in_the_config() -> None:
    """The config names the Service of Valkey and its port; that Valkey keeps nothing and evicts nothing."""
    shared = tomllib.loads(config_texts()["kubernetes"])["shared_state"]["url"]
    service = manifest("Service", "valkey")
    assert shared == f"valkey://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/0"
    valkey = manifest("Deployment", "valkey")
    assert service["spec"]["selector"] == valkey["spec"]["template"]["metadata"]["labels"]
    assert "noeviction" in pod_of(valkey)["containers"][0]["args"]


def test_only_gateways_reach_valkey() -> None:
    """Valkey asks for no password, and lets in the pods of the gateways alone, on its port."""
    spec = manifest("NetworkPolicy", "valkey")["spec"]
    labels = manifest("Deployment", "cadenza")["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"] == manifest("Service", "valkey")["spec"]["selector"]
    (rule,) = spec["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": labels}}]
    (port,) = pod_of(manifest("Deployment", "valkey"))["containers"][0]["ports"]
    assert [one["port"] for one in rule["ports"]] == [port["name"]]


def test_only_the_ingress_can_name_the_address_of_a_client() -> None:
    """Of all pods, those of the ingress and of Prometheus alone reach a gateway, and one network of pods is trusted."""
    spec = manifest("NetworkPolicy", "cadenza")["spec"]
    assert spec["podSelector"]["matchLabels"] == manifest("Service", "cadenza")["spec"]["selector"]
    assert spec["policyTypes"] == ["Ingress"]
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": "http"}]
    named = [(one["namespaceSelector"]["matchLabels"], one["podSelector"]["matchLabels"]) for one in rule["from"]]
    assert named == [
        ({"kubernetes.io/metadata.name": namespace}, {"app.kubernetes.io/name": name})
        for namespace, name in (("ingress-nginx", "ingress-nginx"), ("monitoring", "prometheus"))
    ]
    (trusted,) = map(ip_network, server_table("kubernetes")["trusted_proxies"])
    assert trusted.num_addresses <= 2**16


def test_a_wrong_field_is_found() -> None:
    """The check of fields and types finds a field that does not exist, and a value of the wrong type."""
    service = manifest("Service", "cadenza")
    with pytest.raises(AssertionError):
        check({**service, "specs": {}})
    with pytest.raises(msgspec.ValidationError):
        check({**service, "spec": {"ports": [{"port": "80"}]}})
