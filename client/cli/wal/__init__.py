"""`myq wal`: looking at write-ahead logs, beside the daemon that writes them or without one.

`commands` holds what the four commands share: how a path becomes logs, and how errors of the system
become one line. `ls`, `dump`, `verify` and `archive` are the commands; `payload` and `lines` show
what a record says to people.

Comes in: a path. Goes out: tables, or JSON whose shapes are in `wal/TOOLS.md`. The work is done by
`wal/tools`; no command changes a log.
"""
