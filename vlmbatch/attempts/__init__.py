"""Attempts: results files of either kind, read back into one shape.

A file of results/ holds attempts that we wrote, or it is a provider's own batch output, kept raw. Both become
:class:`Outcome` here; nobody above this room needs to know which it was. Files are read line by line, a damaged
line is counted and passed over, and nothing is ever written.
"""

from vlmbatch.attempts.jobs import Job, Journal
from vlmbatch.attempts.judging import asked, is_settled, iter_settled, judge, read_answer
from vlmbatch.attempts.ordering import order_files, parse_time
from vlmbatch.attempts.reading import Reader, as_seconds, relative_name
from vlmbatch.attempts.shape import Outcome, Settled

__all__ = [
    "Job",
    "Journal",
    "Outcome",
    "Reader",
    "Settled",
    "as_seconds",
    "asked",
    "is_settled",
    "iter_settled",
    "judge",
    "order_files",
    "parse_time",
    "read_answer",
    "relative_name",
]
