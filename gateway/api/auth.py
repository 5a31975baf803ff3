"""Which client may do what: bearer tokens with roles; and no requests of other sites' web pages.

The file of tokens has one line for each token:

    ROLE[,ROLE…] TOKEN [NAME]        # roles: read, write, admin; admin may do everything

TOKEN is the token itself, or `sha256:` and its digest in hex, so that the file holds no secret.
Only the owner may be able to read a file with plain tokens. Only digests are kept in memory, and
compared in constant time. Neither tokens nor the header that carries them are ever logged.

Without a file every client may do everything; then a gateway listens only on loopback. A browser on
the same machine reaches that too, and sends what another site's page tells it to:
`browser_origins.py` refuses that.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final, NamedTuple

from myqueue.errors import Forbidden, InvalidSetting, Unauthorized
from myqueue.gateway.api.browser_origins import SAFE, Headers, Origins
from myqueue.gateway.api.operations import ADMIN, READ, WRITE
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

ROLES: Final = (READ, WRITE, ADMIN)
TOKEN_CHARS_MIN: Final = 16
COOKIE: Final = "myq_token"  # holds the token of a person who logged in to the console
CONSOLE_FORM_BYTES_MAX: Final = 2 << 20  # a console form: typed by hand
_HASHED: Final = "sha256:"


class Principal(NamedTuple):
    """The sender of a request, by its token."""

    name: str
    roles: frozenset[str]

    @property
    def may_read(self) -> bool:
        """True if the answer may name what is in the cluster."""
        return READ in self.roles or ADMIN in self.roles


NOBODY: Final = Principal("nobody", frozenset())
ANYBODY: Final = Principal("anybody", frozenset((ADMIN,)))


class Guard:
    """Checks requests against tokens, roles and origins."""

    def __init__(self, config: GatewayConfig) -> None:
        self._tokens = _load(config.tokens) if config.tokens else None
        self._origins = Origins(config)

    def authenticate(self, authorization: str | None) -> Principal:
        """Return the sender named by the header Authorization. Raises Unauthorized."""
        if self._tokens is None:
            return ANYBODY
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Unauthorized("this gateway requires a token")
        digest = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
        matching: Principal | None = None
        for known_digest, principal in self._tokens:
            if hmac.compare_digest(known_digest, digest):
                matching = principal
        if matching is None:
            raise Unauthorized("this token is not known here")
        return matching

    def _authenticate_or_nobody(self, authorization: str | None) -> Principal:
        """Return the sender of a request that needs no token; a wrong token counts as none."""
        try:
            return self.authenticate(authorization)
        except Unauthorized:
            return NOBODY

    def check(self, role: str | None, changes: bool, headers: Headers) -> Principal:
        """Check role and origin; return the sender. Raises Unauthorized, Forbidden.

        Role None: every client may do it. `changes`: the request takes or changes something.
        """
        self._origins.check(changes, headers)
        if role is None:
            return self._authenticate_or_nobody(headers.get("Authorization"))
        principal = self.authenticate(headers.get("Authorization"))
        if role not in principal.roles and ADMIN not in principal.roles:
            log.warning("%s was refused: needs the role %s", principal.name, role)
            raise Forbidden(f"{principal.name} lacks the role {role}")
        return principal


def access_to_page(page: Callable[..., Any] | None, method: str) -> tuple[str | None, bool]:
    """Return the role that a page of Flask's needs, and whether the request changes something.

    Every client may know that a path does not exist.
    """
    return None if page is None else getattr(page, "role", READ), method not in SAFE


def cookie_authorization(cookies: str) -> str:
    """Return the header Authorization that the console's cookie stands for; "" without one."""
    try:
        cookie = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        cookie = None
    return "" if cookie is None else f"Bearer {cookie.value}"


def _load(path: str) -> list[tuple[bytes, Principal]]:
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"tokens: {path}: {error}") from None
    tokens: list[tuple[bytes, Principal]] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"tokens: {path}:{number}"
        if len(words) not in (2, 3):
            raise InvalidSetting(f"{place}: a line is: ROLE[,ROLE] TOKEN [NAME]")
        roles = frozenset(words[0].split(","))
        if not roles <= set(ROLES):
            raise InvalidSetting(f"{place}: roles are {', '.join(ROLES)}")
        name = words[2] if len(words) == 3 else f"token {number}"
        tokens.append((_digest(words[1], place, mode), Principal(name, roles)))
    if not tokens:
        raise InvalidSetting(f"tokens: {path} has none")
    return tokens


def _digest(word: str, at: str, mode: int) -> bytes:
    if word.startswith(_HASHED):
        try:
            digest = bytes.fromhex(word.removeprefix(_HASHED))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise InvalidSetting(f"{at}: {_HASHED} and 64 hex digits")
        return digest
    if len(word) < TOKEN_CHARS_MIN:
        raise InvalidSetting(f"{at}: a token has at least {TOKEN_CHARS_MIN} characters")
    if mode & 0o077:
        raise InvalidSetting(
            f"{at}: holds a token, and others may read it",
            hint="chmod 600 the file, or write sha256: and the digest instead of the token.",
        )
    return hashlib.sha256(word.encode()).digest()
