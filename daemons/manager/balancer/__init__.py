"""The balancer: what the leader of the managers does without being asked.

`controller` looks at the cluster and returns commands; `plan` lists replicas that should be
elsewhere, `moves` takes them there one step at a time, `balance` says what is uneven and the next
step to less of that, `backoff` leaves brokers alone for a while where replicas failed, and
`removal_impact` says what would be lost with a broker.

Comes in: the tables of the metadata, the view of the cluster, the time. Goes out: commands to
propose, and leaders to transfer. Pure: it sends nothing and reads no clock. Only `daemons/manager`
imports it.
"""
