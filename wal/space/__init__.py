"""Space on disk: when a segment may be deleted, and how one is emptied.

`reclaim` decides by durable values only that nobody needs anything of a segment; `evacuate` empties
a damaged segment by appending what is live in it at the end of the log, `live_records` finds that
part; `background` runs file work in its own thread; `reserve` is room that a start needs when the
disk is full.

Comes in: how far each group is snapshotted, applied and persisted. Goes out: deleted segments, and
reports of what could not be read. Deciding and appending happen on the loop's thread. `wal/log` and
the daemons' repair import it.
"""
