"""The log seen from outside: tools for people and programs, beside a running daemon or without one.

`locate` finds the logs below a path, `segments` shows segments that somebody may be writing,
`check_segment` says everything about one of them, `verdict` tells why a scan stopped, `bit_flip`
finds the single bit that explains a wrong checksum. Out of these are made `verify`, `scrub`,
`listing`, `dump`, `archive` and `check_store` (the only one that needs LMDB).

Comes in: a path. Goes out: rows and findings with their exact places. These tools never change a
log and take no lock; `archive` writes to its own target only. The command line imports them, and
the daemons use the same judgement for their own segments.
"""
