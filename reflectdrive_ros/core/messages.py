"""What every reader of messages needs: the error of a message that cannot be used, and the check of its frame."""

from __future__ import annotations

from typing import Any


class BadMessage(Exception):
    """A message cannot be used; the text names the fault and what to do."""


def require_frame(header: Any, frame: str, what: str) -> None:
    if header.frame_id.lstrip("/") != frame:
        raise BadMessage(
            f"{what} is in frame '{header.frame_id}', expected '{frame}': publish it in that frame, or set "
            "output.map_frame if everything is in the other"
        )
