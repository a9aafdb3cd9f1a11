"""The realtime channel: rows are sent one by one, many at a time, and every answer is on disk at once.

In reading order: ``exchange`` (one try and its line), ``budget`` (what may be spent), ``endpoints`` (where to, how
fast), ``health`` (who answers), ``writer`` (the disk), ``tally`` (counts), ``errand`` (what is to be done, how it may
end), ``sender`` (the loop over all of them).
"""
