"""How Spark finds the format by its name: it looks for packages called `pyspark_…` at the start.

So `spark.read.format("myqueue")` works wherever myqueue is installed, without registration. Code
that was shipped with a job (`--py-files`) comes too late for that: register
`myqueue.analytics.source.datasource.MyQueueSource` there.
"""

from myqueue.analytics.source.datasource import MyQueueSource as DefaultSource

__all__ = ["DefaultSource"]
