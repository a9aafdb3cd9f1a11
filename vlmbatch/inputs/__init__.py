"""Sources of inputs: folders, tables, pipeline files; each gives items in a fixed order."""
