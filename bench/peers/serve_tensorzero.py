"""The process of TensorZero: the gateway that its Python package holds, served over HTTP. Run by its own interpreter.

It chooses its port itself, and so writes it to the file that is named.
"""

import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

import tensorzero


def main(config: str, port_file: str) -> None:
    gateway = tensorzero._start_http_gateway(  # noqa: SLF001 the only way to its server that a registry has
        config_file=config, clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
    )
    Path(port_file).write_text(str(urlsplit(gateway.base_url).port))
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
