"""Hand-over: a run folder is sealed, packed into a bag, or copied without what must not leave the house.

Everything here stands on hashes that the folder holds already. A sealed folder can be checked with bare Python; a bag
is checked by any BagIt tool; a redacted copy keeps every hash, so that whoever holds the originals can prove each row.
"""

from vlmbatch.stages.archive.bagging import BagOptions, BagResult, bag
from vlmbatch.stages.archive.base import check_new
from vlmbatch.stages.archive.redacting import RedactResult, check_redact, redact
from vlmbatch.stages.archive.sealing import SealResult, seal

__all__ = [
    "BagOptions",
    "BagResult",
    "RedactResult",
    "SealResult",
    "bag",
    "check_new",
    "check_redact",
    "redact",
    "seal",
]
