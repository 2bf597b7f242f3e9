"""JSON by the interpreter's own C functions, without the package around them, which takes as long to load as Python to start.

The same text as ``json.dumps(value, separators=(",", ":"))``, and the same values back. Runs on both ends.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Callable


class _Rules:
    """What ``json.JSONDecoder`` tells the scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _refuse(value: Any) -> Any:
    raise TypeError("%s is not JSON" % type(value).__name__)


def _make() -> "tuple[Callable[[Any], str], Callable[[str], Any]]":
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    rules: Any = _Rules
    scan = make_scanner(rules)
    # no check for circles: what is sent is made for it
    encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)

    def dump(value: Any) -> str:
        return "".join(encode(value, 0))

    def load(text: str) -> Any:
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError("not JSON: %r" % text[:60]) from None
        if end != len(text):
            raise ValueError("more than JSON: %r" % text[end : end + 60])
        return value

    if load(dump({"a": [1, 0.5, None, True, "\\u20ac"]})) != {"a": [1, 0.5, None, True, "\\u20ac"]}:
        raise ValueError("these are other functions than we know")
    return dump, load


def _choose() -> "tuple[Callable[[Any], str], Callable[[str], Any]]":
    try:
        return _make()
    except (
        Exception
    ):  # another Python than CPython, or one whose functions take other arguments: the package knows how
        import json

        return lambda value: json.dumps(value, separators=(",", ":")), json.loads


dumps, loads = _choose()
