"""Attempts: results files of either kind, read back into one shape.

A file of results/ holds attempts that we wrote, or it is a provider's own batch output, kept raw. Both become
:class:`Outcome` here; nobody above this room needs to know which it was. Files are read line by line, a damaged
line is counted and passed over, and nothing is ever written.
"""

from vlmbatch.attempts.foreign import NAMED, foreign, refuse_foreign
from vlmbatch.attempts.judging import asked, asked_by_output, is_settled, iter_settled, judge
from vlmbatch.attempts.ordering import order_files, parse_time
from vlmbatch.attempts.origins import Origins
from vlmbatch.attempts.reading import Reader, as_seconds, relative_name
from vlmbatch.attempts.shape import Outcome, Settled

__all__ = [
    "NAMED",
    "Origins",
    "Outcome",
    "Reader",
    "Settled",
    "as_seconds",
    "asked",
    "asked_by_output",
    "foreign",
    "is_settled",
    "iter_settled",
    "judge",
    "order_files",
    "parse_time",
    "refuse_foreign",
    "relative_name",
]
