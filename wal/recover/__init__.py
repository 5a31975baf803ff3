"""Recovery: what a daemon finds on its disk after a stop or a crash, and where it goes on.

`inventory` finds the segments without reading their records; `recovery` reads what the store does
not have yet, tells a torn end from corrupt data, and rebuilds the groups; `rewrite_tail` writes the
unproven end of the log again before the daemon answers anyone.

Comes in: a folder of segments and the store's watermark. Goes out: the groups as they are on disk,
and the place of the next record, or an error that names the place. A torn end was never
acknowledged and is dropped; corrupt data is never dropped silently. `wal/log` calls it at a start;
nobody calls it later.
"""
