"""A second opinion about all logs at once: what the replicas, the stores and a ledger say together.

`inspect_range` looks closely at one range of a segment, and `inspection_rows` come out;
`log_ranges`, `replica_history`, `replica_agreement`, `comparisons` and `partition_state` judge
them; `stores` and `ack_check` hold them against stores and acknowledgements; `commit_point`,
`commit_evidence` and `commit_proof` say how far each group is committed; `verify` is the order of
it all and `report` the result.

Comes in: a catalog and a way to spread work (`spark/interface`). Goes out: findings with their
places, and what was not checked. The judges are pure and share no code with the daemons.
"""
