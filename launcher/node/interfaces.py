"""This node's own addresses, as the kernel tells them. Runs in the agent.

``_socket``: the module around it makes enumerations of all constants, which takes as long as Python's start.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    import socket
    from typing import Dict, List, Optional
else:
    import _socket as socket

SIOCGIFCONF = 0x8912
#: rtnetlink(7), netlink(7): ask for all addresses; a message's kinds; attributes of an address
NETLINK_ROUTE, RTM_GETADDR, RTM_NEWADDR = 0, 22, 20
NLM_F_REQUEST_DUMP = 0x301
NLMSG_ERROR, NLMSG_DONE = 2, 3
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL = 1, 2, 3
ANSWER_LIMIT_S = 2.0


def interfaces() -> List[Dict[str, str]]:
    """Interfaces that have an address: ``name`` and ``address``, IPv4 first, loopback last, in the kernel's order."""
    found = _ipv4_interfaces() + _ipv6_interfaces()
    return [entry for entry in found if not _is_loopback(entry["address"])] + [
        entry for entry in found if _is_loopback(entry["address"])
    ]


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _ipv4_interfaces() -> List[Dict[str, str]]:
    try:
        return _ask_netlink()
    except (OSError, ValueError, struct.error):  # some sandboxes have no netlink
        return _ask_ioctl()


def _ask_netlink() -> List[Dict[str, str]]:
    """By rtnetlink: one question, and answers until the kernel says that there are no more."""
    found: List[Dict[str, str]] = []
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE)
    try:
        sock.settimeout(ANSWER_LIMIT_S)
        sock.bind((0, 0))
        question = struct.pack("=IHHIIBxxxI", 24, RTM_GETADDR, NLM_F_REQUEST_DUMP, 1, 0, socket.AF_INET, 0)
        sock.send(question)
        while True:
            data = sock.recv(1 << 16)
            at = 0
            while at < len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == NLMSG_DONE:
                    return found
                if kind == NLMSG_ERROR or length < 16:
                    raise ValueError("no answer of the kernel's to a question about addresses")
                if kind == RTM_NEWADDR:
                    found += _read_address(data[at + 16 : at + length])
                at += length + 3 & ~3
    finally:
        sock.close()


def _read_address(message: bytes) -> List[Dict[str, str]]:
    """An ifaddrmsg and its attributes: one entry, or none where it holds no address or no name."""
    values: Dict[int, bytes] = {}
    at = 8
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        values[kind] = message[at + 4 : at + length]
        at += max(4, length + 3 & ~3)
    address, label = values.get(IFA_LOCAL) or values.get(IFA_ADDRESS), values.get(IFA_LABEL)
    if not address or not label:
        return []
    name = label.rstrip(b"\0").decode("ascii", "replace").split(":")[0]
    return [{"name": name, "address": socket.inet_ntoa(address)}]


def _ask_ioctl() -> List[Dict[str, str]]:
    """By the ioctl SIOCGIFCONF (netdevice(7)): records of 40 bytes, name in the first 16, address at 20."""
    import array  # here: what it loads in turn takes longer than all else in this file
    import fcntl

    size = 256 * 40
    buffer = array.array("B", b"\0" * size)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        request = struct.pack("iL", size, buffer.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(sock.fileno(), SIOCGIFCONF, request))[0]
    finally:
        sock.close()
    data = buffer.tobytes()
    return [
        {
            "name": data[at : at + 16].split(b"\0", 1)[0].decode("ascii", "replace").split(":")[0],
            "address": socket.inet_ntoa(data[at + 20 : at + 24]),
        }
        for at in range(0, used, 40)
    ]


def _ipv6_interfaces() -> List[Dict[str, str]]:
    """From /proc/net/if_inet6; link-local addresses are left out: they mean nothing without a zone."""
    found = []
    try:
        with open("/proc/net/if_inet6") as file:
            lines = file.read().split("\n")
    except OSError:
        return []
    for line in lines:
        fields = line.split()
        if len(fields) == 6:
            packed = bytes.fromhex(fields[0])
            if not (packed[0] == 0xFE and packed[1] & 0xC0 == 0x80):
                found.append({"name": fields[5], "address": socket.inet_ntop(socket.AF_INET6, packed)})
    return found


def interface_of(address: str) -> Optional[str]:
    """Name of the interface that holds an address."""
    plain = address.split("%")[0]
    for entry in interfaces():
        if entry["address"] == plain:
            return entry["name"]
    return None


def session_address() -> Optional[str]:
    """The address of this node by which the head came in (from SSH_CONNECTION)."""
    fields = os.environ.get("SSH_CONNECTION", "").split()
    return fields[2] if len(fields) == 4 else None
