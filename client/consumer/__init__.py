"""Read messages: alone, as a member of a consumer group, or by takes.

`consumer` is the class `Consumer`, `positions` its base class with all calls about positions,
`message` the `Message`. `subscription` and `partition_state` hold what is read, `fetch_plan`
decides what to request from which broker, `fetcher` sends it in the I/O thread, and `round_robin`
chooses the partition whose messages come next. `group_membership` and `assignment` serve consumer
groups. `taker`, `take_batching` and `skip_damaged` are `Taker`: read and commit in one replicated
step.

Comes in: topics, positions, assignments from the managers. Goes out: messages in the order of their
partition, and commits. Users import `Consumer`, `Taker` and `Message` from `myqueue`.
"""
