"""What a row takes: its input tokens, as estimate counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmbatch import tokens
from vlmbatch.stages.estimating import workload

if TYPE_CHECKING:
    from vlmbatch.records import Entry
    from vlmbatch.rundir import RunDir


class RowTokens:
    """Counts a row's input tokens: images by the scheme of the model, text by its bytes.

    Attributes:
        is_rule_known: Whether there is a scheme for the model; without one, images count as the middle of all schemes.
    """

    def __init__(self, run: RunDir) -> None:
        self._frame, provider = workload.read_frame(run), run.info["provider"]
        scheme = tokens.pick(run.info["model"], detail=self._frame.detail, provider=provider)
        self.is_rule_known = scheme is not None
        self._ruler = workload.Ruler(scheme, family=provider)

    def __call__(self, entry: Entry) -> int:
        """Return the tokens of one row."""
        ruler, total = self._ruler, 0
        for image in entry.images:
            sent = image.get("sent", image)
            size = sent["width"], sent["height"]
            total += ruler.known[size] if size in ruler.known else ruler.count(size)
        text = max(0, entry.body_length - self._frame.bytes - workload.image_bytes(entry))
        return total + -(-text // workload.BYTES_PER_TEXT_TOKEN)
