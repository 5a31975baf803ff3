"""Reading entries back, while the daemon appends.

`reader` returns entries by index or offset, one or in runs; `scan` reads one segment from start to
end, without locks, and says why it stopped; `term_search`
finds where each term begins, from few rows.

Comes in: a group with an index or an offset. Goes out: entries whose checksums were
verified, or an error that names segment and position. Nothing here writes. The rest of `wal/` and
the daemons' replicas import it.
"""
