"""A file that ``accelerate config`` wrote -> the variables that ``accelerate launch`` would set. Runs on the head.

What places processes (how many, on which machines, where they meet) comes from the hostfile and is left out, told in a
note. What asks for another way to train (FSDP, Megatron, TPUs, FP8) is refused, and so is every key that is not known:
a setting that silently does nothing costs days.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.base.env_file import EnvOp
from launcher.base.errors import ConfigError
from launcher.launch.script_settings import ScriptSettings, node_path, read_zero_stage

DISTRIBUTED_TYPES = ("NO", "MULTI_GPU", "MULTI_CPU", "DEEPSPEED")
PRECISIONS = ("no", "fp16", "bf16")
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class _BadValueError(ValueError):
    """The text says what was expected."""


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = "no" if value is False and "no" in words else str(value).lower()
        if text not in words:
            raise _BadValueError(f"one of {', '.join(words)}")
        return text

    return read


def _flag(true: str, false: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if str(value).lower() not in ("true", "false"):
            raise _BadValueError("true or false")
        return true if str(value).lower() == "true" else false

    return read


def _whole(value: Any) -> str:
    if isinstance(value, bool) or not (str(value).isdigit() or value == "auto"):
        raise _BadValueError("a whole number or auto")
    return str(value)


def _number(value: Any) -> str:
    try:
        float("1" if value == "auto" else str(value))
    except ValueError:
        raise _BadValueError("a number or auto") from None
    return str(value).lower()


def _word(value: Any) -> str:
    if isinstance(value, dict | list):
        raise _BadValueError("one value")
    return str(value)


#: key of the file -> (variable, how its value is written); as accelerate.utils.launch does
MAPPED: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "mixed_precision": ("ACCELERATE_MIXED_PRECISION", _one_of(*PRECISIONS)),
    "debug": ("ACCELERATE_DEBUG_MODE", _flag("true", "")),
    "use_cpu": ("ACCELERATE_USE_CPU", _flag("true", "")),
}
DYNAMO: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "backend": ("ACCELERATE_DYNAMO_BACKEND", lambda value: "NO" if value is False else _word(value).upper()),
    "mode": ("ACCELERATE_DYNAMO_MODE", _one_of(*_MODES)),
    "use_fullgraph": ("ACCELERATE_DYNAMO_USE_FULLGRAPH", _flag("True", "False")),
    "use_dynamic": ("ACCELERATE_DYNAMO_USE_DYNAMIC", _flag("True", "False")),
    "use_regional_compilation": ("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", _flag("True", "False")),
}
#: use_dynamic is left to torch where a file is silent, as accelerate 1.16 does (before it, accelerate said False)
DYNAMO_DEFAULTS = {
    "backend": "NO",
    "mode": "default",
    "use_fullgraph": False,
    "use_regional_compilation": False,
}
DEEPSPEED: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "zero_stage": ("ACCELERATE_DEEPSPEED_ZERO_STAGE", _one_of("0", "1", "2", "3")),
    "gradient_accumulation_steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", _whole),
    "gradient_clipping": ("ACCELERATE_GRADIENT_CLIPPING", _number),
    "offload_optimizer_device": ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", _one_of("none", "cpu", "nvme")),
    "offload_param_device": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", _one_of("none", "cpu", "nvme")),
    # `accelerate launch` has the options for these two and drops them; the plugin reads the variables
    "offload_optimizer_nvme_path": ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", _word),
    "offload_param_nvme_path": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", _word),
    "zero3_init_flag": ("ACCELERATE_DEEPSPEED_ZERO3_INIT", _flag("true", "false")),
    "zero3_save_16bit_model": ("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", _flag("true", "false")),
    "deepspeed_config_file": ("ACCELERATE_DEEPSPEED_CONFIG_FILE", _word),
    "deepspeed_moe_layer_cls_names": ("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", _word),
}  # fmt: skip

#: the launcher's own business: left out with a note, never an error
LEFT_OUT = {
    **dict.fromkeys(
        ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend",
         "same_network", "mpirun_config", "deepspeed_multinode_launcher", "deepspeed_hostfile",
         "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"),
        "the hostfile and --nproc say where ranks run, and the launcher where they meet",
    ),
    "gpu_ids": "devices= in the hostfile says which cards",
    "enable_cpu_affinity": "--bind numa does it, on every kind of card",
    "main_training_function": "only notebooks and TPUs use it",
}  # fmt: skip

#: another way to train: refused where it is asked for
REFUSED = {
    "fsdp_config": "FSDP is not supported, DeepSpeed ZeRO does the same work",
    "megatron_lm_config": "Megatron-LM is not supported",
    "parallelism_config": "tensor, context and sequence parallelism are not supported",
    "fp8_config": "FP8 is not supported",
    **dict.fromkeys(
        ("downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env",
         "command_file", "commands"),
        "TPUs are not supported",
    ),
    **dict.fromkeys(
        ("ec2_instance_type", "iam_role_name", "image_uri", "profile", "region", "base_job_name",
         "sagemaker_inputs_file", "sagemaker_metrics_file"),
        "SageMaker is not supported",
    ),
}  # fmt: skip
#: what stands in a file that does not ask for it
_NOT_ASKED: tuple[Any, ...] = (None, False, "", "no", "false", "False", [], {})


def read_accelerate_config(path: str, workdir: str) -> ScriptSettings:
    """The settings of one file.

    Args:
        workdir: working folder of the ranks.

    Raises:
        ConfigError: names every key that is refused, unknown or has a value that cannot be.
    """
    config = _load(path)
    reading = _Reading(path, workdir)
    kind = str(config.pop("distributed_type", "NO"))
    if kind not in DISTRIBUTED_TYPES:
        reading.problems.append(
            f"distributed_type: {kind} is not supported, only {', '.join(DISTRIBUTED_TYPES)}"
        )
    place = str(config.pop("compute_environment", "LOCAL_MACHINE"))
    if place != "LOCAL_MACHINE":
        reading.problems.append(f"compute_environment: {place} is not supported, only LOCAL_MACHINE")
    uses_deepspeed = kind == "DEEPSPEED"
    if config.pop("fp16", None) is True:  # of accelerate before 0.10
        config.setdefault("mixed_precision", "fp16")
    said_precision = config.get("mixed_precision") is not None
    config["mixed_precision"] = config["mixed_precision"] if said_precision else "no"
    deepspeed = reading.take_part(config, "deepspeed_config")
    dynamo = reading.take_part(config, "dynamo_config")
    if "dynamo_backend" in config:
        dynamo["backend"] = config.pop("dynamo_backend")
    reading.map_keys(config, MAPPED)
    if uses_deepspeed:
        reading.map_deepspeed(deepspeed, said_precision)
    else:
        if deepspeed:
            reading.left_out.setdefault(f"distributed_type is {kind}", []).append("deepspeed_config")
        plain = {key.removeprefix("dynamo_"): value for key, value in dynamo.items()}
        reading.map_keys({**DYNAMO_DEFAULTS, **plain}, DYNAMO, "dynamo_config.dynamo_")
    return reading.conclude(uses_deepspeed)


def _load(path: str) -> dict[str, Any]:
    """The file as plain data: YAML, or JSON as older versions wrote it."""
    from omegaconf import OmegaConf

    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
        config = OmegaConf.to_container(OmegaConf.create(text or "{}"), resolve=False)
    except OSError as error:
        raise ConfigError(f"Accelerate configuration {path}: {error.strerror}") from None
    except Exception as error:  # whatever the YAML library raises for text that is none
        mark, why = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        place = f"{path}:{mark.line + 1}" if mark else path
        raise ConfigError(f"Accelerate configuration {place}: cannot be read as YAML: {why}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"Accelerate configuration {path}: expected keys and values")
    return {str(key): value for key, value in config.items()}


class _Reading:
    """What has been made of a file so far."""

    def __init__(self, path: str, workdir: str) -> None:
        self.path = path
        self.workdir = workdir
        self.ops: list[EnvOp] = []
        self.files: list[str] = []
        self.problems: list[str] = []
        self.left_out: dict[str, list[str]] = {}

    def take_part(self, config: dict[str, Any], key: str) -> dict[str, Any]:
        """A nested part, taken out; empty where there is none."""
        part = config.pop(key, None) or {}
        if not isinstance(part, dict):
            self.problems.append(f"{key}: expected keys and values")
            return {}
        return {str(name): value for name, value in part.items()}

    def map_keys(
        self, part: Mapping[str, Any], table: Mapping[str, tuple[str, Callable[[Any], str]]], prefix: str = ""
    ) -> None:
        """Turn each key of a part into a variable, a note or a problem."""
        for key, value in part.items():
            if key in table:
                self._map(prefix + key, value, *table[key])
            elif key in LEFT_OUT:
                if value not in _NOT_ASKED and (key, value) not in (
                    ("gpu_ids", "all"),
                    ("main_training_function", "main"),
                ):
                    self.left_out.setdefault(LEFT_OUT[key], []).append(key)
            elif key in REFUSED:
                if value not in _NOT_ASKED:
                    self.problems.append(f"{prefix}{key}: {REFUSED[key]}")
            else:
                self.problems.append(f"{prefix}{key}: not known")

    def _map(self, key: str, value: Any, variable: str, write: Callable[[Any], str]) -> None:
        if value is None:
            return
        try:
            text = write(value)
        except _BadValueError as error:
            self.problems.append(f"{key}: {value!r}; expected {error}")
            return
        if variable == "ACCELERATE_DEEPSPEED_CONFIG_FILE":
            text = node_path(text, self.workdir)
            self.files.append(text)
        if text:
            self.ops.append(EnvOp(variable, "set", text, f"{self.path}: {key}"))

    def map_deepspeed(self, part: Mapping[str, Any], said_precision: bool) -> None:
        """DeepSpeed's part; Accelerate wants to know which settings came from this file."""
        if any(op.name == "ACCELERATE_USE_CPU" for op in self.ops):
            self.problems.append("use_cpu: true cannot go with distributed_type: DEEPSPEED")
        fields = ",".join([*part, *(["mixed_precision"] if said_precision else [])]).lower()
        source = f"{self.path}: distributed_type"
        self.ops.append(EnvOp("ACCELERATE_USE_DEEPSPEED", "set", "true", source))
        self.ops.append(EnvOp("ACCELERATE_CONFIG_DS_FIELDS", "set", fields, source))
        self.map_keys(part, DEEPSPEED, "deepspeed_config.")
        named = part.get("deepspeed_config_file")
        if named is not None:
            try:
                read_zero_stage(str(named))
            except ConfigError as error:
                self.problems.append(f"deepspeed_config.deepspeed_config_file: {error.message}")

    def conclude(self, uses_deepspeed: bool) -> ScriptSettings:
        """The record, or all problems at once."""
        if self.problems:
            raise ConfigError(
                "\n".join(f"Accelerate configuration {self.path}: {problem}" for problem in self.problems),
                "take these keys out, or start the script with accelerate launch",
            )
        notes = tuple(
            f"{self.path}: not used: {', '.join(keys)}; {why}" for why, keys in self.left_out.items()
        )
        return ScriptSettings(tuple(self.ops), {}, tuple(self.files), uses_deepspeed, notes)
