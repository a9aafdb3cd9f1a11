"""Staged run-directory toolkit for bulk vision-language-model requests."""

__version__ = "0.1.0"
