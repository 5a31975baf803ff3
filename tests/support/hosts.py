"""Several hosts on one machine: network namespaces on a switch, with links that can be hurt.

Each host has an address of its own and nothing else: its loopback is not that of others. The
switch is a bridge in a namespace too, so that no firewall of the machine sees what passes it; the
test itself is the host `CLIENTS`. All of it is made with iproute2 alone and is gone with the test;
what a test that was killed left behind goes with the next one.

A direction is cut by a filter where frames of the sender enter the switch. TCP notices as it would
with a broken cable: by silence. Nothing else on the machine is touched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from support.processes import Cluster, Name

ROOT: Final = Path(__file__).parents[2]
CLIENTS: Final = "clients"
SWITCH: Final = "switch"
NETWORK: Final = "198.18"  # set aside for tests of networks (RFC 2544): nobody's
CUT_RANK: Final = 1
Direction = tuple[str, str]  # (from, to)

# Classic BPF: opcodes of the loads and jumps that a filter needs, and what it may answer.
LOAD_HALF, LOAD_WORD, JUMP_IF_EQUAL, ANSWER = 40, 32, 21, 6
PASS, DROP = 0, 2
ETHER_TYPE_AT, IP_TARGET_AT, IP = 12, 30, 0x0800


def ip(*words: str, batch: str | None = None) -> str:
    return _run(["ip", *words], batch)


def _run(command: list[str], given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@cache
def what_is_missing() -> str:
    """Return why this machine can't have several hosts; "" if it can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces: several hosts are not tested"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"{tool} is not installed (Debian: iproute2): several hosts are not tested"
    try:
        with Network(["a", "b"]) as network:
            network.cut([("a", "b")])
            network.slow("b", 1000)
    except OSError as error:
        return f"this kernel has no namespaces, bridges or filters ({error}): no several hosts"
    return ""


def filter_against(targets: Iterable[str]) -> str:
    """Return a BPF program that drops packets to one of these IPv4 addresses."""
    numbers = [int.from_bytes(bytes(map(int, target.split("."))), "big") for target in targets]
    left = len(numbers)
    lines = [
        (LOAD_HALF, 0, 0, ETHER_TYPE_AT),
        (JUMP_IF_EQUAL, 0, left + 1, IP),  # else to PASS, behind all comparisons
        (LOAD_WORD, 0, 0, IP_TARGET_AT),
        *((JUMP_IF_EQUAL, left - at, 0, number) for at, number in enumerate(numbers)),
        (ANSWER, 0, 0, PASS),
        (ANSWER, 0, 0, DROP),
    ]
    return ",".join([str(len(lines)), *(" ".join(map(str, line)) for line in lines)])


class Network:
    """Hosts by name, each with one link to the switch."""

    def __init__(self, hosts: Iterable[str]) -> None:
        _sweep()
        self._mark = f"myq-{os.getpid()}-{SystemRandom().getrandbits(16):04x}"
        self._link = self._mark.replace("myq-", "mq").replace("-", "")[:15]
        self._subnet = _free_subnet()
        self.addresses: dict[str, str] = {CLIENTS: f"{self._subnet}.254"}
        self._ports = {CLIENTS: "p254"}
        self._cuts: set[Direction] = set()
        self._slowed: set[str] = set()
        try:
            self._make_switch()
            for host in hosts:
                self.add(host)
        except BaseException:
            self.close()
            raise

    def _space(self, host: str) -> str:
        return f"{self._mark}-{host}"

    def _make_switch(self) -> None:
        switch = self._space(SWITCH)
        ip("netns", "add", switch)
        ip(
            "-batch",
            "-",
            batch=f"link add {self._link} type veth peer name p254 netns {switch}\n"
            f"addr add {self.addresses[CLIENTS]}/24 dev {self._link}\n"
            f"link set {self._link} up\n",
        )
        ip(
            "-n",
            switch,
            "-batch",
            "-",
            batch="link add bridge type bridge\n"
            "link set bridge up\nlink set p254 master bridge\nlink set p254 up\n",
        )
        self._tc(SWITCH, "qdisc", "add", "dev", "p254", "clsact")

    def add(self, host: str) -> None:
        """Connect one more host to the switch."""
        number = len(self.addresses)
        port = self._ports[host] = f"p{number}"
        self.addresses[host] = f"{self._subnet}.{number}"
        space, switch = self._space(host), self._space(SWITCH)
        ip("netns", "add", space)
        ip(
            "-n",
            switch,
            "-batch",
            "-",
            batch=f"link add {port} type veth peer name eth0 netns {space}\n"
            f"link set {port} master bridge\nlink set {port} up\n",
        )
        ip(
            "-n",
            space,
            "-batch",
            "-",
            batch="link set lo up\n"
            f"addr add {self.addresses[host]}/24 dev eth0\nlink set eth0 up\n",
        )
        self._tc(SWITCH, "qdisc", "add", "dev", port, "clsact")

    def _tc(self, host: str, *words: str) -> None:
        _run(["tc", "-n", self._space(host), *words])

    def within(self, host: str, command: list[str]) -> list[str]:
        """Return the command that runs this one on that host, in the same process."""
        return ["ip", "netns", "exec", self._space(host), *command]

    # -- links -----------------------------------------------------------------------------------

    @property
    def hosts(self) -> list[str]:
        return [host for host in self.addresses if host != CLIENTS]

    def cut(self, directions: Iterable[Direction]) -> None:
        """Drop all packets in this direction; the other direction stays open."""
        self._change(self._cuts | set(directions))

    def heal(self, directions: Iterable[Direction] | None = None) -> None:
        """Open these directions again, or all."""
        self._change(set() if directions is None else self._cuts - set(directions))

    def _change(self, cuts: set[Direction]) -> None:
        changed = {source for source, _ in cuts ^ self._cuts}
        self._cuts = cuts
        for source in sorted(changed):
            targets = sorted(self.addresses[to] for at, to in cuts if at == source)
            where = ("dev", self._ports[source], "ingress", "pref", str(CUT_RANK))
            program = ("handle", "1", "bpf", "da", "bytecode", filter_against(targets))
            self._tc(SWITCH, "filter", "replace", *where, *program)

    def slow(self, host: str, kbit_s: int) -> None:
        """Its link carries so little in each direction; what is more waits up to half a second."""
        shape = ("tbf", "rate", f"{kbit_s}kbit", "burst", "4kb", "latency", "500ms")
        self._tc(SWITCH, "qdisc", "replace", "dev", self._ports[host], "root", *shape)
        self._tc(host, "qdisc", "replace", "dev", "eth0", "root", *shape)
        self._slowed.add(host)

    def speed_up(self, host: str) -> None:
        if host in self._slowed:
            self._slowed.remove(host)
            self._tc(SWITCH, "qdisc", "del", "dev", self._ports[host], "root")
            self._tc(host, "qdisc", "del", "dev", "eth0", "root")

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """A namespace goes with its last process; so end what runs on the hosts before."""
        _remove(self._mark)
        subprocess.run(["ip", "link", "del", self._link], capture_output=True, check=False)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove(mark: str) -> None:
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(f"{mark}-"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _sweep() -> None:
    """Remove namespaces of test processes that have ended."""
    for line in ip("netns", "list").splitlines():
        found = re.match(r"(myq-(\d+)-[0-9a-f]{4})-", line)
        if found and not Path(f"/proc/{found[2]}").exists():
            _remove(found[1])


def _free_subnet() -> str:
    taken = {
        address["local"].rpartition(".")[0]
        for link in json.loads(ip("-json", "addr"))
        for address in link["addr_info"]
        if address["family"] == "inet"
    }
    free = [f"{NETWORK}.{n}" for n in range(256) if f"{NETWORK}.{n}" not in taken]
    return SystemRandom().choice(free)


class Hosts(Cluster):
    """A cluster whose daemons are each on a host of their own, started as on real ones: by
    `bin/myq-manager` and `bin/myq-broker`, with settings in a file.
    """

    def __init__(self, folder: Path, managers: int = 3, brokers: int = 3, **settings: Any) -> None:
        super().__init__(folder, managers, brokers, **settings)
        self.ports = {name: self._doors(name) for name in self.names}
        self.network = Network(map(host_of, self.names))

    @staticmethod
    def _doors(name: Name) -> tuple[int, int]:
        return (9092, 9192) if name[0] == "manager" else (9292, 9392)

    def at(self, name: Name) -> str:
        return self.network.addresses[host_of(name)]

    def command(self, name: Name) -> list[str]:
        file = self.folder / f"{host_of(name)}.toml"
        self.folder.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in self._file(name).items()))
        program = str(ROOT / "bin" / f"myq-{name[0]}")
        return self.network.within(host_of(name), [program, "--config", str(file)])

    def _file(self, name: Name) -> dict[str, Any]:
        client, peer = self.ports[name]
        managers = [one for one in self.names if one[0] == "manager"]
        return {
            "id": name[1],
            "cluster": "test",
            "data": str(self.data(name)),
            "host": host_of(name),
            "listen": f"{self.at(name)}:{client}",
            "peer_listen": f"{self.at(name)}:{peer}",
            "managers": [f"{one[1]}@{self.at(one)}:{self.ports[one][1]}" for one in managers],
            **self.settings,
        }

    def add_broker(self) -> Name:
        name = self.next_broker()
        if host_of(name) not in self.network.addresses:
            self.network.add(host_of(name))
        self.ports[name] = self._doors(name)
        self.names.append(name)
        self.start(name)
        return name

    def close(self) -> None:
        super().close()
        self.network.close()


def host_of(name: Name) -> str:
    return f"{name[0]}-{name[1]}"
