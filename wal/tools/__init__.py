"""Tools that read a log from outside, while its daemon runs or is stopped.

`locate` finds the logs below a path, `segments` reads segments that a daemon may be writing,
`check_segment` finds everything wrong with one of them, `verdict` judges why a scan stopped,
`bit_flip` finds the single bit that explains a wrong checksum. `verify`, `scrub`, `listing`,
`dump`, `archive` and `check_store` (the only one that needs LMDB) are made of these.

Comes in: a path. Goes out: rows and findings with their exact places. These tools never change a
log; `archive` writes to its own target only. Only `check_store` takes a lock. The command line
imports them, and the daemons judge their own segments with the same code.
"""
