"""What changes while somebody looks: the newest state of the cluster, its rates and its problems.

`poller` takes a `cluster_snapshot` once a second while a page is open, `rates` turns two answers of
STATS into rates for the charts, `growth` tells how fast ends of topics grow, `problems` says in
sentences what is not well, and what changed since the last look.

Comes in: snapshots. Goes out: values for pages. `rates`, `growth` and `problems` are pure; `poller`
has a thread. `page` and the pages import this package.
"""
