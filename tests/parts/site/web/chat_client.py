"""A visitor's chat: what the script of the chat page sends, on a bare socket, and the events that come back."""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from tests.raw_client import MESSAGES, RawClient, Reply, read_all
from tests.visitor import Visitor

PATH = "/platform/api/chat"


class ChatClient:
    """The chat of one visitor."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor

    def send(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Reply:
        """Send one message, unless the fields say otherwise. A header of None is left out."""
        with self.open(headers, **fields) as connection:
            return Reply(read_all(connection))

    @contextlib.contextmanager
    def open(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Iterator[socket.socket]:
        """The test decides what to read and when to leave."""
        body = json.dumps({"messages": MESSAGES, "stream": True, **fields}).encode()
        with self._open(PATH, body, headers) as connection:
            yield connection

    def measure(self, name: str, data: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """Have a file measured."""
        with self._open(f"{PATH}/file?name={quote(name)}", data, headers) as connection:
            return Reply(read_all(connection))

    @contextlib.contextmanager
    def _open(self, path: str, body: bytes, headers: Mapping[str, str] | None) -> Iterator[socket.socket]:
        cookie = "; ".join(f"{name}={value}" for name, value in self.visitor.cookies.items())
        sent = {
            "cookie": cookie,
            "origin": "http://127.0.0.1",
            "sec-fetch-site": "same-origin",
            "x-cadenza-csrf": self.visitor.csrf,
            "content-length": str(len(body)),
            **(headers or {}),
        }
        client = RawClient(self.visitor.port, None)
        lines = [f"{name}: {value}" for name, value in sent.items() if value]
        with client.connect() as connection:
            connection.sendall(client.head("POST", path, *lines) + body)
            yield connection


def html_of(reply: Reply) -> str:
    return "".join(event["html"] for event in reply.events if event.get("type") == "block")


def text_of(reply: Reply) -> str:
    return "".join(event["text"] for event in reply.events if event.get("type") == "text")


def event_of(reply: Reply, type_: str) -> dict[str, Any]:
    """The only event of this type."""
    [found] = [event for event in reply.events if event.get("type") == type_]
    return found
