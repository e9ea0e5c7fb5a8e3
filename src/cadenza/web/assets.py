"""Style sheets, scripts and pictures: read once, and served under an address that changes with their content."""

import gzip
import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from starlette.responses import Response

KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "webmanifest": "application/manifest+json",
}
FOREVER = "public, max-age=31536000, immutable"


class Asset(msgspec.Struct, frozen=True):
    """A file as it is sent."""

    kind: str
    content: bytes
    compressed: bytes


class Assets:
    """All files of static/. Scripts import each other by relative addresses, so all share one version."""

    def __init__(self) -> None:
        self._assets = {
            path.name: _read(path)
            for path in sorted(files("cadenza.web").joinpath("static").iterdir(), key=lambda path: path.name)
        }
        parts = [name.encode() + one.content for name, one in self._assets.items()]
        self._version = hashlib.sha256(b"".join(parts)).hexdigest()[:12]

    def url(self, name: str) -> str:
        assert name in self._assets, name
        return f"/static/{self._version}/{name}"

    def respond(self, version: str, name: str, accepted: str) -> Response | None:
        """None where there is no such file. A file of another version is sent too, but not kept."""
        asset = self._assets.get(name)
        if asset is None:
            return None
        headers = {"cache-control": FOREVER if version == self._version else "no-store", "vary": "accept-encoding"}
        if "gzip" not in accepted:
            return Response(asset.content, headers=headers, media_type=asset.kind)
        return Response(asset.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=asset.kind)


def _read(path: Traversable) -> Asset:
    content = path.read_bytes()
    return Asset(KINDS[path.name.rpartition(".")[2]], content, gzip.compress(content, 9, mtime=0))
