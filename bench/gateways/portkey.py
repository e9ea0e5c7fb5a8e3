"""The Portkey gateway (Node). The headers of each request name its upstream."""

import shutil
from pathlib import Path

from bench.gateways.base import Launch
from bench.gateways.install import node_package
from bench.workload import Target

PACKAGE = "@portkey-ai/gateway"
VERSION = "1.15.2"


class Portkey:
    """The open-source gateway without its console."""

    name = "Portkey"

    def install(self) -> str:
        node_package("portkey", PACKAGE, VERSION)
        return VERSION

    def prepare(self, folder: Path, port: int, upstream_port: int) -> Launch:  # noqa: ARG002 it needs no files
        program = node_package("portkey", PACKAGE, VERSION) / "build" / "start-server.js"
        headers = {
            "authorization": "Bearer bench",
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
        }
        node = shutil.which("node") or "node"
        return Launch([node, program, f"--port={port}", "--headless"], Target(port, headers=headers))
