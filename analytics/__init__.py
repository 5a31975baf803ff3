"""Spark over the write-ahead log: a data source, an independent recovery check, statistics.

It reads segments through `myqueue.wal.format` and nothing else of the daemons, so that it is a
second opinion and not a copy of theirs. What runs on executors needs Python and pyarrow alone.
`DESIGN.md` has the data flow.

The rooms: `log` finds and reads segments, `source` is the data source of Spark, `verify` judges
logs against each other, `stats` counts, `spark` has the session, `html` the frame of reports;
`spread` is the part of Spark that judging needs (tests do it with a loop), and `export` writes
messages to Parquet. `pyspark_myqueue` is the name by which Spark finds the source. Comes in:
folders or URIs of logs. Goes out: data frames, findings, sums. Only `client/cli/spark` imports this
package.
"""
