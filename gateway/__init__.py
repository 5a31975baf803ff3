"""The HTTP door of a cluster, with its web console: a Flask application over the public client.

It holds no state of its own, so any number of gateways can run side by side, and each may be ended
at any time. `DESIGN.md` says how it is put together, `API.md` what can be asked of it.
"""
