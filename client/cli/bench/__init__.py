"""`myq bench`: measure a cluster through the public client.

`commands` has the commands, `measurements` makes load and counts, `http` measures a gateway,
`floor` measures bare ZeroMQ on this machine for comparison, `parts` has what these files share.
`scale` measures what grows with partitions and clients. `nemesis` and `faults` run a measurement
while daemons are killed and paused.

Comes in: a cluster, a duration, sizes. Goes out: figures. Only `floor` imports zmq, and only the
command line and `myq demo` import this package.
"""
