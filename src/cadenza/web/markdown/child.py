"""The child process that renders Markdown, one list of blocks after the other. Only process.py starts it.

It has no keys, no listening socket and no files, writes nothing, and leaves no core dump. Its memory is limited, and so
is its CPU time for each block: beyond that it dies, because a regular expression cannot be interrupted.
"""

import signal
import socket
import sys

import msgspec

from cadenza.gateway.large.child import allow_cpu, confine, receive
from cadenza.gateway.large.messages import REPLY, Limits
from cadenza.web.markdown.process import TASK
from cadenza.web.markdown.render import BlockRenderer


def main() -> None:
    parent_pid, limits = int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Limits)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the child too; the parent handles it
    confine(parent_pid, limits)
    renderer = BlockRenderer()
    with socket.socket(fileno=0) as parent:
        while head := receive(parent, TASK.size):
            sources = msgspec.msgpack.decode(receive(parent, *TASK.unpack(head)), type=list[str])
            rendered = []
            for source in sources:
                allow_cpu(limits.cpu_s)
                rendered.append(renderer.render(source))
            reply = msgspec.msgpack.encode(rendered)
            parent.sendall(REPLY.pack(len(reply)) + reply)


if __name__ == "__main__":
    main()
