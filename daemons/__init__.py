"""The processes of a cluster: managers, which keep its metadata, and brokers, which keep messages.

At this version there is `raft/`, the consensus core, a pure computation. What is to come: the state
machines of partitions and of the cluster, and the one loop that runs them.
"""
