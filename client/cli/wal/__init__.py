"""`myq wal`: inspect write-ahead logs, whether the daemon that writes them runs or not.

`commands` has what the four commands share: it finds the logs at a path, and turns errors of the
system into one line. `ls`, `dump`, `verify` and `archive` are the commands; `payload` and `lines`
decode records for people.

Comes in: a path. Goes out: tables, or JSON whose shapes are in `wal/TOOLS.md`. `wal/tools` does the
work; no command changes a log.
"""
