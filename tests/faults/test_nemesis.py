"""Real daemons and real clients on several hosts, hurt in every way at hand, and judged.

P4, P12, P13, Q9, K1, K3, K8, W3, W5, W7, W15, W17, R2, R13, C1 to C10: three managers and four
brokers while processes are killed, frozen and restarted, links cut in one direction or both,
disks fill up, fail and slow down, data of one broker are lost or damaged, brokers come and go.
Clients note what they did and saw; when all is healed everything has to be whole again within a
bound, and a checker that knows nothing of the cluster judges the notes.

    bin/test faults -k nemesis --minutes 120 [--seed S]

The history of a run that failed stays in build/, and is judged again by the command that it prints.

A long run that was ended is not lost: `--go-on` with its folder has the whole episodes judged
again, and the cluster hurt for as long as is missing.
"""

from __future__ import annotations

import faulthandler
import shutil
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from faults.check import Report, check, events_of, sum_of
from faults.crowd import Crowd, audit
from faults.history import History
from faults.kinds import DATA, PEOPLE, PROCESSES
from faults.kinds_of_disks import DISKS
from faults.kinds_of_disks import what_is_missing as what_disks_lack
from faults.kinds_of_links import LINKS
from faults.nemesis import Kind, Nemesis
from faults.second_opinion import read_logs, unexplained
from support.hosts import ROOT, Hosts
from support.hosts import what_is_missing as what_hosts_lack
from support.processes import Cluster, Name
from support.telling import tell

from myqueue.cluster.connection import new_keypair
from myqueue.errors import UnknownTopic
from myqueue.wire import keyfiles

PARTITIONS = 6
MINUTES = 1.0  # in a run of everything
FULL_MINUTES = 120.0
GUARD_S = 900.0  # for all that comes after the faults
EPISODE_MIN = 10.0  # then everything is healed and judged, and a new history begins


@pytest.mark.slow
def test_nemesis(
    tmp_path: Path,
    minutes: float | None,
    seed: int | None,
    full: bool,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = request.config.getoption("--go-on") or tmp_path
    before = histories_of(folder)
    if before:
        seed = int(before[0].stem.split("-")[1])
    chosen = int(time.time()) if seed is None else seed
    left = (minutes or (FULL_MINUTES if full else MINUTES)) * 60
    kinds, left_out = kinds_here()
    tell(capsys, f"\nnemesis: {left / 60:g} minutes, --seed {chosen}, {len(kinds)} kinds of faults")
    tell(capsys, *(f"nemesis: LEFT OUT, {lack}" for lack in left_out))
    damaged: defaultdict[Name, set[Path]] = defaultdict(set)
    reports = judged_again(folder, before)
    episode, left = len(reports), left - len(reports) * EPISODE_MIN * 60
    if before:
        tell(capsys, f"{episode} episodes of before were judged again, {left / 60:g} minutes left")
    with a_cluster(folder, chosen, monkeypatch) as cluster:
        while left > 0:
            seconds = min(left, EPISODE_MIN * 60)
            guard(seconds)
            one = Episode(cluster, folder, chosen, episode, kinds, damaged)
            reports.append(one.run(seconds))
            left, episode = left - seconds, episode + 1
            tell(capsys, f"episode {episode}, {left / 60:g} minutes left: {reports[-1].summary}")
        for name in cluster.names:
            assert "Traceback" not in cluster.log(name), cluster.log(name)[-5000:]
    total = sum_of(reports)
    never = sorted({kind.name for kind in kinds} - set(total.faults))
    tell(capsys, "in all:", *total.lines(), *(f"never came: {name}" for name in never))


def histories_of(folder: Path) -> list[Path]:
    """Of a run that ended early, in their order. One that was ended within does not count."""
    found = sorted(folder.glob("nemesis-*.jsonl"), key=lambda one: int(one.stem.split("-")[2]))
    if found and not is_whole(found[-1]):
        found[-1].rename(found[-1].with_suffix(".ended"))
        found.pop()
    return found


def is_whole(history: Path) -> bool:
    with history.open("rb") as file:
        file.seek(max(0, history.stat().st_size - 100))
        return b'"end"' in file.read()


def judged_again(folder: Path, histories: list[Path]) -> list[Report]:
    """By what clients saw; and by all that is in the logs now, against the last history. What was
    damaged is not known any more, so nothing is excused.
    """
    reports = []
    for number, path in enumerate(histories):
        assert path.stem.endswith(f"-{number}") and is_whole(path), f"{path} is not whole"
        reports.append(check(events_of(path)))
        assert not reports[-1].violations, "\n".join(reports[-1].lines())
    is_last = histories and not list(folder.glob("*.ended"))  # its topic is there still
    if is_last:
        topic, scratch = f"t{len(histories) - 1}", folder / "scratch"
        report = read_logs(folder / "cluster", histories[-1], topic, scratch)
        assert report.acks > 0 and not report.findings, "\n".join(map(str, report.findings))
    return reports


def guard(seconds: float) -> None:
    """A test that stands still tells where after a quarter of an hour; here, an episode does."""
    faulthandler.dump_traceback_later(seconds + GUARD_S, file=sys.__stderr__)


def kinds_here() -> tuple[list[Kind], list[str]]:
    """And what is left out, and why: without root there are no hosts (`test_hosts` is skipped)."""
    kinds, left_out = [*PROCESSES, *PEOPLE, *DATA], []
    for lack, more in ((what_hosts_lack(), LINKS), (what_disks_lack(), DISKS)):
        if lack:
            left_out.append(lack)
        else:
            kinds += more
    return kinds, left_out


def a_cluster(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """On hosts with keys or, by every other seed, without; with the brokers that are there."""
    small: dict[str, Any] = {"segment_bytes": 4 << 20, "scrub_bytes_per_s": 32 << 20}
    there = (folder / "cluster").glob("broker-*/identity")
    brokers = sorted(int(one.parent.name.split("-")[1]) for one in there) or [1, 2, 3, 4]
    if what_hosts_lack():
        return with_brokers(brokers, Cluster(folder / "cluster", 3, brokers[-1], **small))
    if seed % 2:
        small |= {"insecure": True}
    else:
        if not (folder / "keys").exists():
            keyfiles.make_cluster(folder / "keys", new_keypair)
            keyfiles.make_client(folder / "keys", "test", folder / "test.key", new_keypair)
        monkeypatch.setenv("MYQ_KEY", str(folder / "test.key"))
        small |= {"keys": str(folder / "keys")}
    return with_brokers(brokers, Hosts(folder / "cluster", 3, brokers[-1], **small))


def with_brokers(numbers: list[int], cluster: Cluster) -> Cluster:
    cluster.names = [one for one in cluster.names if one[0] == "manager" or one[1] in numbers]
    return cluster


class Episode:
    """Faults and clients at once, then peace, then the verdict. The cluster is stopped then."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        seed: int,
        number: int,
        kinds: list[Kind],
        damaged: defaultdict[Name, set[Path]],
    ) -> None:
        self.cluster, self.folder, self.name = cluster, folder, f"nemesis-{seed}-{number}"
        self.topic = f"t{number}"
        random = Random(f"{seed} {number}")
        self.history = History(folder / f"{self.name}.jsonl")
        self.history.note("begin", {"seed": seed, "episode": number})
        if not cluster.processes:
            cluster.start()
            cluster.wait_healthy(60)
        with suppress(UnknownTopic):  # of an episode that was ended
            cluster.admin.delete_topic(self.topic)
        cluster.admin.create_topic(self.topic, partitions=PARTITIONS)
        cluster.wait_healthy()
        if number:  # its space is given back while this one goes on
            with suppress(UnknownTopic):
                cluster.admin.delete_topic(f"t{number - 1}")
        self.crowd = Crowd(cluster, self.history, self.topic, PARTITIONS, random)
        self.nemesis = Nemesis(cluster, self.history, self.topic, PARTITIONS, random, kinds)
        self.nemesis.damaged = damaged

    def run(self, seconds: float) -> Report:
        try:
            self._run(seconds)
        except BaseException as error:
            self.crowd.abandon()
            self._keep(f"{type(error).__name__} ended it")
            raise
        report = self._judge()
        self._ask_for_a_second_opinion()
        return report

    def _run(self, seconds: float) -> None:
        self.crowd.start()
        self.nemesis.run(seconds, self.crowd.check)
        took = self.nemesis.must_be_whole()
        print(f"whole again {took:.1f} s after the last fault; {dict(self.nemesis.done)}")
        self.crowd.stop_writing()
        self.crowd.wait_until_read()
        self.crowd.finish()
        self.cluster.kill(*list(self.cluster.processes))  # all at once
        self.cluster.start()
        self.nemesis.must_be_whole()
        audit(self.cluster, self.history, self.topic)
        self.history.note("end")
        self.history.close()
        self.cluster.stop(*list(self.cluster.processes), within_s=60)

    def _judge(self) -> Report:
        report = check(events_of(self.history.path))
        print("\n".join(report.lines()))
        assert report.counts["acknowledged"] > 0
        if report.violations:
            self._keep("a promise was broken")
            pytest.fail("\n".join(report.lines()), pytrace=False)
        return report

    def _ask_for_a_second_opinion(self) -> None:
        data, scratch = self.cluster.folder, self.folder / "scratch"
        report = read_logs(data, self.history.path, self.topic, scratch)
        looked = f"{report.entries:,} entries and {report.acks:,} acknowledgements"
        print(f"the logs were read: {looked}; findings {dict(report.rules)}")
        found = unexplained(report.findings, self.nemesis.damaged)
        if found:
            self._keep("the logs do not agree")
            pytest.fail("\n".join(map(str, found[:20])), pytrace=False)
        assert report.acks > 0

    def _keep(self, why: str) -> None:
        kept = ROOT / "build" / self.history.path.name
        self.history.flush()
        shutil.copy(self.history.path, kept)
        file = kept.relative_to(ROOT)
        print(
            f"{why}; the history is kept: PYTHONPATH=tests .venv/bin/python -m faults.check {file}"
        )
