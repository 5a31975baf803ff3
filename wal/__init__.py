"""The write-ahead log: everything myqueue promises rests here.

A message is safe when, and only when, the journal says *persisted*. Read in this order:

- `FORMAT.md`, `format`: what stands on disk, byte by byte; pure.
- `files`: the seam to the operating system, the only place that syncs.
- `segment`, `spares`: files of fixed size, prepared ahead of their use.
- `writer`: one thread, one gathered write and one sync for all that waits.
- `journal`: the loop's side: appends of many groups, laid out in order, and what became of them.
- `groups`: what the records say about each group; the same code live and in recovery.
- `scan`, `recovery`: reading after a crash; torn is not corrupt.
- `store`, `index`: LMDB, which makes the log usable and can be rebuilt from it.
- `reader`: entries by index or offset, and segments in sequence.
- `reclaim`: when a segment may go.
- `dump`, `verify`, `archive`: for people and other programs.

`DESIGN.md` says why it is so.
"""
