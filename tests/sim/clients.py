"""Clients: each sends its commands one after another, and again until one is acknowledged.

An answer may be lost with the leader that owed it; the command may be in the log all the same. So a
repeat goes to whoever leads now, under the same sequence number, and the ledger has to see it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.checkers import check
from sim.machine import encode_command

from myqueue.daemons.raft.types import DATA, Item, RaftError

if TYPE_CHECKING:
    from sim.process import Process
    from sim.world import World

BACKLOG_MAX = 300  # entries that are not committed yet: more, and the leader refuses


class Clients:
    def __init__(self, world: World) -> None:
        self.world = world
        self.count = world.random.choice((1, 2, 4))
        self.pace_ms = max(world.random.choice((5, 20, 100)), self.count * len(world.groups))
        self.retry_ms = world.random.choice((100, 300))
        self.burst = world.random.choice((1, 1, 3, 8))
        # Of the commands are followed by a read, soon or after the next election.
        self.read_share = world.random.choice((0.05, 0.05, 0.5))
        self.next: dict[tuple[int, int], int] = {}  # (group, client) -> sequence not yet acked
        self._context = 0

    def start(self) -> None:
        for group in self.world.groups:
            for client in range(1, self.count + 1):
                self.next[group, client] = 1
                self._send(group, client, 1)

    def _send(self, group: int, client: int, sequence: int) -> None:
        """Propose to a node that thinks it leads; several at once, so that batches form."""
        world = self.world
        if self.next[group, client] != sequence:
            return
        if not world.quiet:  # in peace the operator's probes are enough
            world.after(
                self.retry_ms, self.retry_ms * 2, lambda: self._send(group, client, sequence)
            )
        leaders = [
            process.number
            for process in world.processes()
            if group in process.host.groups and process.host.groups[group].role == 3
        ]
        if not leaders:
            return

        def propose(process: Process) -> None:
            node = process.host.touch(group)
            if node is None or node.log.last_index - node.commit_index > BACKLOG_MAX:
                return
            items = [
                Item(
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

        world.with_process(world.random.choice(leaders), propose)

    def acknowledged(self, group: int, client: int, sequence: int) -> None:
        if self.next.get((group, client)) == sequence:
            self.next[group, client] = sequence + 1
            if self.world.random.random() < self.read_share:
                self.world.after(0, 400, self.read)
            if not self.world.quiet:
                self.world.after(0, self.pace_ms, lambda: self._send(group, client, sequence + 1))

    def probe(self, group: int) -> None:
        """In peace: one more command of each client shows that the group works."""
        for client in range(1, self.count + 1):
            self._send(group, client, self.next[group, client])

    def read(self) -> None:
        """A linearizable read at a node that thinks it leads (R9, R10)."""
        world = self.world
        group = world.random.choice(world.groups)
        processes = [
            process
            for process in world.processes()
            if group in process.host.groups and process.host.groups[group].role == 3
        ]
        if not processes:
            return
        self._context += 1
        context = self._context
        acked = [index for (g, _, _), index in world.checkers.acked.items() if g == group]

        def ask(process: Process) -> None:
            node = process.host.touch(group)
            if node is None or node.role != 3:
                return
            process.reads[context] = (group, max(acked, default=0))
            node.read(context, process.now, process.host.out)
            process.turn()

        world.with_process(world.random.choice(processes).number, ask)

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
