"""The rows of an evaluation: each is a planner with its settings and weights, and what the planner is given.

    rows = of_planners(config, ["reflectdrive2", "route_follower"], privileges=["objects"])
    rows = of_settings(config, parse([["all"], ["no_repair", "pipeline.repair=false"]]), privileges=["objects"])
    networks = rows["all (objects)"].networks()

Rows of one table are compared pairwise on the same scenes or drives, each with the first row that is given as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..core.config import Config, ConfigError, ModelConfig, override_dotted
from ..core.recipe_config import DecodingConfig
from ..data.scene import INSTANTS_S
from ..infra import arguments
from ..planning import decoding_config, generator_spec, get_planner, learned_configs
from ..planning.inputs import reads_images, uses_map
from ..planning.planner import AnyNetwork, Planner
from ..runtime.engine import check_networks
from ..runtime.model_file import ModelFileError, model_config, verified_sha256, weights_sha256
from ..runtime.network import load_networks, random_network, worker_network
from .privilege import LOSABLE, PRIVILEGES

RANDOM_WEIGHTS = "random weights"  # follows the planner in the name of a row
SHARED = ("vehicle",)  # sections that are the same for all rows of a table
PRIVILEGE, LOST = "privilege", "lost"  # are set like settings
LOST_SEPARATOR = "+"
Settings = Mapping[str, Any]  # dotted name -> value


class NetworkKey(NamedTuple):
    """What decides which network is loaded."""

    model: ModelConfig
    decoding: DecodingConfig
    random_weights: bool


@dataclass(frozen=True)
class Variant:
    """One row of a table."""

    config: Config  # with the planner
    privilege: str = ""  # one of `PRIVILEGES`; empty where all planners are given the same, as in closed loop
    random_weights: bool = False  # whether its network has random weights
    lost: tuple[str, ...] = ()  # inputs of `LOSABLE` that it does not have

    @property
    def planner_name(self) -> str:
        return self.config.planner

    @property
    def is_learned(self) -> bool:
        return generator_spec(self.config).network is not None

    @property
    def uses_images(self) -> bool:
        return reads_images(self.config)

    @property
    def uses_map(self) -> bool:
        return uses_map(self.config)

    @property
    def inputs(self) -> tuple[object, ...]:
        """What the planner is given: rows that differ in it are not compared."""
        return self.privilege, not self.privilege and self.config.inputs.drivable_type != "none", self.lost

    @property
    def network_keys(self) -> dict[str, NetworkKey]:
        """By learned planner; equal where rows share a network."""
        learned = learned_configs(self.config).items()
        return {name: NetworkKey(own.model, decoding_config(own), self.random_weights) for name, own in learned}

    def planner(self) -> Planner:
        """Raises ConfigError."""
        return get_planner(self.config)

    def networks(self) -> dict[str, AnyNetwork]:
        """The networks by planner, loaded once in each process. Raises ModelFileError."""
        return load_networks(self.config, random_network if self.random_weights else worker_network)


Variants = Mapping[str, Variant]  # by name of the row, in the order of the table


def parse(options: Sequence[Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Settings by name, of each `--variant NAME SETTING=VALUE ..`. Raises ConfigError."""
    variants: dict[str, dict[str, Any]] = {}
    for name, *pairs in options:
        if "=" in name:
            raise ConfigError(f"--variant {name}: the first word is the name of the variant: --variant new {name}")
        if name in variants:
            raise ConfigError(f"--variant {name} is given twice: give each variant a name of its own")
        variants[name] = dict(arguments.settings_of(pairs))
    return variants


def of_planners(
    config: Config,
    planners: Sequence[str],
    privileges: Sequence[str] = ("",),
    random_weights: bool = False,
    trained: bool = True,
) -> dict[str, Variant]:
    """A row for each planner and privilege, named as "reflectdrive2 random weights (words)"; an empty privilege is left
    out.

    Learned planners have a row with their trained weights, unless `trained` is false, and one with random weights if
    `random_weights` is true.
    """
    rows = {planner: (replace(config, planner=planner), tuple(privileges)) for planner in planners}
    return _rows(rows, random_weights, trained)


def of_settings(
    config: Config,
    settings: Mapping[str, Settings],
    privileges: Sequence[str] = ("",),
    random_weights: bool = False,
    trained: bool = True,
) -> dict[str, Variant]:
    """A row for each variant of `parse` and privilege, named as "no_repair (objects)"; else as `of_planners`.

    The settings of a variant are laid over `config`; its `privilege` replaces `privileges`, and it has none of the
    inputs in `lost`. Raises ConfigError for a setting that does not exist or cannot vary, ModelFileError for weights
    without a hash.
    """
    rows, lost = {}, dict[str, tuple[str, ...]]()
    for name, values in settings.items():
        try:
            own, lost[name] = values.get(PRIVILEGE), _losses(values.get(LOST))
            configured = configure(config, values)
            get_planner(configured)
            rows[name] = configured, tuple(privileges) if own is None else (_checked(own, privileges),)
        except (ConfigError, ModelFileError) as fault:
            raise ConfigError(f"--variant {name}: {fault}") from None
    return _rows(rows, random_weights, trained, lost)


def configure(config: Config, settings: Settings) -> Config:
    """The configuration with other settings; the hash of `model.file` is that of its card. Raises ConfigError,
    ModelFileError.
    """
    values = {name: value for name, value in settings.items() if name not in (PRIVILEGE, LOST)}
    for name in values:
        if name.partition(".")[0] in SHARED:
            raise ConfigError(f"{name} is the same for all variants: set it with --setting")
    if "model.file" in values:
        model = model_config(str(values["model.file"]), values.get("model.sha256"))
        values |= {"model.file": model.file, "model.sha256": model.sha256}
    result: Config = override_dotted(config, values) if values else config
    return result


def _checked(privilege: object, privileges: Sequence[str]) -> str:
    """Raises ConfigError."""
    if not any(privileges):
        raise ConfigError("privilege is of recorded scenes of the proving ground: leave it out here")
    if privilege not in PRIVILEGES:
        raise ConfigError(f"privilege is '{privilege}', expected one of {', '.join(PRIVILEGES)}")
    return str(privilege)


def _losses(lost: object) -> tuple[str, ...]:
    """Raises ConfigError."""
    names = str(lost).split(LOST_SEPARATOR) if lost else []
    if unknown := sorted(set(names) - set(LOSABLE)):
        raise ConfigError(f"lost has {unknown[0]!r}, expected some of {LOST_SEPARATOR.join(LOSABLE)}")
    return tuple(sorted(names, key=LOSABLE.index))


def _rows(
    rows: Mapping[str, tuple[Config, tuple[str, ...]]],
    random_weights: bool,
    trained: bool,
    lost: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Variant]:
    variants = {}
    for name, (config, privileges) in rows.items():
        learned = generator_spec(config).network is not None
        for is_random in [False] * trained + [True] * random_weights if learned else [False]:
            title = f"{name} {RANDOM_WEIGHTS}" if is_random else name
            for privilege in privileges:
                row = f"{title} ({privilege})" if privilege else title
                variants[row] = Variant(config, privilege, is_random, (lost or {}).get(name, ()))
    return variants


def check(variants: Variants, scene_images: bool = False) -> None:
    """Reports a fault of a planner or model once, not from every worker. `scene_images`: of the images of scene sets.

    Raises ConfigError, ModelFileError.
    """
    for variant in variants.values():
        variant.planner()
        learned = learned_configs(variant.config)
        for own in learned.values():
            verified_sha256(own.model)
        networks = variant.networks()
        check_networks(variant.config, networks)
        for name, network in networks.items():
            if scene_images and network.kind == "token" and network.inputs.instants != len(INSTANTS_S):
                raise ConfigError(
                    f"{learned[name].model.file} takes images of {network.inputs.instants} instants, the scenes of a "
                    f"set have {len(INSTANTS_S)}: give a model for {len(INSTANTS_S)}"
                )


def references(variants: Variants) -> dict[str, str]:
    """The row that each later row is compared with: the first that is given as much. The first rows have none."""
    first: dict[tuple[object, ...], str] = {}
    rows = {}
    for name, variant in variants.items():
        reference = first.setdefault(variant.inputs, name)
        if reference != name:
            rows[name] = reference
    return rows


def weights_of(variants: Variants) -> str:
    """Hash of the weights in use, empty if no planner has a network; several are separated by commas."""
    models = [own.model for variant in variants.values() for own in learned_configs(variant.config).values()]
    return ", ".join(dict.fromkeys(map(weights_sha256, models)))
