"""Code that several commands of `myq` share.

`output` prints tables for people and JSON for programs; `streams` guards stdin, stdout and stderr.
`options` finds the cluster that a command talks to, and `connect` connects to it. `status_line`
shows what a command waits for. `start_point` parses `--from`, `cluster_health` asks for the
problems of a cluster, `install_hint` names the command that adds an optional part.

`output`, `streams` and `install_hint` are loaded with every command and import click only. Commands
import this package; it imports no command.
"""
