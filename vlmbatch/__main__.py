"""Where the program starts, as ``vlmbatch`` and as ``python -m vlmbatch``; loading this module takes Ctrl-C."""

try:
    from vlmbatch import interrupt

    interrupt.ends_at_once()
except KeyboardInterrupt:
    from vlmbatch.interrupt import end

    end()


def main(prog_name: str = "vlmbatch") -> None:
    """Run the command line and leave with its exit status; Ctrl-C ends in one line at any moment of it."""
    from vlmbatch.cli import main as command_line

    command_line(prog_name=prog_name)


if __name__ == "__main__":
    main("python -m vlmbatch")
