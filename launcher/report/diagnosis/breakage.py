"""Rule on a curve that breaks off with an error of the card: which operator it was, and what to use instead. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.report.diagnosis.verdict import Verdict
from launcher.report.run_record import RunRecord

#: what the stack below torch says when an operator goes wrong on the card
CARD_ERROR = re.compile(
    r"(?:HIP|CUDA) error: [^\n]{1,160}|hipError\w+|HSA_STATUS_ERROR\w*|Memory access fault by GPU[^\n]{0,80}|VMFault"
    r"|(?:MIOpen|miopen) ?[Ee]rror[^\n]{0,120}|miopenStatus\w+|rocblas_status_\w+|CUBLAS_STATUS_\w+|HIPBLAS_STATUS_\w+"
    r"|(?:HIP|CUDA) out of memory|hipErrorOutOfMemory"
)
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory", re.IGNORECASE)
_EXIT = re.compile(r" \((?:exit code \d+|killed by \w+)\)$")
_FRAME = re.compile(r'File "([^"]+)", line \d+, in ([\w<>]+)\n\s*([^\n]*)')


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator as tracebacks name it.

    Attributes:
        pattern: finds it in a frame's function or line.
        fallback: key of the text that says what to use instead.
    """

    name: str
    pattern: str
    fallback: str


#: the first that matches the innermost frames counts
OPERATORS = (
    Operator(
        "scaled_dot_product_attention",
        r"scaled_dot_product_attention|flash_attn|sdpa_attention|varlen",
        "attention",
    ),
    Operator("softmax of attention", r"eager_attention|softmax", "precision"),
    Operator("all_reduce", r"all_reduce|all_gather|reduce_scatter|broadcast|barrier", "collective"),
    Operator("fused AdamW", r"_fused_adamw|_multi_tensor_adamw|_foreach|adamw", "optimizer"),
    Operator("cross_entropy", r"cross_entropy|log_softmax|nll_loss", "precision"),
    Operator("embedding", r"embedding", "vocabulary"),
    Operator("linear (matrix product)", r"\blinear\b|addmm|matmul|\bmm\b|bmm|F\.linear|gemm", "matmul"),
    Operator("layer_norm", r"layer_norm|rms_norm|RMSNorm", "precision"),
    Operator("conv", r"conv\dd|convolution", "conv"),
    Operator("backward", r"_engine_run_backward|run_backward|\bbackward\b", "blocking"),
)


def card_error(record: RunRecord) -> Verdict | None:
    """The run broke off with an error of HIP or of a library on top of it."""
    if record.state not in ("failed", "broken"):
        return None
    message = str(record.summary.get("message", ""))
    found = CARD_ERROR.search(message)
    if not found:
        return None
    operator = find_operator(message)
    name, fallback = (operator.name, operator.fallback) if operator else ("?", "blocking")
    if _OUT_OF_MEMORY.search(found[0]):
        fallback = "memory"
    losses = record.series("loss")
    step = losses[-1][0] if losses else None
    return Verdict(
        "CARD_ERROR",
        {
            "error": _EXIT.sub("", found[0]).strip(),
            "what": "named" if operator else "unnamed",
            "operator": name,
            "fallback": fallback,
            "step": str((step or 0) + 1),
        },
        step,
    )


def find_operator(text: str) -> Operator | None:
    """The operator that the innermost frames of a traceback name; None when none does."""
    frames = _FRAME.findall(text)
    for path, function, line in reversed(frames):
        words = f"{function} {line}"
        for operator in OPERATORS:
            if re.search(operator.pattern, words) or re.search(operator.pattern, path.rpartition("/")[2]):
                return operator
    return None
