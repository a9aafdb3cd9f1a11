"""``vllm``, as far as the pages call it: its command line is checked, the rehearsal provider answers.

Options and the form of run-batch's output: references/servers.md and references/results-and-failures.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import httpx

from vlmbatch import jsonl
from vlmbatch.rehearsal.server import serve


def main() -> None:
    """Serve until ended, or answer one file."""
    parser = argparse.ArgumentParser(prog="vllm")
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve")
    server.add_argument("model")
    server.add_argument("--host", choices=["127.0.0.1"])
    server.add_argument("--port", required=True)
    server.add_argument("--tensor-parallel-size", type=int)
    for switch in ("--trust-remote-code", "--disable-custom-all-reduce", "--enable-prompt-tokens-details"):
        server.add_argument(switch, action="store_true")
    batch = commands.add_parser("run-batch")
    batch.add_argument("-i", dest="input", required=True)
    batch.add_argument("-o", dest="output", required=True)
    batch.add_argument("--model", required=True)
    options = parser.parse_args()
    if options.command == "serve":
        rehearsal = ("-m", "vlmbatch.rehearsal", "--port", options.port, "--model", options.model)
        os.execv(sys.executable, (sys.executable, *rehearsal))  # noqa: S606
    _answer_file(options.input, options.output, options.model)


def _answer_file(lines: str, output: str, model: str) -> None:
    with serve(models=[model]) as server, Path(output).open("wb") as file:
        for line in Path(lines).read_bytes().splitlines():
            request = jsonl.loads(line)
            got = httpx.post(server.base_url + request["url"], json=request["body"])
            got.raise_for_status()
            response = {"status_code": got.status_code, "request_id": "vllm-batch-1", "body": got.json()}
            answer = {"id": "vllm-1", "custom_id": request["custom_id"], "response": response, "error": None}
            file.write(jsonl.dumps(answer) + b"\n")


if __name__ == "__main__":
    main()
