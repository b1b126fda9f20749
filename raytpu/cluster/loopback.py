"""Loopback addresses for simulated hosts: one network per simulation, claimed so that none is used twice."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from raytpu.errors import Refused

# Every address in 127.0.0.0/8 answers on Linux without set-up. 127.0.0.0/24 is left to everyone else.
_NETWORKS = tuple(f"127.77.{third}" for third in range(1, 255))

# The claim is a bound socket: the kernel drops it with its process, so a crash leaves no stale claim.
_CLAIM_PORT = 18600

_FIRST_HOST, _LAST_HOST = 2, 250


class LoopbackNetwork:
    """254 addresses ``127.77.<n>.*``, held until :meth:`close`."""

    def __init__(self) -> None:
        """Claims the first free network.

        Raises:
            Refused: no network is free, or this machine does not let one bind such addresses.
        """
        self._claim, self._prefix = _claim_first(_NETWORKS)
        self._next = _FIRST_HOST

    @property
    def head(self) -> str:
        return f"{self._prefix}.1"

    def next_address(self, in_use: Iterable[str]) -> str:
        """An address that was not used before; once all were, one that is not ``in_use``.

        Raises:
            Refused: every address is in use.
        """
        if self._next <= _LAST_HOST:
            self._next += 1
            return f"{self._prefix}.{self._next - 1}"
        used = set(in_use)
        for last in range(_FIRST_HOST, _LAST_HOST + 1):
            if f"{self._prefix}.{last}" not in used:
                return f"{self._prefix}.{last}"
        raise Refused(f"a simulation has at most {_LAST_HOST - _FIRST_HOST + 1} hosts")

    def fileno(self) -> int:
        return self._claim.fileno()

    def close(self) -> None:
        self._claim.close()


def _claim_first(networks: Iterable[str]) -> tuple[socket.socket, str]:
    last_error: OSError | None = None
    for prefix in networks:
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind((f"{prefix}.1", _CLAIM_PORT))
            claim.listen(1)
        except OSError as error:
            claim.close()
            last_error = error
            continue
        return claim, prefix
    raise Refused(
        f"no free loopback network 127.77.1-254 ({last_error}); simulations need Linux, where all of 127/8 "
        "is local; `raytpu sim status` shows what runs"
    )
