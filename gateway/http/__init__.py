"""The HTTP server: it turns the bytes of a connection into a request, and an answer into bytes.

`server` is the loop of the one thread that reads. `listener` accepts connections,
`open_connections` has them and tells epoll what each waits for, `connection` is one of them, with
the tables of its states and of the threads that own its fields; `pace` tells how fast its bytes
move. `request_intake` takes requests out of received bytes, `request_head` parses their heads,
`body_budget` has the room for their bodies. `answer_starter` starts the answer, in this thread or
in one of `worker_pool`. `answer` is what goes back and who makes it, `answer_sender` sends it.
`deadlines` and `eviction` end what lasts too long or is in the way of others.

In: a listening socket and the functions that answer requests (`RequestHandlers`). Out: answers, in
the order of the requests. It knows no path and nothing of the API: `gateway/dispatch` has these
functions, `gateway/main` starts the server.

Every limit on HTTP. Names in lower case are settings (`../settings.py`) that the module applies,
those in upper case its constants. Modules outside of this package are named from `gateway` on:

    limit                 name                      default  module               over it
    -- connections
    connections           connections_max           4,000    listener             one closed (1)
    open files            ulimit -n                 -        listener             same; a pause (1)
    between two requests  idle_timeout_ms           75 s     answer_sender        closed
    after last answer     LINGER_S                  2 s      deadlines            closed
    -- heads
    time to send one      header_timeout_ms         10 s     request_intake       closed
    bytes of its headers  header_bytes_max          16 KiB   request_intake       400
    headers               HEADERS_MAX               100      request_head         400
    path and query        TARGET_BYTES_MAX          8 KiB    request_head         400
    requests sent ahead   PIPELINED_BYTES_MAX       64 KiB   open_connections     read afterwards
    -- bodies
    time to send one      body_timeout_ms           30 s     request_intake       closed, or 429
    of a produce          body_bytes_max            16 MiB   request_intake       413
    of other requests     REQUEST_BODY_BYTES_MAX    1 MiB    dispatch.head_check  413
    of a console form     CONSOLE_FORM_BYTES_MAX    2 MiB    api.auth             413
    no token or path      UNKNOWN_SENDER_BYTES_MAX  16 KiB   dispatch.head_check  401 or 413
    all together          bodies_bytes_max          64 MiB   body_budget          wait, or 429 (2)
    a small one           SMALL_BYTES_MAX           64 KiB   body_budget          large: may wait
    one not heavy         HEAVY_BYTES               4 MiB    body_budget          heavy: needs slot
    slots for heavy ones  HEAVY_AT_ONCE             2        worker_pool          they wait
    -- answers
    made at once          threads                   32       worker_pool          requests wait
    long polls            waiting_max               a third  cluster_client       429
    wait of a long poll   wait_ms_max               30 s     cluster_client       answered as empty
    time to make one      making_s_max              140 s    deadlines            closed (3)
    time to take one      SEND_TIMEOUT_S            30 s     deadlines            closed (4)
    all taken slowly      SLOW_ANSWERS_BYTES_MAX    64 MiB   eviction             slowest: closed
    -- the end
    requests under way    stop_within_ms            4 s      server               closed

(1) The slowest unfinished request, else the connection idle longest, else another unfinished
    request, else the new one. Accepting pauses while all are younger than YOUNG_S, or no file is
    free.
(2) Small ones have a quarter, which only drops them; large ones wait for room in the rest. A body
    that is refused by its head is not read.
(3) The log gets all stacks. The limit is computed: wait_ms_max, ten times request_timeout_ms, and
    a minute.
(4) One second more for each 256 KiB (SLOW_BYTES_PER_S); none more for a client that takes nothing.
"""
