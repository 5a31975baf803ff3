"""Live data: the newest state of the cluster, its rates, and what changed.

`poller` takes a `cluster_snapshot` once a second while the console is in use, `rates` turns two
answers of STATS into rates for the charts, `growth` measures how fast ends of topics grow,
`changes` writes what changed between two of them in sentences.

In: snapshots. Out: values for pages. `rates`, `growth` and `changes` are pure; `poller` has a
thread. `page` and the pages import this package.
"""
