"""A folder with a torch that is not one: enough of it for ``launcher.train.torch_facts`` to speak with, and to be broken."""

from __future__ import annotations

from pathlib import Path

_CODE = """
import ctypes, os, types
{before}
__version__ = "2.5.1"
version = types.SimpleNamespace(hip="6.3.25422", cuda=None)
ctypes.CDLL({rccl!r})

class Device:
    def __init__(self, kind, index=None): self.index = index

class Tensor:
    def __init__(self, value, index, grad=None): self.value, self.index, self.grad = value, index, grad
    def __matmul__(self, other): return Tensor(64 * self.value * other.value, self.index, self)
    def sum(self): return Tensor(self.value * 64 * 64, self.index, self.grad)
    def backward(self): self.grad.grad = Tensor(64.0, self.index)
    def detach(self): return self
    def __getitem__(self, key): return self
    def __float__(self): return float(self.value)

def full(shape, value, device, requires_grad):
    {operation}
    return Tensor(value, device.index)

device = Device
cuda = types.SimpleNamespace(
    is_available=lambda: {cards} > 0, device_count=lambda: {cards}, get_arch_list=lambda: {archs!r},
    nccl=types.SimpleNamespace(version=lambda: (2, 22, 3)), get_device_name=lambda device: "BW",
    get_device_properties=lambda device: types.SimpleNamespace(gcnArchName="gfx936:sramecc+:xnack-"),
)
"""


def write_fake_torch(
    folder: Path, rccl: Path, *, cards: int = 8, archs: tuple[str, ...] = ("gfx928", "gfx936"), before: str = "",
    operation: str = "pass",
) -> None:  # fmt: skip
    """Write it.

    Args:
        rccl: the library that importing it loads.
        before: what happens first at the import.
        operation: what happens first in an operation; ``device.index`` is the card.
    """
    (folder / "torch").mkdir(parents=True)
    code = _CODE.format(rccl=str(rccl), cards=cards, archs=list(archs), before=before, operation=operation)
    (folder / "torch" / "__init__.py").write_text(code)
