"""A partition as a state machine: what the committed entries of its log mean. Pure.

The messages themselves are the log; `machine` keeps what has to be known beside them, in four
tables: `producers` (sequences, so that a repeat is stored once), `keyed_batches` (batches that
carry a key of their own), `positions` (how far consumers are), `old_takes` (takes that may be
repeated).

Comes in: committed entries, in order, each once. Goes out: a result for each, changed rows for the
store, snapshots. It reads no clock, no file and no random number: each replica computes the same.
The broker reads it; replication sees the interface of `daemons/state_machine` only.
"""
