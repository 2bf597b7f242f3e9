"""Each rule on both sides of its threshold, on invented records; recorded healthy runs; what lacks is no verdict."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from launcher.report.diagnosis.breakage import find_operator
from launcher.report.diagnosis.live import JudgingView
from launcher.report.diagnosis.measures import measure_fall, measure_noise
from launcher.report.diagnosis.rules import RULES, diagnose, put_into_words
from launcher.report.diagnosis.verdict import Verdict
from launcher.report.run_record import RunRecord, read_record
from tests.report.folders import make_folder, make_losses, make_metrics

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.json"), key=lambda path: path.stem)


def record_of(losses: list[float] | None = None, **changes: Any) -> RunRecord:
    """A run of four ranks, two on each of two hosts; ``config``, ``summary`` and ``state`` are the record's."""
    fields = {name: changes.pop(name) for name in ("config", "summary", "state") if name in changes}
    plan = {"world_size": 4, "nodes": [{"host": f"node0{n}", "num_ranks": 2} for n in (1, 2)]}
    metrics = make_metrics(make_losses() if losses is None else losses, **changes)
    return dataclasses.replace(RunRecord(Path("run"), "run", "done", plan=plan, metrics=metrics), **fields)


def codes(record: RunRecord) -> list[str]:
    return [verdict.code for verdict in diagnose(record)]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_real_healthy_runs_give_no_verdict(path: Path) -> None:
    data = json.loads(path.read_text())
    record = RunRecord(path, path.stem, "done", config={"method": data["method"]}, metrics=data["metrics"])
    assert len(record.values("loss")) >= 40
    assert len(record.values("eval_loss")) >= 4
    for upto in range(1, len(data["metrics"]) + 1):  # nor would any moment of them have, live
        assert codes(dataclasses.replace(record, metrics=data["metrics"][:upto])) == []


def test_there_are_runs_of_both_methods_and_languages() -> None:
    assert [path.stem for path in HEALTHY] == [
        "freeze-en",
        "freeze-zh",
        "lora-en",
        "lora-en-plain",
        "lora-zh",
    ]


def test_a_real_run_whose_rate_is_too_high_is_named_by_its_tenth_step() -> None:
    path = Path(__file__).parent / "ill" / "lora-en-rate-0.03.json"
    data = json.loads(path.read_text())
    record = RunRecord(
        path, path.stem, "running", config={"method": data["method"]}, metrics=data["metrics"][:10]
    )
    assert codes(record) == ["RATE_TOO_HIGH"]


def test_an_empty_record_gives_no_verdict() -> None:
    assert codes(RunRecord(Path("run"), "run", "done")) == []
    odd = {key: "x" for key in ("facts", "loss", "slowest_rank", "step_s")}
    assert (
        codes(RunRecord(Path("run"), "run", "failed", metrics=[{"step": 1, **odd}], plan={"nodes": [3]}))
        == []
    )


@pytest.mark.parametrize(
    ("fact", "healthy", "ill", "code"),
    [
        ("bytes_per_token", 1.41, 1.39, "TEXT_SHREDDED"),
        ("unknown_share", 0.009, 0.011, "TEXT_SHREDDED"),
        ("alike", 0.79, 0.8, "ROWS_ALIKE"),
        ("distinct_share", 0.5, 0.49, "ROWS_ALIKE"),
        ("file_order_share", 0.49, 0.5, "NOT_SHUFFLED"),
        ("vocab_size", math.exp(1.0), 2, "FIRST_LOSS_HIGH"),
        ("without_gradient", 0, 1, "NOTHING_TRAINED"),
        ("unmoved", 0, 1, "NOTHING_TRAINED"),
    ],
)
def test_facts_on_both_sides(fact: str, healthy: float, ill: float, code: str) -> None:
    assert codes(record_of(facts={fact: healthy})) == []
    assert codes(record_of(facts={fact: ill})) == [code]


@pytest.mark.parametrize("fact", ["alike", "file_order_share"])
def test_few_rows_say_nothing(fact: str) -> None:
    assert codes(record_of(facts={fact: 1.0, "rows": 19})) == []


def test_a_run_that_went_on_has_no_first_loss() -> None:
    rows = [{**row, "step": row["step"] + 100} for row in make_metrics([9.0, 8.9], facts={"vocab_size": 100})]
    assert codes(RunRecord(Path("run"), "run", "done", metrics=rows)) == []


def test_no_gradient_at_all() -> None:
    assert codes(record_of(grad_norm=0.0)) == ["NOTHING_TRAINED"]
    message = "RuntimeError: 2 parameters should learn but get no gradient: a.lora_B, b.lora_B (exit code 1)"
    verdict = diagnose(record_of([2.0], state="failed", summary={"message": message}))[0]
    assert (verdict.code, verdict.values["count"]) == ("NOTHING_TRAINED", "2")
    assert "a.lora_B" in put_into_words(verdict, "zh").evidence


def test_what_moves_too_little_for_a_float_is_a_matter_of_the_rate() -> None:
    facts = {"unmoved": 24, "learning_rate": 1e-12}
    assert codes(record_of([2.0] * 30, facts=facts)) == ["RATE_TOO_LOW"]


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        (make_losses(), ""),
        (make_losses(start=2.0, end=2.2), ""),  # 10% up
        (make_losses(start=1.7, end=6.0), "rises"),
        ([*make_losses(30), *([4.0] * 10)], "rises"),
        ([*make_losses(39), 30.0], ""),  # one bad batch
        ([*make_losses(20, 4.0, 1.0), *make_losses(20, 1.0, 2.5)], "turns"),
        ([1.0, 2.2] * 20, "swings"),
        ([1.0, 2.2] * 9, ""),  # too short to tell
        ([2.0, 2.4] * 20, ""),
    ],
    ids=["falls", "creeps", "rises", "blows up", "spike", "turns", "swings", "short", "noisy"],
)
def test_a_rate_that_is_too_high(losses: list[float], found: str) -> None:
    verdicts = diagnose(record_of(losses, facts={"learning_rate": 1e-2}))
    assert [verdict.values["what"] for verdict in verdicts] == ([found] if found else [])
    if found:
        assert put_into_words(verdicts[0], "en").cure.startswith("train.learning_rate=1.41e-4 ")


def test_the_rate_to_try_is_a_tenth_within_the_usual_range() -> None:
    verdict = diagnose(record_of([1.0, 2.2] * 20, facts={"learning_rate": 8e-4}))[0]
    assert put_into_words(verdict, "en").cure.startswith("train.learning_rate=8e-5 ")
    freeze = record_of([1.0, 2.2] * 20, facts={"learning_rate": 1e-3}, config={"method": "freeze"})
    assert put_into_words(diagnose(freeze)[0], "en").cure.startswith("train.learning_rate=1e-5 ")


@pytest.mark.parametrize(
    ("count", "end", "rate", "found"),
    [(40, 2.0, 1e-6, True), (19, 2.0, 1e-6, False), (40, 2.0, 2e-5, False), (40, 1.5, 1e-6, False)],
)
def test_a_rate_that_is_too_low(count: int, end: float, rate: float, found: bool) -> None:
    record = record_of(make_losses(count, end=end), facts={"learning_rate": rate})
    assert codes(record) == (["RATE_TOO_LOW"] if found else [])


@pytest.mark.parametrize(
    ("evals", "end", "found"),
    [
        ({10: 1.5, 20: 1.55, 30: 1.6, 40: 1.7}, 1.0, True),
        ({10: 1.5, 20: 1.45, 30: 1.44, 40: 1.44}, 1.0, False),
        ({10: 1.5, 20: 1.51, 30: 1.5, 40: 1.6}, 1.0, False),  # not all above 2%
        ({30: 1.5, 40: 1.7}, 1.0, False),  # one measurement
        ({10: 1.5, 20: 1.52, 30: 1.54, 40: 1.56}, 1.0, False),  # 4%
        ({10: 1.5, 20: 1.55, 30: 1.6, 40: 1.7}, 2.15, False),  # training does not fall either
    ],
)
def test_validation(evals: dict[int, float], end: float, found: bool) -> None:
    assert codes(record_of(make_losses(end=end), evals=evals)) == (["VALIDATION_PARTS"] if found else [])


def test_a_slow_rank_is_named_with_its_host() -> None:
    verdict = diagnose(record_of(slowest_rank=2, slowest_step_s=0.7))[0]
    assert verdict.code == "SLOW_RANK"
    assert put_into_words(verdict, "en").evidence == (
        "rank 2 (node02) was the slowest in 100% of 37 steps and took 1.4 times as long as the median rank"
    )
    assert codes(record_of(slowest_rank=2, slowest_step_s=0.62)) == []  # 1.24
    assert codes(record_of(slowest_step_s=0.7)) == []  # each in turn


def test_a_slow_node_is_named() -> None:
    record = record_of(slowest_step_s=0.7)
    rows = [{**row, "slowest_rank": 2 + row["step"] % 2} for row in record.metrics]
    verdict = diagnose(dataclasses.replace(record, metrics=rows))[0]
    assert put_into_words(verdict, "en").evidence.startswith("node02 was the slowest in 100%")


def test_waiting_for_data() -> None:
    assert codes(record_of(data_wait_s=0.21)) == ["DATA_WAIT"]
    assert codes(record_of(data_wait_s=0.19)) == []
    assert codes(record_of(make_losses(12), data_wait_s=0.9)) == []


TRACEBACK = """rank 1 on node02 failed: RuntimeError: HIP error: an illegal memory access was encountered (exit code 1)
    Traceback (most recent call last):
      File "/opt/py/lib/python3.10/site-packages/launcher/train/loop.py", line 190, in _accumulate
        loss = engine.model(batch)
      File "/opt/py/lib/python3.10/site-packages/{path}", line 83, in {function}
        {line}
    RuntimeError: HIP error: an illegal memory access was encountered"""


@pytest.mark.parametrize(
    ("path", "function", "line", "operator", "cure"),
    [
        ("transformers/integrations/sdpa_attention.py", "sdpa_attention_forward",
         "torch.nn.functional.scaled_dot_product_attention(", "scaled_dot_product_attention", "model.attention=eager"),
        ("torch/nn/modules/linear.py", "forward", "return F.linear(input, self.weight, self.bias)",
         "linear (matrix product)", "--env TORCH_BLAS_PREFER_HIPBLASLT=0"),
        ("torch/nn/functional.py", "embedding", "return torch.embedding(weight, input)", "embedding", "an index beyond"),
        ("torch/optim/adamw.py", "_fused_adamw", "torch._fused_adamw_(", "fused AdamW", "full precision of the optimizer"),
        ("torch/autograd/graph.py", "_engine_run_backward", "return Variable._execution_engine.run_backward(",
         "backward", "run again with --env HIP_LAUNCH_BLOCKING=1"),
        ("torch/cuda/__init__.py", "synchronize", "return torch._C._cuda_synchronize()", "?", "run again with --env HIP_"),
    ],
)  # fmt: skip
def test_an_error_of_the_card(path: str, function: str, line: str, operator: str, cure: str) -> None:
    message = TRACEBACK.format(path=path, function=function, line=line)
    verdicts = diagnose(record_of(make_losses(7), state="failed", summary={"message": message}))
    assert [verdict.code for verdict in verdicts] == ["CARD_ERROR"]
    said = put_into_words(verdicts[0], "en")
    assert said.evidence.startswith("in step 8: HIP error: an illegal memory access was encountered")
    assert said.evidence.endswith(f"operator: {operator}" if operator != "?" else "names no operator")
    assert said.cure.startswith(cure)


@pytest.mark.parametrize(
    ("message", "start"),
    [
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB", "train.max_tokens_per_card"),
        (
            "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.",
            "run again with",
        ),
        ("RuntimeError: rocblas_status_internal_error", "run again with"),
    ],
)
def test_errors_below_torch(message: str, start: str) -> None:
    verdict = diagnose(record_of(state="failed", summary={"message": message}))[0]
    assert put_into_words(verdict, "en").cure.startswith(start)


def test_other_failures_are_no_error_of_the_card() -> None:
    message = "rank 1 on node02 failed: ValueError: bad row (exit code 1)"
    assert codes(record_of(state="failed", summary={"message": message})) == []
    assert find_operator(message) is None


def test_noise_is_blind_to_the_trend_and_to_single_spikes() -> None:
    assert measure_noise([10 - 0.1 * step for step in range(50)]) == pytest.approx(0.1 / 0.954)
    noisy = make_losses(200, 2.0, 1.9, 0.1)
    spiked = [*noisy[:100], 50.0, *noisy[100:]]
    assert measure_noise(spiked) == pytest.approx(measure_noise(noisy), rel=0.1)
    fall, error = measure_fall([2.0] * 10 + [1.0] * 10)
    assert (fall, error) == (1.0, 0.0)


class Recorder:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.metrics: list[int] = []
        self.texts: list[str] = []
        self.output: list[tuple[int, bytes]] = []

    def rank_output(self, rank: int, data: bytes) -> None:
        self.output.append((rank, data))

    def status(self, text: str) -> None:
        self.texts.append(text)

    def metric(self, step: int, data: dict[str, Any]) -> None:
        self.metrics.append(step)


def test_live_each_verdict_is_told_once_and_early() -> None:
    view, told = Recorder(), list[tuple[int, Verdict, str]]()
    judging = JudgingView(
        view, {"method": "lora"}, {}, lambda verdict, line: told.append((view.metrics[-1], verdict, line))
    )
    losses = [2.0 + 0.05 * step for step in range(300)]
    for row in make_metrics(
        losses,
        facts={"bytes_per_token": 1.0, "file_order_share": 1.0, "without_gradient": 2, "learning_rate": 1e-2},
    ):
        judging.metric(row.pop("step"), row)
    judging.rank_output(3, b"x")
    judging.status("hello")
    assert [(step, verdict.code) for step, verdict, _ in told] == [
        (1, "NOT_SHUFFLED"), (3, "NOTHING_TRAINED"), (10, "RATE_TOO_HIGH"),
    ]  # fmt: skip
    assert told[0][2].startswith(
        "Rows come in the order of the file: 100% of 960 rows come right behind their neighbour in the file. Try: "
    )
    assert view.metrics == list(range(1, 301))
    assert (view.output, view.texts) == ([(3, b"x")], ["hello"])


def test_live_a_long_run_costs_no_more_and_more() -> None:
    judging = JudgingView(Recorder(), {}, {}, lambda verdict, line: None)
    for row in make_metrics(make_losses(7_000)):
        judging.metric(row.pop("step"), row)
    assert len(judging._rows) <= 6000


def test_a_run_folder_is_judged_as_it_lies(tmp_path: Path) -> None:
    assert codes(read_record(make_folder(tmp_path / "a"))) == []
    assert set(RULES) == {verdict for verdict in RULES}
