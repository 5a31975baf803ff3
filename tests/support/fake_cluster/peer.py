"""A peer for tests of the client: real sockets, the protocol's words, and no cluster behind it.

An `EchoCluster` is what its daemons share: topics, logs in memory, producers' sequences. An
`EchoDaemon` is one ROUTER in a thread that answers as manager and broker in one. It keeps the
rules that a client relies on (keys of updates, order of sequences, repeats get their first
offset), and can be told to misbehave: `daemon.script` sees every request first, and may answer,
swallow (`[]`) or pass it (None).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from myqueue import errors
from myqueue.wire import batch as batches
from myqueue.wire import protocol as words

Answer = list[bytes]
Script = Callable[[words.Envelope, list[bytes]], list[Answer] | None]


def refuse(
    request: int, error: type[errors.MyQueueError], text: str = "", **details: Any
) -> list[Answer]:
    return [[words.encode(words.ERROR, request, error.code, text, "echo", details)]]


class Log:
    """One partition: batches by offset, and what is known of each producer."""

    def __init__(self) -> None:
        self.end = 0
        self.batches: list[tuple[int, bytes]] = []
        self.producers: dict[int, list[Any]] = {}  # id: epoch, next, offsets
        self.keyed: dict[tuple[int, int], int] = {}  # a batch's own key: offset

    def append(self, data: bytes) -> tuple[int, int]:
        """Append a batch; return (code, offset). A repeated batch gets its first offset."""
        head = batches.check(data)
        key = (head.producer, head.sequence)
        if head.epoch == batches.KEYED_EPOCH:
            if key in self.keyed:
                return 0, self.keyed[key]
            self.keyed[key] = self.end
        elif head.producer:
            known = self.producers.setdefault(head.producer, [head.epoch, 0, {}])
            if head.epoch < known[0]:
                return errors.Fenced.code, 0
            if head.epoch > known[0]:
                known[:] = [head.epoch, 0, {}]
            if head.sequence in known[2]:
                return 0, known[2][head.sequence]
            if head.sequence != known[1]:
                return errors.OutOfSequence.code, 0
            known[1] += head.count
            known[2][head.sequence] = self.end
        offset, self.end = self.end, self.end + head.count
        self.batches.append((offset, data))
        return 0, offset

    def values(self) -> list[bytes]:
        return [value for _, data in self.batches for value in batches.open_batch(data)[1].values]


class EchoCluster:
    def __init__(self, daemons: int = 1, cluster_id: str = "echo") -> None:
        self.cluster_id, self.index = cluster_id, 1
        self.topics: dict[str, list[int]] = {}  # name -> groups
        self.logs: dict[int, Log] = {}
        self.leaders: dict[int, tuple[int, int]] = {}  # group -> (node, term)
        self.keys: dict[bytes, dict[str, Any]] = {}
        self.epochs: dict[int, int] = {}
        self.manager = 1  # node of the managers' leader
        self.alive: list[tuple[list[int], list[int]]] = []
        self.daemons = [EchoDaemon(self, node) for node in range(1, daemons + 1)]

    @property
    def address(self) -> str:
        return ",".join(daemon.address for daemon in self.daemons)

    def topic(self, name: str, partitions: int = 1) -> list[Log]:
        """Create a topic; the daemons lead its partitions in turn."""
        groups = list(self.topics.get(name, []))
        for number in range(len(groups), partitions):
            group = 100 + len(self.logs)
            groups.append(group)
            self.logs[group] = Log()
            self.leaders[group] = (1 + number % max(1, len(self.daemons)), 1)
        self.topics[name] = groups  # as a whole: a daemon may be asked for it meanwhile
        self.index += 1
        return [self.logs[group] for group in groups]

    def delete(self, name: str) -> None:
        for group in self.topics.pop(name):
            del self.leaders[group]
        self.index += 1

    def lead(self, group: int, node: int) -> None:
        self.leaders[group] = (node, self.leaders[group][1] + 1)

    def routes(self, names: list[str]) -> list[Any]:
        brokers = [[d.node, d.address, f"host{d.node}", d.is_running] for d in self.daemons]
        topics = []
        for name in names or self.topics:
            rows = [
                [at, group, *self.leaders[group], [self.leaders[group][0]]]
                for at, group in enumerate(self.topics.get(name, []))
            ]
            if rows:
                topics.append([name, rows[0][1], {}, rows])
        return [self.index, brokers, topics, [n for n in names if n not in self.topics]]

    def update(self, key: bytes, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if key not in self.keys:
            self.index += 1
            if operation == "create_topic":
                if arguments["topic"] in self.topics:
                    raise errors.TopicExists(arguments["topic"])
                self.topic(arguments["topic"], arguments.get("partitions", 1))
                groups = self.topics[arguments["topic"]]
                self.keys[key] = {"partitions": groups, "topic_uid": groups[0]}
            elif operation == "delete_topic":
                if arguments["topic"] not in self.topics:
                    raise errors.UnknownTopic(arguments["topic"])
                self.delete(arguments["topic"])
                self.keys[key] = {"topic_uid": 1}
            elif operation == "open_producer":
                number = arguments.get("producer_id") or len(self.epochs) + 1
                self.epochs[number] = self.epochs.get(number, -1) + 1
                self.keys[key] = {"producer_id": number, "epoch": self.epochs[number]}
            else:
                raise errors.InvalidRequest(operation)
        return self.keys[key]

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.stop()

    def __enter__(self) -> EchoCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EchoDaemon:
    def __init__(self, cluster: EchoCluster, node: int) -> None:
        self.cluster, self.node, self.address = cluster, node, "tcp://127.0.0.1:*"
        self.script: Script = lambda envelope, frames: None
        self.heard: Counter[str] = Counter()
        self.is_running = False
        self.start()

    def start(self) -> None:
        self.is_running = True
        self._stop = threading.Event()
        bound = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bound,), daemon=True)
        self._thread.start()
        assert bound.wait(5)

    def stop(self) -> None:
        """Stop as in a crash: answer nothing more. `start` brings it back at its address."""
        self.is_running = False
        self._stop.set()
        self._thread.join(5)

    def _run(self, bound: threading.Event) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.bind(self.address)
            self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
            bound.set()
            while not self._stop.is_set():
                if socket.poll(20):
                    self._drain(socket)

    def _drain(self, socket: zmq.Socket[bytes]) -> None:
        results: dict[bytes, list[Any]] = {}
        while True:
            try:
                identity, head, *frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                break
            envelope = words.decode(head)
            self.heard[words.name_of(envelope[words.KIND])] += 1
            answers = self.script(envelope, frames)
            if answers is None:
                answers = self._answer(identity, envelope, frames, results)
            for answer in answers:
                socket.send_multipart([identity, *answer])
        for identity, rows in results.items():
            socket.send_multipart([identity, words.encode(words.PRODUCED, 0, rows)])

    def _answer(
        self,
        identity: bytes,
        envelope: words.Envelope,
        frames: list[bytes],
        results: dict[bytes, list[Any]],
    ) -> list[Answer]:
        _, kind, request, *fields = envelope
        cluster = self.cluster
        if kind == words.PRODUCE:
            rows = results.setdefault(identity, [])
            rows += [
                [request + at, *self.produce(group, frame)]
                for at, (group, frame) in enumerate(zip(fields[0], frames, strict=True))
            ]
            return []
        if kind == words.UPDATE:
            if cluster.manager != self.node:
                leader = cluster.daemons[cluster.manager - 1]
                return refuse(request, errors.NotLeader, address=leader.address)
            try:
                result = cluster.update(*fields)
            except errors.MyQueueError as error:
                return refuse(request, type(error), str(error))
            return [[words.encode(words.UPDATED, request, cluster.index, result)]]
        if kind == words.READ and fields[0] == "topic" and fields[1]["topic"] not in cluster.topics:
            return refuse(request, errors.UnknownTopic)
        return [[self.tell(kind, request, fields)]]

    def tell(self, kind: int, request: int, fields: list[Any]) -> bytes:
        cluster = self.cluster
        if kind == words.HELLO:
            if fields[1] not in ("", cluster.cluster_id):
                return refuse(request, errors.ClusterMismatch, "another cluster")[0][0]
            about = (cluster.cluster_id, "manager", self.node, "echo", {})
            return words.encode(words.WELCOME, request, *about)
        if kind == words.ROUTE:
            return words.encode(words.ROUTES, request, *cluster.routes(fields[0]))
        if kind == words.READ:
            managers = [{"node": d.node, "address": d.address} for d in cluster.daemons]
            known = {"managers": {"managers": managers}, "topics": {"topics": list(cluster.topics)}}
            result = known.get(fields[0], {"echo": fields[1]})
            return words.encode(words.ANSWER, request, cluster.index, result)
        if kind == words.ALIVE:
            cluster.alive.append((fields[0], fields[1]))
            return words.encode(words.ALIVE_OK, request)
        return refuse(request, errors.Unsupported)[0][0]

    def produce(self, group: int, data: bytes) -> list[Any]:
        node, _ = self.cluster.leaders.get(group, (0, 0))
        if not node:
            return [errors.UnknownPartition.code, 0, 0, {}]
        if node != self.node:
            address = self.cluster.daemons[node - 1].address
            return [errors.NotLeader.code, 0, 0, {"leader": node, "address": address}]
        code, offset = self.cluster.logs[group].append(data)
        return [code, offset, time.time_ns() // 1_000_000, None]
