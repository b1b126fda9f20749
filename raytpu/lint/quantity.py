"""Kubernetes quantities: ``500m``, ``40Gi``, ``1e3``."""

from __future__ import annotations

import re
from fractions import Fraction

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_FORM = re.compile(
    r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([-+]?[0-9]{1,3}))?"
)
_BINARY = {suffix: 2 ** (10 * power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DIGITS_LIMIT = 100  # by feel: no quantity is that long, and long ones cost time to convert


def parse_quantity(value: object) -> Fraction | None:
    """The number a quantity stands for; ``None`` of what is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value)
    if not isinstance(value, str) or len(value) > _DIGITS_LIMIT:
        return None
    match = _FORM.fullmatch(value)
    if match is None:
        return None
    number, binary, decimal, exponent = match.groups()
    scale = Fraction(1)
    if binary:
        scale = Fraction(_BINARY[binary])
    elif decimal:
        scale = Fraction(10) ** _DECIMAL[decimal]
    elif exponent:
        scale = Fraction(10) ** int(exponent)
    return Fraction(number) * scale
