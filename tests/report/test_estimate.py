"""What a model and a recipe need of a card: numbers that are known, and how they must move."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher.base.config import Recipe, from_dict
from launcher.base.errors import UsageError
from launcher.report.estimate import (
    CHUNK_NUMBERS,
    GIB,
    Estimate,
    count_adapters,
    estimate_memory,
    find_learnt,
    find_most_tokens,
)
from launcher.report.model_shape import ModelShape, make_shape

QWEN = {"model_type": "qwen2", "vocab_size": 151936, "num_key_value_heads": 2, "tie_word_embeddings": True}
#: the sizes that these models' config.json give, and how many numbers their weights are
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen2.5-0.5B": (
        {**QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
        494_032_768,
    ),
    "Qwen2.5-1.5B": (
        {**QWEN, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
        1_543_714_304,
    ),
    "Qwen2.5-7B": (
        {"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
         "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
        7_615_616_512,
    ),
    "Llama-3.1-8B": (
        {"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False},
        8_030_261_248,
    ),
}  # fmt: skip


def shape_of(name: str) -> ModelShape:
    return make_shape(MODELS[name][0])


def recipe_of(**changes: Any) -> Recipe:
    return from_dict({"model": {"path": "/m"}, "data": {"path": "/d"}, **changes})


def need(
    name: str = "Qwen2.5-7B", cards: int = 1, tokens: int = 2048, precision: str = "bf16", **changes: Any
) -> Estimate:
    return estimate_memory(shape_of(name), recipe_of(**changes), precision, cards, tokens)


def zero(stage: int, method: str = "full") -> dict[str, Any]:
    return {"method": method, "engine": "deepspeed", "deepspeed": {"zero_stage": stage}}


@pytest.mark.parametrize("name", MODELS)
def test_numbers_of_known_models(name):
    assert shape_of(name).total == MODELS[name][1]


def test_what_learns():
    shape = shape_of("Qwen2.5-7B")
    # r of 8 on q, k, v and o of 28 blocks: what peft counts
    assert count_adapters(shape, recipe_of()) == 28 * 8 * (7168 + 2 * 4096 + 7168) == 5_046_272
    assert count_adapters(shape, recipe_of(lora={"targets": ["all"]})) == 20_185_088
    assert count_adapters(shape, recipe_of(lora={"targets": ["q_proj", "down_proj"]})) == 28 * 8 * (
        7168 + 22528
    )
    learnt = find_learnt(shape, recipe_of(method="freeze"))
    assert (learnt.whole, learnt.lowest, learnt.trained) == (2 * 233_057_792, 26, 2)
    with_head = find_learnt(
        shape, recipe_of(method="freeze", freeze={"last_layers": 0, "modules": ["lm_head"]})
    )
    assert (with_head.whole, with_head.lowest, with_head.head) == (152064 * 3584, 28, True)
    low = find_learnt(shape, recipe_of(method="freeze", freeze={"modules": ["model.layers.3.mlp"]}))
    assert (low.whole, low.lowest) == (2 * 233_057_792 + 3 * 3584 * 18944, 3)
    assert find_learnt(shape, recipe_of(method="full")).total == shape.total


def test_state_of_each_method():
    total = MODELS["Qwen2.5-7B"][1]
    lora, full = need(), need(method="full")
    adapters = 5_046_272
    assert (lora.weights, lora.gradients, lora.optimizer) == (
        total * 2 + adapters * 4,
        adapters * 4,
        adapters * 8,
    )
    assert (full.weights, full.casts, full.gradients, full.optimizer) == (
        total * 4,
        total * 2,
        total * 4,
        total * 8,
    )
    assert need(method="full", precision="fp32").casts == 0
    freeze = need(method="freeze")
    assert max(lora.total, freeze.total) < full.total / 4
    assert freeze.activations < lora.activations / 5  # two blocks of 28 keep any


def test_zero_shares_by_stage_and_cards():
    total = MODELS["Qwen2.5-7B"][1]
    one, two, three = (need(cards=8, **zero(stage)) for stage in (1, 2, 3))
    assert one.optimizer == two.optimizer == three.optimizer == total // 8 * 12
    assert (one.gradients, two.gradients, three.gradients) == (total * 2, total // 8 * 4, total // 8 * 4)
    assert (one.weights, two.weights, three.weights) == (total * 2, total * 2, total // 8 * 2)
    for stage in (1, 2, 3):
        needs = [need(cards=cards, **zero(stage)).total for cards in (1, 2, 4, 8, 16)]
        assert needs == sorted(needs, reverse=True)
        assert len(set(needs)) == 5
    # under DDP every card holds all
    assert need(cards=8, method="full") == need(cards=1, method="full")
    assert need(cards=8, **zero(3, "lora")).weights < need().weights / 7


def test_more_tokens_need_more_and_checkpointing_less():
    for method in ("lora", "freeze", "full"):
        for name in MODELS:
            needs = [
                need(name, tokens=tokens, method=method).total for tokens in (512, 1024, 4096, 8192, 32768)
            ]
            assert needs == sorted(set(needs))
            light = need(name, tokens=8192, method=method, train={"gradient_checkpointing": True})
            assert light.activations < need(name, tokens=8192, method=method).activations
    assert need(lora={"dropout": 0.0}).activations < need().activations
    assert need(lora={"targets": ["all"]}).activations > need().activations
    assert need(model={"path": "/m", "attention": "eager"}).activations > need().activations
    assert need(precision="fp32").total > need().total
    assert need(train={"logits": "all"}, tokens=8192).logits > need(tokens=8192).logits


def test_logits_stop_growing_with_the_first_chunk():
    large, larger = need(tokens=4096), need(tokens=4608)
    assert large.logits > CHUNK_NUMBERS * 14 * 0.99
    assert larger.logits - large.logits == 2 * 512 * 3584 * 2


def test_the_proposal_is_the_largest_that_fits():
    shape, recipe = shape_of("Qwen2.5-7B"), recipe_of()
    for room in (32, 64):
        most = find_most_tokens(shape, recipe, "bf16", 1, room * GIB)
        assert most % 256 == 0
        assert estimate_memory(shape, recipe, "bf16", 1, most).total <= room * GIB
        assert estimate_memory(shape, recipe, "bf16", 1, most + 256).total > room * GIB
    assert find_most_tokens(shape, recipe, "bf16", 1, 14 * GIB) == 0


def test_the_chunk_is_that_of_the_loss():
    # read as text: the head has no torch
    from pathlib import Path

    import launcher

    text = (Path(launcher.__file__).parent / "train" / "loss.py").read_text(encoding="utf-8")
    assert "_CHUNK_NUMBERS = 1 << 27\n" in text
    assert CHUNK_NUMBERS == 1 << 27


def test_wrong_modules_are_refused_by_name():
    shape = shape_of("Qwen2.5-7B")
    for changes, words in (
        ({"lora": {"targets": ["query"]}}, "lora.targets: 'query' is no layer"),
        ({"lora": {"modules_to_save": ["embed"]}}, "lora.modules_to_save: 'embed' is no module"),
        ({"method": "freeze", "freeze": {"last_layers": 29}}, "expected 1 to 28"),
        ({"method": "freeze", "freeze": {"last_layers": 0}}, "nothing would learn"),
    ):
        with pytest.raises(UsageError, match=words):
            find_learnt(shape, recipe_of(**changes))


def test_architectures():
    values = MODELS["Llama-3.1-8B"][0]
    for model_type in ("mistral", "phi3"):
        assert make_shape({**values, "model_type": model_type}).total == 8_030_261_248
    qwen3 = make_shape({**values, "model_type": "qwen3"})
    assert qwen3.total == 8_030_261_248 + 32 * 2 * 128
    assert dataclasses.replace(qwen3, is_tied=True).total == qwen3.total - 128256 * 4096
    with pytest.raises(UsageError, match="model_type 'mamba' is not known"):
        make_shape({"model_type": "mamba"})
    with pytest.raises(UsageError, match=r"hidden_size.*found '4096'"):
        make_shape({**values, "hidden_size": "4096"})
    with pytest.raises(UsageError) as caught:
        make_shape({"model_type": "llama"})
    assert caught.value.message.count("expected a whole number") == 5


#: GiB of torch.cuda.max_memory_allocated on one H200 (torch 2.11, bf16, varlen attention, liger's kernels, not compiled),
#: as ``python -m bench.estimate`` measured them: model, method, at 8,192 and at 2,048 tokens
MEASURED = [
    ("Qwen2.5-1.5B", "full", 47.00, 32.76),
    ("Qwen2.5-1.5B", "lora", 19.23, 8.41),
    ("Qwen2.5-1.5B", "freeze", 7.31, 6.40),
    ("Qwen2.5-0.5B", "full", 19.28, 12.48),
    ("Qwen2.5-0.5B", "lora", 9.75, 4.58),
    ("Qwen2.5-0.5B", "freeze", 3.87, 3.36),
]


@pytest.mark.parametrize(("name", "method", "long", "short"), MEASURED)
def test_what_a_card_needed(name: str, method: str, long: float, short: float) -> None:
    for tokens, measured in ((8192, long), (2048, short)):
        found = (
            need(name, tokens=tokens, method=method, data={"path": "/d", "max_length": 512}).allocated / GIB
        )
        assert 0.95 <= found / measured <= 1.15, f"{tokens} tokens: {found:.2f} GiB, measured {measured}"
