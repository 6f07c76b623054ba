"""Who may see the page: one user's browsers, and no other site's scripts.

The page listens on a TCP port, which every user of the host can reach, and which scripts of other
sites can reach through the user's browser. So:

* its address has a name that no earlier page had, ``bft-RANDOM.localhost``, which browsers take for
  loopback. What an earlier server at the port has left in a browser (service workers, stored data,
  cookies) is of another origin, and sees nothing of this page. Behind a proxy the address is the
  proxy's, and the origin that of all pages behind it;
* a link holds a token that is good for one browser; it is in the fragment, which browsers send to
  nobody. The page's script exchanges it for a cookie that scripts cannot read, and for a key.
  Whoever asks needs both: the cookie may be sent to other ports of the name, and the key, in the
  storage of our origin, goes to us alone, in a header;
* the Host must be one of ours, or a site that rebinds its name to this port could read. At
  ``127.0.0.1`` there is nothing: the name is told to nobody who does not have the link;
* the Origin, where a browser says one, must be ours, and so must Sec-Fetch-Site, but for links;
* nothing may be loaded from elsewhere, no worker be registered, and nobody may frame the page.
"""

from __future__ import annotations

import getpass
import hmac
import os
import re
import secrets
import shlex
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
MOST_BROWSERS: Final = 100
KEY_HEADER: Final = "Bftrainer-Key"  # a proxy's log has addresses, but no headers
TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32,200}")
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; worker-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAddress:
    """Where browsers find the page."""

    port: int
    public_url: str = ""  # behind a proxy: what users type, with the path; "": loopback
    hosts: tuple[str, ...] = ()  # names of this host, which proxies may send, not the public one
    name: str = field(default_factory=lambda: f"bft-{secrets.token_hex(8)}.localhost")

    @property
    def base(self) -> str:
        """The page's address, ending in a slash."""
        return f"{(self.public_url or f'http://{self.name}:{self.port}').rstrip('/')}/"

    @property
    def public(self) -> str:
        """Host and port of the public address; "": there is none."""
        return urlsplit(self.public_url).netloc.lower()

    def is_ours(self, host: str) -> bool:
        """Return whether a Host header names the page.

        A tunnel may end at another port of the user's own host, so the port of our name is free.
        Proxies on this host may send loopback with any port.
        """
        name, _, port = host.rpartition(":")
        if not self.public:
            return name == self.name and port.isdigit()
        ours = {self.public, *(f"{alias.lower()}:{self.port}" for alias in self.hosts)}
        return host in ours or host in LOOPBACK or (name in LOOPBACK and port.isdigit())


class Door:
    """The tokens and cookies of one process."""

    def __init__(self, address: PageAddress, said: Callable[[str], object]) -> None:
        """``said``: is given a link whenever there is a new one."""
        self._address, self._said = address, said
        self._token = ""
        self._keys: dict[str, str] = {}  # by cookie
        self.cookie_name = f"bftrainer-{address.port}"

    def offer(self, token: str = "") -> None:
        """Take this token or make one, and say the link with it."""
        self._token = token or secrets.token_urlsafe(32)
        self._said(f"{self._address.base}#{self._token}")

    def enter(self, token: str) -> tuple[str, str] | None:
        """Return a cookie and a key for the token, which is used up then; None: it is wrong."""
        if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        cookie, key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._keys[cookie] = key
        if len(self._keys) > MOST_BROWSERS:
            del self._keys[next(iter(self._keys))]
        self.offer()
        return cookie, key

    def set_cookie(self, cookie: str) -> str:
        """Return the header that gives a browser its cookie."""
        public = urlsplit(self._address.public_url)
        secure = "; Secure" if public.scheme == "https" else ""
        path = f"{public.path.rstrip('/')}/"
        return f"{self.cookie_name}={cookie}; Path={path}; HttpOnly; SameSite=Strict{secure}"

    def knows(self, cookies: Mapping[str, str], key: str) -> bool:
        """Return whether a browser has a cookie of ours, and its key."""
        right_key = self._keys.get(cookies.get(self.cookie_name, ""), "")
        return bool(right_key) and hmac.compare_digest(right_key.encode(), key.encode())

    def why_refused(self, headers: Mapping[str, str]) -> str:
        """Say why a request with these headers is refused, whoever sends it; "": it is not."""
        host = headers.get("host", "").lower()
        if not self._address.is_ours(host):
            return (
                f"It was sent to {host!r}, which is no address of this page. Open the link that "
                "'bftrainer web' printed."
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        ours = self._address.public or host
        is_same = origin is None or urlsplit(origin).netloc.lower() == ours
        to = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
        is_link = to == ("navigate", "document")  # clicked in a terminal or mail that is a page
        if not is_same or not (is_link or site in ("none", "same-origin")):
            return "It comes from another site."
        return ""


def tunnel(port: int, path: Path | None = None) -> tuple[str, str]:
    """Say how a browser on another machine reaches the page at a port or a Unix socket here.

    A host whose file of names calls it localhost is named by itself, or by the address at which
    ssh reached it (SSH_CONNECTION: client, its port, server, its port; ssh(1)).
    """
    names = [
        socket.getfqdn(),
        socket.gethostname(),
        *os.environ.get("SSH_CONNECTION", "").split()[2:3],
    ]
    host = next((name for name in names if name.partition(".")[0] != "localhost"), names[-1])
    sentence, target = "In a browser on this host, or on yours after", f"127.0.0.1:{port}"
    if path is not None:
        sentence, target = "In a browser on your own machine, after", str(path.absolute())
    ends = shlex.quote(f"{port}:{target}")
    return sentence, f"  ssh -N -L {ends} {getpass.getuser()}@{host}"
