"""Who may do what: bearer tokens with roles, and no requests of foreign web pages (H1, S6).

The file of tokens has a line for each:

    ROLE[,ROLE…] TOKEN [NAME]        # roles: read, write, admin; admin may do all

TOKEN is the token itself, or `sha256:` and its digest in hex, so that the file holds no secret. A
file with plain tokens must be readable by its owner alone. Only digests are kept in memory, and
compared in constant time. Neither tokens nor the header that carries them are ever logged.

Without a file everybody may do all; a gateway listens only on loopback then. A browser on the same
machine reaches that too, and sends what a foreign page tells it to: `browser_origins.py` refuses
that.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
from typing import Final, NamedTuple

from myqueue.errors import Forbidden, InvalidSetting, Unauthorized
from myqueue.gateway.api.browser_origins import Headers, Origins
from myqueue.gateway.api.operations import ADMIN, READ, WRITE
from myqueue.gateway.settings import GatewayConfig

log = logging.getLogger("myqueue.gateway")

ROLES: Final = (READ, WRITE, ADMIN)
TOKEN_CHARS_MIN: Final = 16
_HASHED: Final = "sha256:"


class Principal(NamedTuple):
    """Who sent a request."""

    name: str
    roles: frozenset[str]

    @property
    def may_read(self) -> bool:
        """Whether it may be told what is in the cluster, by name."""
        return READ in self.roles or ADMIN in self.roles


NOBODY: Final = Principal("nobody", frozenset())
ANYBODY: Final = Principal("anybody", frozenset((ADMIN,)))


class Guard:
    """Judges requests."""

    def __init__(self, config: GatewayConfig) -> None:
        self._tokens = _load(config.tokens) if config.tokens else None
        self._origins = Origins(config)

    def who(self, authorization: str | None) -> Principal:
        """By the header Authorization; Unauthorized if it names nobody."""
        if self._tokens is None:
            return ANYBODY
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Unauthorized("this gateway asks for a token")
        digest = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
        found: Principal | None = None
        for known, principal in self._tokens:
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise Unauthorized("this token is not known here")
        return found

    def _whoever(self, authorization: str | None) -> Principal:
        """Of a request that needs no token: a wrong one is no token."""
        try:
            return self.who(authorization)
        except Unauthorized:
            return NOBODY

    def check(self, role: str | None, changes: bool, headers: Headers) -> Principal:
        """May this be done? Role None: by anybody. `changes`: it takes or changes something."""
        self._origins.check(changes, headers)
        if role is None:
            return self._whoever(headers.get("Authorization"))
        principal = self.who(headers.get("Authorization"))
        if role not in principal.roles and ADMIN not in principal.roles:
            log.warning("%s was refused: needs the role %s", principal.name, role)
            raise Forbidden(f"{principal.name} lacks the role {role}")
        return principal


def _load(path: str) -> list[tuple[bytes, Principal]]:
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"tokens: {path}: {error}") from None
    found: list[tuple[bytes, Principal]] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        at = f"tokens: {path}:{number}"
        if len(words) not in (2, 3):
            raise InvalidSetting(f"{at}: a line is: ROLE[,ROLE] TOKEN [NAME]")
        roles = frozenset(words[0].split(","))
        if not roles <= set(ROLES):
            raise InvalidSetting(f"{at}: roles are {', '.join(ROLES)}")
        name = words[2] if len(words) == 3 else f"token {number}"
        found.append((_digest(words[1], at, mode), Principal(name, roles)))
    if not found:
        raise InvalidSetting(f"tokens: {path} has none")
    return found


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
