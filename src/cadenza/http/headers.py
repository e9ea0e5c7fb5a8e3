"""Header fields as they stand on the wire."""

Headers = list[tuple[bytes, bytes]]


def encode_headers(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
