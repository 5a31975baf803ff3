"""Spark over the write-ahead log: a data source, an independent recovery check, statistics.

It reads segments through `myqueue.wal.format` and nothing else of the daemons, so that it is a
second opinion and not a copy of theirs. What runs on executors needs Python and pyarrow alone.
`DESIGN.md` has the data flow.
"""
