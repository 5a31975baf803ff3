"""Reading messages: alone, as a member of a group, or by taking them away.

`consumer` is the class `Consumer`, `positions` its half about where it stands, `message` what it
hands out. `subscription` and `partition_state` know what is read, `fetch_plan` what to ask which
broker next, `fetcher` asks in the I/O thread, `round_robin` chooses the partition whose messages
come next. `group_membership` and `assignment` are for groups. `taker` and `take_batching` are
`Taker`: reading and committing in one replicated step.

Comes in: topics, positions, assignments of the managers. Goes out: messages in the order of their
partition, and commits. Users import `Consumer`, `Taker` and `Message` from `myqueue`.
"""
