"""`myq bench`: what a cluster does, measured through the public client.

`commands` has the commands, `measurements` makes load and counts, `http` asks a gateway, `floor`
measures bare ZeroMQ on this machine for comparison, `parts` is what all of them share. `nemesis`
and `faults` repeat a measurement while daemons are killed and paused.

Comes in: a cluster, a duration, sizes. Goes out: figures with the goals they are held against. Only
`floor` imports zmq, and nothing but the command line and `myq demo` imports this package.
"""
