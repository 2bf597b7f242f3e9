"""``dcu-launch --completion bash|zsh|fish``: a script for the shell, made from the very options that there are.

In: the verbs and their click commands. Out: text; nothing of dcu-launch runs while a user types, but to name runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import click

from launcher.base.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
#: verbs whose word is a run of the user
OF_RUNS = ("logs", "attach", "stop", "save", "report", "diagnose")

_BASH = """\
# dcu-launch in bash: eval "$(dcu-launch --completion bash)"
_dcu_launch() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="" verb=run options="" i
    COMPREPLY=()
    (( COMP_CWORD > 0 )) && prev="${{COMP_WORDS[COMP_CWORD - 1]}}"
    if (( COMP_CWORD > 1 )); then
        case "${{COMP_WORDS[1]}}" in {verbs_or}) verb="${{COMP_WORDS[1]}}" ;; esac
    fi
    if [[ $verb == run ]]; then  # what stands behind a script or recipe is not ours
        for (( i = 1; i < COMP_CWORD; i++ )); do
            case "${{COMP_WORDS[i]}}" in *.py) return 0 ;; esac
        done
    fi
    case "$verb $prev" in
{choices}
    esac
    case "$verb" in
{options}
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=( $(compgen -W "$options" -- "$cur") )
    elif (( COMP_CWORD == 1 )); then
        COMPREPLY=( $(compgen -W "{verbs}" -- "$cur") )
    else
        case "$verb" in
            {runs_or}) COMPREPLY=( $(compgen -W "$(dcu-launch ps --names 2>/dev/null)" -- "$cur") ) ;;
        esac
    fi
    return 0
}}
complete -o bashdefault -o default -F _dcu_launch dcu-launch
"""


def make_completion(shell: str, verbs: Mapping[str, tuple[click.Command, str]]) -> str:
    """The script for a shell.

    Args:
        verbs: name -> (its command, one line of help).

    Raises:
        UsageError: there is none for this shell.
    """
    if shell == "bash":
        return _for_bash(verbs)
    if shell == "zsh":
        return (
            '# dcu-launch in zsh: eval "$(dcu-launch --completion zsh)"\n'
            "autoload -Uz compinit bashcompinit\n"
            "(( $+functions[compdef] )) || compinit\nbashcompinit\n" + _for_bash(verbs)
        )
    if shell == "fish":
        return _for_fish(verbs)
    raise UsageError(
        f"--completion {shell}: expected {', '.join(SHELLS)}",
        'such as eval "$(dcu-launch --completion bash)"',
    )


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def _for_bash(verbs: Mapping[str, tuple[click.Command, str]]) -> str:
    options, choices = [], []
    for verb, (command, _) in verbs.items():
        names = [name for option in _options(command) for name in option.opts]
        options.append(f'        {verb}) options="{" ".join([*names, "--help"])}" ;;')
        for option in _options(command):
            if isinstance(option.type, click.Choice):
                patterns = "|".join(f"{shlex.quote(f'{verb} {name}')}" for name in option.opts)
                words = " ".join(map(str, option.type.choices))
                choices.append(
                    f'        {patterns}) COMPREPLY=( $(compgen -W "{words}" -- "$cur") ); return 0 ;;'
                )
        valued = [option for option in _options(command) if not option.is_flag]
        patterns = "|".join(shlex.quote(f"{verb} {name}") for option in valued for name in option.opts)
        if patterns:  # a file, most likely: what the shell itself proposes; choices stand above
            choices.append(f"        {patterns}) return 0 ;;")
    return _BASH.format(
        verbs=" ".join(verbs),
        verbs_or="|".join(verbs),
        runs_or="|".join(verb for verb in OF_RUNS if verb in verbs),
        options="\n".join(options),
        choices="\n".join(choices),
    )


def _for_fish(verbs: Mapping[str, tuple[click.Command, str]]) -> str:
    lines = ["# dcu-launch in fish: dcu-launch --completion fish | source"]
    none = f"not __fish_seen_subcommand_from {' '.join(verbs)}"
    for verb, (command, meaning) in verbs.items():
        lines.append(_line(["-n", none, "-a", verb, "-d", meaning]))
        inside = f"__fish_seen_subcommand_from {verb}"
        for option in _options(command):
            words = _fish_option(option)
            lines.append(_line(["-n", inside, *words]))
            if verb == "run":
                lines.append(_line(["-n", none, *words]))
        if verb in OF_RUNS:
            lines.append(_line(["-n", inside, "-f", "-a", "(dcu-launch ps --names 2>/dev/null)"]))
    return "\n".join(lines) + "\n"


def _fish_option(option: click.Option) -> list[str]:
    words: list[str] = []
    for name in option.opts:
        if name.startswith("--"):
            words += ["-l", name[2:]]
        else:
            words += ["-s" if len(name) == 2 else "-o", name[1:]]
    if isinstance(option.type, click.Choice):
        words += ["-x", "-a", " ".join(map(str, option.type.choices))]
    elif not option.is_flag:
        words.append("-r")
    return [*words, "-d", (option.help or "").split("\n")[0].split(";")[0].rstrip(".")]


def _line(words: Sequence[str]) -> str:
    return " ".join(["complete", "-c", "dcu-launch", *(_quote(word) for word in words)])


def _quote(word: str) -> str:
    """For fish, where a backslash inside quotes counts before a quote and a backslash alone."""
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'" if not word.isalnum() else word
