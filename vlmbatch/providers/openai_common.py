"""What OpenAI's two wire formats share: address, inline images, structured output, the batch format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlmbatch.providers.adapter import Adapter, listed_names, no_result
from vlmbatch.providers.base import Ask, BatchLine, Call, ImagePart
from vlmbatch.providers.common import as_count, as_dict, as_text, strict_misfits

if TYPE_CHECKING:
    from collections.abc import Mapping

URL = "https://api.openai.com/v1"
KEYS = ("OPENAI_API_KEY",)
_SCHEMA_NAME = "answer"


@dataclass(frozen=True, slots=True)
class OpenAIWire(Adapter):
    """What the two formats do alike.

    Attributes:
        path: The endpoint's path, where the user names none.
    """

    path: ClassVar[str]

    def url(self, ask: Ask) -> str:
        """Return the endpoint's path."""
        return ask.url or self.path

    def line(self, custom_id: str, inner: Any, ask: Ask) -> dict[str, Any]:
        """Return one batch line."""
        return {"custom_id": custom_id, "method": "POST", "url": self.url(ask), "body": inner}

    def headers(self, key: str | None, frozen_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request."""
        auth = {} if key is None else {"authorization": f"Bearer {key}"}
        return {"content-type": "application/json", **frozen_headers, **auth}

    def models_call(self) -> Call | None:
        """Describe the request that lists models."""
        return Call("GET", "/v1/models")

    def read_models(self, body: Any) -> list[str]:
        """Return the model names of such a list; some servers have names alone."""
        return listed_names(body, "id", "name")

    def read_batch_line(self, value: Mapping[str, Any]) -> BatchLine:
        """Read one line of a batch's output or error file, or of ``vllm run-batch``."""
        return _read_batch_line(value)


def data_uri(part: ImagePart) -> str:
    """Return an inline image as OpenAI takes it."""
    return f"data:{part.media_type};base64,{part.base64}"


def strict_format(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in the form of structured output: strict where it lies in the strict subset."""
    return {"name": _SCHEMA_NAME, "schema": schema, "strict": not strict_misfits(schema)}


def check_strict(ask: Ask) -> list[str]:
    """Return a warning where the schema lies outside the strict subset: then it guides, and collect checks."""
    misfits = strict_misfits(ask.json_schema) if ask.json_schema is not None else []
    if not misfits:
        return []
    places = ", ".join(misfits[:3]) + (" ..." if misfits[3:] else "")
    why = f"at {places} an object leaves properties open or optional"
    return [f"--json-schema is sent without strict: {why}; collect checks the answers against it all the same"]


def _read_batch_line(value: Mapping[str, Any]) -> BatchLine:
    """Read one line of the OpenAI batch format; ``response`` null means that the request never ran."""
    custom_id = value.get("custom_id")
    custom_id = custom_id if isinstance(custom_id, str) else None
    response, error = value.get("response"), value.get("error")
    if not isinstance(response, dict):
        told = as_dict(error)
        code = as_text(told.get("code")) or "no_response"
        said = as_text(told.get("message")) or as_text(error) or "the line holds no response"
        return BatchLine(custom_id, None, None, no_result(code, said))
    body = response.get("body")
    status_code = as_count(response.get("status_code"))
    if body is None and error is not None:
        body = error  # run-batch: the error response, whole or as a string, stands beside the null body
        status_code = status_code or 500
    return BatchLine(custom_id, status_code or 200, body, None, as_text(response.get("request_id")))
