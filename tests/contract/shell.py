"""A reader's terminal: a folder, the programs that the pages call, and nothing to reach but loopback."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from tests.contract import pages
from vlmbatch.serve import free_port

_VLMBATCH = """#!/bin/sh
case " $* " in
  *" --rehearsal "* | *" --base-url "* | *" --endpoints "* | *" --serve "* | *" --pending "* | *" --help "*) ;;
  " run "*) set -- "$@" --base-url "$PROVIDER" ;;
esac
exec "{python}" -m vlmbatch "$@"
"""
"""``vlmbatch`` as the blocks call it; what would go to a provider goes to a rehearsal's server on this machine."""

_PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec "{python}" "$@"
mkdir -p "$3/bin"
for program in python python3 pip; do ln -s "$PROGRAMS/$program" "$3/bin/$program"; done
"""
"""``python3``; an environment that it makes has what ``pip`` beside this file puts there."""

_STAND_IN = '#!/bin/sh\nexec "{python}" -m tests.contract.standins.{name} "$@"\n'
_PIP = '#!/bin/sh\nexec "{python}" -m tests.contract.standins.pip "$(dirname "$0")" "$@"\n'
_KEY = "sk-test-0123456789abcdef"
_PORT = re.compile(r"(?<=:|\s)800[01]\b")


class Shell:
    """Runs blocks one after the other, as one terminal would: folder and exported variables stay.

    Attributes:
        place: The folder in which it begins.
        calls: What was handed to the stand-in for sbatch, one JSON object a line.
    """

    def __init__(self, home: Path, providers: tuple[str, str], *, installed: bool, slurm: bool = False) -> None:
        """Open it.

        Args:
            home: An empty folder.
            providers: URLs of servers that answer; they stand where the pages have ports 8000 and 8001.
            installed: Whether vlmbatch is installed, or a page is going to do so.
            slurm: Whether sbatch is the real one.
        """
        self.place = home / "work"
        self.place.mkdir()
        self.calls = home / "sbatch.jsonl"
        self._slurm = slurm
        self._session = home / "session"
        self._session.touch()
        self._ports = dict(zip(("8000", "8001"), (url.rpartition(":")[2] for url in providers), strict=True))
        self._names: dict[str, Any] = {"base_url": providers[0]}
        programs, reached = home / "programs", home / "bin"
        _write_programs(programs, slurm=slurm)
        reached.mkdir()
        for program in programs.iterdir():
            if installed or program.name != "vlmbatch":
                (reached / program.name).symlink_to(program)
        # The environment of this Python has a vlmbatch of its own, maybe.
        paths = [path for path in os.environ["PATH"].split(":") if path != os.path.dirname(sys.executable)]
        self._env = {
            "PATH": ":".join([str(reached), *paths]),
            "PROGRAMS": str(programs),
            "PYTHONPATH": str(pages.ROOT),
            "HOME": str(home),
            "NO_COLOR": "1",
            "PROVIDER": providers[0],
            "OPENAI_API_KEY": _KEY,
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "SBATCH_CALLS": str(self.calls),
            **{name: os.environ[name] for name in ("SLURM_CONF", "HYPOTHESIS_STORAGE_DIRECTORY") if name in os.environ},
        }

    def run(self, block: pages.Block) -> str:
        """Run one block; fail where a command of it does. Return what it printed."""
        return self._python(block.code) if block.language == "python" else self.sh(block.code)

    def sh(self, code: str) -> str:
        """Run commands; a script for SLURM is handed to it as a file."""
        if "--port 8000" in code:
            self._ports["8000"] = str(free_port())
        code = _PORT.sub(lambda found: self._ports[found[0]], code)
        if code.startswith("#!"):
            script = self.place / "script.sh"
            script.write_text(code)
            script.chmod(0o755)
            code = "sbatch script.sh" if self._slurm else "sbatch --wait script.sh"
        kept = f"{{ export -p; printf 'cd \"%s\"\\n' \"$PWD\"; }} >'{self._session}'"
        done = subprocess.run(
            ["sh", "-e", "-c", f". '{self._session}'\n{code}\n{kept}"],
            check=False,
            cwd=self.place,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def prompt(self, command: str) -> str:
        """Run one command as somebody types it, in a shell that can be told from others."""
        return self.sh(f"cd '{self.place}'; bash -e -c {shlex.quote(command + '; exit')}")

    def _python(self, code: str) -> str:
        """Run Python as it stands, after the page's earlier blocks; ``base_url`` and ``MY_KEY`` are given."""
        told = io.StringIO()
        with (
            contextlib.chdir(self.place),
            contextlib.redirect_stdout(told),
            mock.patch.dict(os.environ, {"MY_KEY": _KEY}),
        ):
            exec(compile(code, "block", "exec"), self._names)  # noqa: S102
        return told.getvalue()


def _write_programs(folder: Path, *, slurm: bool) -> None:
    """Write what is on the path of a reader: ours, Python's, and stand-ins for what a test machine has not."""
    texts = {"vlmbatch": _VLMBATCH, "python": _PYTHON, "python3": _PYTHON, "pip": _PIP, "vllm": _STAND_IN}
    if not slurm:
        texts |= {"sbatch": _STAND_IN, "srun": "#!/bin/sh\nexit 1\n", "squeue": "#!/bin/sh\nexit 0\n"}
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text.replace("{python}", sys.executable).replace("{name}", name))
        (folder / name).chmod(0o755)
    beside = Path(sys.executable).parent
    for name in ("bagit.py", "ruff"):
        if found := shutil.which(name, path=f"{beside}:{os.environ['PATH']}"):
            (folder / name).symlink_to(found)
