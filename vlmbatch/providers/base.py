"""What an adapter is: a translator between one wire format and our words. No network, no clock, no file in here.

An adapter makes bodies and lines, names endpoints and headers, and reads answers. Whatever has to be sent is
*described* (:class:`Call`) and sent by the rooms above. Nothing outside this folder knows a provider's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.errors import Problem
    from vlmbatch.records import ErrorInfo, ImageFacts, Reading


@dataclass(frozen=True, slots=True)
class ImagePart:
    """One image of a message, ready to be inlined: base64 text of the sent bytes, or a provider's file id."""

    media_type: str
    base64: str = ""
    file_id: str = ""


Part = str | ImagePart
"""One piece of the user's message: text, or an image. Their order is part of the request."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Everything of a request that is the same for every row of a run: what the flags of build say.

    Attributes:
        model: The model's name as the provider spells it.
        url: The path of the endpoint, as it stands in the frozen line; empty = the adapter's default.
        system: The system prompt, None where there is none.
        max_tokens: The output limit, reasoning included.
        max_tokens_field: The limit's name in the body; empty = by the adapter's rule for the model.
        temperature: Sent only where the user set it.
        top_p: Sent only where the user set it.
        detail: ``low``, ``high``, ``auto``, ``original`` or None.
        reasoning_effort: The provider's word for it, None = not sent.
        thinking_budget: Tokens for thinking, None = not sent.
        json_answer: Whether the answer is to be JSON.
        json_schema: The schema that it is to fit, None where there is none.
        extra_body: Laid over the body's top level last, each member replacing what stands there.
    """

    model: str
    url: str = ""
    system: str | None = None
    max_tokens: int | None = 4096
    max_tokens_field: str = ""
    temperature: float | None = None
    top_p: float | None = None
    detail: str | None = None
    reasoning_effort: str | None = None
    thinking_budget: int | None = None
    json_answer: bool = False
    json_schema: dict[str, Any] | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to be sent by someone else. ``path`` is relative to the base URL, or a whole URL the provider named."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | bytearray | memoryview = b""


class BatchLine(NamedTuple):
    """One line of a provider's own result file, in our words.

    ``status_code`` None and ``error`` set = there was no HTTP answer (expired, cancelled). ``body`` is the answer as
    parsed JSON (text where it is no JSON); :meth:`Provider.read` reads it like a realtime one.
    """

    custom_id: str | None
    status_code: int | None
    body: Any
    error: ErrorInfo | None
    request_id: str | None = None


class Limits(NamedTuple):
    """What a provider takes, from data/limits.toml; None = no limit is documented. Bytes, pixels, counts.

    Attributes:
        media_types: What an image may be.
        image_bytes: One image, as a file.
        image_base64_bytes: One image, as the base64 text that is sent.
        image_side_px: The longer side of one image.
        image_pixels: Width times height of one image.
        images_per_request: Images of one request.
        many_images: Number of images in a request above which ``many_images_side_px`` holds for each of them.
        many_images_side_px: The longer side of one image where there are many.
        request_bytes: One request body.
        batch_file_bytes: One batch job's file.
        batch_requests: Requests of one batch job.
        animated: Whether more than one frame is tolerated (the first is looked at).
        warn: Lower thresholds by the same names, above which there is a warning and no refusal.
    """

    media_types: frozenset[str]
    image_bytes: int | None
    image_base64_bytes: int | None
    image_side_px: int | None
    images_per_request: int | None
    request_bytes: int | None
    batch_file_bytes: int | None
    batch_requests: int | None
    animated: bool
    image_pixels: int | None = None
    many_images: int | None = None
    many_images_side_px: int | None = None
    warn: Mapping[str, int] = {}


@runtime_checkable
class Provider(Protocol):
    """One wire format. All methods are pure; each is listed in the order in which a request meets it."""

    @property
    def name(self) -> str:
        """The provider's name, as ``--provider`` takes it."""
        ...

    @property
    def wire(self) -> str:
        """The wire format: providers that share one (vLLM and OpenAI chat) share a reader."""
        ...

    @property
    def takes_file_ids(self) -> bool:
        """Whether an image may be named by an id of the provider's own file store."""
        ...

    # --- making -----------------------------------------------------------------------------------------

    def check_ask(self, ask: Ask) -> tuple[list[Problem], list[str]]:
        """Return what is wrong with the options (nothing is built then), and warnings."""
        ...

    def check_images(
        self, facts: Sequence[ImageFacts], *, limits: Limits | None = None
    ) -> tuple[list[Problem], list[str]]:
        """Return why the provider would refuse these images of one request as they would be sent, and warning codes."""
        ...

    def check_request(self, request_bytes: int, *, limits: Limits | None = None) -> list[Problem]:
        """Return why the provider would refuse a body of this many bytes."""
        ...

    def limits(self, model: str, override: Mapping[str, Any] | None = None) -> Limits:
        """Return the dated limits for a model, the user's own values laid over them.

        Raises:
            InputError: The user names a limit that there is not.
        """
        ...

    def shard_limits(self, model: str) -> tuple[int, int]:
        """Return the bytes and requests at which a shard is cut unless the user says otherwise."""
        ...

    def url(self, ask: Ask) -> str:
        """Return the path that goes into the frozen line and run.json."""
        ...

    def params(self, ask: Ask) -> dict[str, Any]:
        """Return the body without model and messages: what run.json keeps as ``request.params``."""
        ...

    def body(self, ask: Ask, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the request body for one row; the freezer serialises it canonically, once.

        Raises:
            InputError: An image is named by a file id, which this wire format has no place for.
        """
        ...

    def line(self, custom_id: str, inner: Any, ask: Ask) -> dict[str, Any]:
        """Return one batch line; ``inner`` (a spliced fragment) stands last in it."""
        ...

    def frozen_headers(self, ask: Ask) -> dict[str, str]:
        """Return the headers that are part of the request's meaning (never a secret); run.json keeps them."""
        ...

    # --- sending ----------------------------------------------------------------------------------------

    def default_base_url(self) -> str:
        """Return the provider's own address, empty where there is none (a local server)."""
        ...

    def default_key_envs(self) -> tuple[str, ...]:
        """Return the conventional names of the key's variable, the first one set wins; empty: no key is needed."""
        ...

    def endpoint(self, url: str, base_url: str) -> str:
        """Return the whole URL of a path, from the path and a base URL (empty: the provider's own).

        Raises:
            InputError: There is no base URL, or it is none.
        """
        ...

    def is_direct(self, base_url: str) -> bool:
        """Tell whether a base URL is the provider's own address, not a relay's; any is where there is no own one."""
        ...

    def headers(self, key: str | None, frozen_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request, key included where there is one.

        Args:
            key: The key's value.
            frozen_headers: ``request.headers`` of run.json, where it has any.
        """
        ...

    def models_call(self) -> Call | None:
        """Describe the request that lists models, None where the provider has none."""
        ...

    def read_models(self, body: Any) -> list[str]:
        """Return the model names of such a list."""
        ...

    def supported_params(self) -> frozenset[str]:
        """Return the names of the generation parameters that :class:`Ask` may set for this provider."""
        ...

    # --- reading ----------------------------------------------------------------------------------------

    def max_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return the output limit that stands in a frozen body or its params, whatever put it there."""
        ...

    def read(self, status_code: int | None, body: Any) -> Reading:
        """Read one answer. ``body`` is parsed JSON, or str/bytes where it was none, or None where nothing came."""
        ...

    def ends_run(self, status_code: int | None, body: Any) -> str | None:
        """Return why no other row can fare better either (key, quota, model), or None.

        Ask this before ``is_retryable``: an empty account ends the run now, and the row may be sent again later.
        """
        ...

    def retry_after_s(self, status_code: int | None, body: Any) -> float | None:
        """Return the wait in seconds that the body asks for (Gemini's RetryInfo), or None."""
        ...

    def read_batch_line(self, value: Mapping[str, Any]) -> BatchLine:
        """Read one line of the provider's own batch result file."""
        ...
