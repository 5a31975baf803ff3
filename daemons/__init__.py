"""The processes of a cluster: managers, which keep its metadata, and brokers, which keep messages.

`main` puts a daemon together; `config` has its settings, `clock` its clocks, `event_log` its lines
for people, `metrics` its numbers; `read_rounds` has the reads that only the leader may answer.
`interfaces` and `state_machine` say what the packages are to each other: `network` receives and
sends, `raft` decides, `replication` runs the raft groups of this daemon on its log, `repair`
fetches entries that a disk lost from other replicas. A broker is `broker` over `partition`, a
manager is `manager` over `metadata`. `agent` starts daemons on this machine.

Comes in: requests of clients and messages of peers. Goes out: answers, sent only after the log has
persisted what they promise. A broker and a manager know each other by messages only. No other
folder imports daemons, except commands of `client/cli` that work on this machine.
"""
