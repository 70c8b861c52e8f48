"""A teacher that a server has: what of a run it cannot answer, and whether it is there."""

from urllib.parse import urlsplit

from agentrl.aio import run
from agentrl.engine.local.models.resolve import resolve_tokenizer
from agentrl.engine.sglang.teacher import TeacherServer
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.model_files import context_length, make_limits
from agentrl.orchestration.preflight import Plan
from agentrl.tokens import Tokenizer


def reach_teacher(plan: Plan) -> TeacherServer | None:
    """The server of `trainer.reference`, if that is one, once it was found fit for this run.

    Raises:
        ConfigError: the run asks for what no server says, or this one cannot be reached, has
            another vocabulary or takes shorter rows.
    """
    config, url = plan.config, plan.config.trainer.reference.rstrip("/")
    if not url or config.trainer.reference_model:
        return None
    _check_run_can_have_a_server(config, url)
    folder = resolve_tokenizer(config.model, seed=config.seed)
    limits = make_limits(config, context_length(config, folder, plan.objects))
    teacher = TeacherServer(url, Tokenizer.load(folder), timeout_s=config.engine.timeout_s)
    run(teacher.check(limits.max_context_tokens))
    return teacher


def _check_run_can_have_a_server(config: RunConfig, url: str) -> None:
    """Refuse an address that is none, and what a server cannot say of a policy's tokens."""
    kl, temperature = config.trainer.kl, config.rollout.temperature
    try:
        is_address = bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(
            f"trainer.reference: got {config.trainer.reference}, expected http://HOST:PORT"
        )
    if url in config.engine.sglang.urls:
        raise ConfigError(
            f"trainer.reference: got {url}, which samples and so gets the weights that are "
            "trained; give a server of its own"
        )
    if kl.coef and kl.kind == "exact":
        raise ConfigError(
            f"trainer.kl.kind: got exact with trainer.reference {url}, which tells the logprobs of "
            "sampled tokens alone; take k1, k2 or k3, or give the model's folder"
        )
    if temperature != 1:
        raise ConfigError(
            f"rollout.temperature: got {temperature:g} with trainer.reference {url}, which scores "
            "at temperature 1 whatever is asked; set it to 1, or give the model's folder"
        )
