"""`myq spark`: analyse write-ahead logs with Spark, on this machine or on a Spark cluster.

`commands` makes the session and reports its errors; `verify`, `stats` and `export` are the
commands; `managers_state` rebuilds the managers' tables from a manager's log, to compare them with
its store.

Comes in: paths or URIs of logs, and a Spark master. Goes out: reports as text, JSON or HTML, and
Parquet. `analytics` does the work; it is imported when a command is called.
"""
