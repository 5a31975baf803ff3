"""One judge of segments: is every byte of a segment as it was written, and if not, what is wrong?

`segments` reads a segment's header and trailer, `verdict` judges why a scan of its records stopped,
`check_segment` finds everything wrong with one segment, `bit_flip` finds the single bit that
explains a wrong checksum.

Comes in: the files of a log, which a daemon may be writing at this moment. Goes out: findings
(*torn* or *corrupt*) that name segment and position. Nothing here writes or locks. Recovery,
repair, the scrubber and the tools import it, so they cannot disagree about a segment.
"""
