"""The wire format between processes, and what every program needs to use it.

`protocol` is `PROTOCOL.md` in code: kinds of messages, their fields, limits. `batch` is the batch
that producers make, brokers store and consumers open. `keyfiles` reads and writes the keys of
encrypted connections, `clock` reads the clocks. `program_settings` merges the sources of a
program's settings (flag over environment over file over default), `metadata_settings` has the
tables of settings of topics and of the cluster.

Comes in and goes out: bytes and values; nothing here opens a socket. Only this package imports
msgpack. Client and daemons may import it, the gateway only the two modules of settings; it imports
`myqueue.errors` only.
"""
