"""The realtime channel: rows are sent one by one, many at a time, and every answer is on disk at once.

In reading order: ``exchange`` (one try and its line), ``budget`` (what may be spent), ``endpoints`` (where to and
how fast), ``health`` (who answers), ``writer`` (the disk), ``tally`` (counts), ``errand`` (what is to be done, and how it
may end), ``sender`` (the loop over all of them).
"""
