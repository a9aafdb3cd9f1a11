"""``python -m vlmbatch``: the same command line as the ``vlmbatch`` script."""

from vlmbatch.cli import main

if __name__ == "__main__":
    main(prog_name="python -m vlmbatch")
