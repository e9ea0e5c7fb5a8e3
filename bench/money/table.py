"""Every gateway of the benchmark, in table order. A text says why a gateway is not run."""

from bench.money.cadenza import CadenzaOnPostgres, CadenzaOnSQLite
from bench.money.deployment import MoneyGateway
from bench.money.litellm import LiteLLMOnPostgres

NOT_RUN = {
    "bifrost": "its npm package downloads the gateway from a host that is no package registry",
    "mlflow": "no accounts: a budget of its gateway belongs to the server or a workspace, not to a key",
    "otari": "its gateway is in no package registry; the package of that name is a client",
    "portkey": "no accounts: its open-source gateway has neither keys of its own nor budgets",
    "sglang-router": "no accounts",
    "tensorzero": "no accounts: it has keys, and limits of requests and tokens over time, but no budgets",
    "vllm-router": "no accounts",
}


def all_gateways() -> dict[str, MoneyGateway | str]:
    measured: list[MoneyGateway] = [CadenzaOnSQLite(), CadenzaOnPostgres(), LiteLLMOnPostgres()]
    return {gateway.name: gateway for gateway in measured} | NOT_RUN
