"""Settings of an algorithm that could not do what they say: one sentence before anything loads."""

import pytest

from agentrl.cli.dispatch import main


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rollout.group-size", "1"], "estimator grpo needs a group of 2: set rollout.group_siz"),
        (["--trainer.kl.kind", "k2"], "trainer.kl.kind: got k2 without trainer.kl.coef"),
        (
            ["--estimator", "remax"],
            "remax needs a greedy member: set rollout.greedy_member to true",
        ),
        (
            ["--trainer.critic.lr", "1"],
            "trainer.critic.lr: got 1.0 with trainer.algorithm grpo, w",
        ),
        (
            ["--trainer.minibatches", "3", "--tasks-per-step", "8"],
            "trainer.minibatches: got 3, expected a divisor of rollout.tasks_per_step (8)",
        ),
        (
            ["--trainer.kl.where", "reward"],
            "kl.where: got reward without trainer.kl.coef; set that",
        ),
        (["--trainer.kl.target", "0.1"], "trainer.kl.target: got 0.1 without trainer.kl.coef"),
        (
            ["--trainer.kl.coef", "0.1", "--trainer.kl.kind", "k1"],
            "trainer.kl.kind: got k1 with trainer.kl.where loss, where it has no gradient",
        ),
        (
            ["--trainer.kl.coef", "0.1", "--rollout.temperature", "0"],
            "rollout.temperature: got 0, expected a number above 0",
        ),
        (["--algorithm", "safe_grpo"], "estimator safe needs a cost: set trainer.cost.part to a"),
        (
            ["--trainer.cost.part", "harm"],
            "trainer.cost.part: got harm with estimator grpo, which reads no cost; set trainer.alg",
        ),
        (
            ["--estimator", "gdpo", "--trainer.reward.scale", "2"],
            "trainer.reward.scale: got 2.0 with estimator gdpo, which reads parts of the score alo",
        ),
        (
            ["--estimator", "gdpo", "--trainer.kl.coef", "0.1", "--trainer.kl.where", "reward"],
            "trainer.kl.where: got reward with estimator gdpo",
        ),
        (
            ["--algorithm", "pass_at_k", "--trainer.reward.running"],
            "trainer.reward.running: got True with estimator pass_at_k, which reads successes alon",
        ),
        (
            ["--algorithm", "maxrl", "--trainer.kl.coef", "0.1", "--trainer.kl.where", "reward"],
            "trainer.kl.where: got reward with estimator maxrl, which reads rewards from 0 to 1",
        ),
        (
            ["--algorithm", "pass_at_k", "--rollout.overlong-buffer", "0.2"],
            "rollout.overlong_buffer: got 0.2 with estimator pass_at_k, which reads successes",
        ),
        (
            ["--algorithm", "vapo", "--trainer.critic.decay", "0.9"],
            "trainer.critic.decay: got 0.9 with estimator vapo, which does not read it",
        ),
        (
            ["--algorithm", "vapo", "--steps", "50"],
            "trainer.critic.pretrain: got 50 of 50 steps in which the critic alone learns",
        ),
        (
            ["--algorithm", "vapo", "--trainer.reward.scale", "2"],
            "trainer.reward.scale: got 2.0 with loss clip_clone, which reads successes",
        ),
        (
            ["--loss", "clip_clone", "--trainer.kl.coef", "0.1", "--trainer.kl.where", "reward"],
            "trainer.kl.where: got reward with loss clip_clone, which reads successes",
        ),
        (
            ["--loss", "clip(low=0.1)", "--trainer.clip.low", "0.3"],
            "trainer.clip.low: got 0.3 with loss clip(low=0.1), which does not read it; set the lo",
        ),
        (
            ["--loss", "dual_clip(low=0.1, high=0.1)", "--trainer.clip.high", "0.3"],
            "trainer.clip.high: got 0.3 with loss dual_clip(low=0.1, high=0.1), which does not rea",
        ),
        (
            ["--estimator", "grpo(scale_by_std=True)", "--trainer.scale-by-std", "false"],
            "trainer.scale_by_std: got false with estimator grpo(scale_by_std=True), whose own opt",
        ),
        (
            ["--loss", "policy_gradient", "--trainer.epochs", "2"],
            "loss policy_gradient has no ratio and is right on the first update of a batch only",
        ),
        (
            ["--loss", "policy_gradient", "--trainer.minibatches", "2"],
            "loss policy_gradient has no ratio and is right on",
        ),
        (["--estimator", ""], "estimator '' is unknown (your own is written pkg.mod:Name"),
        (["--loss", "gspo(low=nan)"], "loss gspo: option low: got nan, expected a finite number"),
        (["--loss", "gspo(low=-NaN)"], "option low: got nan, expected a finite number"),
        (["--loss", "gspo(low=infinite)"], "expected options as name(option=value, ...)"),
        (["--trainer.correct", "tis(cap=inf)"], "option cap: got inf, expected a finite number"),
        (["--trainer.correct", "tis(cap=-inf)"], "option cap: got -inf, expected a finite number"),
        (["--trainer.correct", "tis(cap=-1)"], "correction tis: option cap: got -1, expected at "),
        (
            ["--trainer.correct", "icepop(low=5, high=1)"],
            "icepop: got low = 5 and high = 1, expected 1 between them",
        ),
        (
            ["--trainer.correct", "reject_k1(low=1.1, high=1.2)"],
            "reject_k1: got low = 1.1 and high = 1.2, expected 1 between them",
        ),
        (["--loss", "dual_clip(most=0.5)"], "got most = 0.5, expected more than 1"),
        (["--loss", "clip_cov(least=5, most=1)"], "got least = 5, expected less than most = 1"),
        (["--trainer.kl.kind", "K3"], "(did you mean k3?)"),
        (["--algorithm", "rlo"], "--algorithm: got 'rlo', did you mean rloo?"),
        (["--loss", f"gspo(low=1{'0' * 400})"], "option low: got 1000"),
        (
            ["--loss", "gspo", "--trainer.clip.high", "0.5"],
            "trainer.clip.high: got 0.5 with loss gspo, which does not read it",
        ),
        (
            ["--algorithm", "vapo", "--loss", "gspo", "--trainer.clip.low", "0.1"],
            "trainer.clip.low: got 0.1 with loss gspo, which does not read it",
        ),
        (
            ["--estimator", "rloo", "--trainer.scale-by-std", "false"],
            "trainer.scale_by_std: got false with estimator rloo, which has no such option",
        ),
        (
            ["--estimator", "pass_at_k(k=5)", "--group-size", "4"],
            "pass_at_k compares teams within groups of 6 at least, but rollout.group_size is 4, so",
        ),
        (["--estimator", "vapo"], "estimator vapo needs a critic, but trainer.algorithm is grpo"),
        (["--rollout.refill", "0.5"], "--rollout.refill: got 0.5, expected a number of at least 1"),
        (
            ["--rollout.refill", "2", "--algorithm", "ppo"],
            "rollout.refill: got 2 with estimator gae, which learns from a group of equal",
        ),
        (
            ["--rollout.refill", "1.2", "--tasks-per-step", "4"],
            "rollout.refill: got 1.2, which adds no group to rollout.tasks_per_step (4)",
        ),
        (
            ["--rollout.overprovision", "1.2", "--tasks-per-step", "4"],
            "rollout.overprovision: got 1.2, which adds no group to rollout.tasks_per_step (4)",
        ),
        (
            ["--rollout.overprovision", "1.5"],
            "rollout.overprovision: got 1.5 with async.late wait, which gives no group up; set",
        ),
        (
            ["--rollout.overprovision", "1.5", "--async.late", "drop", "--deterministic"],
            "rollout.overprovision: got 1.5 with deterministic: which episode ends first is chance",
        ),
        (
            ["--rollout.stragglers", "0.2", "--group-size", "4"],
            "rollout.stragglers: got 0.2, which is no member of rollout.group_size (4); give more",
        ),
        (
            ["--rollout.stragglers", "0.25", "--deterministic"],
            "rollout.stragglers: got 0.25 with deterministic: which episode ends first is chance",
        ),
        (["--rollout.admission", "all"], "admission all is unknown"),
        (["--rollout.admission", "builtins:len"], "admission builtins:len raised TypeError: "),
        (["--rollout.admission", "builtins:repr"], "gave a str, expected an Admission; make it"),
        (
            ["--rollout.overlong-buffer", "1.5"],
            "--rollout.overlong-buffer: got 1.5, expected a number of at most 1",
        ),
        (
            ["--rollout.overlong-penalty", "2"],
            "rollout.overlong_penalty: got 2 without rollout.overlong_buffer; set that too",
        ),
        (
            ["--rollout.filter", "best_worst", "--rollout.filter-share", "0.1"],
            "rollout.filter_share: got 0.1 with rollout.group_size 8, which keeps 1 of each group",
        ),
        (
            ["--rollout.filter-share", "0.4"],
            "rollout.filter_share: got 0.4 without rollout.filter; set that too",
        ),
        (["--rollout.filter-share", "0"], "--rollout.filter-share: got 0, expected a number above"),
        (
            ["--trainer.correct", "icpop"],
            "correction icpop is unknown (your own is written pk",
        ),
        (["--trainer.correct", "icpop"], "did you mean icepop"),
        (["--trainer.correct", "non"], "did you mean none"),
        (["--trainer.correct", "none(cap=2)"], "correction none has no option cap"),
        (["--trainer.correct", "tis(cap=0)"], "correction tis: option cap: got 0, expected at le"),
        (["--trainer.correct", "mis(cap=0.5)"], "option cap: got 0.5, expected at least 1"),
        (["--trainer.correct", "reject_k3(most=0)"], "option most: got 0, expected more than 0"),
        (
            ["--trainer.correct", "reject_k1(low=1.01, high=1.1)"],
            "got low = 1.01 and high = 1.1, expected 1 between them",
        ),
        (["--trainer.correct", "icepop(low=0, high=1)"], "high = 1, expected 1 between them"),
        (["--loss", "dppo(ratio_most=0)"], "option ratio_most: got 0, expected at least 1"),
        (["--loss", "kl_cov(coef=0)"], "option coef: got 0, expected more than 0"),
        (["--loss", "clip_cov(share=0)"], "option share: got 0, expected more than 0"),
        (["--estimator", "pass_at_k(k=True)"], "option k: got True, expected a number"),
        (
            ["--algorithm", "ppo", "--estimator", "grpo"],
            "trainer.algorithm: got ppo, which learns a critic, with estimator grpo, which does n",
        ),
        (
            ["--algorithm", "remax", "--estimator", "rloo"],
            "rollout.greedy_member: got true with estimator rloo, which reads no greedy member; t",
        ),
        (
            [
                "--estimator",
                "pass_at_k(k=4)",
                "--group-size",
                "4",
                "--rollout.filter",
                "best_worst",
            ],
            "rollout.group_size is 4, of which rollout.filter keeps 2, so every advantage",
        ),
        (
            ["--algorithm", "gdpo"],
            "estimator gdpo needs score parts, but env number_guess gives none: let the verifier",
        ),
        (["--trainer.correct", "tis(cpa=2)"], "correction tis has no option cpa, did you mean cap"),
        (
            ["--trainer.correct", "icepop(low=3, high=2)"],
            "got low = 3 and high = 2, expected 1 between",
        ),
        (
            ["--trainer.correct", "math:pi"],
            "correction math:pi is of type float, expected f(b",
        ),
        (["--trainer.correct", "tis", "--temperature", "0"], "temperature: got 0, expected a"),
    ],
)
def test_what_is_missing_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--env", "number_guess", "--dry-run", *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--loss", "dual_clip", "--trainer.clip.high", "0.5"],
        ["--loss", "clip(low=0.1)", "--trainer.clip.high", "0.5"],
        ["--algorithm", "dapo", "--loss", "clip(high=0.5)"],
        ["--estimator", "grpo(scale_by_std=False)"],
        ["--loss", "policy_gradient"],
        ["--loss", "clone", "--trainer.epochs", "2"],
        ["--algorithm", "vapo", "--loss", "gspo"],
        ["--estimator", "pass_at_k(k=4)", "--group-size", "5"],
        ["--estimator", "gigpo", "--trainer.scale-by-std", "false"],
    ],
)
def test_what_is_read_is_not_refused(flags: list[str]) -> None:
    assert main(["train", "--env", "number_guess", "--dry-run", *flags]) == 0
