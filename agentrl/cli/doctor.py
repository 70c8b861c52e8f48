"""`agentrl doctor`: what this machine has."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import psutil

from agentrl.boundary import one_line
from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.config.plain import as_mapping
from agentrl.extras import TRAIN, pip_line
from agentrl.run_dir.writing import free_bytes
from agentrl.sandboxes import run_sync, survey

_PACKAGES = ("agentrl", "torch", "transformers", "gymnasium", "numpy", "pydantic", "tokenizers")
_TORCH = """
import json, torch
found = {"cpu": 1}
if torch.accelerator.is_available():
    found[torch.accelerator.current_accelerator().type] = torch.accelerator.device_count()
print(json.dumps({"devices": found, "threads": torch.get_num_threads()}))
"""


def _run_doctor(options: JsonOption, arguments: Arguments) -> int:
    report = examine()
    options.show(report, render(report))
    return 0


COMMAND = Verb(
    summary="Show versions, devices, engines and sandboxes of this machine.",
    examples=["agentrl doctor", "agentrl doctor --json"],
    options=JsonOption,
    run=_run_doctor,
)


def examine() -> dict[str, dict[str, object]]:
    """Everything that `doctor` shows, by section."""
    missing = [name for name in TRAIN if importlib.util.find_spec(name) is None]
    detail = f"needs {', '.join(missing)}: {pip_line(missing[0])}" if missing else "ready"
    engines: dict[str, object] = {
        "local": {"works": not missing, "detail": detail},
        "scripted": {"works": True, "detail": "ready"},
        **_describe_installations(),
    }
    return {
        "versions": {
            "python": platform.python_version(),
            **{p: _find_package_version(p) for p in _PACKAGES},
        },
        "machine": _describe_machine(),
        "torch": _probe_torch_in_child(),
        "engines": engines,
        "sandboxes": {probe.name: asdict(probe) for probe in run_sync(survey())},
        "places": _describe_cache_and_runs(),
    }


def render(report: Mapping[str, Mapping[str, object]]) -> str:
    """The report for people: one line per fact."""
    lines: list[str] = []
    for section, facts in report.items():
        lines.append(section)
        lines += [f"  {name:13} {one_line(_render_fact(fact))}" for name, fact in facts.items()]
    return "\n".join(lines)


def _render_fact(fact: object) -> str:
    table = as_mapping(fact)
    if table is None:
        return "not installed" if fact is None else str(fact)
    if "works" in table:
        return f"{'works' if table['works'] else 'not usable'}: {table['detail']}"
    return ", ".join(f"{name} ({count})" for name, count in table.items())


def _find_package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _describe_machine() -> dict[str, object]:
    memory = psutil.virtual_memory()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{memory.available / 1e9:.1f} GB of {memory.total / 1e9:.1f} GB available",
    }


def _probe_torch_in_child() -> dict[str, object]:
    """Ask torch in a child process: importing a broken installation may kill the importer."""
    if importlib.util.find_spec("torch") is None:
        return {"error": f"not installed: {pip_line('torch')}"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TORCH], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": "importing torch took more than 60 s"}
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {"error": said[-1] if said else f"importing torch ended with {done.returncode}"}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _describe_installations() -> dict[str, object]:
    from agentrl.orchestration.kinds import SERVERS

    rows: dict[str, object] = {}
    for name, kind in SERVERS.items():
        product, found = kind.product, kind.product.installed()
        detail = f"agentrl engine install {name} puts it into the cache"
        if found is not None:
            detail = f"{product.version} for a {found.flavour.upper()} in {found.folder}"
        rows[name] = {"works": found is not None, "detail": detail}
    return rows


def _describe_cache_and_runs() -> dict[str, object]:
    from agentrl.engine.local.models.resolve import default_cache_dir

    cache, here = default_cache_dir(), Path.cwd()
    return {
        "cache": f"{cache} ({free_bytes(cache) / 1e9:.1f} GB free)",
        "runs": f"{here / 'runs'} ({free_bytes(here) / 1e9:.1f} GB free)",
    }
