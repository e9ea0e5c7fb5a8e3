"""Serve the gateway in TensorZero's Python package over HTTP. Runs in the virtual environment of TensorZero.

The gateway chooses its own port; this program writes it to the given file.
"""

import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

import tensorzero


def main(config: str, port_file: str) -> None:
    gateway = tensorzero._start_http_gateway(  # noqa: SLF001 the package has no public way to start its server
        config_file=config, clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
    )
    Path(port_file).write_text(str(urlsplit(gateway.base_url).port))
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
