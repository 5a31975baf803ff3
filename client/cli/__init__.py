"""`myq`, the command line: one file per noun in this folder, loaded when its command is called.

This file sets the rules for all commands: exit codes (0 done, 1 failed, 2 wrong usage, 3 could not
reach the cluster, 130 interrupted), errors as one line that says what to do next, and `--debug`,
anywhere on the line, for the traceback. Commands raise errors; only `main` prints them.

`shared` holds helpers of several commands. `local` runs the cluster of this machine, `bench`
measures, `wal` reads logs, `spark` starts analytics. `lazy` loads a command only when it is called,
so that `myq --help` takes no longer than click itself. Nothing else imports this package.
"""

import logging
import sys
import traceback
from collections.abc import Sequence

import click

import myqueue
from myqueue.cli.lazy import LazyGroup
from myqueue.cli.shared import output, streams
from myqueue.errors import MyQueueError

DONE, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130

# Groups of commands by name: "module:attribute" and one line of help.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": (
        "myqueue.cli.local.up:up",
        "Start a cluster on this machine, and wait until it is healthy.",
    ),
    "down": ("myqueue.cli.local.down:down", "Stop the cluster on this machine."),
    "status": (
        "myqueue.cli.local.status:status",
        "Show the daemons on this machine, and their health.",
    ),
    "topic": ("myqueue.cli.topic:topic", "Topics: create, list, describe, alter, grow, delete."),
    "produce": ("myqueue.cli.produce:produce", "Send lines as messages."),
    "consume": ("myqueue.cli.consume:consume", "Read messages."),
    "group": ("myqueue.cli.group:group", "Consumer groups: list, describe, reset, delete."),
    "broker": ("myqueue.cli.broker:broker", "Brokers: list, add, drain, undrain, remove."),
    "manager": ("myqueue.cli.manager:manager", "List managers."),
    "health": (
        "myqueue.cli.local.health:health",
        "Show problems, brokers, producers and consumers.",
    ),
    "check": ("myqueue.cli.local.health:check", "Check health for Nagios and similar tools."),
    "where": ("myqueue.cli.where:where", "Show where one message is stored."),
    "raft": ("myqueue.cli.raft:raft", "Show the state of Raft groups."),
    "demo": ("myqueue.cli.local.demo:demo", "Kill leaders, and show that nothing is lost."),
    "bench": ("myqueue.cli.bench.commands:bench", "Measure throughput and latency of a cluster."),
    "doctor": ("myqueue.cli.local.doctor:doctor", "Check whether this machine can run myqueue."),
    "explain": ("myqueue.cli.explain:explain", "Explain an error by its code or name."),
    "context": ("myqueue.cli.context:context", "Name clusters: add, list, use, remove."),
    "key": ("myqueue.cli.key:key", "Keys of a cluster and its clients: generate, list, revoke."),
    "config": (
        "myqueue.cli.config:config",
        "List all settings; show or change a running cluster's.",
    ),
    "completion": ("myqueue.cli.completion:completion", "Print a shell's completion script."),
    "spark": ("myqueue.cli.spark.commands:spark", "Verify, count and export logs with Spark."),
    "wal": (
        "myqueue.cli.wal.commands:wal",
        "Inspect write-ahead logs: list, print, check, archive.",
    ),
}

# The extra that installs a package which the base installation lacks.
EXTRAS = {
    "lmdb": "server",
    "flask": "gateway",
    "pyspark": "spark",
    "pyarrow": "spark",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error; may stand anywhere.")
@click.version_option(myqueue.__version__, prog_name="myqueue")
def myq(debug: bool) -> None:
    """Use and operate myqueue, a distributed, partitioned, replicated message queue.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 could not reach the cluster.
    """


@myq.command()
@output.json_option
def version(as_json: bool) -> None:
    """Show the versions of package, protocol, log format and Python."""
    from myqueue.wal import format as wal_format

    versions = {
        "package": myqueue.__version__,
        "protocol": myqueue.PROTOCOL_VERSION,
        "wal_format": wal_format.VERSION,
        "python": sys.version.split()[0],
    }
    if as_json:
        output.write_json("myq.version/1", versions)
    else:
        output.write_table(["what", "version"], [[k, str(v or "-")] for k, v in versions.items()])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `myq` with these arguments (default: those of the process); return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not debug:
        # The client library logs for applications; the command line prints errors as one line.
        logging.getLogger("myqueue").addHandler(logging.NullHandler())
    stdout = sys.stdout
    try:
        streams.prepare()
        code = myq.main(words, prog_name="myq", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except SystemExit:
        if sys.stdout is stdout:
            raise
        # click replaced stdout: the reader of our output closed the pipe (`| head -1`).
        sys.stdout = stdout
        streams.give_up_output()
        return DONE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.Abort as error:
        # click raises Abort for both Ctrl-C and "no" to a question.
        is_interrupted = isinstance(error.__context__, KeyboardInterrupt)
        return INTERRUPTED if is_interrupted else FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        code, line = outcome(error)
        if isinstance(error, OSError) and streams.unwritable(error):
            streams.give_up_output()
        click.echo(f"myq: {streams.printable(' '.join(line.split()))}", err=True)
        return code


def outcome(error: Exception) -> tuple[int, str]:
    """Return an error's exit code, and the line that says what failed and what to do next."""
    match error:
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "myq"
            return USAGE, f"{error.format_message()} See '{path} --help'."
        case click.ClickException():
            return FAILED, error.format_message()
        case MyQueueError():
            code = UNREACHABLE if isinstance(error, ConnectionError) else FAILED
            where = f" ({error.component})" if error.component else ""
            return code, f"{error}{where} [{error.code} {error.name}]. {error.hint}"
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] in EXTRAS:
            package = name.partition(".")[0]
            from myqueue.cli.shared.install_hint import install_command

            return FAILED, f"this needs {package}: run {install_command(EXTRAS[package])}"
        case ConnectionError():
            return UNREACHABLE, f"could not reach the cluster: {error}. Check its address."
        case OSError(filename=str(path)):
            return FAILED, f"{path}: {error.strerror}. Check the path and its permissions."
        case OSError() if line := streams.unwritable(error):
            return FAILED, line
    kind = type(error).__name__
    return FAILED, f"{kind}: {error}. This is a defect: run again with --debug and report it."
