"""Every gateway of the benchmark, in table order. A text says why a gateway is not run."""

from bench.money.cadenza import CadenzaOnPostgres, CadenzaOnSQLite
from bench.money.deployment import MoneyGateway


def all_gateways() -> dict[str, MoneyGateway | str]:
    measured: list[MoneyGateway] = [CadenzaOnSQLite(), CadenzaOnPostgres()]
    return {gateway.name: gateway for gateway in measured}
