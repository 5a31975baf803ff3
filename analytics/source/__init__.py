"""The data source: `spark.read.format("myqueue")` and `spark.readStream.format("myqueue")`.

`datasource` has options, batch reading and views, `streaming` the stream, `filters` what Spark's
filters say about bytes that need not be read, `rows` the schemas and a task's record batches,
`ack_ledger` the ledger of acknowledgements as a view.

Comes in: options of a reader. Goes out: Arrow batches of messages, entries, records or
acknowledgements. What stands behind the commit point is never shown as a message. Spark loads it by
way of `pyspark_myqueue`; `export`, `verify` and `stats` use its rows.
"""
