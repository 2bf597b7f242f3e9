"""A file of ``accelerate config`` -> the variables that ``accelerate launch`` sets for it, or a refusal by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base.errors import ConfigError
from launcher.launch.accelerate_config import read_accelerate_config
from launcher.launch.script_settings import ScriptSettings

#: what ``accelerate config`` writes around the answers
USUAL = """\
compute_environment: LOCAL_MACHINE
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 1
main_training_function: main
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
num_machines: 1
num_processes: 2
"""
PLAIN = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
}
#: files that both launchers take; the last one is what 0.x wrote
SHARED = [
    "distributed_type: 'NO'\nuse_cpu: true\n",
    "distributed_type: MULTI_GPU\nmixed_precision: bf16\nuse_cpu: false\n",
    "distributed_type: MULTI_GPU\nmixed_precision: 'no'\ndebug: true\n",
    "distributed_type: MULTI_CPU\nuse_cpu: true\nmixed_precision: 'no'\n",
    "distributed_type: MULTI_GPU\ndynamo_config:\n  dynamo_backend: INDUCTOR\n  dynamo_mode: max-autotune\n"
    "  dynamo_use_dynamic: true\n  dynamo_use_fullgraph: true\n  dynamo_use_regional_compilation: true\n",
    "distributed_type: DEEPSPEED\nmixed_precision: bf16\nuse_cpu: false\ndeepspeed_config:\n"
    "  gradient_accumulation_steps: 4\n  gradient_clipping: 1.0\n  offload_optimizer_device: cpu\n"
    "  offload_param_device: none\n  zero3_init_flag: true\n  zero3_save_16bit_model: true\n  zero_stage: 3\n",
    "distributed_type: DEEPSPEED\nmixed_precision: 'no'\ndeepspeed_config:\n  deepspeed_config_file: {ds}\n"
    "  zero3_init_flag: false\n  deepspeed_moe_layer_cls_names: MixtralSparseMoeBlock,B\n",
    "distributed_type: MULTI_GPU\nfp16: true\ndynamo_backend: 'NO'\n",
]
#: prints what accelerate's own code sets for each file
REFERENCE = """
import json, os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import launch
found = []
for path in sys.argv[1:]:
    before = dict(os.environ)
    args = launch_command_parser().parse_args(["--config_file", path, "script.py"])
    args, defaults, said_precision = _validate_launch_command(args)
    if args.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if said_precision else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = launch.prepare_deepspeed_cmd_env(args)
    elif args.multi_gpu:
        environment = launch.prepare_multi_gpu_env(args)
    else:
        _, environment = launch.prepare_simple_launcher_cmd_env(args)
    found.append({name: value for name, value in environment.items() if before.get(name) != value})
print(json.dumps(found))
"""


def read(tmp_path: Path, text: str, name: str = "accelerate.yaml") -> ScriptSettings:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_accelerate_config(str(tmp_path / name), "/project")


def variables(settings: ScriptSettings) -> dict[str, str]:
    return {op.name: op.value for op in settings.named}


@pytest.mark.train
def test_same_variables_as_accelerate_launch(tmp_path: Path):
    paths = []
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    for number, text in enumerate(SHARED):
        path = tmp_path / f"{number}.yaml"
        path.write_text(USUAL + text.format(ds=tmp_path / "ds.json"))
        paths.append(path)
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE, *paths], capture_output=True, text=True, check=True
    )
    references = json.loads(done.stdout)
    assert len(references) == len(SHARED)
    for path, reference in zip(paths, references, strict=True):
        expected = {name: value for name, value in reference.items() if name.startswith("ACCELERATE_")}
        if expected.get("ACCELERATE_USE_CPU") == "False":
            del expected["ACCELERATE_USE_CPU"]  # the launcher says it by node, where there is no card
        elif "ACCELERATE_USE_CPU" in expected:
            expected["ACCELERATE_USE_CPU"] = "true"
        if expected.get("ACCELERATE_DYNAMO_USE_DYNAMIC") == "False":
            del expected["ACCELERATE_DYNAMO_USE_DYNAMIC"]  # said by accelerate before 1.16 only
        assert variables(read_accelerate_config(str(path), "/project")) == expected, path.read_text()


def test_plain_file(tmp_path: Path):
    settings = read(tmp_path, USUAL + "distributed_type: MULTI_GPU\nmixed_precision: no\n")
    assert variables(settings) == PLAIN
    assert not settings.uses_deepspeed
    assert settings.variables == {}
    assert settings.named[0].source == f"{tmp_path}/accelerate.yaml: mixed_precision"


def test_json_and_empty_files(tmp_path: Path):
    assert variables(read(tmp_path, '{"distributed_type": "NO", "mixed_precision": "fp16"}', "a.json")) == {
        **PLAIN,
        "ACCELERATE_MIXED_PRECISION": "fp16",
    }
    assert variables(read(tmp_path, "")) == PLAIN


def test_deepspeed_file_is_looked_for_on_nodes(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text("{}")
    settings = read(
        tmp_path, "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    assert settings.uses_deepspeed
    assert settings.files == ("/project/ds.json",)
    assert variables(settings)["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "/project/ds.json"
    assert variables(settings)["ACCELERATE_CONFIG_DS_FIELDS"] == "deepspeed_config_file"
    assert not {name for name in variables(settings) if "DYNAMO" in name or "USE_CPU" in name}


def test_what_places_processes_is_left_out_and_told(tmp_path: Path):
    text = USUAL + "distributed_type: MULTI_GPU\nmain_process_ip: 10.0.0.1\nmain_process_port: 29500\n"
    settings = read(tmp_path, text.replace("gpu_ids: all", "gpu_ids: 0,1"))
    assert variables(settings) == PLAIN
    (cards, places) = settings.notes
    assert cards.endswith("not used: gpu_ids; devices= in the hostfile says which cards")
    for key in ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port"):
        assert key in places


def test_deepspeed_part_of_another_type_is_told(tmp_path: Path):
    settings = read(tmp_path, "distributed_type: MULTI_GPU\ndeepspeed_config: {zero_stage: 2}\n")
    assert variables(settings) == PLAIN
    assert settings.notes[0].endswith("not used: deepspeed_config; distributed_type is MULTI_GPU")


def test_everything_that_cannot_hold_is_refused_by_name_at_once(tmp_path: Path):
    text = """\
compute_environment: AMAZON_SAGEMAKER
distributed_type: FSDP
mixed_precision: fp8
use_cpu: maybe
fsdp_config: {fsdp_version: 2}
megatron_lm_config: {megatron_lm_tp_degree: 2}
fp8_config: {backend: MSAMP}
tpu_use_cluster: true
mixed_precission: bf16
dynamo_config: {dynamo_mode: fast, dynamo_nothing: 1}
"""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    told = [line.split("accelerate.yaml: ")[1] for line in caught.value.message.split("\n")]
    assert told == [
        "distributed_type: FSDP is not supported, only NO, MULTI_GPU, MULTI_CPU, DEEPSPEED",
        "compute_environment: AMAZON_SAGEMAKER is not supported, only LOCAL_MACHINE",
        "mixed_precision: 'fp8'; expected one of no, fp16, bf16",
        "use_cpu: 'maybe'; expected true or false",
        "fsdp_config: FSDP is not supported, DeepSpeed ZeRO does the same work",
        "megatron_lm_config: Megatron-LM is not supported",
        "fp8_config: FP8 is not supported",
        "tpu_use_cluster: TPUs are not supported",
        "mixed_precission: not known",
        "dynamo_config.dynamo_mode: 'fast'; expected one of default, reduce-overhead, max-autotune, "
        "max-autotune-no-cudagraphs",
        "dynamo_config.dynamo_nothing: not known",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("distributed_type: DEEPSPEED\nuse_cpu: true\n", "use_cpu: true cannot go with"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 5}\n",
            "deepspeed_config.zero_stage: 5;",
        ),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {gradient_clipping: big}\n", "a number or auto"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: nope.json}\n",
            "nope.json: No such",
        ),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: [1]\n", "deepspeed_config: expected keys"),
        ("b: 1\na: [\n", "accelerate.yaml:3: cannot be read as YAML"),
        ("b: 1\nb: 2\n", "accelerate.yaml:2: cannot be read as YAML: found duplicate key b"),
        ("- 1\n", "expected keys and values"),
    ],
)
def test_other_files_that_cannot_be_used(tmp_path: Path, text, said):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert said in caught.value.message
    assert "accelerate.yaml" in caught.value.message


def test_missing_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nope\.yaml: No such file"):
        read_accelerate_config(str(tmp_path / "nope.yaml"), "/")
