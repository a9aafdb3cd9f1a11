"""The stages, one per command: they take options, return results and never print."""
