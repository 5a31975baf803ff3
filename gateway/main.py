"""The composition root of a gateway: `myq-gateway` begins and ends here.

Builds, in this order: settings ▶ log ▶ tokens and application ▶ listening socket ▶ threads. It does
not wait for the cluster: a gateway may be started first, and answers 503 until there is one.

Exit codes: 0 after SIGTERM or SIGINT (requests under way are answered, new ones are not accepted),
1 with one log line if it can't start.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from datetime import UTC, datetime
from typing import Any, Final

import click

from myqueue import __version__
from myqueue.errors import InvalidSetting, MyQueueError
from myqueue.gateway.settings import SETTINGS, GatewayConfig, load

CANNOT_RUN: Final = 1
# A running thread yields the interpreter after this time. Python's default of 5 ms would show in
# every latency, since an answer passes through three threads.
SWITCH_S: Final = 0.0005
MISSING: Final = (
    "the gateway needs Flask: install myqueue with the extra 'gateway' (bin/myq-gateway does so)"
)


class LineFormatter(logging.Formatter):
    """One line for each event, in the format of the daemons' logs."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "ts": stamp,
            "level": record.levelname.lower(),
            "daemon": "gateway",
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        if self._json:
            return json.dumps(line, default=str)
        trace = line.pop("trace", "")
        facts = " ".join(f"{name}={value}" for name, value in list(line.items())[4:])
        text = f"{stamp} {line['level']:7} gateway {line['event']} {facts}".rstrip()
        return f"{text}\n{trace}" if trace else text


def options(function: Any) -> Any:
    metavars = {"path": "FILE", "host:port": "HOST:PORT", "host:port,…": "HOST:PORT[,…]"}
    for setting in reversed(SETTINGS):
        flag = "--" + setting.name.replace("_", "-")
        if setting.default is False:
            option = click.option(flag, is_flag=True, default=None, help=setting.meaning)
        elif setting.default == ():
            about = f"{setting.meaning} May be given several times."
            option = click.option(flag, multiple=True, metavar="NAME", help=about)
        else:
            shown = "" if setting.default == "" else f"  [default: {setting.default}]"
            metavar = metavars.get(setting.unit, setting.unit.upper() or "NUMBER")
            if setting.name == "log":
                metavar = "[text|json]"
            option = click.option(flag, metavar=metavar, help=setting.meaning + shown)
        function = option(function)
    return click.option(
        "--config",
        "file",
        metavar="FILE.toml",
        help="Settings by name (listen = …). MYQ_LISTEN … and flags win over it.",
    )(function)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@options
def main(file: str | None, **flags: Any) -> None:
    """Run a gateway: HTTP for a cluster of myqueue, and its web console.

    It runs in the foreground and logs to stderr. SIGTERM or Ctrl-C stops it in order. It holds no
    state, so any number of gateways may serve the same cluster. Exit codes: 0 stopped, 1 could not
    start.
    """
    log = _log("text")
    try:
        config = load(file, os.environ, flags)
        log = _log(config.log)
        run(config)
    except MyQueueError as error:
        log.error("cannot-run", extra={"facts": {"error": str(error), "do": error.hint}})
        sys.exit(CANNOT_RUN)
    except OSError as error:
        facts = {"error": f"{error.filename or flags.get('listen') or ''} {error.strerror}".strip()}
        log.error("cannot-run", extra={"facts": facts})
        sys.exit(CANNOT_RUN)


def _log(form: str) -> logging.Logger:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    root = logging.getLogger("myqueue")
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    logging.getLogger("myqueue.client").setLevel(logging.WARNING)
    return logging.getLogger("myqueue.gateway")


def run(config: GatewayConfig) -> None:
    """Serve until a signal stops the process. Raises InvalidSetting, OSError."""
    try:
        from myqueue.gateway.app import create_app, request_handlers
        from myqueue.gateway.http.server import Server
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"{error.name} is missing", hint=MISSING) from None
    log = logging.getLogger("myqueue.gateway")
    sys.setswitchinterval(SWITCH_S)
    _open_files(config.connections_max)
    app = create_app(config)
    sdk = app.extensions["myqueue"]
    try:
        count_dropped = app.extensions["myqueue.requests"].count_dropped
        server = Server(config, request_handlers(app), count_dropped)
    except OSError as error:
        sdk.close()
        raise InvalidSetting(f"listen = {config.listen}: {error.strerror}") from None

    def stop(number: int, frame: object) -> None:
        sdk.wait_slots.stopping.set()  # requests that wait are answered
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    facts = {"listen": config.url, "cluster": config.cluster, "pid": os.getpid()}
    log.info("ready", extra={"facts": facts | {"version": __version__}})
    try:
        server.serve()
    finally:
        sdk.close()
    log.info("stopped")


def _open_files(connections: int) -> None:
    """Raise the limit of open files: each connection is one, and the usual limit of 1,024 is too
    low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


if __name__ == "__main__":
    main(prog_name="myq-gateway")
