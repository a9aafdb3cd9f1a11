"""``python -m vlmbatch.rehearsal``: the rehearsal provider as a process of its own; it prints its URL and waits."""

from __future__ import annotations

import argparse
import signal
import sys

from vlmbatch.errors import Exit, InputError
from vlmbatch.rehearsal.faults import load_faults
from vlmbatch.rehearsal.server import serve


def main() -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m vlmbatch.rehearsal", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--faults", metavar="FILE", help="how to misbehave (docs/reference/faults.md)")
    parser.add_argument("--model", action="append", default=[], help="a model there is (default: every model)")
    options = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        faults = load_faults(options.faults) if options.faults else None
        with serve(faults, port=options.port, models=options.model) as server:
            sys.stdout.write(f"{server.base_url}\n")
            sys.stdout.flush()
            signal.sigwait(signals)
    except InputError as error:
        sys.stderr.write("".join(f"{line}\n" for line in (f"error: {error.message}", *map(str, error.problems))))
        return error.exit_code
    except OSError as error:
        sys.stderr.write(
            f"error: port {options.port}: {error.strerror}\nhint: leave --port away: a free one is taken\n"
        )
        return Exit.BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
