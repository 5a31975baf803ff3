"""A broker: it stores messages for clients, and does what the managers order.

`broker` says which request goes where and what an event means for those who wait. `produce`,
`fetch`, `commit_take` and `queries` serve clients; `proposals` is the leader's side of a group.
`retention` and `key_ageing` let old things go. `manager_link` sends heartbeats and receives orders;
`reconcile_members` brings a group to the members that are wanted; `join_status` says whether the
broker belongs to its cluster.

Comes in: requests of clients, orders of managers, events of the engine. Goes out: proposals, and
answers after these are committed. It does not know managers but by their messages. Only
`daemons/main` imports this package.
"""
