"""myqueue: a distributed, partitioned, replicated message queue.

    >>> from myqueue import Producer, Consumer
    >>> with Producer("127.0.0.1:9092", create_topics=True) as producer:  # doctest: +SKIP
    ...     producer.send("orders", b"17 apples", key=b"customer 4")
    >>> with Consumer("127.0.0.1:9092", ["orders"], idle_timeout=5) as consumer:  # doctest: +SKIP
    ...     for message in consumer:
    ...         print(message.partition, message.offset, message.value)

`MyProducer` and `MyConsumer` are the plainest way to use it, `Producer` and `Consumer` the whole
one, `AsyncProducer` and `AsyncConsumer` the same to be awaited, `Admin` is for topics and for how
things stand. Every failure is a class of `myqueue.errors`; `myqueue.testing` gives tests a cluster,
`myqueue.acks` a ledger of what was acknowledged. All other modules and packages may change from one
version to the next.

Importing it stays cheap: no socket library, no database, no web framework is loaded until something
that needs it is used, because command lines and forked workers import it often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from myqueue import errors

if TYPE_CHECKING:
    from myqueue import testing
    from myqueue.admin.client import Admin
    from myqueue.admin.local_agent import Agent
    from myqueue.aio import AsyncConsumer, AsyncProducer
    from myqueue.cluster.session import Session
    from myqueue.consumer.consumer import Consumer
    from myqueue.consumer.message import Message, TopicPartition
    from myqueue.consumer.taker import Taker
    from myqueue.producer.delivery import Delivery, RecordMetadata
    from myqueue.producer.producer import Producer
    from myqueue.simple import MyConsumer, MyProducer

__version__ = "0.1.0"
PROTOCOL_VERSION = 1  # of the words on the wire, see PROTOCOL.md

__all__ = [
    "__version__",
    "errors",
    "testing",
    "Admin",
    "Agent",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "Delivery",
    "Message",
    "MyConsumer",
    "MyProducer",
    "Producer",
    "RecordMetadata",
    "Session",
    "Taker",
    "TopicPartition",
]

# Where each name is; loaded when it is used first.
_LAZY = {
    "Admin": "admin.client",
    "Agent": "admin.local_agent",
    "AsyncConsumer": "aio",
    "AsyncProducer": "aio",
    "Consumer": "consumer.consumer",
    "Delivery": "producer.delivery",
    "Message": "consumer.message",
    "MyConsumer": "simple",
    "MyProducer": "simple",
    "Producer": "producer.producer",
    "RecordMetadata": "producer.delivery",
    "Session": "cluster.session",
    "Taker": "consumer.taker",
    "TopicPartition": "consumer.message",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "testing":
        return import_module("myqueue.testing")
    if name not in _LAZY:
        raise AttributeError(f"module 'myqueue' has no attribute {name!r}")
    found = getattr(import_module(f"myqueue.{_LAZY[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
