"""A second opinion about all logs at once: the replicas, the stores and a ledger are compared.

`inspect_range` inspects one range of a segment and yields `inspection_rows`. `log_ranges`,
`replica_history`, `replica_agreement`, `comparisons` and `partition_state` judge these rows;
`stores` and `ack_check` compare them with stores and acknowledgements. `commit_point`,
`commit_evidence` and `commit_proof` find how far each group is committed. `verify` runs all of it,
`report` is the result, and `page` shows it.

Comes in: a catalog and a way to spread work (`analytics/spread`). Goes out: findings with their
places, and what was not checked. The judges are pure and share no code with the daemons.
"""
