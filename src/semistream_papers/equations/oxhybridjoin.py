"""Optimised X-HYBRIDJOIN's equations: Naeem et al., ADC 2012, §4.3 and §4.4.

| symbol | meaning |
| --- | --- |
| k, l, v_P | pages of the disk buffer and of H_R; bytes of a page |
| d, h_R, h_S, R_t | master rows of the disk buffer and of H_R; slots of H_S; rows of R |
| w_N, w_S | stream tuples finished per iteration through H_R and through H_S |
| n | partitions of what H_R leaves of R: (R_t − h_R) / d |
| e | the Zipf exponent; the paper's is 1 |

Eq. 5 and 8 replace the sums of Eq. 4 and 7 by powers, whose exponents come from doubling one
parameter at a time; they hold near the point where they were taken. The sums are exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from semistream.cost.factors import CostFactors
from semistream.cost.zipf_sums import EULER, zipf_share


class OptimisedXHybridJoinMemory(NamedTuple):
    """Bytes by part."""

    disk_buffer: float
    H_R: float
    H_S: float
    queue: float


def oxhybridjoin_eq1_memory(
    M: float, k: float, l: float, v_P: float, alpha: float
) -> OptimisedXHybridJoinMemory:
    """Eq. 1: how M is divided; the parts add up to M."""
    rest = M - (k + l) * v_P
    return OptimisedXHybridJoinMemory(k * v_P, l * v_P, alpha * rest, (1 - alpha) * rest)


def oxhybridjoin_eq2_loop(w_N: float, w_S: float, d: float, c_IO: float, c: CostFactors) -> float:
    """Eq. 2: seconds of an iteration. A look-up in H_R costs what a probe does, c_H."""
    missed = w_S * (c.output + c.delete + c.stream_read + c.append)
    return c_IO + d * c.probe + missed + w_N * (c.probe + c.output + c.stream_read)


def oxhybridjoin_eq3_rate(w_N: float, w_S: float, c_loop: float) -> float:
    """Eq. 3: μ."""
    return (w_N + w_S) / c_loop


def oxhybridjoin_eq4_p_N(h_R: float, R_t: int, e: float = 1.0) -> float:
    """Eq. 4, as a sum: the share of the stream that H_R answers."""
    return zipf_share(h_R, R_t, e)


def oxhybridjoin_eq4_p_N_log(h_R: float, R_t: float) -> float:
    """Eq. 4 as the paper simplifies it, for e = 1 and without Euler's constant."""
    return math.log(h_R) / math.log(R_t)


def oxhybridjoin_eq5_powers(h_R: float, R_t: float) -> tuple[float, float]:
    """The exponents of Eq. 5: log2 of how p_N changes when R_t, and when h_R, is doubled."""
    p_N = oxhybridjoin_eq4_p_N_log(h_R, R_t)
    phi = oxhybridjoin_eq4_p_N_log(h_R, 2 * R_t) / p_N
    psi = oxhybridjoin_eq4_p_N_log(2 * h_R, R_t) / p_N
    return math.log2(phi), math.log2(psi)


def oxhybridjoin_eq5_p_N(h_R: float, R_t: float) -> float:
    """Eq. 5: p_N as a product of powers."""
    y, z = oxhybridjoin_eq5_powers(h_R, R_t)
    return float(R_t**y * h_R**z)


def oxhybridjoin_eq6_w_N(p_N: float, S: float, N: float) -> float:
    """Eq. 6: tuples that H_R answers per iteration, when N iterations finish S tuples."""
    return p_N * S / N


def oxhybridjoin_eq6_w_N_of_w_S(p_N: float, w_S: float) -> float:
    """Eq. 6 without S and N: of w_N + w_S tuples p_N are w_N."""
    return w_S * p_N / (1 - p_N)


def oxhybridjoin_eq7_p_S(d: float, h_R: float, R_t: int, e: float = 1.0) -> float:
    """Eq. 7, as a sum: the share of the stream on an average partition of the rest of R."""
    return (1 - zipf_share(h_R, R_t, e)) * d / (R_t - h_R)


def oxhybridjoin_eq7_p_S_log(d: float, h_R: float, R_t: float) -> float:
    """Eq. 7 as the paper simplifies it, for e = 1."""
    n = (R_t - h_R) / d
    return (math.log(R_t) - math.log(h_R + 1)) / (n * (math.log(R_t) + EULER))


def oxhybridjoin_eq8_powers(d: float, h_R: float, R_t: float) -> tuple[float, float, float]:
    """The exponents of Eq. 8: log2 of how p_S changes when d, h_R or R_t is doubled."""
    p_S = oxhybridjoin_eq7_p_S_log(d, h_R, R_t)
    theta = oxhybridjoin_eq7_p_S_log(2 * d, h_R, R_t) / p_S
    psi = oxhybridjoin_eq7_p_S_log(d, 2 * h_R, R_t) / p_S
    phi = oxhybridjoin_eq7_p_S_log(d, h_R, 2 * R_t) / p_S
    return math.log2(theta), math.log2(psi), math.log2(phi)


def oxhybridjoin_eq9_w_S(p_S: float, h_S: float) -> float:
    """Eq. 9: tuples that H_S finishes per iteration."""
    return p_S * h_S
