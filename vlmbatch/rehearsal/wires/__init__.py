"""The wire formats that the rehearsal provider speaks, one file each, and where each one listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmbatch.rehearsal.wires import chat, generate_content, messages, responses

if TYPE_CHECKING:
    from vlmbatch.rehearsal.wires.base import Wire

CHAT: Wire = chat.ChatWire()
RESPONSES: Wire = responses.ResponsesWire()
MESSAGES: Wire = messages.MessagesWire()
GENERATE_CONTENT: Wire = generate_content.GenerateContentWire()

PATHS: dict[str, Wire] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
"""Wires with a fixed path; generateContent names its model in the path."""
