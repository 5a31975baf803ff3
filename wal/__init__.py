"""The write-ahead log of a daemon: everything that myqueue promises rests here.

A message is safe on this disk when the journal reports it *persisted*, and not before. All groups
of a daemon share one sequence of segments, one writer thread and one sync. `FORMAT.md` has the
bytes, `DESIGN.md` the reasons.

In this folder: `format` (the bytes, pure), `files` (the interface to the operating system, the only
code that syncs), `config`, `identity` (which daemon owns a directory), `groups` (what the records
say about each group), `footer_rows`, `closed_groups`, `fork_guard`, `process_tuning`, and `log`,
which opens all of it for a daemon. Packages: `append` writes, `recover` reads after a crash, `read`
finds entries, `check` judges segments, `store` keeps tables that can be rebuilt, `space` frees
segments, `tools` reads a log from outside.

Comes in: entries of groups, in order. Goes out: what is persisted, and entries by index or offset.
Daemons use `log`; the command line uses `tools`; analytics uses `format` alone.
"""
