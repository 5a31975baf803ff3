"""Spark itself: a session on any master, and how work is spread.

`session` makes a session and ships the reading side to the executors as a zip of plain Python;
`java` finds a Java; `interface` is what judging needs of Spark, and `job` serves it (tests serve it
with a loop).

Comes in: a master, settings, functions with their tasks. Goes out: sorted and judged results. Only
`session` and `job` start Spark; the rest of analytics imports `interface` only, or gets what it
needs from its caller.
"""
