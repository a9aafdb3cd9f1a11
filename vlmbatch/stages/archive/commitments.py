"""Commitments: what stands in a redacted copy for a value that could be guessed, and the salts that open them."""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.stages.collecting.export import members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vlmbatch.rundir import RunDir

WITHHELD = "vlmbatch_withheld"
"""Key under which a commitment stands where an object was."""

_MARK = "hmac-sha256:"
_SALT_BYTES = 32


class Blinds:
    """Commitments to what is left out, and the salts that open them: one salt a row, one for the run itself."""

    def __init__(self, run: RunDir, keep_fields: frozenset[str]) -> None:
        self._run = run
        self._keep = keep_fields
        self._secret = secrets.token_bytes(_SALT_BYTES)
        self.is_used = False

    def _salt(self, custom_id: str) -> bytes:
        """Return a row's salt: as good as random to anyone without the secret, which is forgotten at the end."""
        return hmac.digest(self._secret, custom_id.encode(), sha256)

    def commit(self, custom_id: str, field_: str, value: bytes) -> str:
        """Return the commitment to one value."""
        self.is_used = True
        return _MARK + hmac.digest(self._salt(custom_id), field_.encode() + b"\0" + value, sha256).hex()

    def images(self, custom_id: str, images: Any) -> list[dict[str, Any]]:
        """Return image records with a commitment in place of each path."""
        blind = []
        for number, image in enumerate(images):
            path = self.commit(custom_id, f"images.{number}.path", image["path"].encode("utf-8", "surrogatepass"))
            blind.append({**{key: value for key, value in image.items() if key != "path_bytes"}, "path": path})
        return blind

    def row(self, custom_id: str, row: bytes) -> Any:
        """Return what stands for a row: the fields that may stay, and a commitment to the whole."""
        own = dict(members(row))
        if not own:
            return jsonl.Fragment(row)
        kept = {name: jsonl.Fragment(own[name].encode("utf-8", "surrogatepass")) for name in own if name in self._keep}
        return {**kept, WITHHELD: self.commit(custom_id, "row", row)}

    def value(self, field_: str, value: Any) -> Any:
        """Return what stands for a value of run.json: numbers, truth values and null stay, all else is committed to."""
        if value is None or isinstance(value, bool | int | float):
            return value
        commitment = self.commit("", field_, jsonl.dumps_canonical(value))
        return commitment if isinstance(value, str) else {WITHHELD: commitment}

    def openings(self, values: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the lines that open the commitments: the run's own, then one a row."""
        texts = {name: jsonl.dumps_canonical(values[name]).decode() for name in sorted(values)}
        yield jsonl.dumps({"custom_id": "", "salt": self._salt("").hex(), "values": texts})
        for entry in self._run.iter_entries():
            texts = {f"images.{n}.path": image["path"] for n, image in enumerate(entry.images)}
            texts["row"] = entry.row.decode()
            salt = self._salt(entry.custom_id).hex()
            yield jsonl.dumps({"custom_id": entry.custom_id, "salt": salt, "values": texts})
