"""SSH as people have it, on hosts with a real sshd: what has to work, and what has to be said where it cannot."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.remote.conftest import Head

pytestmark = pytest.mark.lab


def hostnames(said: dict) -> dict[str, str]:
    assert said["exit"] == 0, (said.get("message"), said.get("hint"))
    return {name: report["hostname"] for name, report in said["reports"].items()}


def host_key(lab: Lab, i: int) -> str:
    return " ".join((lab.disk.host(i) / "etc" / "ssh_host_ed25519_key.pub").read_text().split()[:2])


def test_ssh_config_says_how_each_host_is_reached(lab: Lab, head: Head) -> None:
    lab.set_sshd(2, "Port 22", "Port 2222")
    alice = lab.add_user("alice")
    head.make_key("only_alice", home=alice)
    head.write("conf.d/10-two.conf", "Host by-include\n  HostName node002\n")
    head.write("parts/nested", "HostName node003\nHost other-name\n  HostName nowhere.invalid\n")
    head.write(
        "config",
        f"""Include conf.d/*.conf
Host in-a-block
  Include parts/nested
Host alice-three
  HostName={lab.address(3)}
  User alice
  IdentityFile ~/.ssh/only_alice
Host other-port
  HostName node002
  Port 2222
  HostKeyAlias node002
Host by-command
  HostName node004
  ProxyCommand ssh -q -W "%h:%p" node002 # a comment of ssh would be part of it
Host jumped
  HostName node004
  ProxyJump node002
Host jumped-twice
  HostName node004
  ProxyJump node002,root@node003:22
Host *
  ServerAliveInterval 20
""".replace(" # a comment of ssh would be part of it", ""),
    )
    said = head.reach(
        "by-include", "in-a-block", "alice-three", "other-port", "by-command", "jumped", "jumped-twice", "alice@node004",
        f"[{lab.ipv6(3)}]:22",
    )  # fmt: skip
    assert hostnames(said) == {
        "by-include": "node002", "in-a-block": "node003", "alice-three": "node003", "other-port": "node002",
        "by-command": "node004", "jumped": "node004", "jumped-twice": "node004", "node004": "node004",
        lab.ipv6(3): "node003",
    }  # fmt: skip
    uids = {name: report["system"]["user"] for name, report in said["reports"].items()}
    assert uids["alice-three"] == uids["node004"] != 0 == uids["by-include"]
    # a jump host's view of the connection: the node sees the jump host, not the head
    assert said["reports"]["jumped"]["session_address"] == lab.address(4)
    assert said["stderr"] == ""


def test_the_hostfile_wins_over_ssh_config(lab: Lab, head: Head) -> None:
    lab.set_sshd(2, "Port 2222")
    bob = lab.add_user("bob")
    key = head.make_key("only_bob", home=bob)
    (bob / ".ssh" / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    head.write(
        "config",
        "Host node002\n  User nobody\n  Port 1\n  IdentityFile ~/.ssh/id_ed25519\n  HostKeyAlias node002\n",
    )
    said = head.reach("bob@node002:2222 key=~/.ssh/only_bob")
    assert hostnames(said) == {"node002": "node002"}
    assert said["reports"]["node002"]["system"]["user"] != 0


def test_keys_of_an_agent_are_used_as_ssh_uses_them(lab: Lab, head: Head) -> None:
    carol = lab.add_user("carol")
    dave = lab.add_user("dave")
    for home in (carol, dave):
        (home / ".ssh" / "authorized_keys").write_text("")
    head.make_key("locked", locked_by="secret", home=carol)
    # more keys than sshd lets anyone try, and the right one is the last: it is named, so it comes first
    others = [head.make_key(f"other{number}") for number in range(7)]
    right = head.make_key("right", locked_by="word", kind="rsa", home=dave)
    head.write("config", "Host node003\n  IdentityFile ~/.ssh/right\n")
    agent = lab.popen(1, ["ssh-agent", "-D", "-a", "/run/agent"], stdout=subprocess.DEVNULL)
    env = {"SSH_AUTH_SOCK": "/run/agent", "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": "x"}
    try:
        # 2: nobody listens there yet
        wait = "while ssh-add -l >/dev/null 2>&1; [ $? = 2 ]; do sleep 0.05; done"
        lab.run(1, ["sh", "-c", wait], env=env, check=True, timeout=20)
        for path, word in [(head.ssh / "locked", "secret"), *((key, "") for key in others), (right, "word")]:
            ask = head.folder / "ask"
            ask.write_text(f"#!/bin/sh\necho {word}\n")
            ask.chmod(0o755)
            lab.run(
                1,
                ["ssh-add", "-q", f"{lab.home}/.ssh/{path.name}"],
                env={**env, "SSH_ASKPASS": str(ask)},
                check=True,
            )
        said = head.reach("carol@node002", "dave@node003", env=env)
        assert hostnames(said) == {"node002": "node002", "node003": "node003"}
        # and the agent alone, by its public key only
        (head.ssh / "locked").unlink()
        head.write(
            "config",
            "Host *\n  IdentitiesOnly yes\n  IdentityAgent /run/agent\nHost node002\n  IdentityFile ~/.ssh/locked.pub\n",
        )
        assert hostnames(head.reach("carol@node002")) == {"node002": "node002"}
    finally:
        agent.kill()
        agent.wait()


def test_all_hosts_that_cannot_be_reached_are_listed_at_once(lab: Lab, head: Head) -> None:
    lab.add_user("erin")
    lab.set_sshd(2, "Port 2222")
    lab.cut(3)
    head.make_key("locked", locked_by="secret")
    head.write("broken", "this is no key\n")
    head.write("config", "Host cut-off\n  HostName node003\n")
    stranger = lab.add_user("frank")
    (stranger / ".ssh" / "authorized_keys").write_text("")
    started = time.monotonic()
    said = head.reach(
        "node001", "node002", "cut-off", "frank@node004", f"{lab.address(4)} key=~/.ssh/broken",
        f"[{lab.ipv6(4)}]:22 key=~/.ssh/locked", "nowhere.invalid", f"{lab.address(1)} key=~/.ssh/missing",
        options=("--connect-timeout", "3"),
    )  # fmt: skip
    assert said["exit"] == 4
    assert time.monotonic() - started < 15
    lines = said["message"].splitlines()
    reasons = {line.split(" ")[0]: line for line in lines}
    assert len(lines) == 7
    assert "Connection refused" in reasons["node002"]
    assert "no answer in time" in reasons["cut-off"]
    assert "(root@node003:22)" in reasons["cut-off"]
    assert "authentication failed" in reasons["node004"]
    assert "id_ed25519" in reasons["node004"], "the keys that were tried are named"
    assert reasons[lab.address(4)].endswith("/.ssh/broken is not a private key")
    assert "/.ssh/locked is encrypted and no agent has it" in reasons[lab.ipv6(4)]
    assert "its name is not known" in reasons["nowhere.invalid"]
    assert reasons[lab.address(1)].endswith("/.ssh/missing does not exist")
    assert "ssh-add" in said["hint"]
    assert "test it with: ssh" in said["hint"]
    assert said["stderr"] == ""
    for i in (1, 2, 4):
        lab.wait_gone(i, within_s=5)


def test_an_unknown_host_key_is_refused_with_its_cure_and_accepted_when_asked(lab: Lab, head: Head) -> None:
    for name in ("node002", "node003"):
        head.forget(name)
    fingerprint = subprocess.run(
        ["ssh-keygen", "-lf", lab.disk.host(2) / "etc" / "ssh_host_ed25519_key.pub"],
        capture_output=True,
        text=True,
    ).stdout.split()[1]
    said = head.reach("node001", "node002", "node003")
    assert said["exit"] == 4
    assert re.search(
        rf"node002 .*: its host key is unknown \(ssh-ed25519 {re.escape(fingerprint)}\)", said["message"]
    )
    assert "node003" in said["message"]
    assert "node001" not in said["message"]
    cure = said["hint"].split(" after comparing")[0]
    assert cure == "ssh-keyscan node002 node003 >> ~/.ssh/known_hosts"
    # the line that is given does cure it
    lab.run(1, ["bash", "-c", f"{cure} 2>/dev/null"], check=True)
    assert set(hostnames(head.reach("node001", "node002", "node003")).values()) == {
        "node001",
        "node002",
        "node003",
    }
    for name in ("node002", "node003"):
        head.forget(name)
    head.write("config", "Host node003\n  HashKnownHosts yes\nHost *\n  HashKnownHosts no\n")
    before = (head.ssh / "known_hosts").read_text()
    (head.ssh / "known_hosts").write_text(before.rstrip("\n"))  # a last line without its newline
    assert hostnames(head.reach("node002", "node003", options=("--accept-new-host-keys",)))
    assert head.known(f"node002 {host_key(lab, 2)}")
    assert head.known("node003") == []
    assert [line for line in head.known("|1|") if line.endswith(host_key(lab, 3))]
    assert hostnames(head.reach("node002", "node003"))


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_a_config_that_switches_the_check_off_is_not_followed(lab: Lab, head: Head, transport: str) -> None:
    head.forget("node002")
    head.write("config", "Host *\n  StrictHostKeyChecking no\n  HashKnownHosts no\n")
    said = head.reach("node002", options=("--transport", transport))
    assert said["exit"] == 4
    assert re.search(r"\Anode002.*: its host key is unknown", said["message"])
    assert "--accept-new-host-keys" in said["hint"]
    assert head.known("node002") == []
    assert hostnames(head.reach("node002", options=("--transport", transport, "--accept-new-host-keys")))
    assert head.known("node002")


def test_a_changed_host_key_is_refused_whatever_is_asked(lab: Lab, head: Head) -> None:
    head.forget("node002")
    other = head.make_key("other")
    line = "node002 " + " ".join(other.with_suffix(".pub").read_text().split()[:2])
    with open(head.ssh / "known_hosts", "a") as file:
        file.write(line + "\n")
    number = len((head.ssh / "known_hosts").read_text().splitlines())
    head.write("config", "Host *\n  StrictHostKeyChecking no\n")
    said = head.reach("node002", options=("--accept-new-host-keys",))
    assert said["exit"] == 4
    assert "its host key is not the one in known_hosts" in said["message"]
    assert f"/.ssh/known_hosts:{number} has another" in said["message"]
    assert "ssh-keygen -R 'node002'" in said["hint"]
    lab.wait_gone(2, within_s=5)


def test_host_keys_are_found_by_alias_hash_port_pattern_and_authority(lab: Lab, head: Head) -> None:
    lab.set_sshd(3, "Port 2222")
    key = {i: host_key(lab, i) for i in (2, 3, 4)}
    authority = head.make_key("authority")
    certified = lab.disk.host(4) / "etc" / "ssh_host_ed25519_key"
    words = ["ssh-keygen", "-q", "-s", authority, "-I", "x", "-h", "-n", "node004", f"{certified}.pub"]
    subprocess.run(words, check=True)
    try:
        lab.set_sshd(4, f"HostCertificate {certified}-cert.pub")
        head.write("known_hosts", f"cluster-name {key[2]}\n[node003]:2222 {key[3]}\n")
        lab.run(
            1, ["bash", "-c", "ssh-keygen -q -H -f ~/.ssh/known_hosts; rm ~/.ssh/known_hosts.old"], check=True
        )
        assert len(head.known("|1|")) == 2
        head.write("config", "Host node002\n  HostKeyAlias cluster-name\n")
        assert hostnames(head.reach("node002", "node003:2222"))
        signer = " ".join(authority.with_suffix(".pub").read_text().split()[:2])
        head.write(
            "known_hosts",
            f"*.invalid,node00?,!node001 {key[2]}\n@cert-authority node004 {signer}\nnode003 {key[3]}\n",
        )
        head.write("config", "")
        assert hostnames(head.reach("node002", "node003:2222")), (
            "a pattern; and a plain name for another port"
        )
        lab.run(1, ["sed", "-i", "1d", f"{lab.home}/.ssh/known_hosts"], check=True)
        assert hostnames(head.reach("node004")), "signed by an authority"
        assert head.reach(f"{lab.address(4)}")["exit"] == 4, "the certificate is not for this name"
    finally:
        Path(f"{certified}-cert.pub").unlink()


def test_global_known_hosts_count_and_revoked_keys_do_not(lab: Lab, head: Head) -> None:
    system = head.folder / "ssh_known_hosts"
    system.write_text(
        f"node002 {host_key(lab, 2)}\nnode003 {host_key(lab, 3)}\n@revoked * {host_key(lab, 3)}\n"
    )
    head.write("known_hosts", "")
    head.write("config", f"Host *\n  GlobalKnownHostsFile {system}\n")
    assert hostnames(head.reach("node002"))
    said = head.reach("node003", options=("--accept-new-host-keys",))
    assert said["exit"] == 4
    assert "its host key is revoked" in said["message"]


def test_noise_of_a_login_shell_does_no_harm(lab: Lab, head: Head) -> None:
    banner = head.folder / "banner"
    banner.write_text("Authorised users only!\nDCU-LAUNCH is not a mark here\n")
    lab.set_sshd(2, f"Banner {banner}")
    grace = lab.add_user("grace")
    (grace / ".bashrc").write_text(
        "echo welcome; seq 20000; printf 'no newline'; echo oops >&2\n"
        "export PATH=/nonexistent PYTHONPATH=/nonexistent PYTHONHOME=/nonexistent\n"
    )
    (grace / "zlib.py").write_text("raise SystemExit('the module of a user')\n")
    (grace / "json.py").write_text("raise SystemExit('the module of a user')\n")
    assert hostnames(head.reach("grace@node002")) == {"node002": "node002"}


def test_every_login_shell_starts_the_agent(lab: Lab, head: Head) -> None:
    """What sshd hands to a login shell goes through its quoting and its start-up files, which talk."""
    noise = {
        "bash": ".bashrc",
        "zsh": ".zshenv",
        "fish": ".config/fish/config.fish",
        "csh": ".cshrc",
        "tcsh": ".tcshrc",
    }
    for shell in ("dash", *noise):
        home = lab.add_user(
            f"user-{shell}", f"/bin/{shell}" if shell in ("bash", "dash") else f"/usr/bin/{shell}"
        )
        if shell in noise:
            talk = home / noise[shell]
            talk.parent.mkdir(parents=True, exist_ok=True)
            talk.write_text(f"echo welcome to {shell}\n")
    for shell in ("dash", *noise):
        said = head.reach(f"user-{shell}@node002 python='/opt/a b/$HOME/`x`/!1/python'")
        assert hostnames(said) == {"node002": "node002"}, shell
        # the name came through as it is, and Python's own is another's to report
        assert said["reports"]["node002"]["python"] == {"error": "/opt/a b/$HOME/`x`/!1/python is missing"}, (
            shell
        )


def test_what_python_a_node_lacks_is_said(lab: Lab, head: Head) -> None:
    for i, text in ((2, "exit 0"), (3, "exit 1")):
        lab.run(
            i,
            [
                "bash",
                "-c",
                f"mkdir -p /opt/py && printf '#!/bin/sh\\n{text}\\n' > /opt/py/python && chmod +x /opt/py/python",
            ],
        )
    lab.run(
        4, ["bash", "-c", "mkdir -p /opt/py && cp $(readlink -f /usr/bin/python3) /opt/py/python"], check=True
    )
    heidi = lab.add_user("heidi")
    passwd = lab.disk.folder / "etc" / "passwd"
    passwd.write_text(passwd.read_text())
    (heidi / ".bashrc").write_text("exec /usr/sbin/nologin\n")
    said = head.reach(
        "node001 python=/opt/none",
        "node002 python=/opt/py/python",
        "node003 python=/opt/py/python",
        "heidi@node004",
    )
    assert said["exit"] == 4
    lines = said["message"].splitlines()
    assert len(lines) == 3, lines
    assert lines[0] == "node002: the shell there ended before Python started"
    assert lines[1] == "node003: the shell there ended before Python started: exit code 1"
    assert lines[2].startswith(
        "node004: the shell there ended before Python started: exit code 1; it said: This account is"
    )
    # a missing one is another Python's to report: the agent itself runs with what there is
    answer = head.reach("node001 python=/opt/none")["reports"]["node001"]["python"]
    assert answer == {"error": "/opt/none is missing"}


def test_forty_names_of_one_sshd_with_default_limits_all_start(lab: Lab, head: Head) -> None:
    lab.set_sshd(2, "MaxStartups 10:30:100", "MaxSessions 1")
    head.write("config", "Host many*\n  HostName node002\n")
    names = [f"many{number:02d}" for number in range(40)]
    said = head.reach(*names)
    assert set(hostnames(said)) == set(names)
    # and where somebody else keeps sshd busy, they try again
    lab.set_sshd(2, "MaxStartups 2:80:4")
    assert set(hostnames(head.reach(*names[:12]))) == set(names[:12])


def test_a_server_that_is_full_or_no_ssh_server_is_told_apart(lab: Lab, head: Head) -> None:
    lab.set_sshd(2, "MaxSessions 0", "Port 22", "Port 2222")
    for port, answer in (
        (80, "c.recv(99); c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n')"),
        (81, "time.sleep(60)"),
        (82, "0"),
    ):
        code = f"import socket, time\ns = socket.create_server(('', {port}), backlog=9)\nprint(flush=True)\n"
        code += f"while True:\n    c = s.accept()[0]; {answer}; c.close()"
        lab.popen(2, [sys.executable, "-c", code], stdout=subprocess.PIPE).stdout.readline()
    head.write("config", "Host *\n  HostName node002\n")
    said = head.reach(
        "full", "web:80", "mute:81", "shut:82", options=("--connect-timeout", "2", "--retry-for", "1")
    )
    assert said["exit"] == 4
    reasons = {line.split(" ")[0]: line for line in said["message"].splitlines()}
    assert "the server allows no session" in reasons["full"]
    assert "no SSH server speaks there: HTTP/1.1 400 Bad Request" in reasons["web"]
    assert "no answer in time" in reasons["mute"]
    assert "the server hung up (tried for 1 s)" in reasons["shut"]


def test_strict_modes_of_the_server_end_in_a_message_that_names_user_and_keys(lab: Lab, head: Head) -> None:
    lab.set_sshd(2, "StrictModes yes")
    ivan = lab.add_user("ivan")
    ivan.chmod(0o777)
    said = head.reach("ivan@node002")
    assert said["exit"] == 4
    assert "node002 (ivan@node002:22): authentication failed: tried" in said["message"]
    assert "test it with: ssh ivan@node002 true; if that works, add --transport openssh" in said["hint"]


def test_a_jump_host_that_fails_is_named_once_for_each_host_behind_it(lab: Lab, head: Head) -> None:
    lab.set_sshd(2, "MaxStartups 2:50:4")
    head.write(
        "config",
        "Host be*\n  HostName node003\n  ProxyJump node002\nHost bad*\n  HostName node003\n  ProxyJump frank@node002\n",
    )
    judy = lab.add_user("frank")
    (judy / ".ssh" / "authorized_keys").write_text("")
    names = [f"be{number}" for number in range(20)]
    said = head.reach(*names)
    assert set(hostnames(said)) == set(names)
    said = head.reach("bad1", "bad2", "node003")
    assert said["exit"] == 4
    lines = said["message"].splitlines()
    assert [line.split(":")[0] for line in lines] == ["bad1", "bad2"]
    assert all("through node002 (frank@node002:22): authentication failed" in line for line in lines)
    lab.wait_gone(2, within_s=5)


def test_a_killed_session_process_of_sshd_loses_its_node_by_name(lab: Lab, lab_path: Path) -> None:
    names = lab.up(2)
    (lab_path / "hosts").write_text("".join(f"{name} slots=1\n" for name in names))
    (lab_path / "wait.py").write_text("import time, sys\nprint('up', flush=True)\ntime.sleep(60)\n")
    run = lab.launch_popen(["--hosts", "hosts", "wait.py"], cwd=lab_path)
    while "up" not in run.stdout.readline():  # of both ranks at once: equal lines are folded
        pass
    begun = time.monotonic()
    sessions = [entry for entry in lab.processes(2) if entry.cmdline.startswith("sshd: root")]
    assert sessions
    for entry in sessions:
        entry.kill()
    said, _ = run.communicate(timeout=30)
    assert run.returncode == 5
    assert time.monotonic() - begun < 5
    assert "lost node002 (rank 1): the SSH connection broke" in said
    for i in (1, 2):
        lab.wait_gone(i, within_s=5)
