"""Spark over the write-ahead log: a data source, an independent recovery check, statistics.

At this version there is nothing here yet. It will read segments through `myqueue.wal.format`
and `myqueue.wal.reader` only, so that it is a second opinion and not a copy of the daemons.
"""
