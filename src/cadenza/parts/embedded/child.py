"""The child process, which runs llama.cpp's own HTTP server. Only upstream.py starts it.

It reads one Start message from standard input and runs until that input closes, so it ends whenever its parent ends. On
Linux the kernel kills it then, even if it hangs.
Once requests can arrive it writes nothing, because llama.cpp's log could contain message content.
"""

import os
import signal
import sys

import msgspec
import xllamacpp

from cadenza.parts.embedded import Ready, Start
from cadenza.process import end_with_parent, protect_memory

HEAD_BYTES = 32 * 1024 * 1024
TEMPLATE_BYTES = 64 * 1024


def main() -> None:
    protect_memory()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the child too; the parent handles it
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    server = xllamacpp.Server(_parameters(start))
    ready = Ready(server.listening_address, _knows_tools(start.model_path))
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.flush()
    _discard_output()
    sys.stdin.buffer.read()
    os._exit(0)  # without cleanup: requests may still be running


def _parameters(start: Start) -> xllamacpp.CommonParams:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = start.model_path
    parameters.api_keys = [start.api_key]
    parameters.n_parallel = start.slots
    parameters.n_ctx = start.slots * start.context_tokens
    parameters.n_predict = start.output_tokens
    parameters.n_batch = 256  # the server notices a closed connection between batches
    parameters.n_ubatch = 256
    parameters.cpuparams.n_threads = start.threads
    parameters.cpuparams_batch.n_threads = start.threads
    parameters.cache_ram_mib = 0  # a prompt stays in its slot until the next request, and nowhere else
    parameters.endpoint_slots = False
    parameters.ui = False
    parameters.warmup = False
    parameters.fit_params = len(xllamacpp.get_device_info()) > 1  # only a GPU's memory can be too small; it costs 0.4 s
    return parameters


def _knows_tools(model_path: str) -> bool:
    """Whether the model's chat template mentions tools. The template is plain text near the start of the file."""
    with open(model_path, "rb") as model:  # noqa: PTH123 only the first megabytes of a file that may have gigabytes
        head = model.read(HEAD_BYTES)
    _, _, template = head.partition(b"tokenizer.chat_template")
    return b"tools" in template[:TEMPLATE_BYTES]


def _discard_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


if __name__ == "__main__":
    main()
