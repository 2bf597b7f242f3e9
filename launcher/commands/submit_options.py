"""Options of ``dcu-launch submit`` that are about Slurm, and its help page. Light imports only."""

from __future__ import annotations

from typing import Any

import click

from launcher.commands.options import RunCommand, refuse_empty_value


def _option(name: str, metavar: str | None, text: str, **more: Any) -> click.Option:
    return click.Option([name], metavar=metavar, help=text, callback=refuse_empty_value, **more)


SLURM_OPTIONS: list[click.Parameter] = [
    _option("--nodes", "N", "Nodes.", type=click.IntRange(min=1), default=1, show_default=True),
    _option("--cards", "M", "Cards of each node, and ranks.", type=click.IntRange(min=0), default=1, show_default=True),
    _option("--gres", "NAME", "Slurm's name for cards (sinfo -o %G), with a type as in dcu:k100; none: Slurm counts no "
            "cards, the job's nodes have them.", default="dcu", show_default=True),
    _option("--cpus-per-card", "N", "CPUs for each card.", type=click.IntRange(min=1), default=8, show_default=True),
    _option("--partition", "NAME", "Partition."),
    _option("--time", "LIMIT", "Time limit: minutes, H:MM:SS or D-HH:MM:SS."),
    _option("--mem", "SIZE", "Memory of each node."),
    _option("--nodelist", "LIST", "Nodes that must be among the job's, as in node[01-04]."),
    _option("--exclude", "LIST", "Nodes that must not."),
    _option("--account", "NAME", "Account."),
    _option("--qos", "NAME", "Quality of service."),
    _option("--job-name", "NAME", "Name of the job; default: --name, else the target's."),
    _option("--array", "LIST", "A task for each number, as in 0-7%2; each has a run folder of its own."),
    _option("--dependency", "LIST", "As in afterok:1234."),
    _option("--sbatch", "OPTION", "Any other option of sbatch, as in --sbatch=--reservation=maintenance.", multiple=True),
    _option("--before", "LINE", "Line of bash for the batch script before dcu-launch starts, as in 'module load "
            "python'; what ranks need: --setup.", multiple=True),
    _option("--container", "COMMAND", "Start the ranks' Python by this command, as in 'apptainer exec dtk.sif'."),
    _option("--save-before-limit", "S", "Seconds (or 5m) before the time limit at which ranks save and end; default 300, "
            "or a fifth of a short limit; 0: never."),
    _option("--restarts", "N", "After a saved end Slurm is asked for another start, until N in a row brought no new "
            "checkpoint; 0: never.", type=click.IntRange(min=0), default=3, show_default=True),
    _option("--checkpoints", "DIR", "Scripts: the folder of what they go on from."),
    _option("--follow", None, "Stay, and show state and loss until the job ends; then this command has its exit code.",
            is_flag=True),
    _option("--dry-run", None, "Print the batch script; needs no Slurm.", is_flag=True),
    _option("--run-dir", "DIR", "Run folder; default runs/<time>-<recipe>. It must be on a disk that the nodes see."),
    _option("--name", "NAME", "Last part of the run folder's name; the job's name, too, unless --job-name gives another."),
    _option("--env", "NAME[=VALUE]", "As for a run; goes by a file, not by --export.", multiple=True),
]  # fmt: skip


class SubmitCommand(RunCommand):
    """A command whose help lists Slurm's options alone: those of a run stand on the page of ``dcu-launch --help``."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list, and where the others are."""
        records = [param.get_help_record(ctx) for param in self.get_params(ctx) if _is_shown(param)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        formatter.write_paragraph()
        formatter.write_text(
            "Options of a run may be given too, as dcu-launch --help lists them, but for those about hosts."
        )


def _is_shown(param: click.Parameter) -> bool:
    return param in SLURM_OPTIONS or "--help" in param.opts
