"""The tables that `reflectdrive bench planner` prints, from its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ..infra.command import make_table
from . import gpu as bench_gpu


def tables(numbers: Mapping[str, Any], most_goals: int) -> list[Table]:
    """The times of steps beside their bound and eager torch, and the parts of a full step with `most_goals` goals."""
    rows = []
    for kind in ("full", "lite"):
        values = [numbers[f"{kind}_ms_{what}"] for what in ("p50", "p99")]
        bound_ms = numbers[f"roofline_{kind}_ms"]
        values += [numbers[f"{kind}_cpu_ms_p50"], bound_ms, None if bound_ms is None else values[0] / bound_ms]
        if kind == "lite":
            values += [numbers.get("eager_lite_ms_p50"), numbers.get("times_faster_than_eager_lite")]
        rows.append((kind, *("" if value is None else f"{value:.1f}" for value in values)))
    for goals, ending in ((most_goals, ""), (1, "_one_goal")):
        values = [numbers[f"eager_full_ms_p50{ending}"], numbers.get(f"times_faster_than_eager{ending}")]
        values_shown = ("" if value is None else f"{value:.1f}" for value in values)
        ms = f"{numbers['full_by_goals_ms_p50'][str(goals)]:.1f}"
        rows.append((f"full, {goals} of {goals} edited", ms, "", "", "", "", *values_shown))
    waits = "sleep while they wait" if numbers["eager_threads"] == "passive" else "spin while they wait"
    ceilings = "no bound: torch finds no GPU and runs on the CPU; "
    if numbers["copy_gb_per_s"] is not None:
        ceilings = f"copy {numbers['copy_gb_per_s']:.1f} GB/s, "
        ceilings += f"matrices {numbers['matmul_gflop_per_s']:.0f} GFLOP/s in float32; "
    caption = (
        f"{ceilings}reuse of keys and values makes a full step {numbers['own_reuse_times_faster']:.1f} times faster, "
        f"{numbers['own_reuse_times_faster_one_goal']:.1f} times with one goal, than encoding the scene in each pass; "
        f"eager torch {numbers['sharing_times_faster']:.1f} times on {most_goals} goals than encoding it in each pass "
        f"for each goal, {numbers['reuse_times_faster']:.1f} times than in each pass for all; "
        f"{numbers['reuse_times_faster_one_goal']:.1f} times on one goal"
        + (
            f"; the feature cache saves  {numbers['ring_times_faster']:.2f} times"
            if "ring_times_faster" in numbers
            else ""
        )
    )
    columns = {**numbers["parts_ms_p50"], "drafts": numbers["draft_ms_p50"], "edits": numbers["edit_ms_p50"]}
    columns |= {"host": numbers["host_ms_p50"]}
    columns |= {f"update of {goals}": value for goals, value in numbers["update_ms_p50"].items()}
    columns |= {f"{goals} goals": value for goals, value in numbers["full_by_goals_ms_p50"].items()}
    cells = [f"{value:.2f}" for value in columns.values()]
    parts = make_table(tuple(columns), [cells], "parts of a full step, ms", texts=0)
    if "cold_start_s" in numbers:
        caption += f"; {numbers['cold_start_s']:.1f} s from a fresh process to a network that was tried"
    caption += f"; eager torch's threads {waits}"
    if isinstance(numbers["gpu"], str):
        caption += f"; GPU {numbers['gpu']}"
    title = (
        f"{numbers['config']}, {numbers['parameters'] / 1e6:.1f} M parameters, {numbers['backend_description']}; "
        f"{numbers['steps']} steps"
    )
    headings = ("step", "ms p50", "p99", "CPU ms", "bound ms", "p50 / bound", "eager ms", "eager / this")
    shown = [make_table(headings, rows, title, caption), parts]
    return shown if isinstance(numbers["gpu"], str) else [*shown, bench_gpu.table(numbers["gpu"])]
