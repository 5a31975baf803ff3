"""The managers' state machine: what the cluster consists of. Pure.

`machine` applies the entries of the managers' log. `operations` has one function for each kind of
entry; `topics`, `brokers` and `groups` (consumer groups) hold most of them, `arguments` checks
their arguments. `tables`, `records` and `group_records` are the state. `placement` chooses brokers
for new partitions, `assignment` a consumer for each partition of a group.

Input: committed entries, in order, each once. Output: a result for each entry, changed rows for the
store, and snapshots. The machine reads no clock, no file and no random number, so every manager
computes the same. Managers import this package; brokers do not.
"""
