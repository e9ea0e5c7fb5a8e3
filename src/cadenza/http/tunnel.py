"""A tunnel through an HTTP proxy, which TLS to an upstream needs."""

import asyncio
import base64
import socket
from urllib.parse import SplitResult, unquote

PROXY_HEAD_BYTES_MAX = 8 * 1024  # of its reply to CONNECT


async def open_tunnel(connected: socket.socket, proxy: SplitResult, host: str, port: int) -> None:
    """Have the next bytes on this socket reach the host; ConnectionError where the proxy refuses."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connected, _connect_request(proxy, host, port))
    await _read_reply(loop, connected)


def proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    secret = base64.b64encode(f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()).decode()
    return {"proxy-authorization": f"Basic {secret}"}


def _connect_request(proxy: SplitResult, host: str, port: int) -> bytes:
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    fields = {"host": target, **proxy_authorization(proxy)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"CONNECT {target} HTTP/1.1\r\n{lines}\r\n".encode()


async def _read_reply(loop: asyncio.AbstractEventLoop, tunnel: socket.socket) -> None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        try:  # one byte at a time, because those after the head belong to TLS
            byte = tunnel.recv(1)
        except BlockingIOError:
            byte = await loop.sock_recv(tunnel, 1)
        head += byte
        if not byte or len(head) > PROXY_HEAD_BYTES_MAX:
            raise ConnectionError
    if head.split(None, 2)[1:2] != [b"200"]:
        raise ConnectionError
