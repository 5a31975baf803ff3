"""Statistics of logs: counts, sizes, delays, and how evenly messages are spread.

`stats` runs all of it, `count_task` counts one task (sums by topic, partition, producer and minute;
histograms), `page` is the report with plots, `topic_columns` lists the columns of its table of
topics and of the printed one, `parquet` writes the sums as files.

Comes in: a catalog and a way to spread work. Goes out: a few rows of sums, made from any number of
messages. Counting is pure. Only `client/cli/spark` imports this package.
"""
