"""Administration: topics, brokers, consumer groups, and the state of the cluster.

`client` is the class `Admin`, `groups` its half for consumer groups, `calls` adds checked arguments
and one deadline to each call, `local_agent` is the class `Agent`, which asks the agent of this
machine to start or stop a broker. `broker_moves` has the progress of drains and the losses of
removals in numbers and sentences.

Comes in: a call with a timeout. Goes out: plain values as the managers or brokers reported them, or
one error. It uses `client/cluster` and holds no state of its own. Users import `Admin` and `Agent`
from `myqueue`; the command line and the gateway do the same.
"""
