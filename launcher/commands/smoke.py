"""``--smoke``: a recipe made small, and what its run tells about the long one. Runs on the head, first and last."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launcher.base.errors import LauncherError, SmokeError, UsageError
from launcher.commands.target import Target

STEPS, ROWS, BATCH = 20, 48, 16
#: a step is slow from this many medians on; so large a share of slow ones is not sane
SLOW, SLOW_SHARE = 3.0, 0.25


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the verdict: what is asked, whether it holds, and the figures."""

    name: str
    ok: bool
    told: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a smoke run tells."""

    checks: tuple[Check, ...]

    @property
    def error(self) -> LauncherError | None:
        """The error that the verdict amounts to; None when all holds."""
        wrong = [f"{check.name}: {check.told}" for check in self.checks if not check.ok]
        if not wrong:
            return None
        return SmokeError("smoke: " + "; ".join(wrong), "dcu-launch diagnose RUN-FOLDER says what to try")

    def to_dict(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "ok": all(check.ok for check in self.checks),
            "checks": [asdict(check) for check in self.checks],
        }

    def tell(self) -> str:
        """The verdict in lines."""
        return "\n".join(
            f"dcu-launch: smoke: {'ok ' if check.ok else 'NOT'} {check.name}: {check.told}"
            for check in self.checks
        )


def make_smoke(target: Target) -> Target:
    """The recipe with few steps, rows and checkpoints; all else stays as it is.

    Raises:
        UsageError: the target is no recipe.
    """
    if target.recipe is None:
        raise UsageError("--smoke is for recipes; what a script does, its own options say")
    recipe = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in target.recipe.items()
    }
    recipe["data"]["max_rows"] = min(recipe["data"]["max_rows"] or ROWS, ROWS)
    recipe["train"] |= {
        "max_steps": STEPS, "eval_every": STEPS // 2, "save_every": STEPS // 2,
        "global_batch_size": min(recipe["train"]["global_batch_size"], BATCH),
    }  # fmt: skip
    recipe["checkpoint"] |= {"resume": "never", "verify": True}
    return replace(target, recipe=recipe)


def judge_run(options: Mapping[str, Any], results: Mapping[str, str], folder: Path) -> Verdict | None:
    """The verdict on a smoke run that ended well; None for any other run."""
    if not options.get("smoke"):
        return None
    from launcher.report.metrics import read_metrics

    return judge_smoke(read_metrics(folder / "metrics.jsonl"), results.get("checkpoint_read"))


def judge_smoke(rows: Sequence[Mapping[str, Any]], checkpoint_read: str | None) -> Verdict:
    """Losses, step times and the checkpoint of a smoke run, judged.

    Args:
        rows: of metrics.jsonl; losses in nats a label token, ``step_s`` in seconds.
        checkpoint_read: step of the checkpoint that the ranks read back.
    """
    losses = [float(row["loss"]) for row in rows if isinstance(row.get("loss"), int | float)]
    times = [float(row["step_s"]) for row in rows if isinstance(row.get("step_s"), int | float)]
    return Verdict(
        (_judge_losses(losses, len(rows)), _judge_times(times), _judge_checkpoint(checkpoint_read))
    )


def _judge_losses(losses: Sequence[float], num_rows: int) -> Check:
    name, third = "loss falls", len(losses) // 3
    if not third or len(losses) < num_rows:
        return Check(name, False, f"{len(losses)} losses are numbers, of {num_rows}")
    first, last = statistics.fmean(losses[:third]), statistics.fmean(losses[-third:])
    return Check(
        name, last < first, f"{first:.4f} -> {last:.4f} (means of the first and the last {third} steps)"
    )


def _judge_times(times: Sequence[float]) -> Check:
    name = "step time sane"
    if len(times) < 2:
        return Check(name, False, f"{len(times)} steps were timed")
    median = statistics.median(times[1:])
    slow = sum(time > SLOW * median for time in times[1:])
    told = f"median {median:.3f} s, slowest {max(times[1:]):.3f} s, first step {times[0]:.3f} s"
    if slow:
        told += f"; {slow} of {len(times) - 1} over {SLOW:g} medians"
    return Check(name, slow <= SLOW_SHARE * (len(times) - 1), told)


def _judge_checkpoint(step: str | None) -> Check:
    is_read = step not in (None, "0")
    return Check(
        "checkpoint loads", is_read, f"step {step} read back" if is_read else "none could be read back"
    )
