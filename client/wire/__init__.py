"""The wire format between processes, and what every program needs to use it.

`protocol` is `PROTOCOL.md` in code: kinds of messages, their fields, limits. `batch` is the batch
that producers make, brokers store and consumers open. `keyfiles` reads and writes the keys of
encrypted connections, `clock` reads the clocks, `program_settings` merges the sources of settings
(flag over environment over file over default).

Comes in and goes out: bytes and values; nothing here opens a socket. Only this package imports
msgpack. Client, daemons and the gateway's settings may import it; it imports `myqueue.errors` only.
"""
