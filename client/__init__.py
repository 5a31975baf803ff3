"""myqueue: a distributed, partitioned, replicated message queue.

This package is what applications import, and it owns the contract that clients and servers
share: the errors now, the protocol and the client library with the versions that bring them.

    >>> import myqueue
    >>> issubclass(myqueue.errors.MyQueueError, Exception)
    True

Importing it stays cheap: no socket library, no database, no web framework is loaded until
something that needs it is used, because command lines and forked workers import it often.
"""

from myqueue import errors

__version__ = "0.1.0"

__all__ = ["__version__", "errors"]
