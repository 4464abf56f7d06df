"""The stored tracks of recorded traffic that have a map."""

from pathlib import Path

HERE = Path(__file__).parent / "data/real_tracks"
MOTORWAY = HERE / "ngsim_USA_US101-4_3_T-1_ego400.npz"
TURN = HERE / "ngsim_USA_Lanker-2_18_T-1_ego21001_smoothed.npz"
STREET = HERE / "ngsim_USA_Peach-3_1_T-1_ego407.npz"
MAPPED = [MOTORWAY, TURN, STREET]
