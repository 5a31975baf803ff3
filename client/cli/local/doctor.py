"""`myq doctor`: check whether this machine can run a cluster; each check says how to fix it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from statistics import median
from typing import NamedTuple

import click

from myqueue.cli import FAILED
from myqueue.cli.shared import options, output
from myqueue.cli.shared.install_hint import install_command
from myqueue.daemons.agent import cluster_folder
from myqueue.daemons.agent.cluster_folder import ClusterFolder
from myqueue.errors import TroubleError
from myqueue.wal.files import RealFiles

GOOD, WARNING, BAD = "ok", "warning", "bad"
SYNC_MS_WARNING, SYNC_MS_BAD = 20.0, 200.0
SYNCS = 20
FREE_BYTES_WARNING = 2 << 30
OPEN_FILES_MIN = 4096
PROCESSES_MIN = 512


class Found(NamedTuple):
    check: str
    verdict: str
    found: str
    mend: str = ""


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    default=options.DATA,
    show_default=True,
    help="Where the data will be stored.",
)
@output.json_option
def doctor(data: str, as_json: bool) -> None:
    """Check Python, packages, ports, clock, disk, limits, Java and browser of this machine.

    The exit code is 1 if a check is bad. A warning is about speed, or about an optional part.
    """
    found = [row for check in CHECKS for row in check(data)]
    bad = any(row.verdict == BAD for row in found)
    if as_json:
        output.write_json(
            "myq.doctor/1", {"ok": not bad, "checks": [row._asdict() for row in found]}
        )
    else:
        output.write_table(["check", "verdict", "found"], [row[:3] for row in found])
        for row in found:
            if row.mend and row.verdict != GOOD:
                click.echo(f"{row.check}: {row.mend}")
    if bad:
        click.get_current_context().exit(FAILED)


def python(data: str) -> Iterator[Found]:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = sys.version_info >= (3, 11)
    yield Found("Python", GOOD if fits else BAD, version, "Install Python 3.11 or newer.")
    for module, extra in (("zmq", ""), ("msgpack", ""), ("lmdb", "server")):
        mend = f"{install_command(extra)} (or use bin/myq, which does so)."
        yield Found(module, *package(module), mend)


def package(module: str) -> tuple[str, str]:
    from importlib import metadata

    name = {"zmq": "pyzmq"}.get(module, module)
    try:
        return GOOD, metadata.version(name)
    except metadata.PackageNotFoundError:
        return BAD, "missing"


def ports(data: str) -> Iterator[Found]:
    folder = ClusterFolder(data)
    if folder.holder():
        yield Found("ports", GOOD, "the cluster of this folder is using them")
        return
    try:
        cluster_folder.check_ports(cluster_folder.plan_cluster(folder.load(), None, None, None))
    except TroubleError as error:
        yield Found("ports", WARNING, str(error), error.hint)
    else:
        yield Found("ports", GOOD, "free")


def clock(data: str) -> Iterator[Found]:
    """Check the wall clock. No guarantee depends on it, but message times do."""
    try:
        done = subprocess.run(
            ["timedatectl", "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
        said = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    mend = "Run a time service (chrony, systemd-timesyncd): stamps of messages depend on it."
    if time.time() < 1_700_000_000:
        yield Found("clock", BAD, "lies before 2023", mend)
    elif said == "no":
        yield Found("clock", WARNING, "not synchronized", mend)
    else:
        yield Found("clock", GOOD, "synchronized" if said == "yes" else "plausible")


def disk(data: str) -> Iterator[Found]:
    """Check room, and how long a small durable write takes, on the data's file system."""
    parent = os.path.abspath(data)
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    free = shutil.disk_usage(parent).free
    verdict = GOOD if free >= FREE_BYTES_WARNING else WARNING
    mend = "A daemon keeps segments of 64 MiB ready and stops taking messages below 256 MiB."
    yield Found("disk space", verdict, f"{output.human_bytes(free)} free in {parent}", mend)
    try:
        times = sync_times_ms(parent)
    except OSError as error:
        yield Found("disk sync", BAD, f"{parent}: {error.strerror}", "Choose another --data.")
        return
    middle, worst = median(times), max(times)
    verdict = GOOD if middle < SYNC_MS_WARNING else WARNING if middle < SYNC_MS_BAD else BAD
    mend = "Every acknowledgement waits for it: use a local SSD, not a network or SD-card disk."
    yield Found("disk sync", verdict, f"median {middle:.2f} ms, worst {worst:.2f} ms", mend)
    kind = file_system(parent)
    if kind in ("tmpfs", "ramfs"):
        yield Found("disk kind", WARNING, kind, "It is memory: nothing survives a power cut.")


def sync_times_ms(parent: str) -> list[float]:
    times = []
    with (
        tempfile.TemporaryDirectory(prefix=".myq-doctor-", dir=parent) as folder,
        closing(RealFiles(folder)) as files,
    ):
        files.create("probe", 1 << 20)
        files.sync("probe")
        for number in range(SYNCS):
            begin = time.perf_counter()
            files.write("probe", number * 4096, [b"x" * 4096], True)
            times.append((time.perf_counter() - begin) * 1000)
    return times


def file_system(path: str) -> str:
    """Return the kind of the file system that holds a path."""
    best, kind = "", "unknown"
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for words in map(str.split, mounts):
                inside = f"{path.rstrip('/')}/".startswith(f"{words[1].rstrip('/')}/")
                if inside and len(words[1]) >= len(best):
                    best, kind = words[1], words[2]
    except OSError:
        pass
    return kind


def limits(data: str) -> Iterator[Found]:
    checks = (
        ("open files", resource.RLIMIT_NOFILE, OPEN_FILES_MIN, "ulimit -n 65536"),
        ("processes", resource.RLIMIT_NPROC, PROCESSES_MIN, "ulimit -u 4096"),
    )
    for name, number, least, command in checks:
        soft, hard = resource.getrlimit(number)
        fits = soft == resource.RLIM_INFINITY or soft >= least
        # A process may raise its own limit up to the hard one, and the daemons do.
        fits = fits or hard == resource.RLIM_INFINITY or hard >= least
        text = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        mend = f"Run '{command}' before the start, or raise it in /etc/security/limits.conf."
        yield Found(name, GOOD if fits else WARNING, text, mend)


def java(data: str) -> Iterator[Found]:
    mend = "Only for 'myq spark': apt install openjdk-17-jre-headless (17 or 21)."
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    try:
        if not program:
            raise FileNotFoundError
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=20, check=False
        )
        said = (done.stderr or done.stdout).splitlines() or ["silent"]
        yield Found("Java", GOOD if done.returncode == 0 else WARNING, said[0], mend)
    except (OSError, subprocess.TimeoutExpired):
        yield Found("Java", WARNING, "missing", mend)


def browser(data: str) -> Iterator[Found]:
    names = ("chromium", "chromium-browser", "google-chrome", "firefox")
    found = next((path for name in names if (path := shutil.which(name))), None)
    mend = "Only for the console's tests: apt install chromium chromium-driver."
    yield Found("browser", GOOD if found else WARNING, found or "missing", mend)


CHECKS: tuple[Callable[[str], Iterator[Found]], ...] = (
    python,
    ports,
    clock,
    disk,
    limits,
    java,
    browser,
)
