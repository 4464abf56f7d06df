"""`reflectdrive serve --egodriver`: a planner behind AlpaSim's driver contract, for rendered and CARLA worlds.

A simulator connects by gRPC, opens sessions, sends images, egomotion and a route, and asks for a plan. Each session has
its own engine; a failure in one does not stop others. A plan that is not ready within `--deadline-ms` is replaced by
the stop plan. It listens on this machine only, unless `--host` names another address: the contract knows no passwords.
When it ends it counts sessions and plans, and gives planning times.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.config import Config
from ..infra import arguments
from ..infra.command import command, list_counts, make_list
from ..infra.errors import UserError
from ..infra.provenance import write_numbers
from ..planning.inputs import reads_vectors
from ..runtime import cli_args
from ..runtime.engine import NO_DEADLINE_MS, check_networks
from ..runtime.network import load_networks, worker_network

HOST, PORT = "127.0.0.1", 50051
DEADLINE_MS = 1000.0
MODES = ("carla", "alpasim")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--egodriver", action="store_true", help="serve AlpaSim's driver contract (the only service)")
    parser.add_argument("--planner", help="recipe to use instead of the default")
    cli_args.add_model_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML)")
    arguments.add_settings_argument(parser)
    parser.add_argument("--host", default=HOST, metavar="ADDRESS", help=f"address to listen on (default: {HOST})")
    parser.add_argument("--port", type=arguments.PORT, default=PORT, help="0: any free one")
    parser.add_argument(
        "--mode", choices=MODES, default="carla", help="runtime at the other end: it decides what the free fields hold"
    )
    parser.add_argument(
        "--deadline-ms",
        type=arguments.positive_int(60_000),
        default=round(DEADLINE_MS),
        metavar="MS",
        help="a plan that takes longer is replaced by the stop plan",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON, when it ends")


@command()
def run(args: argparse.Namespace, console: Console, errors: Console) -> None:
    if not args.egodriver:
        raise UserError("serve has one service so far: give --egodriver")
    config = served_config(cli_args.configuration(args))
    driver = make_driver(config, args.deadline_ms / 1e3)
    from ..egodriver import service

    handler = logging.StreamHandler()
    handler.setFormatter(service.LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    console.print(f"{driver.name} listens on {args.host}:{args.port}; Ctrl-C ends it")
    service.run_server(driver, args.port, args.host, args.mode)
    numbers = {"planner": config.planner, **driver.numbers()}
    write_numbers(args.json, numbers, weights_sha256=cli_args.weights_of(config, [config.planner]))
    console.print(table(numbers))


def table(numbers: dict[str, Any]) -> Table:
    latency_ms = numbers["latency_ms"]["total"]
    planning_time = "-"
    if latency_ms is not None:
        planning_time = f"p50 {latency_ms['p50']:.1f} ms, p99 {latency_ms['p99']:.1f} ms"
    rows = {
        "sessions": str(numbers["sessions"]),
        "plans": list_counts(numbers["plans"]),
        "late": str(numbers["late"]),
        "planning time": planning_time,
    }
    return make_list(f"served by {numbers['planner']}", rows)


def served_config(config: Config) -> Config:
    """Plans are judged by the server's deadline, not by the vehicle's; a simulator waits."""
    if reads_vectors(config):
        raise UserError(f"{config.planner} needs lanes and histories, which the contract does not send: use another")
    return replace(config, engine=replace(config.engine, deadline_ms=NO_DEADLINE_MS))


def make_driver(config: Config, deadline_s: float) -> Any:
    """The planner as the contract's driver. Raises ModelFileError, and ImportError without the contract's package."""
    from ..egodriver.driver import PlannerDriver

    networks = load_networks(config, worker_network)
    check_networks(config, networks)
    return PlannerDriver(config, networks, deadline_s)
