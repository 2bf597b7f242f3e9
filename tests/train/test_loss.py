"""The sum of losses and its gradient: packed or not, at label places alone or through all logits."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.base.config import from_dict
from launcher.train.data import load_data, make_batch
from launcher.train.loss import Objective, can_use_places, sum_losses
from launcher.train.methods import apply_method
from launcher.train.model import load_model, load_model_config, load_tokenizer
from launcher.train.pack import PackLimits, pack_rows
from tests.train.tiny import recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def case(request, model_dir, rows_file) -> Any:
    import torch

    values = from_dict(recipe(model_dir, rows_file))
    tokenizer = load_tokenizer(str(model_dir))
    causal = load_model(values, load_model_config(values, tokenizer), torch.float32, request.param)
    tuned = apply_method(values, causal)
    for name, parameter in causal.named_parameters():
        if "lora_B" in name:  # zero at the start: then lora_A would have no gradient to compare
            parameter.data.normal_(std=0.02)
    return tuned.causal, load_data(values, tokenizer).train


def run(causal: Any, batches: list[Any], by_places: bool) -> tuple[float, dict[str, Any]]:
    causal.zero_grad()
    objective = Objective(causal, by_places)
    total = 0.0
    for batch in batches:
        loss = objective(batch)
        loss.backward()
        total += float(loss.detach())
    return total, {n: p.grad.clone() for n, p in causal.named_parameters() if p.requires_grad}


def batches(tokens: Any, packing: bool, max_tokens: int = 4096) -> list[Any]:
    plan = pack_rows(range(len(tokens.rows)), tokens.lengths, PackLimits(max_tokens, 256, packing))
    return [make_batch(tokens, micro, "cpu") for micro in plan]


def reference(causal: Any, tokens: Any) -> tuple[float, dict[str, Any]]:
    """Each row by itself through transformers' own loss."""
    import torch

    causal.zero_grad()
    total = 0.0
    for row in tokens.rows:
        labels = [token if learn else -100 for token, learn in zip(row.ids, row.learn, strict=True)]
        loss = causal(input_ids=torch.tensor([row.ids]), labels=torch.tensor([labels])).loss * sum(
            row.learn[1:]
        )
        loss.backward()
        total += float(loss.detach())
    return total, {n: p.grad.clone() for n, p in causal.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("by_places", [True, False])
def test_loss_and_gradients_equal_those_of_single_rows(case, packing, by_places):
    causal, tokens = case
    expected, gradients = reference(causal, tokens)
    found, ours = run(causal, batches(tokens, packing), by_places)
    assert found == pytest.approx(expected, rel=1e-5)
    for name, gradient in gradients.items():
        scale = float(gradient.abs().max())
        assert scale > 0
        assert float((ours[name] - gradient).abs().max()) < 1e-5 * scale, name


def test_other_rows_of_a_pack_do_not_leak(case):
    import torch

    causal, tokens = case
    short = [row for row in range(len(tokens.rows)) if tokens.lengths[row] < 100][:3]
    with torch.no_grad():
        together = Objective(causal, True)(make_batch(tokens, [short], "cpu"))
        alone = sum(Objective(causal, True)(make_batch(tokens, [[row]], "cpu")) for row in short)
    assert float(together) == pytest.approx(float(alone), rel=1e-6)


def test_an_empty_pack_gives_every_parameter_a_gradient_of_zero(case):
    causal, tokens = case
    loss, gradients = run(causal, [make_batch(tokens, [], "cpu")], True)
    assert loss == 0.0
    assert all(not bool(gradient.any()) for gradient in gradients.values())


def test_chunks_change_nothing(case, monkeypatch):
    causal, tokens = case
    whole = run(causal, batches(tokens, True), True)
    monkeypatch.setattr("launcher.train.loss._CHUNK_NUMBERS", 1)  # 256 places a chunk
    assert sum(tokens.labels) > 256
    chunked = run(causal, batches(tokens, True), True)
    assert chunked[0] == pytest.approx(whole[0], rel=1e-6)
    for name, gradient in whole[1].items():
        assert float((chunked[1][name] - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max())


def test_a_model_that_changes_its_logits_is_found(case):
    import torch

    causal, _ = case
    assert can_use_places(causal, "cpu")
    forward = causal.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits * 0.5
        return output

    causal.forward = scaled
    try:
        assert not can_use_places(causal, "cpu")
    finally:
        del causal.forward
    assert torch.is_grad_enabled()


def test_the_sum_is_taken_in_float32():
    import torch

    logits = torch.zeros(3, 7, dtype=torch.bfloat16)
    assert float(sum_losses(logits, torch.tensor([0, 1, 2]))) == pytest.approx(3 * 1.9459101, rel=1e-6)
