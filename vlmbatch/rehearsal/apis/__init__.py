"""The batch and file APIs that the rehearsal provider offers, one file each; jobs.py is what they share."""
