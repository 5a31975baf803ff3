"""The functions of the API, one file for each noun.

`topics`, `producers`, `consumers`, `groups`, `partitions` and `brokers` do what their names say;
`registering` is common to producers and consumers. `cluster` shows the state of the cluster and
where a message is; `probes` answers load balancers (`/livez`, `/readyz`, `/healthz`).

In: checked parameters and the shared client. Out: plain values, or an error of `myqueue.errors`;
other modules give the answer its form. Each noun has a blueprint that `gateway/app` registers.
`API.md` describes every path.
"""
