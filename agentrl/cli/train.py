"""`agentrl train`: reinforcement learning."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.cli.run_config import FILE, load, load_resumed, show_result, shown
from agentrl.config import Loaded, dump_config
from agentrl.errors import ConfigError
from agentrl.orchestration.config import SHORT_NAMES, RunConfig
from agentrl.run_dir import RunDirectory

if TYPE_CHECKING:
    from agentrl.orchestration.placement.bill import Bill
    from agentrl.orchestration.placement.machines import MachineRoom


class TrainOptions(JsonOption):
    """The options of `train` that are no part of a run's configuration."""

    dry_run: bool = Field(
        default=False, description="Check everything, show the configuration, train nothing."
    )
    device_memory: str | None = Field(
        default=None,
        description="With --dry-run: say whether the run fits into this much, such as 24GB.",
    )
    cluster: str | None = Field(
        default=None,
        description="With --dry-run and pools: compare with these machines instead of those that "
        "are there, such as '2 nodes, 64 cpu, 8 gpu'.",
    )
    placement: Literal["auto"] | None = Field(
        default=None,
        description="Measure for a minute, choose pools and roles by the virtual clock, and show "
        "the table.",
    )
    resume: str | None = Field(
        default=None, description="Go on with a run: its name, its path, or the word last."
    )
    accept_changes: bool = Field(
        default=False,
        description="With --resume: go on although tasks have changed since; it is written down.",
    )


def _run_train(options: TrainOptions, arguments: Arguments) -> int:
    resumed = options.resume is not None
    for name, given in (("device-memory", options.device_memory), ("cluster", options.cluster)):
        if given and not options.dry_run:
            raise ConfigError(f"--{name}: got one without --dry-run, which it belongs to")
    if options.accept_changes and not resumed:
        raise ConfigError("--accept-changes: got it without --resume, which it belongs to")
    loaded = load_resumed(arguments, options.resume) if options.resume else load(arguments)
    if options.placement:
        loaded = _place(loaded, options, arguments)
    return (
        _print_run_plan(loaded, options)
        if options.dry_run
        else _train_and_show_result(loaded, options, resumed)
    )


def _print_run_plan(loaded: Loaded[RunConfig], options: TrainOptions) -> int:
    from agentrl.orchestration.model_files import is_at_hand, long_prompts
    from agentrl.orchestration.preflight import make_plan
    from agentrl.orchestration.teacher import reach_teacher

    plan = make_plan(loaded.config, resume=options.resume is not None)
    folder = Path(plan.config.model).expanduser()
    if folder.is_dir():
        from agentrl.orchestration.model_files import check_trained

        check_trained(plan, folder)
    long: list[str] = []
    if is_at_hand(plan):
        long = long_prompts(plan)
        reach_teacher(plan)
    if options.resume is not None:
        from agentrl.orchestration.fingerprints import compare_fingerprints, take_fingerprints
        from agentrl.orchestration.resumable import check_resumable

        run = RunDirectory.open(Path(loaded.config.runs_dir), str(loaded.config.name))
        check_resumable(run, loaded)
        changed = compare_fingerprints(run, take_fingerprints(plan))
        changed.check(accepts=options.accept_changes)
    bill = _compare_with_machines(loaded.config, options)
    if options.device_memory and bill is None:
        from agentrl.orchestration.budget import memory_fit

        fit = memory_fit(loaded.config, options.device_memory)
        options.show(fit.to_json(), "\n".join(fit.lines()))
        return 0 if fit.fits else 1
    warnings = "".join(f"# warning: {line}\n" for line in long)
    verdict = f"# Everything is in order; tools: {', '.join(plan.tool_names) or 'none'}."
    placed = "".join(f"# {line}\n" for line in bill.lines()) if bill else ""
    data = plan.to_json() | ({"placement": bill.to_json()} if bill else {})
    options.show(data, dump_config(loaded) + warnings + placed + verdict)
    return 0


def _place(
    loaded: Loaded[RunConfig], options: TrainOptions, arguments: Arguments
) -> Loaded[RunConfig]:
    """The configuration with the pools that are the fastest here; the table is shown."""
    from agentrl.orchestration.placement.choose import choose_placement
    from agentrl.orchestration.preflight import make_plan

    if options.resume or loaded.config.pools:
        raise ConfigError("--placement: got auto, but the run has its place; leave one of both out")
    plan = make_plan(loaded.config)
    choice = choose_placement(plan, _find_or_read_machines(loaded.config, options))
    print("\n".join(choice.lines()), file=sys.stderr)
    return load(arguments, choice.keys(loaded.config.engine.name))


def _find_or_read_machines(config: RunConfig, options: TrainOptions) -> "MachineRoom":
    from agentrl.orchestration.placement.machines import find_machines, parse_machines

    if options.cluster:
        return parse_machines(options.cluster, options.device_memory)
    return find_machines(config, options.device_memory)


def _compare_with_machines(config: RunConfig, options: TrainOptions) -> "Bill | None":
    """The bill of the pools; None without pools. Raises ConfigError if the machines lack some."""
    from agentrl.orchestration.placement.bill import make_bill
    from agentrl.orchestration.placement.machines import missing_devices, refuse_missing
    from agentrl.orchestration.placement.pools import read_placement

    placement = read_placement(config)
    if placement is None:
        if options.cluster:
            raise ConfigError("--cluster: got one without pools; add [pools] and [roles]")
        return None
    room = _find_or_read_machines(config, options)
    refuse_missing(missing_devices(config, placement, room))
    bill = make_bill(config, placement, room)
    refuse_missing(bill.missing)
    return bill


def _train_and_show_result(loaded: Loaded[RunConfig], options: TrainOptions, resumed: bool) -> int:
    from agentrl.orchestration import jobs

    with shown(loaded.config, loaded.config.steps, options) as display:
        result = jobs.train(
            loaded, resume=resumed, observers=[display], accept_changes=options.accept_changes
        )
    show_result(result, options)
    return 0


COMMAND = Verb(
    summary="Train a model on an environment by reinforcement learning.",
    examples=[
        "agentrl train --env calculator",
        "agentrl train run.toml --lr 3e-4 --trainer.clip.high 0.28",
        "agentrl train --env calculator --dry-run",
        "agentrl train --env calculator --dry-run --device-memory 24GB",
        "agentrl train --resume last",
    ],
    options=TrainOptions,
    run=_run_train,
    takes=[FILE],
    config=RunConfig,
    short=SHORT_NAMES,
)
