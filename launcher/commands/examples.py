"""The last lines of each verb's help page: command lines to copy, and exit codes that scripts ask for. Data alone."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "check": ("--hosts hostfile", "--hosts hostfile --ops --comm", "--hosts hostfile configs/lora.yaml"),
    "hosts": ("hostfile", "--example > hostfile"),
    "env": ("--hosts hostfile --env NCCL_DEBUG=INFO", "--hosts hostfile --explain configs/lora.yaml"),
    "constraints": ("> stack.txt", "--python /opt/py310/bin/python > stack.txt"),
    "submit": (
        "--nodes 2 --cards 8 --partition dcu --time 12:00:00 configs/lora.yaml",
        "--nodes 2 --cards 8 --dry-run train.py --lr 1e-4",
    ),
    "ps": ("", "--all", "--json"),
    "logs": ("-f", "RUN --rank 3 -n 50", "RUN --head"),
    "attach": ("", "runs/20260301-101500-lora"),
    "stop": ("", "RUN --now", "runs/20260301-101500-lora"),
    "save": ("", "runs/20260301-101500-lora"),
    "init": ("--model /models/Qwen2.5-7B --data train.json", "--recipe freeze my-project", "--list"),
    "generate": ('RUN -p "What is a DCU?"', "RUN --compare questions.txt", "/models/Qwen2.5-7B"),
    "merge": ("RUN", "RUN --out /models/mine --dtype bf16"),
    "estimate": (
        "/models/Qwen2.5-7B",
        "/models/Qwen2.5-7B --method full --cards 16 --zero 3",
        "--recipe configs/lora.yaml",
    ),
    "report": ("RUN", "runs/a runs/b runs/c -o compare.html", "RUN --lang zh"),
    "diagnose": ("RUN", "RUN --json"),
}
#: where 0 and 2 are not all that there is to say
EXIT_CODES = {
    "check": "0 a run can start, 2 wrong use or hostfile, 3 an error that was not allowed, 4 a host could not be reached",
    "attach": "the run's own, 0 after Ctrl-C, 2 no such run",
    "stop": "0 the run has ended, 2 no such run, or none that goes on, 5 its head does not answer",
    "save": "0 the checkpoint is there, 2 no such run, none that goes on, or no recipe",
    "merge": "0 done, 1 the merged model says something else, and nothing was written, 2 wrong use or another base",
}


def make_epilog(verb: str) -> str:
    """The lines below a verb's options, as click takes them; empty where there are none."""
    parts = []
    if verb in EXAMPLES:
        lines = (f"  dcu-launch {verb} {words}".rstrip() for words in EXAMPLES[verb])
        parts.append("\n".join(["\b", "Examples:", *lines]))
    if verb in EXIT_CODES:
        parts.append(f"Exit codes: {EXIT_CODES[verb]}.")
    return "\n\n".join(parts)
