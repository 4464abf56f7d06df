"""`reflectdrive import diffusion-planner DIR`: the public checkpoint of another planner as weights of this package.

DIR holds args.json and one of model.safetensors, ema_state_dict.safetensors, model.pth, latest.pth, as the public
Diffusion-Planner saves them; the tensors are those of ema_state_dict. A pickle is read as tensors only: code in it does
not run. Missing, unexpected and misshapen tensors are listed, and nothing is written then.

--out DIR gets weights.safetensors (float32) and card.json. The public network was not trained with dropped conditions:
its card has no capability `guidance`. No setting (--setting) changes the weights.

--check CASE.npz compares this package's results with those of the public code, which the case holds: inputs, encoder,
decoder and sampler. The exit code is 1 if a largest difference is above its tolerance, and nothing is written then. The
tolerance is the stated one (2e-5 for normalised inputs, encoding and denoised futures, 1e-3 m for the prediction), or 4
times the rounding error of float32 of that quantity on this machine, whichever is larger. The rounding error is the
largest difference between the results in float32 and in float64. It is large for few elements of an encoding; the
median over the elements of their largest difference has a row of its own, so that a bias that is wrong is found too.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..deploy.published_case import Difference, compare, read_case
from ..infra.command import HelpFormatter, command, make_table
from ..infra.files import sha256_of
from ..infra.provenance import write_numbers
from ..model.denoiser.net import DenoiserNet
from ..model.denoiser.published import KIND, load_published, save_imported, weights_file

WEIGHTS = "weights.safetensors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    kind = kinds.add_parser(KIND, help="Zheng et al., ICLR 2025: a denoiser on lanes and agents", description=__doc__)
    kind.formatter_class = HelpFormatter
    kind.add_argument("checkpoint", type=Path, metavar="DIR", help="folder with args.json and the weights")
    kind.add_argument("--out", type=Path, metavar="DIR", help="output folder of weights.safetensors and card.json")
    kind.add_argument("--check", type=Path, metavar="CASE", help="NPZ of inputs and of the public code's results")
    kind.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> int:
    """Exit code 0; 1 if a difference is above its tolerance; 2 with one sentence when an input cannot be used."""
    net, file = load_published(args.checkpoint), weights_file(args.checkpoint)
    sha256 = sha256_of(file)
    numbers = {**describe(net), "file": str(file), "file_sha256": sha256}
    rows = [] if args.check is None else compare(net, read_case(args.check, net.config))
    console.print(case_table(rows) if rows else measures_table(numbers))
    within = all(row.within for row in rows)
    if rows:
        numbers["check"] = {
            "case": str(args.check),
            "within": within,
            "rows": [{**asdict(row), "tolerance": row.tolerance, "within": row.within} for row in rows],
        }
        above = [row.name for row in rows if not row.within]
        console.print(f"above the tolerance: {', '.join(above)}" if above else "all within the tolerances")
    weights_sha256 = ""
    if args.out is not None and within:
        weights_sha256 = save_imported(net, args.out / WEIGHTS, {"file": file.name, "sha256": sha256})
        console.print(f"model.file: {args.out / WEIGHTS}\nmodel.sha256: {weights_sha256}")
    write_numbers(args.json, numbers, weights_sha256=weights_sha256)
    return 0 if within else 1


def describe(net: DenoiserNet) -> dict[str, Any]:
    """Measures of a network, its parameters and tensors."""
    spec, config = asdict(net.config.spec), asdict(net.config)
    measures = {name: value for part in (spec, config) for name, value in part.items() if type(value) is int}
    sizes = [parameter.numel() for parameter in net.parameters()]
    return {"measures": measures, "parameters": sum(sizes), "tensors": len(sizes)}


def measures_table(numbers: dict[str, Any]) -> Table:
    values = {**numbers["measures"], **{name: value for name, value in numbers.items() if name != "measures"}}
    return make_table(("measure", "value"), [(name.replace("_", " "), str(value)) for name, value in values.items()])


def case_table(rows: list[Difference]) -> Table:
    heads = ("quantity", "largest difference", "tolerance", "stated", "rounding of float32", "")
    shown = []
    for row in rows:
        numbers = (row.difference, row.tolerance, row.stated, row.rounding)
        shown.append((row.name, *(f"{number:.1e}" for number in numbers), "" if row.within else "above"))
    return make_table(heads, shown, caption="prediction in m, all others normalised")
