"""The processes of a cluster: managers, which keep its metadata, and brokers, which keep messages.

At this version there is nothing here yet. What is to come: Raft as a pure computation in
`raft/`, the state machines of partitions and of the cluster, and the one loop that runs them.
"""
