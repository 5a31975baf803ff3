"""The HTTP gateway of a cluster, with its web console: a Flask application over the public client.

It holds no state of its own, so any number of gateways can run side by side, and each may be ended
at any time. `main` starts the program with `settings`, `app` puts the application together,
`cluster_client` is the one client that all requests share, `cluster_snapshot` one look at the
cluster. The rooms: `http` is the server, `api` the operations, `metrics` the numbers, `console` the
pages.

Comes in: HTTP. Goes out: JSON, pages, metrics; and calls of `Producer`, `Consumer` and `Admin`. It
sees the public client only. `DESIGN.md` says how it is put together, `API.md` what can be asked of
it. Nobody imports it, except `myq up` for its settings.
"""
