"""The rules of preflight: reports in, findings out. Pure functions; runs on the head, before a rank starts.

A rule is a function of all reports and of what the run asks. To add one: the function, its code in ``codes``, a case
in ``tests/cases``, a row in docs/findings.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.preflight import (
    rules_driver,
    rules_dtk,
    rules_stack,
    rules_system,
    rules_target,
    rules_torch,
)
from launcher.preflight.finding import LEVELS, Finding, Wanted
from launcher.preflight.report import NodeReport
from launcher.preflight.rules_across import find_differences

__all__ = ["RULES", "Finding", "Rule", "Wanted", "find_faults"]

Rule = Callable[[Sequence[NodeReport], Wanted], list[Finding]]

RULES: tuple[Rule, ...] = (
    rules_stack.python_usable,
    rules_stack.python_of_wheel,
    rules_target.paths_exist,
    rules_target.run_folder_possible,
    rules_stack.stack_installed,
    rules_driver.driver_ready,
    rules_driver.driver_fits_dtk,
    rules_driver.stack_knows_cards,
    rules_dtk.dtk_set_up,
    rules_dtk.libraries_of_dtk,
    rules_stack.torch_of_dtk,
    rules_stack.wheels_of_one_set,
    rules_stack.packages_accept_torch,
    rules_driver.visibility_agrees,
    rules_driver.cards_suffice,
    rules_driver.cards_present,
    rules_driver.cards_idle,
    rules_dtk.variables_sane,
    rules_dtk.caches_fresh,
    rules_system.hosts_distinct,
    rules_system.interfaces_exist,
    rules_system.adapters_exist,
    rules_system.ucx_there,
    rules_system.limits_suffice,
    rules_system.disks_have_room,
    rules_target.one_device_a_rank,
    rules_target.learning_rate_usual,
    rules_torch.torch_works,
)


def find_faults(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """All findings of all rules, errors first."""
    inside = [finding for rule in RULES for finding in rule(reports, wanted)]
    findings = [*inside, *find_differences(reports, wanted, inside)]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
