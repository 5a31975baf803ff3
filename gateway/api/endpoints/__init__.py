"""The functions of the API, one file for each noun.

`topics`, `producers`, `consumers`, `groups`, `partitions` and `brokers` do what their names say;
`cluster` answers how the cluster is and where a message is; `probes` answers load balancers
(`/livez`, `/readyz`, `/healthz`).

Comes in: checked parameters and the shared client. Goes out: plain values, or an error of
`myqueue.errors`; the form of an answer is made elsewhere. Each file has a blueprint that
`gateway/app` registers. `API.md` describes every path.
"""
