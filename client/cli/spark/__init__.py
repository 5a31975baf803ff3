"""`myq spark`: logs as a data set, on this machine or on a Spark cluster.

`commands` makes the session and reports its errors; `verify`, `stats` and `export` are the
commands; `managers_state` rebuilds the managers' tables from a manager's log, for the comparison
with its store.

Comes in: paths or URIs of logs, and a Spark master. Goes out: reports as text, JSON or HTML, and
Parquet. The work is done by `analytics`, which is imported when a command is called.
"""
