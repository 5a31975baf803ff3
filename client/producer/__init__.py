"""The producer: messages in, futures out; no message is dropped silently.

`producer` is the class `Producer`. `input` checks and cuts the users' messages, `topic_lanes` (with
`cluster/partitioner`) chooses the partition, `accumulator` keeps batches with their order,
sequences and repeats, `sender` works in the I/O thread with a `send_attempt` for each batch,
`delivery` has the futures that `send` returns, `failures` what `flush` and `close` report,
`keyed_send` stores messages once, whichever process sends them.

Comes in: values from any thread of the application. Goes out: PRODUCE requests through
`client/cluster`, and the outcome of each message. A full buffer blocks and then raises. Users
import `Producer`, `Delivery` and `RecordMetadata` from `myqueue`; inside the client, modules import
`producer.producer`, `delivery` and `input` directly.
"""
