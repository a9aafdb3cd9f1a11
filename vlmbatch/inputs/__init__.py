"""Sources of inputs: folders, tables, pipeline files; each gives items in a fixed order.

Read in this order: base (what an item is), detect and sources (from paths to a source), folder, tables, arrow and
memory (where rows come from), rows (a row becomes items), names (what paths mean), texts and template (what is said),
pipeline.
"""

from vlmbatch.inputs.base import SourceOptions
from vlmbatch.inputs.sources import open_rows, open_source

__all__ = ["SourceOptions", "open_rows", "open_source"]
