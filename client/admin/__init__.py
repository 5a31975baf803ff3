"""Administration: topics, brokers, groups, and how the cluster stands.

`client` is the class `Admin`, `groups` its half about consumer groups, `calls` what each of its
calls has (checked arguments, one deadline), `local_agent` the class `Agent`, which asks the agent
of this machine for one more broker or one fewer.

Comes in: a call with a timeout. Goes out: plain values as the managers or brokers reported them, or
one error. It uses `client/cluster` and holds no state of its own. Users import `Admin` and `Agent`
from `myqueue`; the command line and the gateway do the same.
"""
