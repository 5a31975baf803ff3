"""One process's conversation with one cluster: connections, routes, and requests that are repeated.

`session` is what producers, consumers and `Admin` share. `io_thread` owns the sockets, `connection`
has one for each daemon. `routing` knows topics, leaders and addresses, `route_refresh` keeps that
fresh. `manager_request` and `leader_request` repeat a request until it is answered or its time is
over; `waiters` receive the answers; `offset_queries` asks several leaders at once; `silent_brokers`
says why a partition does not answer.

Comes in: requests with a deadline. Goes out: answers, or one error when the time is over. It knows
nothing of producers and consumers, which import it, as `admin` does. Only `connection` imports zmq.
"""
