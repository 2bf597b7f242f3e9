"""Recipe -> its learning rate, and whether that is unusual. Pure; head and ranks use it."""

from __future__ import annotations

from launcher.base.config import Recipe

_DEFAULT_RATES = {"lora": 2e-4, "freeze": 2e-5, "full": 1e-5}
#: method -> lowest and highest learning rate of runs that usually go well
USUAL_RATES = {"lora": (2e-5, 1e-3), "freeze": (1e-6, 1e-4), "full": (1e-7, 5e-5)}


def pick_learning_rate(recipe: Recipe) -> float:
    """The rate asked for, or the usual one of the method."""
    return recipe.train.learning_rate or _DEFAULT_RATES[recipe.method]


def warn_learning_rate(recipe: Recipe) -> str:
    """A sentence when the rate is far from the method's usual range, else nothing."""
    rate, (low, high) = pick_learning_rate(recipe), USUAL_RATES[recipe.method]
    if low <= rate <= high or recipe.model.path == "demo":
        return ""
    side = "above" if rate > high else "below"
    return f"train.learning_rate {rate:g} is {side} the usual range of method {recipe.method} ({low:g} to {high:g})"
