"""What learns under each method, and wishes that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.base.config import from_dict
from launcher.base.errors import ConfigError
from launcher.train.methods import apply_method, check_method, find_targets, matches
from launcher.train.model import load_model, load_model_config, load_tokenizer
from tests.train.tiny import recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]


@pytest.fixture
def load(model_dir, rows_file) -> Any:
    import torch

    def build(**sections: Any) -> tuple[Any, Any]:
        values = from_dict(recipe(model_dir, rows_file, **sections))
        config = load_model_config(values, load_tokenizer(str(model_dir)))
        return values, load_model(values, config, torch.float32, "sdpa")

    return build


def trained(causal: Any) -> set[str]:
    return {name for name, p in causal.named_parameters() if p.requires_grad}


def test_lora_finds_the_attention(load):
    values, causal = load()
    tuned = apply_method(values, causal)
    names = trained(causal)
    assert len(names) == 3 * 4 * 2
    assert all("self_attn" in name and "lora_" in name for name in names)
    assert {"q_proj", "k_proj", "v_proj", "o_proj"} == set(tuned.counts) - {"all"}
    assert "10,752 of" in tuned.describe()


def test_lora_on_all_linear_layers_leaves_the_head_alone(load):
    _, causal = load()
    assert find_targets(["all"], causal) == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip


def test_a_name_that_stands_elsewhere_too_takes_its_parent_along(load):
    import torch

    _, causal = load()
    causal.q_proj = torch.nn.Linear(2, 2)
    assert "self_attn.q_proj" in find_targets([], causal)
    assert "q_proj" not in find_targets([], causal)


def test_lora_starts_the_same_whatever_was_drawn_before(load):
    import torch

    values, first = load()
    apply_method(values, first)
    values, second = load()
    torch.rand(17)
    apply_method(values, second)
    for (name, one), (_, two) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(one, two), name


def test_modules_to_save_learn_whole(load):
    values, causal = load(lora={"modules_to_save": ["lm_head"]})
    assert apply_method(values, causal).counts["lm_head"] == 320 * 64


def test_freeze_trains_just_the_last_blocks(load):
    values, causal = load(method="freeze", freeze={"last_layers": 2})
    apply_method(values, causal)
    blocks = {name.split(".")[2] for name in trained(causal)}
    assert blocks == {"1", "2"}
    assert all(name.startswith("model.layers.") for name in trained(causal))


def test_freeze_takes_modules_by_name_and_pattern(load):
    values, causal = load(
        method="freeze", freeze={"last_layers": 0, "modules": ["lm_head", "layers.0.*norm"]}
    )
    apply_method(values, causal)
    assert trained(causal) == {
        "lm_head.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
    }  # fmt: skip


def test_full_trains_all(load):
    values, causal = load(method="full")
    assert len(trained(apply_method(values, causal).causal)) == len(list(causal.parameters()))


def test_what_learns_is_float32(load):
    import torch

    values, causal = load(method="freeze", freeze={"last_layers": 1})
    apply_method(values, causal.to(torch.bfloat16))
    kinds = {p.requires_grad: p.dtype for p in causal.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"lora": {"targets": ["q_pro"]}}, "lora.targets: 'q_pro' is no module of this model; there are q_proj"),
        ({"lora": {"modules_to_save": ["head"]}}, "lora.modules_to_save: 'head' is no module"),
        ({"method": "freeze", "freeze": {"modules": ["lm_heat"]}}, "'lm_heat' is no module of this model; there are lm_h"),
        ({"method": "freeze", "freeze": {"modules": ["*"]}}, "method freeze: all parameters would learn"),
        ({"method": "freeze", "freeze": {"last_layers": 0, "modules": ["act_fn"]}}, "no parameter would learn"),
    ],
)  # fmt: skip
def test_wishes_that_cannot_be(load, sections, message):
    values, causal = load(**sections)
    with pytest.raises(ConfigError) as caught:
        apply_method(values, causal)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("last", "message"), [(-1, "expected 1 to 3"), (4, "expected 1 to 3"), (0, "nothing would learn")]
)
def test_counts_of_blocks_are_checked_before_weights_are_read(load, last, message):
    values, causal = load(method="freeze", freeze={"last_layers": last})
    with pytest.raises(ConfigError, match=message):
        check_method(values, causal.config)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"lora": {"targets": ["q_pro"]}}, "lora.targets: 'q_pro' is no module of this model; there are q_proj"),
        ({"lora": {"modules_to_save": ["lm_heat"]}}, "lora.modules_to_save: 'lm_heat' is no module"),
        ({"method": "freeze", "freeze": {"modules": ["lm_heat"]}}, "there are lm_head"),
    ],
)  # fmt: skip
def test_names_of_modules_are_checked_before_weights_are_read(
    ranks, model_dir, rows_file, tmp_path, sections, message
):
    code = (
        "import launcher.train.job as job\n"
        "def load_model(*words): raise AssertionError('weights are read')\n"
        "job.load_model = load_model"
    )
    ran = ranks.end(recipe(model_dir, rows_file, **sections), tmp_path / "run", 2, code=code)
    assert ran.codes == [2, 2], ran.outputs
    assert message in ran.outputs[0]
    assert ran.outputs[1] == ""


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "fp8"])
def test_a_quantized_base_is_refused_before_weights_are_read(load, method):
    values, causal = load()
    causal.config.quantization_config = {"quant_method": method, "bits": 4}
    with pytest.raises(ConfigError) as caught:
        check_method(values, causal.config)
    assert f"holds quantized weights ({method} in its config.json)" in caught.value.message
    assert "16 bits" in caught.value.hint


def test_freeze_counts_blocks_and_not_the_experts_inside_them(load):
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    values, _ = load(method="freeze", freeze={"last_layers": 2})
    causal = Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=4,
            shared_expert_intermediate_size=8, num_attention_heads=2, num_key_value_heads=2, num_experts=4,
            num_experts_per_tok=2,
        )
    )  # fmt: skip
    apply_method(values, causal)
    assert trained(causal) == {
        name
        for name, _ in causal.named_parameters()
        if name.startswith(("model.layers.2.", "model.layers.3."))
    }


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("lm_head", "lm_head", True),
        ("mlp", "model.layers.0.mlp", True),
        ("layers.2", "model.layers.0.mlp.experts.2", False),
        ("layers.2", "model.layers.2", True),
        ("*norm", "model.norm", True),
        ("*", "", False),
    ],
)
def test_patterns_of_modules(pattern, name, expected):
    assert matches(pattern, name) is expected
