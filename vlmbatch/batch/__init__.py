"""The batch channel: frozen lines become provider batch jobs, each made once, watched, and fetched.

Read in this order: base.py (what goes in and comes out), plan.py (which rows make a job), calls.py (sending, and what
a refusal means), submit.py (intent, upload, create), adopt.py (finding a job that a crash or a timeout lost), watch.py
(looking, fetching, cancelling), channel.py (the loop around them, and the door: ``send_batches``). The journal is
vlmbatch/journal.py. Nothing heavy is loaded before channel.py is.
"""
