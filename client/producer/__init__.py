"""The producer: messages in, futures out; no message is dropped silently.

A message's way, and the files on it: `producer` has the class `Producer`; `conversion` checks and
converts what the user gave; `topic_lanes` chooses the partition; `accumulator` has the rules by
which a `batch` moves through its `lane`; `sender` works in the I/O thread and sends each batch as a
`send_attempt`; `delivery` has the futures that `send` and `send_many` return, made cheap by
`lazy_future`; `countdown` waits for batches; `failures` has what `flush` and `close` raise;
`parting` ends a producer that nobody closed. `send_once` is another way: it stores a list once,
whichever process sends it, and has no buffer.

The words, each with one meaning here:

- *batch*: messages of one partition that are packed, sent and stored together, or fail together.
- *lane*: all batches of one partition that are not yet stored or failed, in their order.
- *in flight*: a batch with a sequence; from its first attempt on until it is stored or fails.
- *attempt*: one sending of one batch. An attempt is *in doubt* until an answer says that it was
  certainly not stored.
- *sequence*: the number of a batch's first message in its lane; a broker recognises a repeat by it.
- *epoch*: the time within which sequences count from 0 without a gap. *gap*: see `accumulator`.
- *settled*: stored or failed, for ever.
- *part*: the messages of one list that went into one batch.
- *ready*: a lane that the sender looks at in its next turn.
- *request_id*: the name of a list for `send_once`, in place of producer and sequence.

Comes in: values from any thread of the application. Goes out: PRODUCE requests through
`client/cluster`, and the outcome of each message. A full buffer blocks and then raises. Users
import `Producer`, `Delivery` and `RecordMetadata` from `myqueue`; inside the client, modules import
`producer.producer`, `delivery` and `conversion` directly.
"""
