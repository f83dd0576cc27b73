"""MESHJOIN's equations: Polyzotis et al., ICDE 2007, §3.2.

| symbol | meaning |
| --- | --- |
| b, w | pages of R and tuples of S read per iteration |
| N_R, v_P, v_R, v_S | pages of R; bytes of a page, a master row and a stream tuple |
| f | fudge factor of the hash table |
| σ | selectivity: matches per master row |
| λ, μ | arrival rate, service rate |
"""

from __future__ import annotations

from semistream.cost.factors import CostFactors
from semistream.errors import RateError


def meshjoin_eq1_memory(
    b: float, w: float, N_R: float, v_P: float, v_S: float, f: float = 1.0, pointer: float = 4.0
) -> float:
    """Eq. 1: bytes of buffers, queue and hash table."""
    window = w * N_R / b
    return b * v_P + w * v_S + window * pointer + window * f * v_S


def meshjoin_eq1_w(
    M: float, b: float, N_R: float, v_P: float, v_S: float, f: float = 1.0, pointer: float = 4.0
) -> float:
    """Eq. 1 solved for w: the tuples per iteration that M bytes allow."""
    return (M - b * v_P) / (v_S + N_R / b * (pointer + f * v_S))


def meshjoin_eq2_loop(
    b: float, w: float, v_P: float, v_R: float, sigma: float, c_IO: float, c: CostFactors
) -> float:
    """Eq. 2: seconds of an iteration."""
    rows = b * v_P / v_R
    tuples = w * (c.delete + c.stream_read + c.append)
    return c_IO + tuples + rows * c.probe + sigma * rows * c.output


def meshjoin_eq3_rate(w: float, c_loop: float) -> float:
    """Eq. 3: μ."""
    return w / c_loop


def meshjoin_eq4_io_per_tuple(b: float, w: float) -> float:
    """Eq. 4, left: pages read per stream tuple; the paper's text swaps the two symbols."""
    return b / w


def meshjoin_eq4_io_per_second(b: float, c_loop: float) -> float:
    """Eq. 4, right: pages read per second."""
    return b / c_loop


def meshjoin_eq5_keeps_up(rate: float, w: float, c_loop: float) -> bool:
    """Eq. 5: whether a stream of λ = `rate` tuples per second is served in time."""
    return rate * c_loop <= w


def meshjoin_eq6_w(
    rate: float, b: float, v_P: float, v_R: float, sigma: float, c_IO: float, c: CostFactors
) -> float:
    """Eq. 6: the least w that serves λ = `rate`. Eq. 2 is linear in w, so it is solved for it."""
    fixed = meshjoin_eq2_loop(b, 0, v_P, v_R, sigma, c_IO, c)
    per_tuple = meshjoin_eq2_loop(b, 1, v_P, v_R, sigma, c_IO, c) - fixed
    if rate * per_tuple >= 1:
        raise RateError(
            f"No w serves {rate:,.0f} tuples per second: what is done for each tuple alone takes "
            f"{per_tuple:.3g} s. The rate must be below {1 / per_tuple:,.0f}."
        )
    return rate * fixed / (1 - rate * per_tuple)
