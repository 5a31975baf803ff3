"""The HTTP server: from bytes of a connection to a request, and from an answer to bytes.

`server` reads all connections in one thread and runs what has to wait in a pool; `connection` is
one of them, `request_head` its parser, `wsgi` the way to Flask, `fast_path` the short way for
operations whose path is fixed. `admission` refuses by the head alone, before a body is read;
`memory_limit` bounds what all requests hold together; `deadlines` reports requests that take too
long.

Comes in: a listening socket and the application. Goes out: answers in order. It uses the operation
table and failures of `gateway/api`, which does not know it. Only `gateway/app`, `gateway/main` and
the checks of console and metrics import it.
"""
