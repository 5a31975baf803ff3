"""Reports as pages: one file of HTML with style and plots inside, nothing loaded from elsewhere.

`page` makes the frame of all pages, with tables and tiles; `svg` draws the three kinds of plots.

Comes in: values. Goes out: text of HTML, with everything escaped. Pure. `analytics/stats` and
`analytics/verify` import it.
"""
