"""Recovery: how a daemon's log is read after a stop or a crash, and where appending continues.

`inventory` finds the segments without reading their records; `recovery` reads what the store does
not have yet, tells a torn end from corrupt data, and rebuilds the groups; `rewrite_tail` writes the
unproven end of the log again before the daemon answers anyone.

Comes in: a folder of segments and the store's watermark. Goes out: the groups as they are on disk,
the place of the next record, and findings that name segment and position. A torn end was never
acknowledged and is cut; corrupt data is reported and never cut. The journal calls it once, when it
is opened.
"""
