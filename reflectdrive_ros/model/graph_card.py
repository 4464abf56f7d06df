"""What a set of exported graphs is, told once: in their card, and in each file. Read without torch.

    card = GraphCard.read("models/mine/onnx/card.json")        # hashes of all files are checked here
    card.files["step"], card.model["weights_sha256"], card.codebook()

A card is `{"format", "model", "graphs": {name: {"file", "sha256", "bytes"}}, "about"}`. `model` stands in the metadata
of each graph once more, so that a graph of another model in the right place is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..tokens import Codebook

FORMAT = "reflectdrive.graphs.3"  # 1 had no `prefill`, 2 no `see`
CARD = "card.json"
GRAPHS = ("see", "prefill_goal", "prefill", "step")
QUANTISED = ("int8", "fp8")  # precisions that drive only after they were held against float32
MOST_LOST = 0.3  # PDMS that they may cost
WATCHED = "watched:"  # begins the names of outputs that tell of values inside a graph
METADATA = "reflectdrive"  # key of the graphs' metadata under which `model` stands, as JSON


class GraphError(Exception):
    """Exported graphs cannot be used; the message says which file, why and what to do."""


@dataclass(frozen=True)
class GraphCard:
    """A card that was read, its files found as it says."""

    path: Path
    model: Mapping[str, Any]  # what the network takes and means: `export.model_of`
    files: Mapping[str, Path]
    sha256: Mapping[str, str]  # of the files
    about: Mapping[str, Any]  # where the weights come from
    gate: Mapping[str, Any]  # what quantised graphs scored beside those in float32; empty where nobody looked

    @staticmethod
    def read(path: str | Path) -> GraphCard:
        """Raises GraphError for a card that is none, and for graphs that are missing or have another hash."""
        path = Path(path)
        try:
            content = json.loads(path.read_bytes())
        except OSError as fault:
            raise GraphError(f"{path} cannot be read: {fault.strerror}") from None
        except ValueError as fault:
            raise GraphError(f"{path} is not JSON: {fault}") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise GraphError(
                f"{path} is no card of exported graphs (format {FORMAT}): make one with reflectdrive export"
            )
        try:
            rows = {name: content["graphs"][name] for name in GRAPHS}
            files = {name: path.parent / row["file"] for name, row in rows.items()}
            expected = {name: str(row["sha256"]) for name, row in rows.items()}
            card = GraphCard(path, content["model"], files, expected, content.get("about", {}), content.get("gate", {}))
            card.codebook(), card.decoding()
        except (KeyError, TypeError, ValueError) as fault:
            raise GraphError(f"{path} lacks or has wrong {fault}: export the checkpoint again") from None
        for name, row in rows.items():
            for file, sha256 in ((files[name], expected[name]), *_beside(path.parent, row)):
                _check(file, sha256)
        return card

    @property
    def precision(self) -> str:
        """Of the arithmetic: fp32, bf16, int8, fp8. Cards that were written before there was a choice do not tell."""
        return str(self.model.get("precision", "fp32"))

    def codebook(self) -> Codebook:
        return Codebook(self.model["codebook"]["bin_m"], self.model["codebook"]["bins"])

    def decoding(self) -> dict[str, float]:
        """The settings `decoding` that were built in, by their names there."""
        goals, edits = self.model["decoding"]["goals"], self.model["decoding"]["edits"]
        return {
            "goals": goals["count"],
            "goal_spacing_m": goals["spacing_m"],
            "goal_floor": goals["floor"],
            "goals_looked_at": goals["looked"],
            "goal_trust": goals["trust"],
            "edit_below": edits["below"],
            "edit_at_most": edits["at_most"],
        }

    def check_gate(self) -> None:
        """Raises GraphError for quantised graphs of which nobody has shown that they drive as those in float32."""
        if self.precision not in QUANTISED:
            return
        try:
            lost = float(self.gate["pdms_fp32"]) - float(self.gate["pdms"])
        except (KeyError, TypeError, ValueError):
            raise GraphError(
                f"the graphs of {self.path} reckon in {self.precision}, and their card does not tell what they score "
                f"beside those in float32: export again with --precision {self.precision} --gate DIR"
            ) from None
        if not (lost <= MOST_LOST and self.gate.get("passed") is True):
            raise GraphError(
                f"the graphs of {self.path} reckon in {self.precision}, which costs them {lost:.2f} of PDMS, more than "
                f"{MOST_LOST}: drive with those in float32"
            )

    def check_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Raises GraphError when the graph in the file of `name` is not that graph of this model."""
        file = self.files[name]
        try:
            told = json.loads(metadata[METADATA])
        except (KeyError, ValueError):
            raise GraphError(f"{file} carries no metadata of a planner: export the checkpoint again") from None
        if told.get("graph") != name:
            raise GraphError(f"{file} is the graph {told.get('graph')!r}, expected {name!r}: export again")
        different = [key for key in self.model if told.get("model", {}).get(key) != self.model[key]]
        if different:
            raise GraphError(
                f"{file} belongs to another model than {self.path.name}: {', '.join(different)} differ; export the "
                "checkpoint again"
            )


def sha256_of(file: Path) -> str:
    """Raises OSError."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _beside(folder: Path, row: Mapping[str, Any]) -> list[tuple[Path, str]]:
    """The file of a large graph's weights, where they are not in the graph."""
    weights = row.get("weights")
    return [(folder / weights["file"], weights["sha256"])] if weights else []


def _check(file: Path, expected: str) -> None:
    try:
        found = sha256_of(file)
    except OSError as fault:
        raise GraphError(f"{file} cannot be read: {fault.strerror}; export the checkpoint again") from None
    if found != expected:
        raise GraphError(f"{file} has SHA-256 {found}, its card says {expected}: fetch it again or export it again")
