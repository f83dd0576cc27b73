"""The papers' equations on values worked out by hand; the working stands beside each."""

from __future__ import annotations

import pytest

from semistream.cost import CostFactors
from semistream.errors import RateError
from semistream_papers.equations import cached, hybridjoin, meshjoin, oxhybridjoin, xhybridjoin

C = CostFactors(probe=2.0, output=3.0, delete=5.0, stream_read=7.0, append=11.0, front_probe=13.0)
"""Primes, so that a factor in the wrong place shows."""


def test_meshjoin() -> None:
    # 2·100 + 3·20 + (3·10/2)·4 + (3·10/2)·1.5·20 = 200 + 60 + 60 + 450
    memory = meshjoin.meshjoin_eq1_memory(b=2, w=3, N_R=10, v_P=100, v_S=20, f=1.5)
    assert memory == 770
    assert meshjoin.meshjoin_eq1_w(770, b=2, N_R=10, v_P=100, v_S=20, f=1.5) == 3
    # rows 2·100/10 = 20: 1000 + 3·(5+7+11) + 20·2 + 0.5·20·3 = 1000 + 69 + 40 + 30
    loop = meshjoin.meshjoin_eq2_loop(b=2, w=3, v_P=100, v_R=10, sigma=0.5, c_IO=1000, c=C)
    assert loop == 1139
    assert meshjoin.meshjoin_eq3_rate(3, 1139) == pytest.approx(0.002633889)
    assert meshjoin.meshjoin_eq4_io_per_tuple(2, 3) == pytest.approx(0.6666667)
    assert meshjoin.meshjoin_eq4_io_per_second(2, 1139) == pytest.approx(0.001755927)
    assert meshjoin.meshjoin_eq5_keeps_up(0.0026, 3, 1139)
    assert not meshjoin.meshjoin_eq5_keeps_up(0.0027, 3, 1139)
    # w = λ·1070 / (1 − 23 λ); λ = 0.01: 10.7 / 0.77
    sizes = {"b": 2, "v_P": 100, "v_R": 10, "sigma": 0.5, "c_IO": 1000, "c": C}
    assert meshjoin.meshjoin_eq6_w(0.01, **sizes) == pytest.approx(13.896104)  # type: ignore[arg-type]
    with pytest.raises(RateError, match="must be below 0"):
        meshjoin.meshjoin_eq6_w(0.05, **sizes)  # type: ignore[arg-type]


def test_hybridjoin() -> None:
    assert hybridjoin.hybridjoin_eq1_memory(1000, v_P=200, alpha=0.75) == (200, 600, 200)
    # 1.36·5000·500/2,000,000
    assert hybridjoin.hybridjoin_eq2_w(5000, 500, 2_000_000) == pytest.approx(1.7)
    # 1000 + 100/10·2 + 4·(3+5+7+11)
    loop = hybridjoin.hybridjoin_eq3_loop(4, v_P=100, v_R=10, c_IO=1000, c=C)
    assert loop == 1124
    assert hybridjoin.hybridjoin_eq4_rate(4, 1124) == pytest.approx(0.003558719)


def test_xhybridjoin() -> None:
    parts = xhybridjoin.xhybridjoin_eq4_memory(1000, k=2, l=3, v_P=100, alpha=0.8)
    assert parts == pytest.approx((200, 300, 400, 100))
    # 1000 + (30+20)·2 + 4·26
    loop = xhybridjoin.xhybridjoin_eq5_loop(4, d_N=30, d_S=20, c_IO=1000, c=C)
    assert loop == 1204
    assert xhybridjoin.xhybridjoin_eq6_rate(4, 1204) == pytest.approx(0.003322259)
    # n = (10 − 2)/2 = 4
    p_old = xhybridjoin.xhybridjoin_eq7_p_old(d_N=2, d_S=2, R_t=10)
    assert p_old == 0.25
    # (1 + 1/2) / 2.9289683 = 0.5121257; + 0.25·0.4878743
    p_new = xhybridjoin.xhybridjoin_eq8_p_new(2, 2, 10)
    assert xhybridjoin.xhybridjoin_eq8_p_N(2, 10) == pytest.approx(0.5121257)
    assert xhybridjoin.xhybridjoin_eq8_p_S(2, 10) == pytest.approx(0.4878743)
    assert p_new == pytest.approx(0.6340943)
    # old 0.1875, new 0.2320187: 100·0.1875/0.9554813
    assert xhybridjoin.xhybridjoin_eq9_w(100, p_old, p_new) == pytest.approx(19.62362, rel=1e-5)
    # 100·0.25/(1.25 − 0.6340943)
    expected = xhybridjoin.xhybridjoin_eq9_w_expected(100, p_old, p_new)
    assert expected == pytest.approx(40.59061, rel=1e-5)
    assert expected == pytest.approx((100 - expected) * p_old + expected * p_new)


def test_xhybridjoin_with_a_uniform_stream() -> None:
    assert xhybridjoin.xhybridjoin_eq8_p_N(2, 10, e=0.0) == pytest.approx(0.2)


def test_optimised_xhybridjoin() -> None:
    parts = oxhybridjoin.oxhybridjoin_eq1_memory(1000, k=2, l=3, v_P=100, alpha=0.8)
    assert parts == pytest.approx((200, 300, 400, 100))
    # 1000 + 20·2 + 4·26 + 6·(2+3+7)
    loop = oxhybridjoin.oxhybridjoin_eq2_loop(w_N=6, w_S=4, d=20, c_IO=1000, c=C)
    assert loop == 1216
    assert oxhybridjoin.oxhybridjoin_eq3_rate(6, 4, 1216) == pytest.approx(0.008223684)
    assert oxhybridjoin.oxhybridjoin_eq4_p_N(2, 10) == pytest.approx(0.5121257)
    # ln 1000 / ln 1,000,000
    assert oxhybridjoin.oxhybridjoin_eq4_p_N_log(1000, 1_000_000) == pytest.approx(0.5)
    # ln 1,000,000 / ln 2,000,000 = 0.9522248; ln 2000 / ln 1000 = 1.1003433
    y, z = oxhybridjoin.oxhybridjoin_eq5_powers(1000, 1_000_000)
    assert (y, z) == pytest.approx((-0.070625, 0.137954), rel=1e-4)
    # 1,000,000^y · 1000^z = e^(−13.815511·0.070625 + 6.907755·0.137954) = e^−0.022769
    p_N = oxhybridjoin.oxhybridjoin_eq5_p_N(1000, 1_000_000)
    assert p_N == pytest.approx(0.977488, rel=1e-4)
    assert oxhybridjoin.oxhybridjoin_eq6_w_N(0.5, S=1000, N=50) == 10
    assert oxhybridjoin.oxhybridjoin_eq6_w_N_of_w_S(0.6, 4) == pytest.approx(6)
    # n = (10 − 2)/2 = 4: 0.4878743 / 4
    assert oxhybridjoin.oxhybridjoin_eq7_p_S(2, 2, 10) == pytest.approx(0.1219686)
    # (ln 10 − ln 3) / (4·(ln 10 + γ)) = 1.2039728 / 11.519203
    assert oxhybridjoin.oxhybridjoin_eq7_p_S_log(2, 2, 10) == pytest.approx(0.1045188)
    x, _, _ = oxhybridjoin.oxhybridjoin_eq8_powers(500, 1000, 1_000_000)
    assert x == pytest.approx(1.0)
    assert oxhybridjoin.oxhybridjoin_eq9_w_S(0.001, 5000) == 5


def test_the_powers_of_eq_8_hold_for_the_doublings_they_are_taken_from() -> None:
    d, h_R, R_t = 500, 1000, 1_000_000
    powers = oxhybridjoin.oxhybridjoin_eq8_powers(d, h_R, R_t)
    at = oxhybridjoin.oxhybridjoin_eq7_p_S_log(d, h_R, R_t)
    for place, doubled in enumerate([(2 * d, h_R, R_t), (d, 2 * h_R, R_t), (d, h_R, 2 * R_t)]):
        assert 2 ** powers[place] * at == pytest.approx(
            oxhybridjoin.oxhybridjoin_eq7_p_S_log(*doubled)
        )


def test_the_cached_three() -> None:
    assert cached.cached_p_F(2, 10) == pytest.approx(0.5121257)
    assert cached.cached_w_F(0.6, 4) == pytest.approx(6)
    # 10·13 + 6·(7+3)
    assert cached.cached_front(6, 4, C) == 190
    # 190 + 1000 + 20·... : Eq. 3 with w = 4, v_P/v_R = 10 is 1124
    assert cached.chybridjoin_loop(0.6, 4, 100, 10, 1000, C) == pytest.approx(190 + 1124)
    # Eq. 2 with b = 2, w = 4: 1000 + 92 + 40 + 30
    loop = cached.cmeshjoin_loop(0.6, 2, 4, 100, 10, 0.5, 1000, C)
    assert loop == pytest.approx(190 + 1162)
    # 13 + 7 + 0.4·(1000 + 2) + 3
    assert cached.cinlj_tuple(0.6, 1000, C) == pytest.approx(423.8)
    assert cached.cached_rate(0.6, 4, 1314) == pytest.approx(10 / 1314)
