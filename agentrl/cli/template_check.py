"""`agentrl template check`: can this chat template carry a conversation that grows?"""

from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pydantic import Field

from agentrl.boundary import one_line
from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.errors import ConfigError
from agentrl.tokens import Renderer, Tokenizer, choose_format
from agentrl.tokens.template_check import TemplateReport, examine
from agentrl.tokens.time_limit import template_time_limit
from agentrl.tokens.tokenizer import read_template
from agentrl.types import ToolSchema

_TOOL = ToolSchema(
    name="lookup",
    description="Looks something up.",
    parameters={"type": "object", "properties": {"key0": {"type": "string"}}},
)


class TemplateOptions(JsonOption):
    """What the template is checked with."""

    tokenizer: str | None = Field(
        default=None, description="Tokenizer for a template file: a model's name or folder."
    )


def _run_template_check(options: TemplateOptions, arguments: Arguments) -> int:
    name = arguments.positional[0]
    tokenizer, about = _load_tokenizer_of_template(name, options.tokenizer)
    tool_format = None
    with suppress(ConfigError):  # only a person can say which one the template writes
        tool_format = choose_format(tokenizer)
    made = partial(Renderer, tokenizer, tool_format=tool_format)
    with template_time_limit():
        reports = {
            "without tools": examine(made(), with_tools=False),
            "with tools": examine(made([_TOOL]), with_tools=True),
            "results as user text": examine(made([_TOOL], tool_results="user"), with_tools=True),
        }
    safe = reports["with tools"].verdict != "refused"
    uses = {
        use: {
            "verdict": report.verdict,
            "reason": report.reason,
            "rows": [asdict(row) for row in report.rows],
        }
        for use, report in reports.items()
    }
    data = {"template": name, "tokenizer": about, "safe": safe, "uses": uses}
    options.show(data, render(name, about, reports))
    return 0 if safe else 1


def render(name: str, about: str, reports: dict[str, TemplateReport]) -> str:
    """The reports for people: a table of what was tried, then a verdict for each use."""
    lines = [f"tokenizer: {about}"]
    tools, text = reports["with tools"].rows, reports["without tools"].rows
    refused = [row for row in tools if row.action == "refuse"]
    names = {row.name for row in refused}
    rows = [*(row for row in text if row.name not in names), *refused] if refused else tools
    lines += [f"{row.action or 'ok':6}  {row.name}: {one_line(row.detail)}" for row in rows]
    for use, report in reports.items():
        lines.append(f"{name}, {use}: {report.verdict}" + _advise_setting_for_template(use, report))
    return "\n".join(lines)


def _advise_setting_for_template(use: str, report: TemplateReport) -> str:
    if report.verdict == "forked":
        return "; needs rollout.reasoning fork"
    if report.verdict == "refused" and use == "with tools":
        return "; see rollout.tool_results user"
    return ""


def _load_tokenizer_of_template(name: str, tokenizer: str | None) -> tuple[Tokenizer, str]:
    """The tokenizer with the template to check, and what it is."""
    if not name.endswith(".jinja"):
        if tokenizer is not None:
            raise ConfigError("--tokenizer is for a template file; a model has its own tokenizer")
        return _load_tokenizer_of_model(name), name
    path = Path(name)
    if not path.exists():
        raise ConfigError(f"template file {name} does not exist; give the path of a file")
    source = read_template(path)
    if tokenizer is not None:
        return _load_tokenizer_of_model(tokenizer, source), tokenizer
    if (path.parent / "tokenizer.json").is_file():
        return Tokenizer.load(path.parent, template=source), str(path.parent)
    return _load_tokenizer_of_model("tiny").with_markers(
        source
    ), "tiny, with the template's markers added"


def _load_tokenizer_of_model(model: str, template: str | None = None) -> Tokenizer:
    """The tokenizer of a model, of whose folder nothing else is needed."""
    from agentrl.engine.local.models.resolve import SMOLLM2, TINY, resolve_tokenizer

    folder = Path(model).expanduser()
    if model in (TINY, SMOLLM2) or not folder.is_dir():
        folder = resolve_tokenizer(model)
    return Tokenizer.load(folder, template=template)


COMMAND = Verb(
    summary="Try a chat template on short conversations and report what breaks.",
    examples=[
        "agentrl template check tiny",
        "agentrl template check models/my-model --json",
        "agentrl template check chat_template.jinja --tokenizer smollm2-135m",
    ],
    options=TemplateOptions,
    run=_run_template_check,
    takes=["TEMPLATE"],
)
