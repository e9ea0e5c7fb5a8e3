"""The child process that runs llama.cpp's own HTTP server. Started by embedded.py, never by hand.

It reads its order from the first line of standard input and stays while that input is open: when the parent ends,
in whatever way, the input ends and so does the child. It says nothing once requests can come: its log has no content.
"""

import os
import signal
import sys

import msgspec
import xllamacpp

from cadenza.upstreams.embedded.messages import OUTPUT_TOKENS, Order, Ready

HEAD_BYTES = 32 * 1024 * 1024
TEMPLATE_BYTES = 64 * 1024


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the parent's to handle
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    server = xllamacpp.Server(_parameters(order))
    ready = Ready(server.listening_address, _knows_tools(order.model_path))
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.flush()
    _fall_silent()
    sys.stdin.buffer.read()
    os._exit(0)  # no farewell: requests may still be running


def _parameters(order: Order) -> xllamacpp.CommonParams:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = order.model_path
    parameters.api_keys = [order.api_key]
    parameters.n_parallel = order.slots
    parameters.n_ctx = order.slots * order.context_tokens
    parameters.n_predict = OUTPUT_TOKENS
    parameters.n_batch = 256  # between batches the server notices that a client has left
    parameters.n_ubatch = 256
    parameters.cpuparams.n_threads = order.threads
    parameters.cpuparams_batch.n_threads = order.threads
    parameters.cache_ram_mib = 0  # what a request said stays in its slot, until the next one, and nowhere else
    parameters.endpoint_slots = False
    parameters.ui = False
    parameters.warmup = False
    return parameters


def _knows_tools(model_path: str) -> bool:
    """Whether the model's chat template speaks of tools. The template stands in the head of the file, as plain text."""
    with open(model_path, "rb") as model:  # noqa: PTH123 a few megabytes of a file that may have many thousands
        head = model.read(HEAD_BYTES)
    _, _, template = head.partition(b"tokenizer.chat_template")
    return b"tools" in template[:TEMPLATE_BYTES]


def _fall_silent() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


if __name__ == "__main__":
    main()
