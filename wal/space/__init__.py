"""Space on disk: when a segment may be deleted, and how one is emptied.

`reclaim` deletes segments of which no record is needed, judged by durable values only; `evacuate`
appends the live records of a segment again at the end of the log, for `reclaim`, which empties
sparse segments, and for `segment_repair`, which empties damaged ones; `background` runs file work
in its own thread.

Comes in: the store's groups and rows, and the footers of segments. Goes out: deleted segments, and
entries that can't be read. Deciding and appending happen on the loop's thread. `wal/log` and the
daemons' repair import it.
"""
