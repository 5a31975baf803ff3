"""The language of the golden scripts.

A script is prose (`#`), commands (`>`) and, below each command, all that the cluster said. Nodes
are numbers; a replica's second incarnation on a node is `2'2`. `at` stands for a node.

    cluster 3 [+2] [key=n]    three voters, two learners behind them; settings
    elect 1                   the election timeout of 1 comes; all is delivered
    timeout 1                 the same, but nothing is delivered
    propose 1 x y             one proposal after the other, in one turn
    read 1 5 [6...]           linearizable reads with these contexts
    transfer 1 2              1 hands over to 2
    change 1 1 2 3 +4         1 proposes these voters and learners
    join 4                    an empty process starts; `join 2'2`: another incarnation
    deliver [1->2] [n]        messages of a link (the first n), or one round of all
    settle                    deliver until nothing moves
    drop 1->2 [n]             lose them
    copy 1->2                 the network will deliver them twice
    hold 1->2 / release       the network keeps them, and later has them again
    cut 1 2 / cut 1->2        no messages and no beats; `heal` mends all; `isolate 1`
    slow 1 / persist 1 [n]    its disk syncs only when told to; sync (the first n writes)
    crash 1 / restart 1       what was not synced is lost
    damage 2 4                the entries of a crashed node from 4 on can't be read
    tick 600 [1]              time passes, for all or for one node alone
    stall 1 / unstall 1       its disk hangs: it may not lead, and stops leading
    retain 1 5                the log of 1 begins at 5 from now on
    hold-snapshots / snapshots   they take their time / are made now
    beats on                  from now on beats are printed as well
    status                    where each replica stands
    state                     what each state machine holds

`quiet COMMAND` says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from raft import wording
from raft.cluster import Cluster

from myqueue.daemons.raft.types import Config, InvariantBroken, RaftError, RaftSettings, replica_id

# Commands that make replicas act: that they said nothing is worth a line.
LOUD = {
    *("deliver", "elect", "persist", "propose", "read", "restart", "settle", "tick", "timeout"),
    "transfer",
}


class ScriptError(Exception):
    """The script itself is wrong."""


def parse_replica(word: str) -> int:
    node, _, incarnation = word.lstrip("+").partition("'")
    return replica_id(int(node), int(incarnation or 1))


def parse_link(word: str) -> tuple[int, int]:
    source, arrow, target = word.partition("->")
    if not arrow:
        raise ScriptError(f"{word!r} is no link like 1->2")
    return int(source), int(target)


class Script:
    """Runs commands; `lines` is what was said since the last one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            raise ScriptError("a script begins with: cluster 3")
        return self._cluster

    def run(self, command: str) -> list[str]:
        words = command.split()
        quiet = words[0] == "quiet"
        verb, *args = words[1:] if quiet else words
        handler: Callable[..., None] | None = getattr(self, f"do_{verb.replace('-', '_')}", None)
        if handler is None:
            raise ScriptError(f"no command {verb!r}")
        self.lines = []
        try:
            handler(*args)
        except RaftError as error:
            self.lines.append(f"refused: {error}")
        except InvariantBroken as error:
            self.lines.append(f"BROKEN: {error}")
        if quiet or (verb not in LOUD and not self.lines):
            return []
        return self.lines or ["nothing"]

    # -- the cluster ---------------------------------------------------------------------------

    def do_cluster(self, voters: str, learners: str = "+0", *pairs: str) -> None:
        count = int(voters)
        others = range(count + 1, count + 1 + int(learners))
        changed = {key: int(value) for key, value in (pair.split("=") for pair in pairs)}
        settings = RaftSettings(**changed)
        self._cluster = Cluster(range(1, count + 1), others, settings=settings)
        self._cluster.say = lambda line: self.lines.append(line)

    def do_elect(self, at: str) -> None:
        self.cluster.elect(int(at))

    def do_timeout(self, at: str) -> None:
        self.cluster.timeout(int(at))

    def do_propose(self, at: str, *payloads: str) -> None:
        self.cluster.propose(int(at), *payloads)

    def do_read(self, at: str, *contexts: str) -> None:
        cluster, number = self.cluster, int(at)
        for context in contexts:
            cluster.touched(number).read(int(context), cluster.now, cluster.out(number))
        cluster.turn(number)

    def do_transfer(self, at: str, to: str) -> None:
        cluster, number = self.cluster, int(at)
        cluster.touched(number).transfer(parse_replica(to), cluster.now, cluster.out(number))
        cluster.turn(number)

    def do_change(self, at: str, *words: str) -> None:
        config = Config(
            tuple(parse_replica(word) for word in words if word[0] != "+"),
            tuple(parse_replica(word) for word in words if word[0] == "+"),
        )
        self.cluster.touched(int(at)).change(config, self.cluster.now)
        self.cluster.turn(int(at))

    def do_join(self, word: str) -> None:
        node, _, incarnation = word.partition("'")
        self.cluster.join(int(node), int(incarnation or 1))

    # -- the network ---------------------------------------------------------------------------

    def do_deliver(self, link: str = "", count: str = "") -> None:
        if not link:
            self.cluster.deliver_all()
        elif not self.cluster.deliver(*parse_link(link), int(count) if count else None):
            raise ScriptError(f"nothing on {link}")

    def do_settle(self) -> None:
        self.cluster.settle()

    def do_drop(self, link: str, count: str = "") -> None:
        queue = self.cluster.links.get(parse_link(link), [])
        if not queue:
            raise ScriptError(f"nothing on {link}")
        del queue[: int(count) if count else len(queue)]

    def do_copy(self, link: str) -> None:
        self.cluster.held += self.cluster.links[parse_link(link)]

    def do_hold(self, link: str) -> None:
        self.cluster.held += self.cluster.links.pop(parse_link(link))

    def do_release(self) -> None:
        for message in self.cluster.held:
            link = message.source >> 32, message.target >> 32
            self.cluster.links.setdefault(link, []).append(message)
        self.cluster.held = []

    def do_cut(self, link: str, other: str = "") -> None:
        if other:
            self.cluster.cut |= {(int(link), int(other)), (int(other), int(link))}
        else:
            self.cluster.cut.add(parse_link(link))

    def do_isolate(self, at: str) -> None:
        self.cluster.isolate(int(at))

    def do_heal(self) -> None:
        self.cluster.cut.clear()

    # -- disks, processes, time ----------------------------------------------------------------

    def do_slow(self, at: str) -> None:
        self.cluster.slow.add(int(at))

    def do_persist(self, at: str, count: str = "") -> None:
        self.cluster.sync(int(at), int(count) if count else None)
        self.cluster.turn(int(at))

    def do_crash(self, at: str) -> None:
        self.cluster.crash(int(at))

    def do_restart(self, at: str) -> None:
        self.cluster.start(int(at))

    def do_damage(self, at: str, index: str) -> None:
        self.cluster.disks[int(at)].lose_entries(int(index))

    def do_tick(self, duration_ms: str, only: str = "") -> None:
        self.cluster.elapse(int(duration_ms), int(only) if only else None)

    def do_stall(self, at: str) -> None:
        node = self.cluster.touched(int(at))
        node.may_lead = False
        node.step_down(self.cluster.now, self.cluster.out(int(at)))
        self.cluster.turn(int(at))

    def do_unstall(self, at: str) -> None:
        self.cluster.touched(int(at)).may_lead = True

    def do_retain(self, at: str, index: str) -> None:
        self.cluster.start_log_at(int(at), int(index))

    def do_hold_snapshots(self) -> None:
        self.cluster.held_snapshots = True

    def do_snapshots(self) -> None:
        self.cluster.held_snapshots = False
        wanted, self.cluster.wanted = self.cluster.wanted, []
        for number, follower in wanted:
            self.cluster.make_snapshot(number, follower)
            self.cluster.turn(number)

    # -- looking -------------------------------------------------------------------------------

    def do_beats(self, switch: str) -> None:
        self.cluster.say_beats = switch == "on"

    def do_status(self) -> None:
        for number, _ in sorted(self.cluster.hosts.items()):
            self.lines.append(wording.status(self.cluster.node(number)))

    def do_state(self) -> None:
        for number, disk in sorted(self.cluster.disks.items()):
            self.lines.append(f"{number}: {' '.join(disk.state) or 'empty'}")


def play(path: Path) -> str:
    """The script with all that is said now."""
    script, lines = Script(), list[str]()
    for line in path.read_text().splitlines():
        if line.startswith(">"):
            lines.append(line)
            lines += [f"  {said}" for said in script.run(line[1:].strip()) if said]
        elif line.startswith("#") or not line.strip():
            lines.append(line)
    return "\n".join(lines) + "\n"
