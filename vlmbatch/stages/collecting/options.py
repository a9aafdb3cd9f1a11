"""What the user wants of collect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """The flags of collect, one field each (docs/how-to/collect.md says what they are for).

    Attributes:
        write: Where merged.jsonl goes; None = read only. The summary stands beside it.
        rows: Where the input's rows with their answers go.
        csv: Where a flat table goes, as CSV.
        csv_safe: Whether cells that a spreadsheet takes for formulas get an apostrophe before them.
        parquet: The same table as Parquet.
        hf: A new folder for a dataset hub: the table and a card.
        gate: Whether the default conditions of a delivery are to hold.
        require: Further conditions, or other ones in their place.
        require_fields: Fields of the JSON answer that must not be empty.
        retry_ids: Where the ids go that are worth sending again as they are.
        cap_ids: Where the ids go that need a new run with a higher output limit.
        compare: Other run folders to hold this one against.
        expect_json: Whether answers are to be JSON although the run did not ask for it.
        json_schema: File with a JSON Schema that they are to fit.
        rehearsal: Whether the rehearsals are collected, and they alone.
        reviews: What reviewers said; None = reviews.jsonl of the run folder, where there is one.
        seal: Whether the folder is sealed next: then the records that stand in it have to be those that come of the
            results, and an earlier seal need not hold.
    """

    write: str | None = None
    rows: str | None = None
    csv: str | None = None
    csv_safe: bool = False
    parquet: str | None = None
    hf: str | None = None
    gate: bool = False
    require: Sequence[str] = ()
    require_fields: Sequence[str] = ()
    retry_ids: str | None = None
    cap_ids: str | None = None
    compare: Sequence[str] = ()
    expect_json: bool = False
    json_schema: str | None = None
    rehearsal: bool = False
    reviews: str | None = None
    seal: bool = False

    def outputs(self) -> dict[str, str]:
        """Return the files and folders that are to be written, by flag."""
        named = {
            "--write": self.write,
            "--rows": self.rows,
            "--csv": self.csv,
            "--parquet": self.parquet,
            "--hf": self.hf,
            "--retry-ids": self.retry_ids,
            "--cap-ids": self.cap_ids,
        }
        return {flag: path for flag, path in named.items() if path is not None}

    @property
    def needs_records(self) -> bool:
        """Whether whole records are needed, not just numbers."""
        return bool(self.write or self.rows or self.csv or self.parquet or self.hf or self.compare or self.seal)
