"""The interfaces around the engine: clients and peers, the owner, and the message transport.

The *owner* (a broker or a manager) gives meaning to what the engine replicates. The *transport*
sends; the engine knows it by `MessageTransport` only. All calls come from the loop's thread.
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
    """A client at the client listener; `identity` is ZeroMQ's, new for each connection."""

    __slots__ = ("identity", "name")

    def __init__(self, identity: bytes, name: str = "") -> None:
        self.identity, self.name = identity, name


class Peer:
    """A daemon that greeted at the peer listener."""

    __slots__ = ("address", "disk", "identity", "incarnation", "kind", "name", "node")

    def __init__(
        self, identity: bytes, kind: str, node: int, disk: str, incarnation: int, address: str = ""
    ) -> None:
        self.identity, self.kind, self.node, self.address = identity, kind, node, address
        self.disk, self.incarnation, self.name = disk, incarnation, f"{kind} {node}"


RIVAL_MS: Final = 3000  # a refused process retries several times a second


class DuplicateDaemon(NamedTuple):
    """A process refused because another one with its number is connected."""

    address: str  # of its peers' door, as it says
    connected: str  # the same of the connected process
    seen_at: int  # when it was refused last, by the monotonic clock


class Owner(Protocol):
    """A broker or a manager, as the engine and the loop call it."""

    # -- at a start, once, in this order -------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        """Take the engine that this owner proposes to. No group is open yet."""

    def make_state_machine(self, group: int, about: bytes) -> Any:
        """Make the empty state machine of a group; `about` is what it was created for."""

    def started(self, now: int) -> None:
        """Every group that was here before the start is open, or in `engine.not_open`."""

    # -- within a turn -------------------------------------------------------------------------

    def greeted(self, kind: str, node: int, disk: str) -> str:
        """Say why a daemon that greets must be refused; "": accept it."""

    def handle_peer_request(self, peer: Peer, envelope: Envelope, frames: list[Buffer]) -> None:
        """Handle a message of a peer that greeted, other than PACKET."""

    def handle_peer_reply(self, peer: tuple[str, int], envelope: Envelope) -> None:
        """Handle a reply that came by one of our peer connections."""

    def request(self, client: Client, envelope: Envelope, frames: list[Buffer]) -> None:
        """Handle a client's request, other than HELLO. Raised errors become its answer."""

    def tick(self, now: int) -> None:
        """Do what is due: called every 50 ms, less often while all groups are quiet."""

    def before_turn_ends(self, now: int) -> None:
        """Propose what the requests of this turn collected."""

    # -- from the engine's end of a turn -------------------------------------------------------

    def applied(self, replica: Replica, entries: list[Entry], results: list[Any]) -> None:
        """Entries were committed and applied; `results` has one result for each."""

    def dropped(self, replica: Replica, first_index: int) -> None:
        """This replica leads no more: its proposals from `first_index` on may be lost, or not."""

    def changed(self, replica: Replica) -> None:
        """Role, term or leader of a replica changed, or it became ready to serve as leader."""

    def closed(self, replica: Replica) -> None:
        """The replica broke an invariant and takes no part any more."""

    def read_ready(self, context: int) -> None:
        """The linearizable read that was requested with `context` may be answered."""

    def end_turn(self, now: int) -> None:
        """Send the replies of this turn."""

    def begin_stopping(self, now: int) -> None:
        """The daemon was asked to stop: transfer leadership, refuse new work."""


class MessageTransport(Protocol):
    """The sockets as the engine sees them. Nothing blocks; what can't be queued is dropped."""

    def reply(self, client: Client, frames: list[Buffer]) -> None: ...
    def reply_to_peer(self, peer: Peer, frame: bytes) -> None: ...
    def check_connected(self, identity: bytes) -> bool: ...
    def send_to_peer(self, peer: tuple[str, int], frames: list[Buffer]) -> bool: ...
    def peer_problem(self, peer: tuple[str, int]) -> str: ...
    def set_peer_address(self, peer: tuple[str, int], address: str) -> None: ...
