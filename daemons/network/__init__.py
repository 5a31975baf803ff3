"""The network of a daemon: its sockets, and the loop in which everything happens in order.

`sockets` has two listeners (clients, peers) and a connection to each peer; `admission` answers
handshakes; `rivals` decides between two processes with one number; `flood_limit` bounds the memory
of messages that wait to be read; `loop` is the turn: receive, decide, append, report what is
persisted, send. No other file knows this order.

Comes in: frames from ZeroMQ, a turn of the clock. Goes out: decoded requests for the owner (broker
or manager), packets for the engine, frames for others. Only `sockets` imports zmq. `daemons/main`
imports this package; owner and engine see it as the `MessageTransport` of `daemons/interfaces`.
"""
