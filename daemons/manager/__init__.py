"""The manager: it keeps the metadata together with the other managers and directs the brokers.

`manager` dispatches requests, `pending` keeps requests that wait for an entry. `queries`,
`group_queries` and `status` answer questions. `heartbeats` receives the heartbeats of daemons and
clients, `cluster_view` keeps what they report, `broker_orders` builds the orders that answer a
broker. `group_sessions` keeps the sessions of consumer group members, `founding` decides about a
first start, `audit_log` logs what was done. `balancer` moves replicas and leaders.

Comes in: requests of clients, heartbeats, events of the engine. Goes out: commands for the
managers' log, orders, answers. Observations never enter the log, only decisions do. This package
knows neither the broker's code nor the sockets. Only `daemons/main` imports it.
"""
