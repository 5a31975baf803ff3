"""Spark itself: a session on any master, and how work is spread.

`session` makes a session and ships the reading side to the executors as a zip of plain Python;
`java` finds a Java; `job` implements `analytics/spread`, the part of Spark that judging needs.

Comes in: a master, settings, functions with their tasks. Goes out: sorted and judged results. Only
`session` and `job` use Spark; the rest of analytics gets a `Spreader` from its caller.
"""
