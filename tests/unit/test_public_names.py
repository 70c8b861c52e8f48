from importlib import import_module

from tests.golden import check_golden

PACKAGES = [
    *("agentrl", "agentrl.config", "agentrl.engine", "agentrl.envs", "agentrl.errors"),
    *("agentrl.rollout", "agentrl.run_dir", "agentrl.sandboxes", "agentrl.testing"),
    *("agentrl.tokens", "agentrl.tokens.formats", "agentrl.tools", "agentrl.trainer"),
    *("agentrl.types", "agentrl.verifiers", "agentrl.workers"),
]


def public_names(package: str) -> list[str]:
    module = import_module(package)
    names: list[str] | None = getattr(module, "__all__", None)
    if names is not None:
        return sorted(names)
    here = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return sorted(n for n, value in here.items() if getattr(value, "__module__", "") == package)


def test_public_names_are_those_of_the_golden() -> None:
    check_golden("names", {package: public_names(package) for package in PACKAGES})
