"""Server-sent events, without I/O: bytes to the data of each event, and data to bytes.

The reader accepts everything that the standard allows: LF, CR and CRLF, comments, several data lines, any split of the
bytes. The writer emits one `data:` line per event and nothing else, because some clients fail on other fields.
"""

import msgspec

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
CR, LF = b"\r\n"  # numbers: `b"\r" in data` raises an error inside and takes 10 times as long
EVENT_BYTES_MAX = 8 * 1024 * 1024


class EventTooLarge(ValueError):
    """An event grew past its limit without ending."""


def write_event(data: bytes) -> bytes:
    """`data` must be one line. JSON written by msgspec never has a raw line end."""
    return b"data: " + data + b"\n\n"


class EventReader(msgspec.Struct, eq=False):
    """Feed it bytes as they arrive; it returns the data of each event that is complete."""

    event_bytes_max: int = EVENT_BYTES_MAX
    unfinished_line: list[bytes] = []  # in parts
    data: list[bytes] = []  # data lines of the unfinished event
    kept_bytes: int = 0  # of both
    after_cr: bool = False
    at_start: bool = True
    is_between: bool = False  # the next byte begins an event: nothing is kept that would change its meaning

    __repr__ = object.__repr__  # shows no content

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that these bytes complete."""
        events = self._feed(data)
        self.is_between = not (self.unfinished_line or self.data or self.after_cr or self.at_start)
        return events

    def _feed(self, data: bytes) -> list[bytes]:
        if self.after_cr and data:
            data = data.removeprefix(b"\n")
            self.after_cr = False
        if CR in data:
            self.after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if LF not in data:
            self._keep(data)
            return []
        *lines, rest = b"".join((*self.unfinished_line, data)).split(b"\n")
        self.kept_bytes -= sum(map(len, self.unfinished_line))
        self.unfinished_line.clear()
        events = self._take(lines)
        self._keep(rest)
        return events

    def end(self) -> list[bytes]:
        """The end of the stream: the last event, if its blank line is missing."""
        return self.feed(b"\n\n") if self.unfinished_line or self.data else []

    def _keep(self, part: bytes) -> None:
        if part:
            self.unfinished_line.append(part)
            self.kept_bytes += len(part)
        if self.kept_bytes > self.event_bytes_max:
            raise EventTooLarge

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events, data = [], self.data
        if self.at_start:
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            self.at_start = False
        for line in lines:
            if line:
                name, _, value = line.partition(b":")
                if name == b"data":
                    data.append(value.removeprefix(b" "))
                    self.kept_bytes += len(line) + 1
            elif data:
                events.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
                self.kept_bytes = 0
        return [event for event in events if event]
