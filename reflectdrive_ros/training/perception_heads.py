"""Auxiliary heads on image tokens: occupancy of a grid around the car, and of the ground behind each image patch.

The sixteen action tokens alone are a weak training signal for the vision encoder. The network is therefore also trained
to predict, from its image tokens, what is road, and what is occupied now and in one, two and four seconds. Cells of the
grid are 1 m wide: in larger ones the share of a pedestrian would be too small. Such auxiliary tasks are common in
camera planners (TransFuser, arXiv 2205.15997, section 3.4); ReflectDrive-2 has none. The heads are discarded after
training.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.domain import Array
from ..data import distance_map
from ..data.occupancy import CELL_M, CELLS, CHANNELS, FIRST_M, FUTURE_STEPS, cell_centres_m
from ..model.token.net import TokenNetConfig
from ..model.vision import SHUFFLE
from ..sim.render.camera import Camera, rig

PATCH = 8  # cells per side that one query predicts
HEADS = 4
OCCUPIED_WEIGHT = 4.0  # weight of occupied cells relative to free ones
ROWS, COLUMNS = 8, 4  # points per token: the ground is viewed at a slant, so that distant points have little height
ROAD_RANGE_M = 70.0  # of road


class BevHead(nn.Module):
    """All image tokens to occupancy of a grid around the car: one round of attention by a query per patch of cells."""

    rows: Tensor
    columns: Tensor
    weights: Tensor

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty((CELLS // PATCH) ** 2, width))
        self.keys_values = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, CHANNELS * PATCH**2)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() < 2:
                    parameter.fill_(1.0 if name == "norm.weight" else 0.0)
                else:
                    scale = 0.5 if name == "queries" else parameter.shape[1] ** -0.5
                    parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        for axis, (name, centres) in enumerate(zip(("rows", "columns"), cell_centres_m(), strict=True)):
            self.register_buffer(name, torch.from_numpy(distance_map.indices_of(centres, axis)), persistent=False)
        weights = torch.tensor([1.0, *[OCCUPIED_WEIGHT] * len(FUTURE_STEPS)])
        self.register_buffer("weights", weights[:, None, None], persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, width) -> logits (B, CHANNELS, CELLS, CELLS)."""
        keys, values = (
            torch.unflatten(part, -1, (HEADS, -1)).transpose(1, 2) for part in self.keys_values(tokens).chunk(2, dim=-1)
        )
        queries = torch.unflatten(self.queries, -1, (HEADS, -1)).transpose(0, 1).expand(len(tokens), -1, -1, -1)
        attended = F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)
        outputs = self.fc2(F.gelu(self.fc1(self.norm(self.queries + attended))))
        side = CELLS // PATCH
        patches: Tensor = outputs.view(-1, side, side, CHANNELS, PATCH, PATCH)
        return patches.permute(0, 3, 1, 4, 2, 5).reshape(-1, CHANNELS, CELLS, CELLS)

    def loss(self, tokens: Tensor, distances: Tensor, occupancy: Tensor, has_labels: Tensor) -> Tensor:
        """Mean cross-entropy over cells and channels, 0 of the channels that a scene does not know.

        tokens (B, N, width), distances (B, X, Y) int8 as `fields.distance_map`, occupancy bool as a batch of
        `occupancy`, has_labels (B, 2) bool as of `losses.Batch`.
        """
        road = distances[:, self.rows][:, :, self.columns] <= 0
        target = torch.cat([road[:, None], occupancy], 1).float()
        counts = channel_mask(has_labels)[:, :, None, None].expand_as(target)
        return F.binary_cross_entropy_with_logits(self(tokens).float(), target, counts, pos_weight=self.weights)


def channel_mask(has_labels: Tensor) -> Tensor:
    """(B, CHANNELS) 1 or 0 of (B, 2) bool: the road, then the occupancy at each instant."""
    return torch.cat([has_labels[:, :1], has_labels[:, 1:].expand(-1, len(FUTURE_STEPS))], 1).float()


def ground_points_m(camera: Camera, rows: int, columns: int) -> Array:
    """(rows, columns, 2) ground points in the ego frame behind the middles of an image's cells; NaN above the horizon.

    The ground is the plane z = 0 of the ego frame.
    """
    v, u = np.meshgrid(np.arange(rows) + 0.5, np.arange(columns) + 0.5, indexing="ij")
    pixels = np.stack([u * camera.width / columns, v * camera.height / rows, np.ones_like(u)], -1)
    ego_from_camera = np.linalg.inv(camera.camera_from_ego)
    rays = pixels @ np.linalg.inv(camera.pixels_from_camera).T @ ego_from_camera[:3, :3].T
    eye = ego_from_camera[:3, 3]
    down = np.where(rays[..., 2:] < -1e-3, rays[..., 2:], np.nan)
    return np.asarray((eye - rays * eye[2] / down)[..., :2])


class GroundHead(nn.Module):
    """Each image token to occupancy of the ground behind its patch.

    Each pixel below the horizon corresponds to a point on the ground, given by the camera's pose. This needs no learned
    geometry, so the vision encoder learns several times faster from it than from the grid, which then requires it.
    """

    x_indices: Tensor  # (tokens, POINTS) rows of a distance map
    y_indices: Tensor
    x_cells: Tensor  # (tokens, POINTS) of the grid of `occupancy.occupancy`
    y_cells: Tensor
    weights: Tensor  # (tokens, CHANNELS, POINTS), those of a channel sum to 1; 0 where the target is unknown
    rare: Tensor

    def __init__(self, network: TokenNetConfig, generator: torch.Generator) -> None:
        """For the cameras of the proving ground. Raises ValueError if the network has not as many."""
        super().__init__()
        vision, width = network.vision, network.transformer.width
        cameras = rig(vision.width, vision.height)
        if network.cameras != len(cameras):
            raise ValueError(f"the network has {network.cameras} cameras, the proving ground {len(cameras)}")
        points = np.concatenate([_token_ground_points(camera, network) for camera in cameras])  # (tokens, POINTS, 2)
        below = np.isfinite(points).all(-1)
        points = np.clip(np.nan_to_num(points), -90.0, 90.0)
        window = distance_map.id_window()
        ids = [distance_map.GRID.to_ids(points[..., k]) - each.start for k, each in enumerate(window)]
        sizes = [each.stop - each.start for each in window]
        on_map = below & (points[..., 0] < ROAD_RANGE_M)
        for each, size in zip(ids, sizes, strict=True):
            on_map &= (each >= 0) & (each < size)
        cells = np.floor((points - FIRST_M) / CELL_M).astype(np.int64)
        on_grid = below & ((cells >= 0) & (cells < CELLS)).all(-1)
        cells = np.clip(cells, 0, CELLS - 1)
        labelled = np.stack([on_map, *[on_grid] * len(FUTURE_STEPS)], 1).astype(np.float32)
        for name, array in (
            ("x_indices", np.clip(ids[0], 0, sizes[0] - 1).astype(np.int64)),
            ("y_indices", np.clip(ids[1], 0, sizes[1] - 1).astype(np.int64)),
            ("x_cells", cells[..., 0]),
            ("y_cells", cells[..., 1]),
            ("weights", labelled / np.maximum(labelled.sum((0, 2), keepdims=True), 1.0)),
            ("rare", np.array([[1.0], *[[OCCUPIED_WEIGHT]] * len(FUTURE_STEPS)], np.float32)),
        ):
            self.register_buffer(name, torch.from_numpy(array), persistent=False)
        self.linear = nn.Linear(width, CHANNELS * ROWS * COLUMNS)
        with torch.no_grad():
            self.linear.weight.copy_(width**-0.5 * torch.randn(self.linear.weight.shape, generator=generator))
            self.linear.bias.zero_()

    def targets(self, distances: Tensor, occupancy: Tensor) -> Tensor:
        """(B, tokens, CHANNELS, POINTS) 0 or 1 of distances (B, X, Y) int8 and occupancy bool as of `BevHead.loss`."""
        road = distances[:, self.x_indices, self.y_indices] <= 0
        users = occupancy[:, :, self.x_cells, self.y_cells].transpose(1, 2)
        return torch.cat([road[:, :, None], users], 2).float()

    def loss(self, tokens: Tensor, distances: Tensor, occupancy: Tensor, has_labels: Tensor) -> Tensor:
        """Mean cross-entropy over channels and points, of the tokens (B, N, width) of the newest instant; 0 of the
        channels that a scene does not label, has_labels (B, 2) bool as of `losses.Batch`."""
        newest = tokens[:, -len(self.weights) :]
        logits = torch.unflatten(self.linear(newest).float(), -1, (CHANNELS, ROWS * COLUMNS))
        each = F.binary_cross_entropy_with_logits(
            logits, self.targets(distances, occupancy), reduction="none", pos_weight=self.rare
        )
        return (each * self.weights * channel_mask(has_labels)[:, None, :, None]).sum() / (CHANNELS * len(tokens))


def _token_ground_points(camera: Camera, network: TokenNetConfig) -> Array:
    """(tokens, POINTS, 2) of one camera's tokens, row by row."""
    rows, columns = (side // SHUFFLE for side in network.vision.grid)
    points_m = ground_points_m(camera, rows * ROWS, columns * COLUMNS)
    by_token = points_m.reshape(rows, ROWS, columns, COLUMNS, 2).transpose(0, 2, 1, 3, 4)
    return np.asarray(by_token.reshape(rows * columns, -1, 2))
