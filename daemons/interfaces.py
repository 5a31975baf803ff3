"""The seams of the engine: who asks, what owns it, and the way out.

An *owner* (a broker, or the managers' part) gives meaning to what the engine carries; `DESIGN.md`
says when each of these is called. The *wire* is the transport as the engine sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from myqueue.daemons.raft.types import Entry
from myqueue.wire.protocol import Envelope

if TYPE_CHECKING:
    from myqueue.daemons.replication.engine import Engine
    from myqueue.daemons.replication.replica import Replica

Buffer = bytes | memoryview


class Client:
    """Who asks at the clients' door; `identity` is the socket's, fresh for each connection."""

    __slots__ = ("identity", "name")

    def __init__(self, identity: bytes, name: str = "") -> None:
        self.identity, self.name = identity, name


class Peer:
    """A daemon that greeted at the peers' door."""

    __slots__ = ("address", "disk", "identity", "incarnation", "kind", "name", "node")

    def __init__(
        self, identity: bytes, kind: str, node: int, disk: str, incarnation: int, address: str = ""
    ) -> None:
        self.identity, self.kind, self.node, self.address = identity, kind, node, address
        self.disk, self.incarnation, self.name = disk, incarnation, f"{kind} {node}"


RIVAL_MS: Final = 3000  # a process that is refused tries again several times a second


class DuplicateDaemon(NamedTuple):
    """Another process under the number of a daemon that is connected."""

    address: str  # of its peers' door, as it says
    connected: str  # that of the one that is heard
    seen_at: int  # when it was refused last


class Owner(Protocol):
    """What a broker and a manager are to the engine; see `DESIGN.md`."""

    def attach(self, engine: Engine) -> None: ...
    def make_state_machine(self, group: int, about: bytes) -> Any: ...
    def started(self, now: int) -> None: ...
    def request(self, client: Client, envelope: Envelope, frames: list[Buffer]) -> None: ...
    def handle_peer_request(self, peer: Peer, envelope: Envelope, frames: list[Buffer]) -> None: ...
    def handle_peer_reply(self, peer: tuple[str, int], envelope: Envelope) -> None: ...
    def greeted(self, kind: str, node: int, disk: str) -> str: ...
    def before_turn_ends(self, now: int) -> None: ...
    def applied(self, replica: Replica, entries: list[Entry], results: list[Any]) -> None: ...
    def dropped(self, replica: Replica, first_index: int) -> None: ...
    def changed(self, replica: Replica) -> None: ...
    def closed(self, replica: Replica) -> None: ...
    def read_ready(self, context: int) -> None: ...
    def tick(self, now: int) -> None: ...
    def end_turn(self, now: int) -> None: ...
    def begin_stopping(self, now: int) -> None: ...


class MessageTransport(Protocol):
    """The way out, as the engine sees the transport."""

    def reply(self, client: Client, frames: list[Buffer]) -> None: ...
    def reply_to_peer(self, peer: Peer, frame: bytes) -> None: ...
    def check_connected(self, identity: bytes) -> bool: ...
    def send_to_peer(self, peer: tuple[str, int], frames: list[Buffer]) -> bool: ...
    def peer_problem(self, peer: tuple[str, int]) -> str: ...
    def set_peer_address(self, peer: tuple[str, int], address: str) -> None: ...
