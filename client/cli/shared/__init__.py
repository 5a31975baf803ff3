"""What commands of `myq` have in common.

`output` prints tables for people and JSON for programs, `streams` guards stdin, stdout and stderr;
`options` finds the cluster that a command talks to and `connect` talks to it; `status_line` and
`drain_progress` show what a command waits for; `start_point` is what `--from` means;
`cluster_health` says what is not well; `install_hint` how to add an optional part.

`output`, `streams` and `install_hint` are loaded with every command and import click only. Commands
import this package; it imports no command.
"""
