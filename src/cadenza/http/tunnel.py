"""A tunnel through an HTTP proxy, which TLS to an upstream needs."""

import asyncio
import base64
import socket
from urllib.parse import SplitResult, unquote

PROXY_HEAD_BYTES_MAX = 8 * 1024  # of its reply to CONNECT


async def open_tunnel(proxy: SplitResult, host: str, port: int) -> socket.socket:
    """A socket on which the next bytes reach the host; ConnectionError where the proxy refuses."""
    assert proxy.hostname
    loop = asyncio.get_running_loop()
    tunnel = await _connect(loop, proxy.hostname, proxy.port or 80)
    try:
        await loop.sock_sendall(tunnel, _connect_request(proxy, host, port))
        await _read_reply(loop, tunnel)
    except BaseException:
        tunnel.close()
        raise
    return tunnel


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


async def _connect(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A connection to the first address of the host that accepts one; else the error of its first address."""
    errors = list[OSError]()
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connected = socket.socket(family, kind, protocol)
        connected.setblocking(False)
        try:
            await loop.sock_connect(connected, address)
        except OSError as error:
            connected.close()
            errors.append(error)
        except BaseException:
            connected.close()
            raise
        else:
            return connected
    raise errors[0]


async def _read_reply(loop: asyncio.AbstractEventLoop, tunnel: socket.socket) -> None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = await loop.sock_recv(tunnel, 1)  # one at a time: the bytes after the head belong to TLS
        head += byte
        if not byte or len(head) > PROXY_HEAD_BYTES_MAX:
            raise ConnectionError
    if head.split(None, 2)[1:2] != [b"200"]:
        raise ConnectionError
