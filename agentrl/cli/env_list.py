"""`agentrl env list`: the built-in environments."""

import inspect
from dataclasses import asdict, dataclass

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.config.dump import toml_value
from agentrl.config.plain import plain
from agentrl.config.schema import schema_of
from agentrl.envs import BUILT_IN, resolve_env


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of an environment."""

    default: object
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What is shown of one environment."""

    name: str
    about: str
    reference: str
    parameters: dict[str, Parameter]


def _run_env_list(options: JsonOption, arguments: Arguments) -> int:
    found = [describe_env(name) for name in BUILT_IN]
    lines: list[str] = []
    for env in found:
        lines.append(f"{env.name:14} {env.about}")
        for key, parameter in env.parameters.items():
            lines.append(f"  --env.{key} {toml_value(parameter.default)}  {parameter.about}")
    options.show([asdict(env) for env in found], "\n".join(lines))
    return 0


COMMAND = Verb(
    summary="List the built-in environments and their parameters.",
    examples=["agentrl env list", "agentrl env list --json"],
    options=JsonOption,
    run=_run_env_list,
)


def describe_env(name: str) -> Listed:
    """What `env list` shows of one environment."""
    cls = resolve_env(name)
    parameters = {
        key: Parameter(
            default=plain(field.get_default(call_default_factory=True)),
            about=field.description or "",
        )
        for key, field in schema_of(cls.Config).leaves.items()
    }
    about = (inspect.getdoc(cls) or "").partition("\n")[0]
    return Listed(name=name, about=about, reference=BUILT_IN[name], parameters=parameters)
