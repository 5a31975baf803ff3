"""The log as analytics reads it: segments, groups, and which bytes have to be read.

`discovery` finds logs below locations of a user, on any `storage`; `segment_reader` goes through a
segment record by record; `catalog` is what the logs say about their groups without being read
whole; `plan` cuts the work into tasks, `replica_choice` says from which log an entry is read, and
`moved_entries` finds the entries of a task whose segment was reclaimed, and `task_reader` reads a
task. `ack_ledger` reads ledgers of acknowledgements. `batch` opens batches and
`msgpack_values` the other values of the log, without the daemons' codec.

Comes in: locations. Goes out: a catalog and tasks. It imports `myqueue.wal.format` and errors only,
and all other rooms of analytics import it. Driver and executors run it.
"""
