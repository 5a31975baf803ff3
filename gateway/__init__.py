"""The HTTP door of a cluster, with its web console: a Flask application over the public client.

At this version there is nothing here yet. It will hold no state of its own, so that any number
of gateways can run side by side.
"""
