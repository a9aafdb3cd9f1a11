"""``python -m vlmbatch.inference_runner``: a door for those who come from a single inference script.

It takes that script's flags and writes that script's output: JSON lines, each an input row with ``model``,
``raw_response``, ``parsed_answer`` and ``error``, appended as rows finish. Behind it stands a run folder
(``OUTPUT.run``), which is what proves what was asked and goes on after a crash. Rows that the output has answers for,
by their id fields, are left alone, whoever wrote them; rows that no earlier folder holds get one more
(``OUTPUT.run.2``).
"""
