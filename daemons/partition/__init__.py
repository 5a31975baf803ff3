"""The state machine of a partition: the meaning of the committed entries of its log. Pure.

The log holds the messages. `machine` keeps what else has to be known, in four tables: `producers`
(sequences, so that a repeated batch is stored once), `keyed_batches` (batches with a key of their
own), `positions` (how far consumers are), `old_takes` (takes that may be repeated).

Input: committed entries, in order, each once. Output: a result for each entry, changed rows for the
store, and snapshots. The machine reads no clock, no file and no random number, so every replica
computes the same. Brokers use this package; replication sees only `daemons/state_machine`.
"""
