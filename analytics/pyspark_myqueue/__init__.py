"""The name by which Spark finds the format: at its start it looks for packages called `pyspark_…`.

So `spark.read.format("myqueue")` works wherever myqueue is installed, without registration. Code
that is shipped with a job (`--py-files`) arrives after Spark looked: there, register
`myqueue.analytics.source.datasource.MyQueueSource`.
"""

from myqueue.analytics.source.datasource import MyQueueSource as DefaultSource

__all__ = ["DefaultSource"]
