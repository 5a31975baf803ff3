"""Appends: entries of many groups become one ordered sequence of bytes on disk.

Read `entry_checks` (refusals, before anything changes), `journal` (the loop's side: appends, and
events about them), `layout` and `segments` (where the next record goes), `preallocate` (the next
segment, made ahead of its use), `reserve` (a file that makes room for a start on a full disk),
`writer` (one thread: one gathered write, one sync).

Comes in: appends, votes, removals and starts of groups. Goes out: *persisted up to (term, index)*
for each group, in order. Only `wal/log`, the other packages of `wal/` and the daemons' replication
import it; nothing else writes to a log.
"""
