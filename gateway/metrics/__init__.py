"""`/metrics`: the cluster and this gateway, as Prometheus and compatible systems read them.

`endpoint` answers the request, `families` turns what daemons reported into families of metrics
(pure), `catalog` names every metric with its kind and meaning.

In: one `cluster_snapshot` and the counters of this process. Out: the text format of Prometheus.
`METRICS.md` is the page for users; tests compare it with `catalog`. Only this package imports
prometheus_client; only `gateway/app` imports this package.
"""
