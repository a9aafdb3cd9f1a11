"""Tests against a real model server: ``-m real``, opt-in, never in CI (docs/contributing.md says how)."""
