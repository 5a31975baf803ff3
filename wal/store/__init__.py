"""The store: LMDB tables that make the log usable. All of it can be rebuilt from the log.

`store` writes and commits, `view` reads the tables as of one commit, `guard` checks LMDB's file
before LMDB opens it, `index` finds entries by index or offset (the newest ones before the store has
them), `dump` prints what a store holds, `map_limit` says how much address space a file may take.

Comes in: where entries stand, changed rows of state machines, records about groups. Goes out: the
same, after a restart up to a watermark that never passes what the log has on disk. Only this
package imports lmdb. `wal/log` opens it; the rest of `wal/` reads it.
"""
