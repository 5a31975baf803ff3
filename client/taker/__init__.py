"""`Taker`: read messages and move the consumer's position in one replicated step.

`taker` is the public class: the order of partitions, and waiting. `take_walk` is one take, from one
partition after the other; `take_batching` sends the takes of one moment together; `opened_batches`
keeps unpacked batches; `skip_damaged` commits past a batch that can't be read.

Comes in: a topic, a consumer's id, perhaps a key. Goes out: the messages, each to one taker. Users
import `Taker` from `myqueue`; the gateway is its main one.
"""
