"""Replication: the Raft groups of one daemon on its log and its peers.

`engine` does what the Raft core asks for, in the order in which it must be done; `replica` is one
group here: its node, its state machine, its entries. `open_group` brings groups up at a start,
`close_group` closes one that contradicts itself, `packets` turns messages into frames,
`state_saver` carries applied state to the store, `log_prefix` moves the start of a log, `catch_up`
reads for slow followers, `disk_health` and `reclaim_pace` watch the disk.

Comes in: proposals of the owner, packets of peers, reports of the log. Goes out: appends, packets,
applied entries with their results. It knows neither broker nor manager: they attach themselves as
`Owner` (`daemons/interfaces`).
"""
