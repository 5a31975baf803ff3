"""Clients: each sends its commands one after another, and again until one is acknowledged.

An answer may be lost with the leader that owed it; the command may be in the log all the same. So a
repeat goes to whoever leads now, under the same sequence number, and the ledger has to see it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.checkers import check
from sim.machine import encode_command

from myqueue.daemons.raft.types import DATA, Proposal, RaftError, Role

if TYPE_CHECKING:
    from sim.process import Process
    from sim.world import World

BACKLOG_MAX = 300  # entries that are not committed yet: more, and the leader refuses


class Clients:
    def __init__(self, world: World) -> None:
        self.world = world
        self.count = world.random.choice((1, 2, 4))
        pace_ms = world.random.choice((5, 20, 100))
        self.retry_ms = world.random.choice((100, 300))
        self.burst = world.random.choice((1, 1, 3, 8))
        # An entry a millisecond at most, of all together; fewer, if each travels alone. Of more
        # the queues are as long, and a few seeds cost as much as all others.
        entries = self.count * len(world.groups) * self.burst
        self.pace_ms = max(
            pace_ms, entries if world.settings.append_entries_max > 1 else 3 * entries
        )
        # Of the commands are followed by a read, soon or after the next election.
        self.read_share = world.random.choice((0.05, 0.05, 0.5))
        # Somebody may read all the time, in peace as well: the rest has to go on beside it.
        often = (30, 60, 200) if world.nemesis.profile == "readers" else (0, 0, 60, 200)
        self.steady_ms = world.random.choice(often)
        # Or nobody writes any more in peace: what was lost before has to come all the same.
        self.goes_silent = world.random.random() < 0.3
        self.next: dict[tuple[int, int], int] = {}  # (group, client) -> sequence not yet acked
        self._asked: dict[tuple[int, int], int] = {}  # (group, client) -> node, the last time
        self._context = 0
        self._rests = (0, 0)  # from when until when nobody writes

    def start(self) -> None:
        for group in self.world.groups:
            for client in range(1, self.count + 1):
                self.next[group, client] = 1
                self._send(group, client, 1)
            if self.steady_ms:
                self._keep_reading(group)

    def _send(self, group: int, client: int, sequence: int) -> None:
        """Propose to a node that thinks it leads; several at once, so that batches form."""
        world = self.world
        if self.next[group, client] != sequence:
            return
        if not world.quiet:  # in peace the operator's probes are enough
            world.after(
                self.retry_ms, self.retry_ms * 2, lambda: self._send(group, client, sequence)
            )
            if self._rests[0] <= world.now_ms < self._rests[1]:
                return
        # Who did not answer is not asked again, if there is another one.
        leaders = self._leaders(group)
        silent = self._asked.pop((group, client), 0) if len(leaders) > 1 else 0
        leaders = [number for number in leaders if number != silent]
        if not leaders:
            return
        number = self._asked[group, client] = world.random.choice(leaders)

        def propose(process: Process) -> None:
            node = process.host.touch(group)
            if node is None or node.log.last_index - node.commit_index > BACKLOG_MAX:
                return
            items = [
                Proposal(
                    1,
                    world.now_ms,
                    DATA,
                    encode_command(client, sequence, world.random.randrange(80)),
                )
                for _ in range(1 if world.quiet else self.burst)
            ]
            try:
                first, term = node.propose(items)
            except RaftError:
                return
            for index in range(first, first + len(items)):
                process.waiting[group, index] = term
            process.turn()

        world.with_process(number, propose)

    def rest(self, low_ms: int, high_ms: int) -> None:
        """Nobody writes between these times from now."""
        self._rests = self.world.now_ms + low_ms, self.world.now_ms + high_ms

    def _leaders(self, group: int) -> list[int]:
        """The nodes that think they lead this group."""
        return [
            process.number
            for process in self.world.processes()
            if group in process.host.groups and process.host.groups[group].role == Role.LEADER
        ]

    def acknowledged(self, group: int, client: int, sequence: int) -> None:
        if self.next.get((group, client)) == sequence:
            self.next[group, client] = sequence + 1
            self._asked.pop((group, client), None)
            if self.world.random.random() < self.read_share:
                self.world.after(0, 400, self.read)
            if len(self._leaders(group)) > 1:  # one of them is wrong, and may not know it
                self.world.after(0, 30, lambda: self.read(group))
            if not self.world.quiet:
                self.world.after(0, self.pace_ms, lambda: self._send(group, client, sequence + 1))

    def probe(self, group: int) -> None:
        """In peace: one more command of each client shows that the group works."""
        if self.goes_silent:
            return
        for client in range(1, self.count + 1):
            self._send(group, client, self.next[group, client])

    def _keep_reading(self, group: int) -> None:
        self.read(group)
        low, high = self.steady_ms // 2, self.steady_ms * 3 // 2
        self.world.after(low, high, lambda: self._keep_reading(group))

    def read(self, group: int = 0) -> None:
        """A linearizable read at each node that thinks it leads (R9, R10)."""
        world = self.world
        group = group or world.random.choice(world.groups)
        for number in self._leaders(group):
            self._read_at(number, group)

    def _read_at(self, number: int, group: int) -> None:
        self._context += 1
        context, world = self._context, self.world
        acked = world.checkers.newest.get(group, 0)

        def ask(process: Process) -> None:
            node = process.host.touch(group)
            if node is None or node.role != Role.LEADER:
                return
            process.reads[context] = (group, acked)
            node.read(context, process.now, process.host.out)
            process.turn()

        world.with_process(number, ask)

    def verify(self) -> None:
        """Every acknowledged command is in every ledger, once (the ledgers count by themselves)."""
        for process in self.world.processes():
            for group, ledger in process.ledgers.items():
                found = self.world.leader(group)
                node = process.host.groups[group]
                if found is None or node.replica not in found[1].voters:
                    continue  # taken out of the group, and not told yet
                for (acked_group, client, sequence), index in self.world.checkers.acked.items():
                    if acked_group == group:
                        check(
                            ledger.last.get(client, 0) >= sequence,
                            f"command {sequence} of client {client}, acknowledged at {index} of "
                            f"group {group}, is lost on node {process.number}",
                        )
                check(
                    ledger.count == sum(ledger.last.values()),
                    f"group {group}: a command was applied twice or skipped",
                )
