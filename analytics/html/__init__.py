"""Reports as pages: one file of HTML with style and plots inside, nothing loaded from elsewhere.

`page` makes the pages of `verify` and the frame of all others; `svg` draws the three kinds of plots
that they need.

Comes in: a report. Goes out: text of HTML, with everything escaped. Pure. `analytics/stats` and
`client/cli/spark` import it.
"""
