"""myqueue: a distributed, partitioned, replicated message queue.

    >>> from myqueue import Producer, Consumer
    >>> with Producer("127.0.0.1:9092", create_topics=True) as producer:  # doctest: +SKIP
    ...     producer.send("orders", b"17 apples", key=b"customer 4")
    >>> with Consumer("127.0.0.1:9092", ["orders"], idle_timeout=5) as consumer:  # doctest: +SKIP
    ...     for message in consumer:
    ...         print(message.partition, message.offset, message.value)

`MyProducer` and `MyConsumer` are the simplest classes, `Producer` and `Consumer` offer everything,
`AsyncProducer` and `AsyncConsumer` are the same for asyncio. `Admin` creates topics and shows the
state of the cluster. Every failure is a class of `myqueue.errors`; `myqueue.testing` starts a
cluster for tests, `myqueue.acks` has a ledger of acknowledged messages, and `myqueue.problems`
writes the rows of `Admin.problems` as sentences. All other modules may change with each version.

Importing this package is cheap, because command lines and forked workers import it often: socket
library, database and web framework are loaded when a class that needs them is used.
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
    from myqueue.producer.delivery import Delivery, RecordMetadata
    from myqueue.producer.producer import Producer
    from myqueue.simple import MyConsumer, MyProducer
    from myqueue.taker.taker import Taker

__version__ = "0.1.0"
PROTOCOL_VERSION = 1  # version of the messages on the wire, see PROTOCOL.md

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

# The module of each name, imported when the name is used first.
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
    "Taker": "taker.taker",
    "TopicPartition": "consumer.message",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "testing":
        return import_module("myqueue.testing")
    if name not in _LAZY:
        raise AttributeError(f"module 'myqueue' has no attribute {name!r}")
    value = getattr(import_module(f"myqueue.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
