"""HYBRIDJOIN's equations: Naeem et al., IJDWM 2011, §4.4.

| symbol | meaning |
| --- | --- |
| M, v_P, v_R | bytes: all memory, disk buffer, a master row |
| α | the hash table's share of what the disk buffer leaves |
| h_S, d, R_t | slots of the hash table; master rows of the disk buffer and of R |
| w | stream tuples finished per iteration |
"""

from __future__ import annotations

from typing import NamedTuple

from semistream.cost.factors import CostFactors

PAPER_K = 1.36
"""The constant of Eq. 2, measured by the authors with an exponent of 1."""


class HybridJoinMemory(NamedTuple):
    """Bytes by part."""

    disk_buffer: float
    hash_table: float
    queue: float


def hybridjoin_eq1_memory(M: float, v_P: float, alpha: float) -> HybridJoinMemory:
    """Eq. 1: how M is divided; the parts add up to M."""
    rest = M - v_P
    return HybridJoinMemory(v_P, alpha * rest, (1 - alpha) * rest)


def hybridjoin_eq2_w(h_S: float, d: float, R_t: float, k: float = PAPER_K) -> float:
    """Eq. 2: w as proportional to the part of R that is read.

    k stands for the skew, and is known only by measuring; `semistream.cost.steady_state` derives
    w without it.
    """
    return k * h_S * d / R_t


def hybridjoin_eq3_loop(w: float, v_P: float, v_R: float, c_IO: float, c: CostFactors) -> float:
    """Eq. 3: seconds of an iteration."""
    return c_IO + v_P / v_R * c.probe + w * (c.output + c.delete + c.stream_read + c.append)


def hybridjoin_eq4_rate(w: float, c_loop: float) -> float:
    """Eq. 4: μ."""
    return w / c_loop
