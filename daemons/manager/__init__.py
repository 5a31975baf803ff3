"""A manager: it keeps the metadata with the other managers, and the leader directs the brokers.

`manager` says which request goes where, `pending` who waits for which entry. `queries`,
`group_queries` and `status` answer questions. `heartbeats` receives what daemons and clients
report, `cluster_view` remembers it, `broker_orders` is what brokers are told. `group_sessions`
keeps the members of consumer groups, `founding` decides about a first start, `audit_log` writes
what was done. `balancer` moves replicas and leaders.

Comes in: requests of clients, heartbeats, events of the engine. Goes out: commands for the
managers' log, orders, answers. What is only seen is never in the log. It does not know the broker's
code, nor the sockets. Only `daemons/main` imports this package.
"""
