"""The folder of a cluster on one machine: daemons with ports, pids and states, and the lock.

`DIR/node/` belongs to the agent: `cluster.json` (name, ports, and pids and states while it runs),
`lock`, and the daemons' logs (`manager-1.log` …). Each daemon has a folder of its own in `DIR`.
Programs that want to find a running cluster read it here: `myq status`, every command without an
address, and tests of applications.

The lock is a POSIX one because the kernel says which process holds it. So `myq down` ends that
process and never another one that got an old pid. It is released when its holder ends.
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
DAEMONS_DEFAULT = 3  # managers, and brokers, by default
PORT_BASE = 9092
# The n-th daemon of a kind listens for clients on base + offset + n - 1, and for peers 100 above.
# The gateway has one listener, by default on the usual port of a web server.
PORT_OFFSETS = {MANAGER: 0, BROKER: 200, GATEWAY: 8080 - PORT_BASE}
PEER_PORT_OFFSET = 100
DAEMONS_MAX = 100
RANDOM_PORTS = range(12_000, 32_000)
LOOPBACK = "127.0.0.1"

_CLUSTER_FILE = "cluster.json"


@dataclass
class LocalDaemon:
    """One daemon of the cluster. Addresses are host:port; `pid` is None while it does not run.

    A gateway has no peer listener.
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
        """Its URL, as clients use it."""
        return f"{'http' if self.kind == GATEWAY else 'tcp'}://{self.address}"


@dataclass
class LocalCluster:
    """The content of `cluster.json`."""

    cluster: str
    state: str = "stopped"
    pid: int | None = None
    daemons: list[LocalDaemon] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[LocalDaemon]:
        return [daemon for daemon in self.daemons if daemon.kind == kind]

    @property
    def gateway(self) -> str | None:
        """The URL of the gateway; None without one."""
        return next((daemon.url for daemon in self.of_kind(GATEWAY)), None)

    @property
    def address(self) -> str:
        """The address of the cluster, as clients use it."""
        addresses = ",".join(daemon.address for daemon in self.of_kind(MANAGER))
        return f"tcp://{addresses}"


class ClusterFolder:
    """A data directory of `myq up`."""

    def __init__(self, data: str | os.PathLike[str]) -> None:
        self.data = Path(data).absolute()
        self.node = self.data / "node"

    def load(self) -> LocalCluster | None:
        """Read the cluster of this folder; None if there was never one."""
        try:
            fields: dict[str, Any] = json.loads((self.node / _CLUSTER_FILE).read_text("utf-8"))
            daemons = [LocalDaemon(**row) for row in fields.pop("daemons")]
            return LocalCluster(**fields, daemons=daemons)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatUnknown(f"{self.node / _CLUSTER_FILE} is malformed: {error}") from None

    def save(self, cluster: LocalCluster) -> None:
        """Replace `cluster.json`; readers see the old or the new one, also after a crash."""
        raw = (json.dumps(asdict(cluster), indent=1) + "\n").encode()
        with contextlib.closing(RealFiles(str(self.node))) as files:
            new = _CLUSTER_FILE + ".new"
            if new in files.list():
                files.move(new, None)
            files.create(new, len(raw))
            files.write(new, 0, [raw], True)
            files.move(new, _CLUSTER_FILE)
            files.sync(None)

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock. No other code of this process may open the file until it is released."""
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
        """The pid of the process that runs this cluster; None if it does not run."""
        return local_agent.holder(self.node)


def plan_cluster(
    saved: LocalCluster | None,
    managers: int | None,
    brokers: int | None,
    port_base: int | None,
    gateway: bool = False,
) -> LocalCluster:
    """The cluster to start: the saved one, with more brokers or other ports if asked."""
    cluster = saved or LocalCluster(f"local-{secrets.token_hex(4)}")
    counts = {MANAGER: managers, BROKER: brokers}
    for kind, wanted in counts.items():
        has = len(cluster.of_kind(kind))
        counts[kind] = has or DAEMONS_DEFAULT if wanted is None else wanted
        _check_count(kind, has, counts[kind] or 0)
    base = _port_base_of(cluster) if port_base is None else port_base
    # Daemons keep their ports, unless others are asked for.
    old = {daemon.name: daemon for daemon in cluster.daemons if port_base is None}
    rows = []
    for kind, count in (*counts.items(), (GATEWAY, int(gateway))):
        numbers = [daemon.id for daemon in cluster.of_kind(kind)][: count or 0]
        while len(numbers) < (count or 0):
            numbers.append(max(numbers, default=0) + 1)
        for number in numbers:
            known = old.get(f"{kind}-{number}")
            rows.append(
                known or LocalDaemon(kind, number, *_listener_addresses(kind, number, base))
            )
    _choose_ports(rows)
    return LocalCluster(cluster.cluster, daemons=rows)


def plan_next_broker(
    cluster: LocalCluster, key: str = "", taken_numbers: Iterable[int] = ()
) -> LocalDaemon:
    """The next broker of a running cluster, on the next free ports.

    `taken_numbers` are brokers that run elsewhere. `key` identifies the request.
    """
    brokers = cluster.of_kind(BROKER)
    _check_count(BROKER, len(brokers), len(brokers) + 1)
    others = set(taken_numbers)
    number = max((daemon.id for daemon in brokers), default=0) + 1
    while number in others:
        number += 1
    made = LocalDaemon(
        BROKER, number, *_listener_addresses(BROKER, number, _port_base_of(cluster)), key=key
    )
    _choose_ports([*cluster.daemons, made])
    check_ports(LocalCluster(cluster.cluster, daemons=[made]))
    return made


def check_ports(cluster: LocalCluster) -> None:
    """Raise TroubleError if another program has one of the ports."""
    for daemon in cluster.daemons:
        listeners = (("client", daemon.address), ("peer", daemon.peer_address))
        for kind, address in listeners:
            if not address:
                continue
            host, _, port = address.rpartition(":")
            try:
                _bind_listener(host, int(port)).close()
            except OSError as error:
                raise TroubleError(
                    f"port {port}, the {kind} listener of {daemon.name}, can't be used: "
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


def _port_base_of(cluster: LocalCluster) -> int:
    """The first port of a cluster; 0 if its ports were chosen one by one."""
    for daemon in cluster.of_kind(MANAGER)[:1]:
        port = _port(daemon.address)
        return port if _port(daemon.peer_address) - port == PEER_PORT_OFFSET else 0
    return PORT_BASE


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _listener_addresses(kind: str, number: int, base: int) -> tuple[str, str]:
    """The addresses of a new daemon; with base 0 the ports are still to be chosen."""
    if not base:
        return f"{LOOPBACK}:0", "" if kind == GATEWAY else f"{LOOPBACK}:0"
    port = base + PORT_OFFSETS[kind] + number - 1
    if kind == GATEWAY:
        # The base is so low that this is no port: take one far above the peer ports.
        port = port if port > 0 else base + PORT_OFFSETS[BROKER] + 2 * PEER_PORT_OFFSET
        return f"{LOOPBACK}:{port}", ""
    if port < 1 or port + PEER_PORT_OFFSET > 65535:
        raise InvalidSetting(
            f"there is no port {port + PEER_PORT_OFFSET}", hint="Use a lower base."
        )
    return f"{LOOPBACK}:{port}", f"{LOOPBACK}:{port + PEER_PORT_OFFSET}"


def _choose_ports(rows: list[LocalDaemon]) -> None:
    """Choose free ports for listeners without one, outside the range of outgoing connections.

    A port of that range could be in use just while its daemon is restarted.
    """
    addresses = [address for row in rows for address in (row.address, row.peer_address) if address]
    taken = set(map(_port, addresses))

    def chosen(address: str) -> str:
        if not address or _port(address):
            return address
        for _ in range(1000):
            port = RANDOM_PORTS[secrets.randbelow(len(RANDOM_PORTS))]
            if port in taken:
                continue
            with contextlib.suppress(OSError):
                _bind_listener(LOOPBACK, port).close()
                taken.add(port)
                return f"{LOOPBACK}:{port}"
        raise TroubleError("found no free port", hint="Name some: --port-base N.")

    for row in rows:
        row.address, row.peer_address = chosen(row.address), chosen(row.peer_address)


def _bind_listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # As the daemons do: closing connections do not hold a port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Two sockets that only bind may share a port; a second one that listens may not.
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener
