"""A broker: it stores messages for clients and follows the managers' orders.

`broker` routes requests and events. `produce`, `fetch`, `commit_take` and `queries` serve clients;
`replies` has the parts that their replies share. They add what clients want to write to the queue
of its group (`group_queues`), and `proposals` is one such queue, the leader's side of a raft group.
`retention` removes old messages, `key_ageing` counts the age of batches' keys. `manager_link` sends
heartbeats and reads the answers; `orders` checks these and decides which count. `manager_answers`
keeps what each manager answered last, and says whether the broker has joined its cluster.
`rebuilds` finds replicas that the managers have to rebuild; `reconcile_members` brings a group to
its wanted members.

Input: requests of clients, orders of managers, events of the engine. Output: proposals, and answers
after these are committed. The broker knows managers only by their messages. Only `daemons/main`
imports this package.
"""
