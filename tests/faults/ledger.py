"""What the lives of one `log_program` were promised, and whether the next one finds it.

`Ledger.read` takes the lines of one life in order. Lines that begin with `found` are checked
against what the lives before were promised; `done` is a promise, and `offer` says that a promise
is about to be taken back by its owner (a truncation, a log start), so that either outcome is right
until it is done.
"""

from dataclasses import dataclass, field


@dataclass
class Group:
    """One group's promises."""

    must: dict[int, tuple[str, str]] = field(default_factory=dict)  # index -> term, crc
    # Entries from this index on were replaced by ones of this term or a higher one.
    replaced: list[tuple[int, int]] = field(default_factory=list)
    first_at_least: int = 1
    # Offered in this life: what is acknowledged now may be gone in the next one.
    start_offered: int = 0
    truncates_offered: list[tuple[int, int]] = field(default_factory=list)
    vote: tuple[int, int] = (0, 0)
    votes_offered: list[tuple[int, int]] = field(default_factory=list)
    snapshot: int = 0
    snapshots_offered: list[int] = field(default_factory=list)
    found: list[int] = field(default_factory=list)
    found_to: int = 0

    def take_back(self, first: int, last: int) -> None:
        for index in [one for one in self.must if first <= one <= last]:
            del self.must[index]


class Ledger:
    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.acknowledged = self.lives = self.entries_checked = 0
        self.stores_rebuilt: list[str] = []
        self.stopped = ""

    def group(self, uid: str) -> Group:
        return self.groups.setdefault(int(uid), Group())

    def read(self, lines: list[str]) -> None:
        """The lines of one life. A last line that was cut by the kill is not one."""
        self.stopped = ""
        self.lives += 1
        for group in self.groups.values():
            group.found, group.found_to = [], 0
            group.start_offered, group.truncates_offered = 0, []
        for line in lines:
            verb, _, rest = line.partition(" ")
            if verb == "ready":
                self._all_found()
            elif verb == "stopped":
                self.stopped = rest
            elif verb in ("found", "offer", "done"):
                kind, *words = rest.split(" ")
                getattr(self, f"_{verb}_{kind}")(*words)

    def _all_found(self) -> None:
        for uid, group in self.groups.items():
            missing = [index for index in group.must if index not in set(group.found)]
            assert not missing, f"group {uid}: acknowledged entries {missing[:5]} are missing"
            if group.found:
                whole = list(range(group.found[0], group.found_to + 1))
                assert group.found == whole, f"group {uid}: not in order, or not once"

    # -- found ---------------------------------------------------------------------------------

    def _found_finding(self, verdict: str, *words: str) -> None:
        assert verdict == "torn:", f"a killed process leaves no corruption: {' '.join(words)}"

    def _found_store(self, *words: str) -> None:
        if words != ("ok",):
            self.stores_rebuilt.append(" ".join(words))

    def _found_group(self, uid: str, first: str, last: str) -> None:
        group = self.group(uid)
        assert int(first) >= group.first_at_least, f"group {uid}: the log start went back"
        group.found_to = int(last)

    def _found_entry(self, uid: str, term: str, index: str, crc: str) -> None:
        group, at = self.group(uid), int(index)
        assert crc != "WRONG", f"group {uid}: entry {index} has wrong bytes"
        if at in group.must:
            assert group.must[at] == (term, crc), f"group {uid}: entry {index} is another one"
        for first, least in group.replaced:
            assert at < first or int(term) >= least, f"group {uid}: entry {index} came back"
        group.found.append(at)
        group.must[at] = term, crc  # it was found, so it was synced, so it stays
        self.entries_checked += 1

    def _found_vote(self, uid: str, term: str, vote: str) -> None:
        group, found = self.group(uid), (int(term), int(vote))
        assert found in (group.vote, *group.votes_offered), f"group {uid}: vote {found}"
        group.vote, group.votes_offered = found, []

    def _found_applied(self, uid: str, index: str, state: str) -> None:
        assert index == state, f"group {uid}: state of {state}, applied index {index} (W13)"

    def _found_snapshot(self, uid: str, index: str, verdict: str) -> None:
        assert verdict == "right", f"group {uid}: snapshot at {index} has wrong bytes"
        group = self.group(uid)
        assert int(index) in (group.snapshot, *group.snapshots_offered), f"snapshot at {index}"
        group.snapshot, group.snapshots_offered = int(index), []

    # -- offered and done ----------------------------------------------------------------------

    def _offer_vote(self, uid: str, term: str, vote: str) -> None:
        self.group(uid).votes_offered.append((int(term), int(vote)))

    def _offer_truncate(self, uid: str, index: str, term: str) -> None:
        self.group(uid).take_back(int(index), 2**64)
        self.group(uid).truncates_offered.append((int(index), int(term)))

    def _offer_start(self, uid: str, index: str) -> None:
        self.group(uid).take_back(0, int(index) - 1)
        self.group(uid).start_offered = int(index)

    def _offer_snapshot(self, uid: str, index: str) -> None:
        self.group(uid).snapshots_offered.append(int(index))

    def _promise(self) -> None:
        assert not self.stopped, "acknowledged after the disk had failed"
        self.acknowledged += 1

    def _done_entry(self, uid: str, term: str, index: str, crc: str) -> None:
        self._promise()
        group, at = self.group(uid), int(index)
        truncated = any(at >= i and int(term) < least for i, least in group.truncates_offered)
        if at >= group.start_offered and not truncated:
            group.must[at] = term, crc

    def _done_vote(self, uid: str, term: str, vote: str) -> None:
        self._promise()
        group, done = self.group(uid), (int(term), int(vote))
        group.vote = done
        del group.votes_offered[: group.votes_offered.index(done) + 1]

    def _done_truncate(self, uid: str, index: str, term: str) -> None:
        self._promise()
        self.group(uid).replaced.append((int(index), int(term)))

    def _done_start(self, uid: str, index: str) -> None:
        self._promise()
        group = self.group(uid)
        group.first_at_least = max(group.first_at_least, int(index))

    def _done_snapshot(self, uid: str, index: str) -> None:
        self._promise()
        group = self.group(uid)
        group.snapshot = int(index)
        del group.snapshots_offered[: group.snapshots_offered.index(group.snapshot) + 1]
