"""Statistics of logs: what is in them, how it came, and how even it is.

`stats` is the order of it all, `count_task` what one task counts (sums by topic, partition,
producer and minute; histograms), `page` the report with plots, `parquet` the sums as files.

Comes in: a catalog and a way to spread work. Goes out: a few rows of sums, made from any number of
messages. Counting is pure. Only `client/cli/spark` imports this package.
"""
