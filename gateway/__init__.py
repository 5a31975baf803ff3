"""The HTTP gateway of a cluster, with its web console: a Flask application over the public client.

It holds no state of its own, so any number of gateways can run side by side, and each may be
stopped at any time. `main` starts the program with `settings`, `app` assembles the application,
`cluster_client` is the one client that all requests share, with the `shared_producer` and the
`registrations` of ids. `cluster_snapshot` reads the state of the cluster; `broker_processes` stops
brokers that were removed; `drop_reasons` names and counts why the server drops a connection. The
packages: `http` is the server, `dispatch` finds what answers a request: operations of `api`,
numbers of `metrics`, pages of `console`.

In: HTTP. Out: JSON, pages, metrics; and calls of `Producer`, `Consumer` and `Admin`. It sees the
public client only. `DESIGN.md` says why it is built so, `API.md` lists the requests. Nothing
imports it, except `myq up` for its settings.
"""
