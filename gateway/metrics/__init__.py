"""`/metrics`: the cluster and this gateway, as Prometheus and its relatives read them.

`endpoint` answers the request, `families` turns what daemons reported into families of metrics
(pure), `catalog` names every metric with its kind and meaning.

Comes in: one `cluster_snapshot` and the counters of this process. Goes out: the text format of
Prometheus. `METRICS.md` is the page for users, and tests compare it with `catalog`. Only this
package imports prometheus_client; only `gateway/app` imports this package.
"""
