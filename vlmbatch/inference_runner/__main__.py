"""The flags of the door, with the defaults of the scripts that people come from (requirements R0)."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from vlmbatch.console import Console
from vlmbatch.errors import Exit, VlmbatchError
from vlmbatch.inference_runner.runner import PROVIDERS, Runner

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the door; return the exit status, which is that of ``vlmbatch run``."""
    console = Console()
    try:
        return Runner(_parser().parse_args(argv), console).run()
    except VlmbatchError as error:
        console.error(error)
        return error.exit_code
    except OSError as error:
        console.plain_error(f"{error.filename or 'input or output'}: {error.strerror or error}", "check path and space")
        return Exit.BAD_INPUT
    except KeyboardInterrupt:
        console.line("interrupted; the same command goes on where it stopped")
        return Exit.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vlmbatch.inference_runner",
        description="Ask a model about every row of a JSONL file and append the answers to another one.",
        epilog="docs/how-to/coming-from-an-inference-script.md shows the way from here to the four commands.",
    )
    add = parser.add_argument
    add("--provider", choices=sorted(PROVIDERS), required=True)
    add("--endpoints", nargs="+", default=[], metavar="URL", help="servers (vllm_local), or the API's base URL")
    add("--model-id", required=True)
    add("--input", required=True, metavar="JSONL")
    add("--output", required=True, metavar="JSONL")
    add("--n-concurrent", type=int, default=6, help="per endpoint for vllm_local, in all for APIs (default 6)")
    add("--max-tokens", type=int, default=100, help="output limit (default 100)")
    add("--temperature", type=float, default=0.0, help="default 0.0")
    add("--api-key-env", metavar="NAME", help="default OPENAI_API_KEY (openai), GOOGLE_API_KEY (gemini)")
    add("--reasoning-effort")
    add("--thinking-budget", type=int)
    add("--rate-limit-delay", type=float, default=0.0, metavar="SECONDS")
    add("--no-resume", action="store_true", help="ask every row again")
    add("--image-field", default="image_path", help="default image_path")
    add("--question-field", default="question_string", help="default question_string")
    add("--id-fields", default="triplet_id,condition", metavar="A,B", help="default triplet_id,condition")
    add("--prompt-template", help="Jinja2, or {field} alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
