"""The HTTP API: operations, their parameters, who may call them, and how they are answered.

`operations` is the table: method, path, parameters, role and function in one row; `call` runs one
of them for a request. `parameters` reads requests by the names of `parameter_catalog`; `responses`
and `failures` are the two forms of an answer; `auth` and `browser_origins` say which client may do
what; `wait_slots` bounds long polls; `large_json` keeps large bodies from blocking other requests.
`openapi` is made from the same table; `endpoints` has the functions.

In: a parsed request. Out: a status and JSON. It uses the public client through
`gateway/cluster_client`, and knows nothing of sockets. Server, console and application import it.
"""
