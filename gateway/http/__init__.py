"""The HTTP server: it turns the bytes of a connection into a request, and an answer into bytes.

`server` reads all connections in one thread, `worker_pool` runs what has to wait. `listener` opens
the socket and TLS, `connection` is one client's, and `pace` is how fast its bytes move.
`request_head` parses heads, `answer` is what goes back, `answer_sender` sends it. `body_budget`
bounds the bytes of all bodies, `connection_limits` chooses the connections to close and has the
longest time of a request, `thread_stacks` makes the text of a report about one that took longer.

In: a listening socket and the functions that answer requests (`RequestHandlers`). Out: answers, in
the order of the requests. `gateway/dispatch` has these functions, `gateway/main` starts the server.
"""
