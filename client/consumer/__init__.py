"""Read messages: alone, or as a member of a consumer group.

`consumer` is the class `Consumer`. Its parts in the application's thread are `positions` and
`handover` (commits and callbacks); in the I/O thread `fetcher` and, in a group,
`group_membership`. Both use the pure `subscription`: `partition_state` with its `batch_buffer` for
each partition, `fetch_plan` (what to request from which broker), `round_robin` (whose messages come
next) and `assignment` (what a group's member may read). `message` is the `Message`.

Comes in: topics, positions, assignments from the managers. Goes out: messages in the order of their
partition, and commits. Users import `Consumer` and `Message` from `myqueue`.
"""
