"""Tools that read a log from outside, while its daemon runs or is stopped.

`locate` finds the logs below a path. `verify`, `scrub`, `listing`, `dump`, `archive` and
`check_store` (the only one that needs LMDB) are made of the judge in `wal/check`.

Comes in: a path. Goes out: rows and findings with their exact places. These tools never change a
log; `archive` writes to its own target only. Only `check_store` takes a lock. The command line
imports them, and the daemons' scrubber.
"""
