"""The agent: the process behind `myq up` that runs the daemons of this machine.

`supervisor` starts programs, restarts them when they die, and stops them in order. `cluster_folder`
reads and writes the data folder's record of the cluster (`cluster.json`: its daemons, ports and
pids). `requests` takes what commands and the gateway ask of a running agent. `agent` is the program
`myq-node`.

Comes in: settings, signals, requests as files in the data folder. Goes out: running processes. The
agent starts daemons as programs and imports no other package of them. Commands of `client/cli` read
`cluster_folder`.
"""
