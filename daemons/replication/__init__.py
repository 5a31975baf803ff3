"""Replication: the raft groups of one daemon, over its log and its peers.

`engine` does what the Raft core asks for, in the order in which it must be done; `replica` is one
group here: its Raft node, its state machine, its entries. `open_group` opens groups at a start,
`close_group` closes a group that breaks an invariant, `packets` turns messages into frames,
`state_saver` saves applied state to the store, `log_prefix` moves the start of a log, `catch_up`
reads for slow followers, `read_ahead` for consumers that catch up, `disk_health` and `reclaim_pace`
watch the disk.

Comes in: proposals of the owner, packets of peers, reports of the log. Goes out: appends, packets,
applied entries with their results. This package knows neither broker nor manager: they attach
themselves as `Owner` (`daemons/interfaces`).
"""
