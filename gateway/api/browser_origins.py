"""Refuse requests that a browser sends for another site's page: it neither reads nor changes
anything.

A browser carries out what any page tells it to, and it reaches what its machine reaches. Two ways
lead from another site's page to a gateway that requires no token, and both are closed here:

- *A name of that site that now resolves to this gateway* (DNS rebinding). To the browser the
  gateway is then the page's own server, so the page reads and changes everything. Only the header
  Host shows it: it has the site's name. So a gateway answers to its own names only.
- *A request across sites*: an image, a form, a script's request. The page can't read the answer,
  but a message would be taken, or a topic deleted. So requests that take or change something are
  refused if the browser says that another site sent them.

Programs send none of the headers that browsers add, so the second rule does not affect them.

Which names are a gateway's own depends on its address. On loopback: those of loopback, and the
names in `allowed_host`. On other addresses, where only `insecure` allows to go without tokens: also
each address written in numbers, since a browser asks no name server for it, each name of one label
("queue"), since nobody on the Internet owns such a name, and this machine's name. Where tokens are
required another site's page has none, and under TLS the certificate has the wrong name for it:
there all names are accepted, unless `allowed_host` lists some.
"""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from typing import Final, Protocol
from urllib.parse import urlsplit

from myqueue.errors import Forbidden
from myqueue.gateway.settings import GatewayConfig, is_address, name_of

SAFE: Final = ("GET", "HEAD", "OPTIONS")
OURS: Final = ("same-origin", "none")  # none: a person typed the address, or used a bookmark
_LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}")


class Headers(Protocol):
    """The headers of a request, by name in any case."""

    def get(self, name: str, /) -> str | None: ...


class Origins:
    """Decides which names are the gateway's own, and which pages may change something."""

    def __init__(self, config: GatewayConfig) -> None:
        listens = name_of(config.listen)
        self._names = frozenset((*config.allowed_host, listens, "localhost"))
        self._asks_all = not (config.tokens or config.tls_certificate) or bool(config.allowed_host)
        self._is_local = config.is_local
        if not self._is_local:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def check(self, changes: bool, headers: Headers) -> None:
        """Check the name and the origin of a request; `changes`: it takes or changes something.
        Raises Forbidden.
        """
        host = headers.get("Host")
        # Browsers always send a Host; a program that speaks HTTP/1.0 may leave it out.
        if self._asks_all and host is not None and host not in self._names:
            self._check_name(name_of(host))
        if changes:
            _check_page(host or "", headers)

    def _check_name(self, name: str) -> None:
        if name in self._names or self._is_ours(name):
            return
        raise Forbidden(
            f"this gateway is not called {name[:100]!r}",
            hint="If that is one of its names, start it with --allowed-host and the name. Otherwise"
            " use the address that it listens on.",
        )

    def _is_ours(self, name: str) -> bool:
        if is_address(name):
            return not self._is_local or ip_address(name.strip("[]")).is_loopback
        return not self._is_local and _LABEL.fullmatch(name) is not None


def _check_page(host: str, headers: Headers) -> None:
    site = headers.get("Sec-Fetch-Site")
    origin = headers.get("Origin")
    if site is not None:
        is_ours = site in OURS
    elif origin is not None:
        is_ours = _place(origin) == host.lower()
    else:
        referrer = headers.get("Referer")
        is_ours = referrer is None or _place(referrer) == host.lower()
    if not is_ours:
        where = origin or headers.get("Referer") or "another site"
        raise Forbidden(
            f"a page of {where[:200]} may not take or change anything here",
            hint="Programs may. This is refused because a browser said that a page of another site"
            " sent it.",
        )


def _place(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:  # brackets without an address
        return ""
