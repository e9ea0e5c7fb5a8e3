"""Our cookies, and how a request shows that it comes from one of our own pages. Imports no framework.

Cookies are read here only: `http.cookies`, which Starlette uses too, takes seconds for a quoted value of backslashes.
"""

import hashlib
import hmac

import msgspec

SESSION_COOKIE = "cadenza_session"
DEVICE_COOKIE = "cadenza_device"  # of a browser that has signed in before
ANONYMOUS = "anonymous-"  # begins the cookie of a browser that has not signed in
CSRF_HEADER = "x-cadenza-csrf"
OWN_SITES = ("same-origin", "none")
VALUE_CHARS_MAX = 512  # the longest of ours, of a device, has 259


class Origin(msgspec.Struct, frozen=True):
    """Where a browser says that a request comes from, the host that it is sent to, and the address of the site.

    A proxy may send another host than the browser did, so the host of the site's address is accepted as well.
    """

    site: str | None  # sec-fetch-site
    origin: str | None
    host: str | None
    base_url: str | None = None

    @property
    def is_foreign(self) -> bool:
        if self.site is not None and self.site not in OWN_SITES:
            return True
        if self.origin is None:
            return False
        own = {self.host, _host_of(self.base_url)}
        return _host_of(self.origin) not in own


def _host_of(url: str | None) -> str | None:
    """The host and the port, as they are written. Accepts any text: an Origin header may hold anything."""
    return None if url is None else url.partition("://")[2].partition("/")[0]


def cookie_name(name: str, *, is_secure: bool) -> str:
    """Over TLS, the prefix makes the browser refuse the cookie from any other host or path."""
    return f"__Host-{name}" if is_secure else name


def read_cookie(header: str, name: str) -> str:
    """The value of our cookie with this name in a Cookie header: the first one; empty if there is none.

    It takes microseconds, whatever the header has in it. Our values have no quotes and no spaces.
    """
    _, _, found = f";{header.replace(' ', '')}".partition(f";{name}=")
    value = found.partition(";")[0]
    return value if len(value) <= VALUE_CHARS_MAX else ""


def csrf_token(cookie: str) -> str:
    """The token that every form and every changing request of this browser must carry."""
    return hmac.new(cookie.encode(), b"cadenza csrf", hashlib.sha256).hexdigest()


def is_own_request(origin: Origin, token: str, cookie: str) -> bool:
    """Whether a changing request comes from one of our own pages: by its origin, and by its token."""
    return not origin.is_foreign and hmac.compare_digest(token.encode(), csrf_token(cookie).encode())
