"""Brokers come and go under load: added, drained, removed, wiped, dead. Nothing is lost or doubled.

P4, B4, B6, W6, W7: real daemons, idempotent producers that write and consumers that read all the
time. The long version has 60 partitions, and managers and brokers that are killed meanwhile.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from random import Random

import pytest
from support.processes import Cluster, Name, wait_for
from support.spreading import (
    Load,
    brokers,
    count_held_groups,
    drain_and_wait,
    is_at_rest,
    is_even,
    read_status,
)

from myqueue.errors import BrokerInUse, MyQueueError


def replace_disk(cluster: Cluster, name: Name) -> None:
    """Until the managers know it."""
    known = brokers(cluster)[name[1]]["disk"]
    cluster.kill(name)
    cluster.wipe(name)
    cluster.start(name)
    wait_for(
        "the new disk is registered",
        lambda: brokers(cluster).get(name[1], {"disk": known})["disk"] != known,
        60,
    )


def lose_log(cluster: Cluster, name: Name, groups: int) -> None:
    """R2: what is left knows its groups and not how it voted. All are made anew on this disk."""
    cluster.kill(name)
    shutil.rmtree(cluster.data(name) / "wal")
    (cluster.data(name) / "begun").unlink()
    before = len(cluster.log(name))
    cluster.start(name)
    wait_for("its replicas stay out", lambda: "from=start to=" in cluster.log(name)[before:])
    wait_for("all are made anew", lambda: takes_part(cluster, name) == groups, 120)


def takes_part(cluster: Cluster, name: Name) -> int:
    try:
        return int(read_status(cluster, name)["groups_total"])
    except MyQueueError:
        return 0


@pytest.mark.slow
def test_p4_brokers_are_added_drained_removed_and_wiped_under_load(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t", partitions=12)
        cluster.wait_healthy()
        load = Load(cluster, 2, 150.0)
        fourth = cluster.add_broker()
        wait_for("the fourth is known", lambda: 4 in brokers(cluster))
        wait_for("the fourth has its share", lambda: is_even(cluster, 12), 90)
        assert 8 <= count_held_groups(cluster, fourth) <= 10
        with pytest.raises(BrokerInUse, match="broker 2 holds"):
            cluster.admin.remove_broker(2)
        drain_and_wait(cluster, 2, 60)
        assert count_held_groups(cluster, ("broker", 2)) == 0
        cluster.admin.remove_broker(2)
        assert sorted(brokers(cluster)) == [1, 3, 4]
        cluster.stop(("broker", 2))
        victim = cluster.leader_of("t")
        replace_disk(cluster, victim)
        wait_for("it is filled again", lambda: is_at_rest(cluster), 60)
        assert count_held_groups(cluster, victim) == 12
        wait_for("it leads again", lambda: is_even(cluster, 12), 60)
        counted = load.judged()
        print(counted)
        assert counted["failed"] == 0
        cluster.check_alive()
        assert not [name for name in cluster.names if "crashed" in cluster.log(name)]


@pytest.mark.slow
def test_b6_what_a_dead_broker_held_is_made_anew_on_others(tmp_path: Path) -> None:
    with Cluster(tmp_path, managers=1, brokers=4) as cluster:
        cluster.admin.create_topic("t", partitions=8)
        cluster.admin.alter_cluster({"replace_after_ms": 3000})
        cluster.wait_healthy()
        load = Load(cluster, 1, 100.0)
        victim = cluster.leader_of("t")
        cluster.kill(victim)
        wait_for(
            "all is made anew",
            lambda: (
                brokers(cluster)[victim[1]]["replicas"] == 0
                and [one["problem"] for one in cluster.problems() or [{"problem": "?"}]]
                == ["broker-silent"]
            ),
            60,
        )
        assert brokers(cluster)[victim[1]]["state"] == "dead"
        cluster.start(victim)  # with replicas that are members of nothing any more
        wait_for("it is alive", lambda: brokers(cluster)[victim[1]]["alive"])
        wait_for("it has its share again", lambda: is_even(cluster, 8), 60)
        counted = load.judged()
        assert counted["failed"] == 0
        cluster.check_alive()


@pytest.mark.slow
def test_w6_r26_a_restarted_broker_does_not_follow_a_manager_that_lags(tmp_path: Path) -> None:
    """Which would have it make a deleted partition again, under a name that has voted already."""
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t", partitions=3)
        cluster.admin.create_topic("deleted", partitions=3)
        cluster.wait_healthy()
        groups = [row["group"] for row in cluster.admin.describe_topic("deleted")["partitions"]]
        leader = cluster.managers_leader()
        others = [name for name in cluster.names if name[0] == "manager" and name != leader]
        lagging, other = others
        cluster.pause(lagging)
        cluster.admin.delete_topic("deleted")
        removed = "replica-removed"
        wait_for(
            "all have removed it",
            lambda: all(cluster.log(("broker", n)).count(removed) == 3 for n in (1, 2, 3)),
        )
        cluster.kill(("broker", 1), leader, other)
        cluster.resume(lagging)
        before = len(cluster.log(("broker", 1)))
        cluster.start(("broker", 1))
        wait_for("it listens", lambda: " listening " in cluster.log(("broker", 1))[before:])
        time.sleep(3)  # beats, orders and nothing
        assert "replica-made" not in cluster.log(("broker", 1))[before:]
        cluster.start(leader, other)
        cluster.wait_healthy()
        assert count_held_groups(cluster, ("broker", 1)) == 3
        said = cluster.log(("broker", 1))[before:]
        # A removal may be told again: the kill came before it was on the disk.
        assert not any(f"replica-made group={group} " in said for group in groups)


class Chaos(threading.Thread):
    """Kills and starts a manager, and a broker if that one is whole, all the time."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.random = cluster, Random(seed)
        self.stop_asked = threading.Event()
        self.kills = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stop_asked.wait(self.random.uniform(2, 5)):
                kind = self.random.choice(("manager", "broker"))
                running = sorted(self.cluster.running(kind))
                name = self.random.choice(running)
                self.cluster.kill(name)
                time.sleep(self.random.uniform(0.2, 2))
                self.cluster.start(name)
                self.kills += 1
                self.stop_asked.wait(8)
        except Exception as error:
            self.error = error

    def finish(self) -> None:
        self.stop_asked.set()
        self.join(30)
        assert self.error is None, repr(self.error)


@pytest.mark.full
def test_p4_sixty_partitions_while_daemons_are_killed(
    tmp_path: Path, full: bool, seed: int | None
) -> None:
    chosen = int(time.time()) if seed is None else seed
    print(f"brokers come and go: --seed {chosen}")
    with Cluster(tmp_path) as cluster:
        cluster.admin.create_topic("t", partitions=60)
        cluster.wait_healthy(60)
        load = Load(cluster, 3, 150.0)
        for round_ in range(4):
            chaos = Chaos(cluster, chosen + round_)
            chaos.start()
            added = cluster.add_broker()
            wait_for("it is known", lambda at=added[1]: at in brokers(cluster), 60)
            time.sleep(30)
            chaos.finish()
            wait_for("even", lambda: is_even(cluster, 60), 240)
            chaos = Chaos(cluster, chosen + 100 + round_)
            chaos.start()
            cluster.admin.drain_broker(added[1])
            time.sleep(20)
            chaos.finish()
            drain_and_wait(cluster, added[1], 240)
            wait_for("all is well", lambda: is_at_rest(cluster), 120)
            assert count_held_groups(cluster, added) == 0
            cluster.admin.remove_broker(added[1])
            cluster.stop(added)
            cluster.wipe(added)  # else the next one of this number is known as removed
            cluster.names.remove(added)
            victim = ("broker", 1 + round_ % 3)
            if round_ % 2:
                lose_log(cluster, victim, 60)
            else:
                replace_disk(cluster, victim)
            wait_for("filled", lambda: is_at_rest(cluster), 240)
        counted = load.judged()
        print(counted)
        assert counted["failed"] == 0
        cluster.check_alive()
