"""Space on disk: when a segment may be deleted, and how one is emptied.

`reclaim` deletes segments of which no record is needed, judged by durable values only, and empties
sparse ones; `evacuate` empties a damaged segment by appending its live records again at the end of
the log; `live_records` finds and appends those; `background` runs file work in its own thread;
`reserve` is room that a start needs when the disk is full.

Comes in: the store's groups and rows, and the footers of segments. Goes out: deleted segments, and
reports of unreadable entries. Deciding and appending happen on the loop's thread. `wal/log` and the
daemons' repair import it.
"""
