"""The fast ways give the gradients of transformers and peft on a padded batch: packed, without a mask, compiled, fused."""

from __future__ import annotations

import itertools
from importlib.metadata import version
from typing import Any

import pytest

from launcher.base.config import from_dict
from launcher.base.errors import ConfigError
from launcher.train import attention, kernels, speed
from launcher.train.adapters import lighten
from launcher.train.data import load_data, make_batch, row_starts
from launcher.train.loss import Objective
from launcher.train.methods import apply_method
from launcher.train.model import load_model, load_model_config, load_tokenizer
from launcher.train.pack import PackLimits, pack_rows
from launcher.train.speed import compile_blocks, fit_limits, settle_attention, speed_up
from tests.train.tiny import recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]

CPU_LIMITS = PackLimits(4096, 256)
WAYS = [
    ("lora", "packed"), ("lora", "all logits"), ("lora", "light"), ("lora", "fused"), ("lora", "compiled"),
    ("freeze", "fused"), ("freeze", "compiled"),
]  # fmt: skip
#: transformers took attention functions by name from 4.48 on
HAS_SEAM = tuple(int(word) for word in version("transformers").split(".")[:2]) >= (4, 48)
if HAS_SEAM:
    WAYS += [("lora", "varlen"), ("lora", "varlen compiled"), ("freeze", "varlen compiled")]


def loop_kernel(query: Any, key: Any, value: Any, starts: Any, longest: int, scale: float) -> Any:
    """What a varlen kernel computes, row by row."""
    import torch

    parts = []
    for begin, end in itertools.pairwise(starts.tolist()):
        q, k, v = (t[begin:end].transpose(0, 1)[None] for t in (query, key, value))
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        assert end - begin <= longest
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[0]
        )
    return torch.cat([part.transpose(0, 1) for part in parts])


def make_case(model_dir: Any, rows_file: Any, name: str = "sdpa", **sections: Any) -> Any:
    """Recipe, causal model ready to learn, with adapters that already do something, and tokens."""
    import torch

    values = from_dict(recipe(model_dir, rows_file, **sections))
    tokenizer = load_tokenizer(str(model_dir))
    causal = load_model(values, load_model_config(values, tokenizer), torch.float32, name)
    apply_method(values, causal)
    torch.manual_seed(3)
    for key, parameter in causal.named_parameters():
        if "lora_B" in key:  # zero at the start: then lora_A would have no gradient to compare
            parameter.data.normal_(std=0.02)
    return values, causal, load_data(values, tokenizer).train


def padded(causal: Any, tokens: Any) -> tuple[float, dict[str, Any]]:
    """All rows as one padded batch through transformers' own loss, and the gradients."""
    import torch

    causal.zero_grad()
    length = max(tokens.lengths)
    pad = [length - own for own in tokens.lengths]
    ids = [row.ids + [0] * more for row, more in zip(tokens.rows, pad, strict=True)]
    labels = [
        [token if learn else -100 for token, learn in zip(row.ids, row.learn, strict=True)] + [-100] * more
        for row, more in zip(tokens.rows, pad, strict=True)
    ]
    mask = [[1] * own + [0] * more for own, more in zip(tokens.lengths, pad, strict=True)]
    loss = causal(
        input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), labels=torch.tensor(labels)
    ).loss * sum(tokens.labels)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in causal.named_parameters() if p.requires_grad}
    causal.zero_grad()
    return float(loss.detach()), gradients


def ours(causal: Any, tokens: Any, limits: PackLimits, by_places: bool = True) -> float:
    """The sum of losses the fast way; gradients stay in the model."""
    total = 0.0
    for micro in pack_rows(range(len(tokens.rows)), tokens.lengths, limits):
        loss = Objective(causal, by_places)(make_batch(tokens, micro, "cpu", limits))
        loss.backward()
        total += float(loss.detach())
    return total


def check_gradients(causal: Any, expected: dict[str, Any]) -> None:
    assert expected
    for key, parameter in causal.named_parameters():
        if parameter.requires_grad:
            scale = float(expected[key].abs().max())
            assert scale > 0
            assert float((parameter.grad - expected[key]).abs().max()) < 1e-5 * scale, key


@pytest.mark.parametrize(("method", "way"), WAYS)
def test_gradients_equal_those_of_a_padded_batch(method, way, model_dir, rows_file):
    import torch

    words = way.split()
    _, causal, tokens = make_case(
        model_dir, rows_file, method=method, freeze={"last_layers": 1, "modules": ["lm_head"]}
    )
    expected, gradients = padded(causal, tokens)
    if "varlen" in words:
        kernel = torch.compiler.disable(loop_kernel) if "compiled" in words else loop_kernel
        causal.set_attn_implementation(attention.register(kernel))
        assert settle_attention(causal, "cpu") == ""
    if method == "lora" and way not in ("packed", "all logits"):
        assert lighten(causal) == 12
    if "fused" in words:
        assert kernels.fuse_norms(causal, torch.float32) == 7
        assert kernels.fuse_gates(causal, torch.float32) == 3
    limits = fit_limits(CPU_LIMITS, causal, torch.device("cpu"), max(tokens.lengths))
    if "compiled" in words:
        torch.compiler.reset()
        for block in causal.model.layers:
            block.compile(dynamic=False, backend="aot_eager")
        limits = fit_limits(CPU_LIMITS, causal, torch.device("cpu"), max(tokens.lengths))
        assert limits.unit == speed.STATIC_TOKENS
    found = ours(causal, tokens, limits, by_places=way != "all logits")
    assert found == pytest.approx(expected, rel=1e-5)
    check_gradients(causal, gradients)


def test_freeze_computes_nothing_backwards_below_its_lowest_block(model_dir, rows_file):
    _, causal, tokens = make_case(model_dir, rows_file, method="freeze", freeze={"last_layers": 1})
    reached = []
    for number, block in enumerate(causal.model.layers):
        block.mlp.down_proj.register_full_backward_hook(lambda *_, number=number: reached.append(number))
    inputs = []
    causal.model.layers[-1].register_forward_pre_hook(lambda _, args: inputs.append(args[0].requires_grad))
    ours(causal, tokens, CPU_LIMITS)
    assert set(reached) == {2}
    assert not any(inputs)


def test_compiled_blocks_share_their_graphs(model_dir, rows_file):
    import torch
    from torch._dynamo.testing import CompileCounterWithBackend

    _, causal, tokens = make_case(model_dir, rows_file)
    assert lighten(causal) == 12
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    for block in causal.model.layers:
        block.compile(dynamic=False, backend=counter)
    limits = fit_limits(CPU_LIMITS, causal, torch.device("cpu"), max(tokens.lengths))
    short = PackLimits(1024, 1024, True, limits.unit)
    rows = [[row] for row in range(6)]
    for micro in rows:  # six lengths, all padded to one
        Objective(causal, True)(make_batch(tokens, [micro], "cpu", short)).backward()
    assert counter.frame_count == 2  # the first block's input needs no gradient, the others' does


def test_the_probe_finds_a_kernel_that_leaks():
    import torch

    cpu = torch.device("cpu")
    assert attention.probe(loop_kernel, cpu, torch.float32) == ""

    def leaking(query: Any, key: Any, value: Any, starts: Any, longest: int, scale: float) -> Any:
        return loop_kernel(query, key, value, starts[[0, -1]], longest, scale)

    assert "wrong" in attention.probe(leaking, cpu, torch.float32)


def test_a_model_that_does_not_tell_its_attention_where_rows_begin_goes_back_to_sdpa(model_dir, rows_file):
    if not HAS_SEAM:
        with pytest.raises((ImportError, AttributeError)):
            attention.register(loop_kernel)
        return
    attention.register(loop_kernel)
    _, causal, _ = make_case(model_dir, rows_file, attention.NAME)
    assert settle_attention(causal, "cpu") == ""
    forward = causal.model.forward
    causal.model.forward = lambda *args, cu_seq_lens_q=None, **kwargs: forward(*args, **kwargs)
    assert "sdpa after all" in settle_attention(causal, "cpu")
    assert causal.config._attn_implementation == "sdpa"


def test_padding_is_rows_no_longer_than_the_longest():
    starts = row_starts([5, 3], 20, 5)
    assert starts[:6] == [0, 5, 8, 13, 18, 20]
    assert len(starts) == 64
    assert set(starts[6:]) == {20}


def test_a_norm_of_another_kind_keeps_its_own_code():
    import torch

    class OffsetRMSNorm(torch.nn.Module):  # as Gemma has it
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.zeros(8)), 1e-6

        def forward(self, x: Any) -> Any:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)

    model = torch.nn.Sequential(OffsetRMSNorm())
    assert kernels.fuse_norms(model, torch.float32) == 0
    assert type(model[0]) is OffsetRMSNorm


def test_what_a_wish_comes_to(model_dir, rows_file):
    import torch

    cpu = torch.device("cpu")
    values, causal, _ = make_case(model_dir, rows_file)
    assert speed_up(values, causal, cpu, torch.float32, 10) == [
        "12 adapters compute without casts", "decoder blocks not compiled: no card",
        "kernels torch's own, 7 norms fused, 3 gates lean: no card",
    ]  # fmt: skip
    plain = {"lora": {"light": False, "dropout": 0.0}, "train": {"compile": "never", "kernels": "model"}}
    values, causal, _ = make_case(model_dir, rows_file, **plain)
    assert speed_up(values, causal, cpu, torch.float32, 1000) == [
        "decoder blocks not compiled: asked for", "kernels the model's own: asked for",
    ]  # fmt: skip
    compile_blocks(causal)
    assert all(block._compiled_call_impl is not None for block in causal.model.layers)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": "deepspeed", "train": {"compile": "always"}}, "train.compile: DeepSpeed"),
        ({"train": {"kernels": "liger"}}, "train.kernels: liger: no card"),
        ({"train": {"kernels": "liger", "compile": "always"}}, "hides from the compiler"),
    ],
)
def test_wishes_that_cannot_be(sections, message, model_dir, rows_file):
    import torch

    values, causal, _ = make_case(model_dir, rows_file, **sections)
    with pytest.raises(ConfigError, match=message):
        speed_up(values, causal, torch.device("cpu"), torch.float32, 10)


@pytest.mark.parametrize(
    ("max_tokens", "row_length", "longest", "expected"),
    [(8192, 1024, 500, 1024), (8192, 1300, 1300, 2048), (3000, 1024, 500, 1024), (800, 800, 500, 800)],
)
def test_static_lengths_stay_within_the_limits(
    max_tokens, row_length, longest, expected, model_dir, rows_file
):
    import torch

    _, causal, _ = make_case(model_dir, rows_file)
    compile_blocks(causal)
    limits = fit_limits(PackLimits(max_tokens, row_length), causal, torch.device("cpu"), longest)
    assert (limits.sequence_length, limits.unit, limits.longest) == (expected, 1024, 0)


def test_dropout_is_at_work(ranks, model_dir, rows_file, tmp_path):
    losses = [
        ranks.train(
            recipe(
                model_dir, rows_file, lora={"dropout": share}, train={"max_steps": 2, "learning_rate": 1e-2}
            ),
            tmp_path / str(share),
        ).losses
        for share in (0.0, 0.5)
    ]
    assert losses[0][0] == losses[1][0]  # adapters still add nothing
    assert losses[0][1] != losses[1][1]
