"""The write-ahead log: everything myqueue promises rests here.

A message is safe when, and only when, the journal says *persisted*. Read in this order:

- `FORMAT.md`, `format`: what stands on disk, byte by byte; pure.
- `files`: the seam to the operating system, the only place that syncs.
- `layout`, `segments`, `spares`: where the next record goes; files prepared ahead of their use.
- `writer`: one thread, one gathered write and one sync for all that waits.
- `journal`: the loop's side: appends of many groups, laid out in order, and what became of them.
- `groups`: what the records say about each group; the same code live and in recovery.
- `scan`, `inventory`, `recovery`: reading after a crash; torn is not corrupt.
- `store`, `storeview`, `storefile`, `index`: LMDB, which makes the log usable; all of it can be
rebuilt.
- `reader`, `search`, `replay`: entries by index or offset, where terms and times begin, and the
applied state from the log alone.
- `reclaim`, `inforce`, `apart`: when a segment may go; file work that the loop does not wait for.
- `identity`, `reserve`, `log`: whose data it is, room for a start on a full disk, and all of the
above behind one door; `forks`, `tuning`: the process.
- `places`, `survey`, `overview`, `dump`, `check`, `judge`, `onebit`, `verify`, `storecheck`,
`archive`: the log seen from outside, for people and other programs; nothing here but `storecheck`
needs LMDB.

`DESIGN.md` says why it is so.
"""
