"""The managers' state machine: what the cluster consists of. Pure.

`machine` applies the entries of the managers' log. `operations` has one function for each entry;
`topics`, `brokers` and `groups` (consumer groups) hold them, `arguments` checks what they are
given. `tables`, `records` and `group_records` are the state. `placement` says where new partitions
go, `assignment` which consumer reads which partition.

Comes in: committed entries, in order, each once. Goes out: a result for each, changed rows for the
store, snapshots. It reads no clock, no file and no random number, so that every manager computes
the same. Managers import it; brokers do not.
"""
