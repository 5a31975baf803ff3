"""The HTTP server: it turns the bytes of a connection into a request, and an answer into bytes.

`server` is the loop of the one thread that reads, `worker_pool` runs what has to wait. `listener`
accepts connections, `open_connections` has them, `connection` is one of them, with the table of its
states. `request_reader` takes requests out of received bytes, `request_head` parses their heads.
`answer` is what goes back and who makes it, `answer_sender` sends it.

In: a listening socket and the functions that answer requests (`RequestHandlers`). Out: answers, in
the order of the requests. It knows no path: `gateway/dispatch` has these functions, `gateway/main`
starts the server.

Every limit on HTTP. Names in lower case are settings (`../settings.py`), the others constants:

    limit                     name                      default  over it
    -- connections: `listener`, `eviction`
    connections               connections_max           4,000    closed for a new one: the slowest
                                                                 unfinished request, else the one
                                                                 idle longest, else the new one
    open files                ulimit -n                          the same, and accepting pauses
    between two requests      idle_timeout_ms           75 s     closed
    after the last answer     LINGER_S                  2 s      closed
    -- heads: `request_reader`, `request_head`
    time to send one          header_timeout_ms         10 s     closed
    bytes of its headers      header_bytes_max          16 KiB   400
    headers                   HEADERS_MAX               100      400
    path and query            TARGET_BYTES_MAX          8 KiB    400
    requests sent ahead       PIPELINED_BYTES_MAX       64 KiB   read after the answer
    -- bodies: `../dispatch/head_check`, `body_budget`, `worker_pool`
    time to send one          body_timeout_ms           30 s     closed; 429 if it waits for room
    a body                    body_bytes_max            16 MiB   413, and it is not read
    of a request but produce  REQUEST_BODY_BYTES_MAX    1 MiB    413, and it is not read
    of a form of the console  CONSOLE_FORM_BYTES_MAX    2 MiB    413, and it is not read
    without token or path     UNKNOWN_SENDER_BYTES_MAX  16 KiB   401 or 413, and it is not read
    all bodies together       bodies_bytes_max          64 MiB   large ones wait, slow ones get 429
    heavy bodies in the pool  HEAVY_AT_ONCE             2        they wait
    -- answers: `worker_pool`, `deadlines`, `eviction`
    made by threads at once   threads                   32       requests wait
    of these, long polls      waiting_max               a third  429
    time to make one          wait_ms_max               140 s    closed; the log gets all stacks.
                                                                 It counts request_timeout_ms too
    time to take one          SEND_TIMEOUT_S            30 s     closed; 1 s more for each 256 KiB
    time to take none of it   SEND_TIMEOUT_S            30 s     closed
    all taken slowly          SLOW_ANSWERS_BYTES_MAX    64 MiB   the slowest are closed
    -- the end of the gateway
    requests under way        stop_within_ms            4 s      closed
"""
