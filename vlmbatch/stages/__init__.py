"""The stages, one per command: they take options, return results and never print.

``build``, ``estimate``, ``run``, ``collect``, ``report`` and ``archive`` are what the doors call; what each is made of
stands in a room beside it: ``building``, ``estimating``, ``running``, ``collecting``, ``reporting``.
"""
