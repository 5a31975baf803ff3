"""Repair: fetches entries that can't be read on this disk from the other replicas.

`damage` has the values and decisions (which entries are lost, how each comes back, when a leader
yields), `coordinator` requests entries from peers, serves them, and empties damaged segments,
`scrub_pace` reads the log slowly, so that damage is found early. `messages` are what replicas send
each other.

Comes in: places that could not be read, answers of peers. Goes out: entries appended again, or a
reason in `Replica.repair_problem` when no replica has them. A replica that lacks committed entries
neither votes nor leads. Only `daemons/replication` imports this package.
"""
