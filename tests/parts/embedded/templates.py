"""Formats messages with chat templates, by llama.cpp's own server. Run as a program: JSON in, JSON out.

One server for each template; all of them run to the end. The server formats a conversation without running the model.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

import xllamacpp

from cadenza.parts.embedded.kind import bundled_model


def main() -> None:
    given, servers = json.load(sys.stdin), list[xllamacpp.Server]()
    prompts = {name: format_with(name, source, given["bodies"], servers) for name, source in given["templates"].items()}
    json.dump(prompts, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # without stopping the servers, which may wait for ever


def format_with(
    name: str, source: str | None, bodies: dict[str, Any], servers: list[xllamacpp.Server]
) -> dict[str, str]:
    """The prompt for each body; "refused" if the template raises. Without a source it is a template of llama.cpp."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(bundled_model())
    parameters.n_ctx = 256
    parameters.n_parallel = 1
    parameters.warmup = False
    parameters.fit_params = False
    parameters.ui = False
    parameters.use_jinja = source is not None
    parameters.chat_template = source or name
    server = xllamacpp.Server(parameters)
    servers.append(server)
    return {case: ask(server.listening_address, body) for case, body in bodies.items()}


def ask(address: str, body: Any) -> str:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}/apply-template", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return str(json.load(response)["prompt"])
    except urllib.error.HTTPError:
        return "refused"


if __name__ == "__main__":
    main()
