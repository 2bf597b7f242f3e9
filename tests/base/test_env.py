"""Which variable goes to which host, in which order, and what is never sent."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.base import env as env_module
from launcher.base.env import (
    DCU_DEFAULTS,
    LAUNCHER_NAMES,
    SENT_PATTERNS,
    EnvOp,
    EnvPlan,
    apply_ops,
    explain_env,
    is_secret,
    mask,
    plan_env,
    plan_envs,
    printable,
)
from launcher.base.errors import UsageError
from launcher.hosts.host import Host
from launcher.hosts.hostfile import parse_hostfile
from launcher.node.environment import NEVER_INHERITED, NEVER_INHERITED_PREFIXES, apply_operations

NODE = Host(name="node01", source="hf:1")
LOCAL = Host(name="localhost", is_local=True, source="hf:2")


def plan(environ=None, config=None, files=(), options=(), host=NODE) -> EnvPlan:
    return plan_env(environ or {}, config or {}, files, options, host, [host])


def arrives(
    environ=None, config=None, files=(), options=(), host=NODE, own=None, after_setup=None
) -> dict[str, str]:
    """The environment of the ranks, with a set-up script that sets ``after_setup``."""
    planned = plan(environ, config, files, options, host)
    result = apply_ops(own or {}, planned.sent)
    result.update(after_setup or {})
    return apply_ops(result, planned.named)


def refusal(**inputs) -> list[str]:
    with pytest.raises(UsageError) as caught:
        plan(**inputs)
    assert caught.value.exit_code == 2
    return caught.value.message.split("\n")


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG", "RCCL_SDMA_COPY_ENABLE", "HSA_FORCE_FINE_GRAIN_PCIE", "HIP_LAUNCH_BLOCKING", "ROCM_PATH",
        "ROCR_X", "MIOPEN_FIND_MODE", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "SHCA_DEBUG_MASK",
        "GPU_MAX_HW_QUEUES", "TORCH_NCCL_TRACE_BUFFER_SIZE", "PYTORCH_HIP_ALLOC_CONF", "OMP_NUM_THREADS", "HF_HOME",
        "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM", "PYTHONPATH", "LD_LIBRARY_PATH", "DTKROOT",
    ],
)  # fmt: skip
def test_sent_by_pattern(name: str):
    assert plan({name: "x"}).sent == (EnvOp(name, "set", "x", f"pattern {env_module.match_pattern(name)}"),)
    assert plan({name: "x"}).skipped == ()


def test_every_pattern_has_its_test():
    names = test_sent_by_pattern.pytestmark[0].args[1]
    assert [env_module.match_pattern(name) for name in names] == list(SENT_PATTERNS)
    assert len(SENT_PATTERNS) == 20


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("PATH", "belongs to this machine or login"),
        ("SSH_AUTH_SOCK", "belongs to this machine or login"),
        ("SLURM_JOB_ID", "belongs to this machine or login"),
        ("XDG_RUNTIME_DIR", "belongs to this machine or login"),
        ("PWD", "belongs to this machine or login"),
        ("HOSTNAME", "belongs to this machine or login"),
        ("DISPLAY", "belongs to this machine or login"),
        ("UID", "readonly in bash"),
        ("BASH_FUNC_ml%%", "a shell function"),
        ("A.B", "not a name that a shell can hold"),
        ("NCCL_A.B", "not a name that a shell can hold"),
        ("1A", "not a name that a shell can hold"),
        ("", "not a name that a shell can hold"),
        ("NCCL_X\n", "not a name that a shell can hold"),
        ("RANK", "set by the launcher for each rank"),
        ("TORCHELASTIC_RUN_ID", "set by the launcher for each rank"),
        ("DCU_LAUNCH_CHANNEL", "set by the launcher for each rank"),
        ("PMI_RANK", "tells a rank of another launcher its place"),
        ("HIP_VISIBLE_DEVICES", "card numbers differ from node to node"),
        ("CUDA_VISIBLE_DEVICES", "card numbers differ from node to node"),
        ("ROCR_VISIBLE_DEVICES", "card numbers differ from node to node"),
        ("http_proxy", "each node keeps its own proxy"),
        ("WANDB_PROJECT", "no pattern matches it; --env sends it"),
        ("MY_NCCL_DEBUG", "no pattern matches it"),
        ("nccl_debug", "no pattern matches it"),
    ],
)
def test_not_sent_and_why(name: str, why: str):
    planned = plan({name: "x"})
    assert planned.sent == ()
    assert [skipped for skipped, _ in planned.skipped] == [name]
    assert planned.skipped[0][1].startswith(why)


def test_on_this_machine_visibility_holds_and_the_rest_is_inherited():
    environ = {
        "HIP_VISIBLE_DEVICES": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        "PATH": "/bin",
        "RANK": "3",
        "PMI_RANK": "1",
    }
    planned = plan(environ, host=LOCAL)
    assert [(op.name, op.value) for op in planned.sent] == [
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("HIP_VISIBLE_DEVICES", "1"),
    ]
    assert [name for name, _ in planned.skipped] == ["PMI_RANK", "RANK"]


def test_later_wins_in_the_order_of_the_design(tmp_path: Path):
    env_file = tmp_path / "job.env"
    chain: dict[str, dict] = {
        "own": {"own": {"NCCL_X": "own"}},
        "pattern": {"environ": {"NCCL_X": "pattern"}},
        "setup": {"after_setup": {"NCCL_X": "setup"}},
        "config": {"config": {"NCCL_X": "config"}},
        "file": {"files": [env_file]},
        "option": {"options": ["NCCL_X=option"]},
        "host": {"host": parse_hostfile("n env.NCCL_X=host", "hf")[0]},
    }
    env_file.write_text("NCCL_X=file\n")
    said: dict = {}
    for winner, more in chain.items():
        said.update(more)
        assert arrives(**said)["NCCL_X"] == winner


def test_last_of_several_files_and_options_wins(tmp_path: Path):
    (tmp_path / "a").write_text("A=1\nB=1\n")
    (tmp_path / "b").write_text("A=2\n")
    result = arrives(files=[tmp_path / "a", tmp_path / "b"], options=["C=1", "C=2"])
    assert result == {"A": "2", "B": "1", "C": "2"}


def test_operations_of_options():
    result = arrives(
        environ={"COPIED": "c d", "EMPTY": "", "PATH": "/head"},
        options=[
            "COPIED",
            "EMPTY",
            "LD_LIBRARY_PATH+=/x",
            "NEW+=/y",
            "GONE-",
            "PATH+=/opt/bin",
            "EQ=a=b",
            "E=",
        ],
        own={"LD_LIBRARY_PATH": "/node", "GONE": "1", "PATH": "/bin"},
    )
    assert result == {
        "COPIED": "c d",
        "EMPTY": "",
        "LD_LIBRARY_PATH": "/x:/node",
        "NEW": "/y",
        "PATH": "/opt/bin:/bin",
        "EQ": "a=b",
        "E": "",
    }


def test_values_of_a_config():
    config = {
        "A": "x", "N": 1, "F": 0.5, "T": True, "OFF": False, "P+": "/p", "GONE": None, "G2-": None,
        "setup": ["/opt/dtk/env.sh"],
    }  # fmt: skip
    result = arrives(config=config, own={"GONE": "1", "G2": "1", "P": "/q"})
    assert result == {"A": "x", "N": "1", "F": "0.5", "T": "true", "OFF": "false", "P": "/p:/q"}


def test_what_is_named_is_not_listed_as_skipped():
    planned = plan(
        {"WANDB_MODE": "offline", "OTHER": "1", "HIP_VISIBLE_DEVICES": "0"}, options=["WANDB_MODE"]
    )
    assert [op.value for op in planned.named if op.name == "WANDB_MODE"] == ["offline"]
    assert [name for name, _ in planned.skipped] == ["HIP_VISIBLE_DEVICES", "OTHER"]


def test_visibility_goes_to_nodes_when_named():
    assert arrives({"HIP_VISIBLE_DEVICES": "0"}, options=["HIP_VISIBLE_DEVICES"]) == {
        "HIP_VISIBLE_DEVICES": "0"
    }


def test_pythonpath_arrives_unchanged():
    assert arrives({"PYTHONPATH": "/a:/b"}) == {"PYTHONPATH": "/a:/b"}


def test_host_variables_differ_by_host():
    hosts = parse_hostfile(
        "W0 env.NCCL_SOCKET_IFNAME=lo\nW1 env.NCCL_SOCKET_IFNAME=eth9 env.LD_LIBRARY_PATH+=/r", "hf"
    )
    plans = plan_envs({"NCCL_SOCKET_IFNAME": "ib0"}, {}, [], [], hosts)
    results = [apply_ops(apply_ops({"LD_LIBRARY_PATH": "/n"}, each.sent), each.named) for each in plans]
    assert [result["NCCL_SOCKET_IFNAME"] for result in results] == ["lo", "eth9"]
    assert [result["LD_LIBRARY_PATH"] for result in results] == ["/n", "/r:/n"]
    assert plans[1].named[0].source == "hf:2"


def test_plan_envs_is_plan_env_of_each():
    hosts = parse_hostfile("W[0-2]\nlocalhost env.A=1", "hf")
    environ = {"NCCL_DEBUG": "INFO", "HIP_VISIBLE_DEVICES": "1", "PATH": "/"}
    planned = plan_envs(environ, {"B": 1}, [], ["C=3"], hosts)
    assert planned == [plan_env(environ, {"B": 1}, [], ["C=3"], host, hosts) for host in hosts]


@pytest.mark.parametrize(
    "value", ["a b", "it's", '"q"', "$HOME", "$(id)", "`id`", "a;b", "a\nb", "*", "中文", "\udc80", ""]
)
def test_values_arrive_byte_for_byte(value: str):
    assert arrives({"NCCL_X": value, "FOO": value}, options=["FOO", f"BAR={value}"]) == {
        "NCCL_X": value,
        "FOO": value,
        "BAR": value,
    }


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("NOT_THERE", "--env NOT_THERE: not set on this machine; write NAME=VALUE"),
        ("A.B=1", "--env: 'A.B': not a name that a shell can hold"),
        ("A.B", "--env A.B: not a name that a shell can hold"),
        ("=1", "--env: '': not a name that a shell can hold"),
        ("", "--env : not a name that a shell can hold"),
        ("A +=1", "--env: 'A ': not a name that a shell can hold"),
        ("RANK=0", "--env: 'RANK': set by the launcher for each rank"),
        ("RANK", "--env, value of this machine: 'RANK': set by the launcher for each rank"),
        ("RANK-", "--env: 'RANK': set by the launcher for each rank"),
        ("TORCHELASTIC_RUN_ID=1", "set by the launcher for each rank"),
        ("MASTER_ADDR=x", "set by the launcher; use --master-addr"),
        ("MASTER_PORT=1", "set by the launcher; use --master-port"),
        ("UID=0", "--env: 'UID': readonly in bash"),
        ("SHELLOPTS=x", "readonly in bash"),
        ("A+=", "--env: 'A': nothing to prepend"),
        ("A-=1", "--env: 'A': NAME- unsets it and takes no value"),
        ("A=x\0y", "--env: 'A': a value cannot hold a zero byte"),
        ("A+", "--env A+: not set on this machine"),
    ],
)
def test_options_that_are_refused(option: str, problem: str):
    assert problem in refusal(environ={"RANK": "1"}, options=[option])[0]


@pytest.mark.parametrize("name", sorted(LAUNCHER_NAMES))
def test_the_launchers_own_names_cannot_be_set(name: str):
    assert len(refusal(options=[f"{name}=1"])) == 1
    assert len(refusal(config={name: 1})) == 1


def test_all_mistakes_are_told_at_once_and_without_values(tmp_path: Path):
    env_file = tmp_path / "job.env"
    env_file.write_text("OK=1\nHF-TOKEN=hunter2\nnonsense hunter2\n")
    message = refusal(
        config={"A.B": "hunter2", "L": ["hunter2"]},
        files=[env_file, tmp_path / "missing"],
        options=["HF.TOKEN=hunter2", "RANK=hunter2"],
    )
    assert message == [
        "config env: 'A.B': not a name that a shell can hold",
        "config env: 'L': expected one value, found list",
        f"{env_file}:2: 'HF-TOKEN': not a name that a shell can hold",
        f"{env_file}:3: expected KEY=VALUE",
        f"{tmp_path / 'missing'}: cannot be read: No such file or directory",
        "--env: 'HF.TOKEN': not a name that a shell can hold",
        "--env: 'RANK': set by the launcher for each rank",
    ]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("export A=b", "b"),
        ("  export\tA=b  ", "b"),
        ("A=", ""),
        ("A=''", ""),
        ("A='x # $y \"'", 'x # $y "'),
        ('A="x # \\" \\\\ \\$y \\n \'"', "x # \" \\ $y \\n '"),
        ("A=x#y", "x#y"),
        ("A=x # note", "x"),
        ("A=#note", ""),
        ("A='x' # note", "x"),
        ("A=a=b==", "a=b=="),
        ("A=中文", "中文"),
        ("A=costs5$", "costs5$"),
        ("\ufeffA=b", "b"),
        ("A=b\r", "b"),
    ],
)
def test_env_file_lines(tmp_path: Path, line: str, value: str):
    path = tmp_path / "job.env"
    path.write_bytes(line.encode())
    assert arrives(files=[path]) == {"A": value}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("A", "expected KEY=VALUE"),
        ("A = b", "'A': no blanks around '='"),
        ("A= b", "'A': no blanks around '='"),
        ("A='b", "'A': the quote ' is not closed on this line"),
        ('A="b\\"', "'A': the quote \" is not closed on this line"),
        ("A='b'c", "'A': text after the closing quote"),
        ("A=b c", "'A': a value with blanks or quotes inside stands in quotes as a whole"),
        ("A=/x:$A", "'A': '$' is not expanded here"),
        ('A="/x:${A}"', "'A': '$' is not expanded here"),
        ("A=$(id)", "'A': '$' is not expanded here"),
        ("A=`id`", "'A': '$' is not expanded here"),
        ("RANK=1", "'RANK': set by the launcher"),
    ],
)
def test_env_file_lines_that_are_refused(tmp_path: Path, line: str, problem: str):
    path = tmp_path / "job.env"
    path.write_text(f"# note\n\n{line}\n")
    message = refusal(files=[path])
    assert len(message) == 1
    assert message[0].startswith(f"{path}:3: {problem}")


def test_env_file_prepends_and_keeps_its_place(tmp_path: Path):
    path = tmp_path / "job.env"
    path.write_text("\n# x\nLD_LIBRARY_PATH+=/x\n")
    assert arrives(files=[path], own={"LD_LIBRARY_PATH": "/n"}) == {"LD_LIBRARY_PATH": "/x:/n"}
    assert plan(files=[path]).named[0] == EnvOp("LD_LIBRARY_PATH", "prepend", "/x", f"{path}:3")


def test_env_file_that_is_not_text(tmp_path: Path):
    path = tmp_path / "job.env"
    path.write_bytes(b"A=\xff")
    assert refusal(files=[path]) == [f"{path}: not UTF-8 text (byte 2)"]


@given(st.text(max_size=60))
def test_env_files_of_garbage_raise_nothing_but_usage_errors(
    tmp_path_factory: pytest.TempPathFactory, text: str
):
    path = tmp_path_factory.getbasetemp() / "garbage.env"
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    problems: list[str] = []
    ops = env_module.read_env_file(path, problems)
    assert all(re.fullmatch(r"[A-Za-z_]\w*", op.name, re.ASCII) for op in ops)
    assert all(problem.startswith(str(path)) for problem in problems)


PROXY_CASES = [
    ({}, {}),
    ({"http_proxy": ""}, {"http_proxy": ""}),
    ({"http_proxy": "p"}, {"http_proxy": "p", "no_proxy": "HOSTS"}),
    ({"HTTPS_PROXY": "p", "no_proxy": "a"}, {"HTTPS_PROXY": "p", "no_proxy": "HOSTS,a"}),
    ({"ALL_PROXY": "p", "NO_PROXY": "a"}, {"ALL_PROXY": "p", "no_proxy": "HOSTS,a", "NO_PROXY": "HOSTS,a"}),
    ({"http_proxy": "p", "no_proxy": "a", "NO_PROXY": "b"},
     {"http_proxy": "p", "no_proxy": "HOSTS,a", "NO_PROXY": "HOSTS,b"}),
]  # fmt: skip


@pytest.mark.parametrize(("own", "expected"), PROXY_CASES)
def test_hosts_are_added_to_no_proxy_where_a_proxy_is(own: dict[str, str], expected: dict[str, str]):
    hosts = parse_hostfile("a@W0:22 addr=10.0.0.1\nfd00::1\nW0:23 addr=10.0.0.1", "hf")
    names = "localhost,127.0.0.1,::1,W0,10.0.0.1,fd00::1"
    result = apply_ops(own, plan_envs({}, {}, [], [], hosts)[0].named)
    assert result == {name: value.replace("HOSTS", names) for name, value in expected.items()}


def test_hosts_are_added_to_a_proxy_that_the_user_names():
    result = arrives(options=["https_proxy=p", "no_proxy=intra"])
    assert result["no_proxy"] == "localhost,127.0.0.1,::1,node01,intra"


OPS = st.lists(
    st.builds(
        EnvOp,
        name=st.sampled_from("ABC"),
        operation=st.sampled_from(["set", "prepend", "unset"]),
        value=st.sampled_from(["", "x", "y z"]),
        source=st.just("s"),
        separator=st.sampled_from([":", ","]),
        fallback=st.sampled_from(["", "A", "B"]),
        if_any=st.sampled_from([(), ("A",), ("B", "C")]),
    ),
    max_size=6,
)


@given(OPS, st.dictionaries(st.sampled_from("ABC"), st.sampled_from(["", "1", "2"])))
def test_the_agent_means_the_same(ops: list[EnvOp], environ: dict[str, str]):
    sent = [
        {"name": op.name, "operation": op.operation, "value": op.value, "separator": op.separator,
         "fallback": op.fallback, "if_any": list(op.if_any)}
        for op in ops
    ]  # fmt: skip
    on_node = dict(environ)
    apply_operations(on_node, sent)
    assert on_node == apply_ops(environ, ops)


def test_the_agent_drops_every_name_of_the_launcher():
    for name in LAUNCHER_NAMES:
        assert name in NEVER_INHERITED or name.startswith(NEVER_INHERITED_PREFIXES)
    for name in NEVER_INHERITED:
        assert env_module.is_launcher_name(name)
    assert not env_module.is_inherited("OMPI_COMM_WORLD_RANK")


def test_dcu_defaults():
    assert dict(DCU_DEFAULTS) == {
        "HSA_FORCE_FINE_GRAIN_PCIE": "1",
        "RCCL_SDMA_COPY_ENABLE": "0",
        "NCCL_SDMA_COPY_ENABLE": "0",
    }


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PASSWORD", "DB_PASSWORD2", "MY_PASSWD", "APIKEY", "OPENAI_APIKEY",
     "GITHUBTOKEN", "CLIENTSECRET", "token", "hf-token", "apiKey", "a.secret.b", "KEY", "SSHKEY", "AUTH_TOKENS"],
)  # fmt: skip
def test_secret_names(name: str):
    assert is_secret(name)
    assert mask(name, "hunter2") == "***"
    assert mask(name, "") == ""


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "MONKEY",
        "TURKEY_SIZE",
        "KEYBOARD",
        "PATH",
        "NCCL_DEBUG",
        "SECRETARY",
        "",
        "_",
        "HOCKEY",
    ],
)
def test_names_that_are_no_secret(name: str):
    assert not is_secret(name)
    assert mask(name, "value") == "value"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://bob:pw@proxy:3128", "http://***@proxy:3128"),
        ("a http://x@h/ b https://u:p@g", "a http://***@h/ b https://***@g"),
        ("http://proxy:3128/a@b", "http://proxy:3128/a@b"),
        ("bob@host", "bob@host"),
    ],
)
def test_logins_in_urls_are_masked(value: str, shown: str):
    assert mask("http_proxy", value) == shown


def test_printable():
    assert printable("a\nb\x1b\udc80中") == "a\\nb\\x1b\\udc80中"
    assert printable("x" * 10, 6) == "xxx..."


def test_explain_folds_equal_hosts_and_masks():
    hosts = parse_hostfile("n[1-3] env.A=1\nn4 env.A=1\nn5 env.A=2\nlocalhost", "hf")
    environ = {"HF_TOKEN": "hunter2", "PATH": "/", "NCCL_DEBUG": "INFO"}
    groups = explain_env(plan_envs(environ, {}, [], ["MY_KEY=hunter2"], hosts), hosts)
    assert [(group.hosts, group.is_local) for group in groups] == [
        ((0, 1, 2, 3), False),
        ((4,), False),
        ((5,), True),
    ]
    rows = {(row.name, row.operation): row for row in groups[0].rows}
    assert rows["HF_TOKEN", "set"].value == "***"
    assert rows["HF_TOKEN", "set"].why == "pattern HF_*"
    assert rows["MY_KEY", "set"].value == "***"
    assert rows["A", "set"].why == "hostfile"
    assert rows["PATH", "not sent"].why == "belongs to this machine or login"
    assert rows["HSA_FORCE_FINE_GRAIN_PCIE", "default"].value == "1"
    assert "hunter2" not in repr(groups)
    assert not [row for row in groups[2].rows if row.operation == "not sent"]


def test_explain_says_who_wins():
    plans = plan_envs(
        {"NCCL_DEBUG": "INFO", "HSA_FORCE_FINE_GRAIN_PCIE": "0"}, {}, [], ["NCCL_DEBUG=WARN"], [NODE]
    )
    rows = explain_env(plans, [NODE])[0].rows
    assert [row.why for row in rows if row.name == "NCCL_DEBUG"] == [
        "pattern NCCL_*; then --env wins",
        "--env",
    ]
    assert [row.operation for row in rows if row.name == "HSA_FORCE_FINE_GRAIN_PCIE"] == ["set"]


@pytest.mark.parametrize("module", ["env", "env_file", "variable"])
def test_standard_library_only(module: str):
    tree = ast.parse((Path(env_module.__file__).parent / f"{module}.py").read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[1] for name in names if name.startswith("launcher")} <= {"base"}
    assert names - {name for name in names if name.startswith("launcher.base")} <= {
        "__future__", "collections.abc", "dataclasses", "fnmatch", "functools", "pathlib", "types", "typing",
    }  # fmt: skip
