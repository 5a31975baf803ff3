"""One process's connections to one cluster: sockets, routes, and requests that are repeated.

`session` is the class that producers, consumers and `Admin` share. `io_thread` owns the sockets;
`connection` has one for each daemon. `routing` caches topics, leaders and addresses;
`route_refresh` keeps the cache fresh. `request` repeats a request until it is answered or its
deadline passes; `manager_request` and `leader_request` choose whom it asks, `repeats` decides which
errors are repeated and when. `waiters` receive the answers; `offset_queries` asks several leaders
at once; `routes_ahead` fetches the routes of many topics; `silent_brokers` finds out why a
partition does not answer; `partitioner` chooses the partition of a message or request that names
none.

Comes in: requests with a deadline. Goes out: answers, or one error at the deadline. It knows
nothing of producers and consumers, which import it, as `admin` does. Only `connection` imports zmq.
"""
