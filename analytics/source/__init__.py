"""The data source: `spark.read.format("myqueue")` and `spark.readStream.format("myqueue")`.

`datasource` has options, batch reading and views, `streaming` the stream, `filters` narrows what is
read by Spark's filters, `rows` has the schemas and makes a task's record batches.

Comes in: options of a reader. Goes out: Arrow batches of messages, entries, records or
acknowledgements. Messages after the commit point are never shown. Spark loads the source through
`pyspark_myqueue`; `export` and `stats` use its rows.
"""
