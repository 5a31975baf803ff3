"""Repair: what cannot be read on this disk any more comes back from the other replicas.

`damage` holds values and decisions (what is missing, how it comes back, when a leader makes way),
`coordinator` asks the peers, gives to them, and has damaged segments emptied, `scrub_pace` reads
the log at a slow pace, so that damage is found early.

Comes in: places that could not be read, answers of peers. Goes out: entries that are whole again,
or a named state that makes the managers replace the replica. A replica that lacks committed entries
neither votes nor leads. Only `daemons/replication` imports this package.
"""
