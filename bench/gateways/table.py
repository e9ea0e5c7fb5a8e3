"""Every gateway of the comparison, in table order."""

from bench.gateways.base import Gateway
from bench.gateways.cadenza import Cadenza
from bench.gateways.litellm import LiteLLM
from bench.gateways.nginx import Nginx
from bench.gateways.portkey import Portkey
from bench.gateways.routers import Router
from bench.gateways.tensorzero import TensorZero


def all_gateways() -> list[Gateway]:
    return [
        Cadenza(),
        Nginx(),
        Router("vllm-router"),
        Router("sglang-router", "launch"),
        TensorZero(),
        Portkey(),
        LiteLLM(),
    ]
