"""The composition root: `myq-manager` and `myq-broker` begin and end here.

It starts in this order: settings ▶ process ▶ log (folder, identity, recovery) ▶ listeners ▶ engine
and owner ▶ raft groups ▶ loop. Listeners are bound before groups are opened, so that an address in
use is reported at once; no message is read before all is recovered.

Exit codes: 0 after SIGTERM or SIGINT (leadership is transferred, the log is closed); 1 with one
line when it can't start; 2 when its settings are wrong; 4 when the disk failed; 5 when an invariant
is broken outside of any raft group (a broken group is closed alone, see
`daemons/replication/close_group.py`). Nothing handles the last two: a daemon that can't trust its
disk or its log must not go on.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from random import Random, SystemRandom
from threading import Event
from typing import Any, Final

import click

from myqueue import __version__
from myqueue.daemons.broker.broker import Broker
from myqueue.daemons.clock import RealClock
from myqueue.daemons.config import SETTINGS, DaemonConfig, load_config
from myqueue.daemons.event_log import EventLog
from myqueue.daemons.interfaces import Owner
from myqueue.daemons.manager.manager import Manager
from myqueue.daemons.network.flood_limit import FloodGuard
from myqueue.daemons.network.loop import Loop
from myqueue.daemons.network.sockets import Transport
from myqueue.daemons.raft.types import InvariantBroken, RaftSettings
from myqueue.daemons.replication.engine import Engine
from myqueue.errors import DiskFull, InvalidSetting, JournalStopped, MyQueueError
from myqueue.wal.config import JournalConfig
from myqueue.wal.log import Log
from myqueue.wal.process_tuning import allow_open_files, tune_process
from myqueue.wire import protocol
from myqueue.wire.keyfiles import DoorKeys

EXIT_WRONG_USAGE, EXIT_DISK_FAILED, EXIT_INVARIANT_BROKEN = 2, 4, 5
OPEN_FILES: Final = 65_536  # mostly connections of clients
ROOM_TRY_S: Final = 1.0
ROOM_TOLD_TRIES: Final = 30


class DaemonProcess:
    """One daemon process: open its log, serve, close."""

    def __init__(self, config: DaemonConfig) -> None:
        self.config = config
        self.clock = RealClock()
        self.log_event = EventLog(f"{config.kind}-{config.id}", config.log, self.clock)
        self._stop = Event()

    def run(self) -> None:
        tune_process()
        allow_open_files(OPEN_FILES)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        random = SystemRandom()
        log = self._open_log(random)
        if log is None:
            return
        try:
            self._serve(log, random)
        finally:
            closed = log.close()
            self.log_event("info", "stopped", log="closed" if closed else "the disk took too long")

    def _open_log(self, random: Random) -> Log | None:
        """Open and recover the log; None: a signal came first.

        While the disk is full this waits: a daemon that ended would not be there later.
        """
        config = self.config
        journal = JournalConfig(
            segment_bytes=config.segment_bytes, soft_limit_bytes=config.soft_limit_bytes
        )
        owner = (config.cluster, f"{config.kind}-{config.id}", config.kind)
        for tries in itertools.count():
            try:
                return Log(config.data, owner, journal, self.clock.wall_ms, random)
            except DiskFull as error:
                if tries % ROOM_TOLD_TRIES == 0:
                    self.log_event("error", "waits-for-room", error=str(error), do=error.hint)
            if self._stop.wait(ROOM_TRY_S):
                break
        self.log_event("info", "stopped", log="not opened")
        return None

    def _serve(self, log: Log, random: Random) -> None:
        config = self.config
        incarnation = random.getrandbits(62) | 1
        greeting = protocol.encode(
            protocol.GREET,
            0,
            config.cluster,
            config.kind,
            config.id,
            log.identity.disk,
            incarnation,
            config.peer_advertise,
            __version__,
        )
        owner = make_owner(config, self.log_event)
        engine: Engine | None = None
        keys = DoorKeys(config.keys) if config.keys else None
        transport = Transport(
            config.listen, config.peer_listen, greeting, keys, now=self.clock.now_ms()
        )
        try:
            settings = RaftSettings(
                heartbeat_ms=config.heartbeat_ms,
                election_timeout_ms_min=config.election_timeout_ms,
                election_timeout_ms_max=2 * config.election_timeout_ms,
            )
            engine = Engine(
                config.kind,
                config.id,
                incarnation,
                log,
                settings,
                self.clock,
                Random(random.getrandbits(128)),  # of election timeouts; a system call each is slow
                transport,
                owner,
            )
            transport.counts, engine.report = engine.counts, self.log_event
            if config.waiting_bytes:
                transport.floods = FloodGuard(config.waiting_bytes)
            engine.scrub_bytes_per_s = config.scrub_bytes_per_s
            engine.fill_bytes_per_s = config.fill_bytes_per_s
            for node, address in config.managers:
                if (config.kind, config.id) != ("manager", node):
                    transport.set_peer_address(("manager", node), address)
            engine.open_groups()
            self._log_start(log, engine)
            loop = Loop(engine, owner, transport, config.cluster, self.log_event)
            loop.run(self._stop.is_set, config.stop_within_ms)
        finally:
            if engine is not None:
                engine.close()
            transport.close()

    def _log_start(self, log: Log, engine: Engine) -> None:
        recovered = log.journal.recovered
        if log.store_problem:
            self.log_event("warning", "store-rebuilt", why=log.store_problem)
        for finding in recovered.findings:
            self.log_event("warning", "recovery-finding", finding=str(finding))
        # A broker logs "ready" after it has joined (`daemons/broker/manager_answers.py`).
        event = "ready" if self.config.kind == "manager" else "listening"
        self.log_event(
            "info",
            event,
            listen=self.config.listen,
            peers=self.config.peer_listen,
            data=self.config.data,
            groups=len(engine.replicas),
            version=__version__,
            pid=os.getpid(),
        )

    def _on_signal(self, _number: int, _frame: Any) -> None:
        self._stop.set()


def make_owner(config: DaemonConfig, log_event: Callable[..., None]) -> Owner:
    if config.kind == "manager":
        return Manager(config, log_event)
    return Broker(config, log_event)


# The metavar of a flag, by the unit of its setting.
_METAVARS = {
    "": "TEXT",
    "path": "DIR",
    "host:port": "HOST:PORT",
    "text, json": "[text|json]",
    "ms": "MS",
    "bytes": "BYTES",
    "entries": "NUMBER",
}


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for setting in reversed(SETTINGS):
        flag, default = "--" + setting.name.replace("_", "-"), setting.default
        shown = "" if default in ("", ()) else f"  [default: {default}]"
        if default is False:
            option = click.option(flag, is_flag=True, default=None, help=setting.meaning)
        elif setting.name == "managers":
            help_text = f"{setting.meaning} Repeat for each manager.  [required]"
            option = click.option(flag, multiple=True, metavar="ID@HOST:PORT", help=help_text)
        else:
            help_text = setting.meaning + ("  [required]" if default is None else shown)
            metavar = "NUMBER" if setting.name == "id" else _METAVARS[setting.unit]
            option = click.option(flag, metavar=metavar, help=help_text)
        function = option(function)
    return click.option(
        "--config",
        "file",
        metavar="FILE.toml",
        help="Settings by name (peer_listen = …). MYQ_PEER_LISTEN … and flags win over it.",
    )(function)


_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=_HELP)
@click.version_option(__version__)
def main() -> None:
    """Run one daemon of myqueue in the foreground. It logs to stderr."""


@main.command(context_settings=_HELP)
@_options
def manager(file: str | None, **flags: Any) -> None:
    """Run a manager: it keeps the cluster's metadata, in consensus with the other managers.

    Runs in the foreground and logs to stderr. SIGTERM or Ctrl-C stops it in order. Exit
    codes: 0 stopped, 1 could not run, 2 wrong settings, 4 the disk failed, 5 an invariant of
    consensus is broken.
    """
    run_daemon("manager", file, flags)


@main.command(context_settings=_HELP)
@_options
def broker(file: str | None, **flags: Any) -> None:
    """Run a broker: it holds the replicas of partitions that the managers assign to it.

    Runs in the foreground and logs to stderr. SIGTERM or Ctrl-C stops it in order. Exit
    codes: 0 stopped, 1 could not run, 2 wrong settings, 4 the disk failed, 5 an invariant of
    consensus is broken.
    """
    run_daemon("broker", file, flags)


def run_daemon(kind: str, file: str | None, flags: dict[str, Any]) -> None:
    log_event = EventLog(kind, "text", RealClock())
    try:
        config = load_config(kind, file, os.environ, flags)
        daemon = DaemonProcess(config)
        log_event = daemon.log_event
        daemon.run()
    except InvalidSetting as error:
        log_event("error", "cannot-run", code=error.code, error=str(error), do=error.hint)
        sys.exit(EXIT_WRONG_USAGE)
    except JournalStopped as error:
        log_event("error", "disk-failed", error=str(error), do=error.hint)
        sys.exit(EXIT_DISK_FAILED)
    except MyQueueError as error:
        log_event("error", "cannot-run", code=error.code, error=str(error), do=error.hint)
        sys.exit(1)
    except InvariantBroken as error:
        log_event("error", "invariant-broken", error=str(error), trace=True)
        sys.exit(EXIT_INVARIANT_BROKEN)


def run(words: list[str]) -> None:
    """Run `myq-manager …` or `myq-broker …`, as bin/ and the agent start them."""
    command = main.commands.get(words[0]) if words else None
    if command is None:
        main.main(words, prog_name="python -m myqueue.daemons.main")
    else:
        command.main(words[1:], prog_name=f"myq-{words[0]}")


if __name__ == "__main__":
    run(sys.argv[1:])
