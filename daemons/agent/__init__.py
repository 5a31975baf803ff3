"""The agent: the process behind `myq up` that runs the daemons of this machine.

`supervisor` starts programs, starts them again when they die, and stops them in order;
`cluster_folder` is what the data folder says about the cluster (`cluster.json`: what belongs to it,
who runs); `requests` is what commands and the gateway ask of a running agent; `agent` is the
program `myq-node`.

Comes in: settings, signals, requests as files in the data folder. Goes out: running processes. It
starts daemons as programs and imports none of their rooms. Commands of `client/cli` read
`cluster_folder`.
"""
