"""A cluster on one machine, as its folder tells it: what belongs to it, who runs, who may say so.

`DIR/node/` is the agent's: `cluster.json` (name, ports, and while it runs the pids and states),
`lock`, and what the daemons said (`manager-1.log` …). Beside it is a folder for each daemon.
All who want to find a running cluster read it here: `myq status`, every command without an
address, and tests of applications.

The lock is a POSIX one because the kernel tells who holds it, so `myq down` ends that process and
never another one that got an old pid; and because it is gone with its holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from myqueue.admin import local_agent
from myqueue.errors import DirectoryLocked, FormatUnknown, InvalidSetting, TroubleError
from myqueue.wal.files import RealFiles

MANAGER, BROKER, GATEWAY = "manager", "broker", "gateway"
COUNT = 3  # of managers and of brokers, where nothing else is said
PORT_BASE = 9092
# The n-th daemon of a kind has this door: base + first of the kind + n - 1; peers' doors + 100.
# The gateway has one door, and its usual port is that of a web server.
FIRST_PORT = {MANAGER: 0, BROKER: 200, GATEWAY: 8080 - PORT_BASE}
PEERS_PORT = 100
DAEMONS_MAX = 100
CHOSEN_PORTS = range(12_000, 32_000)
LOOPBACK = "127.0.0.1"

_FILE = "cluster.json"


@dataclass
class Daemon:
    """One daemon of the cluster. Addresses are host:port; `pid` is None while it does not run. A
    gateway has no door for peers.
    """

    kind: str
    id: int
    address: str
    peer_address: str
    state: str = "stopped"
    pid: int | None = None
    restarts: int = 0
    key: str = ""  # of the request that asked for it, in hex

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.id}"

    @property
    def url(self) -> str:
        """How clients name it."""
        return f"{'http' if self.kind == GATEWAY else 'tcp'}://{self.address}"


@dataclass
class Cluster:
    """What `cluster.json` holds."""

    cluster: str
    state: str = "stopped"
    pid: int | None = None
    daemons: list[Daemon] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[Daemon]:
        return [daemon for daemon in self.daemons if daemon.kind == kind]

    @property
    def gateway(self) -> str | None:
        """Where HTTP is spoken."""
        return next((daemon.url for daemon in self.of_kind(GATEWAY)), None)

    @property
    def address(self) -> str:
        """How clients name the cluster."""
        doors = ",".join(daemon.address for daemon in self.of_kind(MANAGER))
        return f"tcp://{doors}"


class Folder:
    """A data directory of `myq up`."""

    def __init__(self, data: str | os.PathLike[str]) -> None:
        self.data = Path(data).absolute()
        self.node = self.data / "node"

    def load(self) -> Cluster | None:
        """The cluster that lives here; None if none ever did."""
        try:
            fields: dict[str, Any] = json.loads((self.node / _FILE).read_text("utf-8"))
            daemons = [Daemon(**row) for row in fields.pop("daemons")]
            return Cluster(**fields, daemons=daemons)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatUnknown(f"{self.node / _FILE} is not what it should be: {error}") from None

    def save(self, cluster: Cluster) -> None:
        """Replace the file; whoever reads sees the old one or the new one, after a crash too."""
        raw = (json.dumps(asdict(cluster), indent=1) + "\n").encode()
        with contextlib.closing(RealFiles(str(self.node))) as files:
            new = _FILE + ".new"
            if new in files.list():
                files.move(new, None)
            files.create(new, len(raw))
            files.write(new, 0, [raw], True)
            files.move(new, _FILE)
            files.sync(None)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Nobody else in this process may open the file meanwhile."""
        self.node.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.node / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DirectoryLocked(
                    f"a cluster is already running on {self.data} (pid {self.holder()})",
                    hint="Use it ('myq status'), stop it ('myq down'), or give another --data.",
                ) from None
            yield
        finally:
            os.close(fd)

    def holder(self) -> int | None:
        """The process that runs this cluster now."""
        return local_agent.holder(self.node)


def plan(
    found: Cluster | None, managers: int | None, brokers: int | None, port_base: int | None,
    gateway: bool = False,
) -> Cluster:  # fmt: skip
    """The cluster to start: the one that was found, with more brokers or other ports if asked."""
    cluster = found or Cluster(f"local-{secrets.token_hex(4)}")
    counts = {MANAGER: managers, BROKER: brokers}
    for kind, wanted in counts.items():
        has = len(cluster.of_kind(kind))
        counts[kind] = has or COUNT if wanted is None else wanted
        _check_count(kind, has, counts[kind] or 0)
    base = _base_of(cluster) if port_base is None else port_base
    # Daemons keep their doors, unless others are asked for.
    old = {daemon.name: daemon for daemon in cluster.daemons if port_base is None}
    rows = []
    for kind, count in (*counts.items(), (GATEWAY, int(gateway))):
        numbers = [daemon.id for daemon in cluster.of_kind(kind)][: count or 0]
        while len(numbers) < (count or 0):
            numbers.append(max(numbers, default=0) + 1)
        for number in numbers:
            known = old.get(f"{kind}-{number}")
            rows.append(known or Daemon(kind, number, *_doors(kind, number, base)))
    _choose_ports(rows)
    return Cluster(cluster.cluster, daemons=rows)


def one_more_broker(cluster: Cluster, key: str = "", taken: Iterable[int] = ()) -> Daemon:
    """The next broker of a running cluster, its doors behind those of the others. `taken` are
    numbers of brokers that run elsewhere.
    """
    brokers = cluster.of_kind(BROKER)
    _check_count(BROKER, len(brokers), len(brokers) + 1)
    others = set(taken)
    number = max((daemon.id for daemon in brokers), default=0) + 1
    while number in others:
        number += 1
    made = Daemon(BROKER, number, *_doors(BROKER, number, _base_of(cluster)), key=key)
    _choose_ports([*cluster.daemons, made])
    check_ports(Cluster(cluster.cluster, daemons=[made]))
    return made


def check_ports(cluster: Cluster) -> None:
    """Refuse to begin while another program has one of the ports."""
    for daemon in cluster.daemons:
        doors = (("clients", daemon.address), ("peers", daemon.peer_address))
        for who, address in doors:
            if not address:
                continue
            host, _, port = address.rpartition(":")
            try:
                _bound(host, int(port)).close()
            except OSError as error:
                raise TroubleError(
                    f"port {port}, the {who}' door of {daemon.name}, can't be used: "
                    f"{error.strerror}",
                    hint=f"Stop what uses it (ss -ltnp 'sport = :{port}'), or take others: "
                    "--port-base N (0: any that are free).",
                ) from None


def _check_count(kind: str, has: int, wanted: int) -> None:
    if not 1 <= wanted <= DAEMONS_MAX:
        raise InvalidSetting(
            f"{wanted} {kind}s are not possible", hint=f"Ask for 1 to {DAEMONS_MAX}."
        )
    if kind == MANAGER and has and wanted != has:
        raise InvalidSetting(
            f"this data has {has} managers; their group is fixed when it is founded",
            hint="Leave --managers out, or begin with another --data.",
        )
    if wanted < has:
        raise InvalidSetting(
            f"this data has {has} brokers; with {wanted} of them, replicas would be missing",
            hint="Leave --brokers out, or ask for more.",
        )


def _base_of(cluster: Cluster) -> int:
    """Where the ports of a cluster begin; 0 if they were chosen one by one."""
    for daemon in cluster.of_kind(MANAGER)[:1]:
        port = _port(daemon.address)
        return port if _port(daemon.peer_address) - port == PEERS_PORT else 0
    return PORT_BASE


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _doors(kind: str, number: int, base: int) -> tuple[str, str]:
    """The addresses of a new daemon; with base 0 they are still to be chosen."""
    if not base:
        return f"{LOOPBACK}:0", "" if kind == GATEWAY else f"{LOOPBACK}:0"
    port = base + FIRST_PORT[kind] + number - 1
    if kind == GATEWAY:
        # With a base so low that this is no port, far behind the peers' doors.
        port = port if port > 0 else base + FIRST_PORT[BROKER] + 2 * PEERS_PORT
        return f"{LOOPBACK}:{port}", ""
    if port < 1 or port + PEERS_PORT > 65535:
        raise InvalidSetting(f"there is no port {port + PEERS_PORT}", hint="Use a lower base.")
    return f"{LOOPBACK}:{port}", f"{LOOPBACK}:{port + PEERS_PORT}"


def _choose_ports(rows: list[Daemon]) -> None:
    """Free ports for the doors that have none, apart from those that connections get by chance:
    one of these could be in use just while its daemon is started again.
    """
    doors = [address for row in rows for address in (row.address, row.peer_address) if address]
    taken = set(map(_port, doors))

    def chosen(address: str) -> str:
        if not address or _port(address):
            return address
        for _ in range(1000):
            port = CHOSEN_PORTS[secrets.randbelow(len(CHOSEN_PORTS))]
            if port in taken:
                continue
            with contextlib.suppress(OSError):
                _bound(LOOPBACK, port).close()
                taken.add(port)
                return f"{LOOPBACK}:{port}"
        raise TroubleError("found no free port", hint="Name some: --port-base N.")

    for row in rows:
        row.address, row.peer_address = chosen(row.address), chosen(row.peer_address)


def _bound(host: str, port: int) -> socket.socket:
    door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # As the daemons will do: connections that are dying do not hold a port.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((host, port))
        # Two that only bind may share a port; the second that listens may not.
        door.listen(1)
    except OSError:
        door.close()
        raise
    return door
