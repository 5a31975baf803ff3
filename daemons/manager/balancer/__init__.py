"""The balancer: what the leader of the managers does without a request.

`controller` compares the cluster with the tables and returns commands. `plan` lists replicas that
should move, `moves` paces these moves and settles finished ones, `balance` finds the next step that
makes brokers more even. `backoff` spares brokers for a while where replicas failed, and
`removal_impact` says what would be lost with a broker.

Comes in: the tables of the metadata, the view of the cluster, the time. Goes out: commands to
propose, and leaders to transfer. Pure: it sends nothing and reads no clock. Only `daemons/manager`
imports it.
"""
