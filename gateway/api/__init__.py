"""The HTTP API: operations, their parameters, who may call them, and how they are answered.

`operations` is the table: method, path, parameters, role and function in one row. `parameters`
reads requests by the names of `parameter_catalog`, `responses` and `failures` are the two forms of
an answer, `auth` and `browser_origins` say who may do what, `wait_slots` bounds long polls,
`large_json` keeps large bodies from stopping others. `openapi` is made from the same table;
`endpoints` are the functions.

Comes in: a parsed request. Goes out: a status and JSON. It knows the public client by way of
`gateway/cluster_client`, and nothing of sockets. Server, console and application import it.
"""
