"""Live data: the newest state of the cluster, its rates and its problems.

`poller` takes a `cluster_snapshot` once a second while the console is in use, `rates` turns two
answers of STATS into rates for the charts, `growth` measures how fast ends of topics grow,
`problems` writes problems and events in sentences.

In: snapshots. Out: values for pages. `rates`, `growth` and `problems` are pure; `poller` has a
thread. `page` and the pages import this package.
"""
