"""Attention over one tile of rows, for all query heads of a group: the part of the step that computes.

Rows arrive in the cache while the previous tile is computed (`lsh.kernels`). A row is converted
from bf16 once and serves every head of the group.
"""

from __future__ import annotations

import numpy as np

from magicpig_cli.lsh.estimator import LOG_U_OCTAVES, LOG_U_PER_OCTAVE
from magicpig_cli.lsh.jit import bits_to_float, float_to_bits, jit

# Rows whose logits, weights and values are handled together: two AVX2 registers of float32.
TILE_ROWS = 16
# Query heads that sample together; larger GQA groups are split evenly. Pairs of queries enter the
# inclusion probability, so its cost grows with the square.
GROUP_HEADS = 8

# The logit of a row that a short tile does not have.
_ABSENT = np.float32(-1e30)
_ABSENT_BELOW = np.float32(-1e29)
# A sampled weight this far below the maximum (in logits) adds less than exp(-18) of the largest
# term to the variance, so the direction of its value is not followed there.
_NEGLIGIBLE_VARIANCE = np.float32(-9.0)

_LOG2_E = np.float32(1.4426950408889634)
_LOWEST_EXPONENT = np.float32(-126.0)
# Taylor coefficients of 2^x on [-1/2, 1/2], relative error below 2e-7.
_C1, _C2, _C3 = (
    np.float32(0.6931471805599453),
    np.float32(0.2402265069591007),
    np.float32(0.05550410866482158),
)
_C4, _C5, _C6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(1.5403530e-4)
# arccos(x) / pi = sqrt(1 - x) * polynomial on [0, 1], absolute error below 1e-7
# (Abramowitz and Stegun, 4.4.46, divided by pi).
_A0, _A1, _A2, _A3 = (
    np.float32(a / np.pi) for a in (1.5707963050, -0.2145988016, 0.0889789874, -0.0501743046)
)
_A4, _A5, _A6, _A7 = (
    np.float32(a / np.pi) for a in (0.0308918810, -0.0170881256, 0.0066700901, -0.0012624911)
)

_LOG_U_SHIFT = np.int32(23 - (LOG_U_PER_OCTAVE.bit_length() - 1))
_LOG_U_MASK = np.int32((1 << (23 - (LOG_U_PER_OCTAVE.bit_length() - 1))) - 1)
_LOG_U_FRACTION = np.float32(1.0 / (1 << (23 - (LOG_U_PER_OCTAVE.bit_length() - 1))))
_LOG_U_FIRST = np.int32((127 - LOG_U_OCTAVES) << 23)
_SMALLEST_COLLISION = np.float32(2.0**-LOG_U_OCTAVES)

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)


@jit(inline=True)
def fast_exp(x):
    """exp of a float32 <= 88, by exponent and polynomial; below -87 it gives about 1e-38."""
    t = max(x * _LOG2_E, _LOWEST_EXPONENT)
    whole = np.floor(t + _HALF)
    f = t - whole
    mantissa = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return bits_to_float(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23))) * mantissa


@jit(inline=True)
def half_turns(cosine):
    """arccos(cosine) / pi, float32."""
    x = min(abs(cosine), _ONE)
    poly = _A0 + x * (_A1 + x * (_A2 + x * (_A3 + x * (_A4 + x * (_A5 + x * (_A6 + x * _A7))))))
    small = np.sqrt(_ONE - x) * poly
    return small if cosine >= _ZERO else _ONE - small


@jit(inline=True)
def from_bf16(word):
    """The float32 of a bf16 bit pattern."""
    return bits_to_float(np.uint32(word) << np.uint32(16))


@jit(inline=True)
def _power(base, exponent, out):
    """out = base ** exponent, exponent from 1 to 16; base is overwritten. Both (TILE_ROWS,)."""
    for r in range(TILE_ROWS):
        out[r] = _ONE
    while exponent > 0:
        if exponent & 1:
            for r in range(TILE_ROWS):
                out[r] *= base[r]
        for r in range(TILE_ROWS):
            base[r] *= base[r]
        exponent >>= 1


@jit()
def dot_tile(query, rows, tokens, n, mean, key, dots, inverse_key_norm):
    """q.(k - m) of every pair, and 1/|k - m| of every row.

    Parameters
    ----------
    query : array
        float32, (n_heads rounded up to even, head_dim).
    rows : array
        uint16, (capacity, 2, head_dim).
    tokens : array
        int64, (TILE_ROWS,).
    n : int
        Rows in the tile.
    mean : array
        float32, (head_dim,): m.
    key : array
        float32, (head_dim,); scratch.
    dots : array
        float32, (GROUP_HEADS, TILE_ROWS); columns beyond n are left as they are.
    inverse_key_norm : array
        float32, (TILE_ROWS,); likewise.
    """
    n_heads, head_dim = query.shape
    for r in range(n):
        row = rows[tokens[r], 0]
        square = _ZERO
        for i in range(head_dim):
            x = from_bf16(row[i]) - mean[i]
            key[i] = x
            square += x * x
        inverse_key_norm[r] = _ONE / np.sqrt(max(square, np.float32(1e-30)))
        head = 0
        while head + 4 <= n_heads:
            q0, q1, q2, q3 = query[head], query[head + 1], query[head + 2], query[head + 3]
            d0, d1, d2, d3 = _ZERO, _ZERO, _ZERO, _ZERO
            for i in range(head_dim):
                x = key[i]
                d0 += q0[i] * x
                d1 += q1[i] * x
                d2 += q2[i] * x
                d3 += q3[i] * x
            dots[head, r], dots[head + 1, r], dots[head + 2, r], dots[head + 3, r] = d0, d1, d2, d3
            head += 4
        while head < n_heads:
            q0 = query[head]
            d0 = _ZERO
            for i in range(head_dim):
                d0 += q0[i] * key[i]
            dots[head, r] = d0
            head += 1


@jit()
def log_inclusion(dots, inverse_query_norm, inverse_key_norm, query_turns, n_bits, log_u, turns, lanes, logs):
    """log(u) of every row of the tile: `estimator.collision_prob`, then the table of `estimator`.

    Parameters
    ----------
    dots : array
        float32, (GROUP_HEADS, TILE_ROWS): q.(k - m).
    inverse_query_norm : array
        float32, (n_heads,): 1/|q|.
    inverse_key_norm : array
        float32, (TILE_ROWS,).
    query_turns : array
        float32, (n_heads, n_heads): angles between queries over pi.
    n_bits : int
        K.
    log_u : array
        float32, of `estimator.log_inclusion_table`.
    turns : array
        float32, (GROUP_HEADS, TILE_ROWS); scratch.
    lanes : array
        float32, (11, TILE_ROWS); its last four rows are scratch.
    logs : array
        float32, (TILE_ROWS,); overwritten.
    """
    n_heads = query_turns.shape[0]
    base, power, keep, collision = lanes[7], lanes[8], lanes[9], lanes[10]
    for r in range(TILE_ROWS):
        collision[r] = _ZERO
    for g in range(n_heads):
        for r in range(TILE_ROWS):
            turns[g, r] = half_turns(dots[g, r] * inverse_query_norm[g] * inverse_key_norm[r])
            base[r] = _ONE - turns[g, r]
        _power(base, n_bits, keep)
        for j in range(g):
            between = query_turns[j, g]
            for r in range(TILE_ROWS):
                together = _ONE - _HALF * (turns[j, r] + turns[g, r] + between)
                agree = max(_ONE - turns[g, r], np.float32(1e-6))
                base[r] = min(max(together / agree, _ZERO), _ONE)
            _power(base, n_bits, power)
            for r in range(TILE_ROWS):
                keep[r] *= _ONE - power[r]
        for r in range(TILE_ROWS):
            collision[r] += keep[r]
    for r in range(TILE_ROWS):
        bits = float_to_bits(min(max(collision[r], _SMALLEST_COLLISION), _ONE)) - _LOG_U_FIRST
        entry = bits >> _LOG_U_SHIFT
        part = np.float32(bits & _LOG_U_MASK) * _LOG_U_FRACTION
        low = log_u[entry]
        logs[r] = low + part * (log_u[entry + 1] - low)


@jit()
def weigh(dots, n, centre_dot, scale, softcap, logs, certain, logits, sums, outs, weights, variances):
    """From dots of one head to weights relative to its running maximum; rescales when that rises.

    Parameters
    ----------
    dots : array
        float32, (TILE_ROWS,): q.(k - m).
    n : int
        Rows in the tile.
    centre_dot, scale, softcap : float32
        q.m; what multiplies q.k; its cap, 0 for none.
    logs, certain : array
        float32, (TILE_ROWS,): log(u) and u.
    logits : array
        float32, (TILE_ROWS,): q.k scaled, less log(u) (section 4.2); overwritten.
    sums, outs : array
        The head's running sums (see `kernels.attend`); sums 0 to 2 and outs are updated.
    weights, variances : array
        float32, (TILE_ROWS,): w = e^logit and a = (1-u) w^2, relative; overwritten. 0 beyond n.
    """
    for r in range(TILE_ROWS):
        logits[r] = (dots[r] + centre_dot) * scale
    if softcap > _ZERO:
        for r in range(n):
            logits[r] = softcap * np.float32(np.tanh(logits[r] / softcap))
    highest = _ABSENT
    for r in range(TILE_ROWS):
        logits[r] = logits[r] - logs[r] if r < n else _ABSENT
        highest = max(highest, logits[r])
    if highest > sums[0]:
        if sums[1] > _ZERO:
            factor = fast_exp(sums[0] - highest)
            square = factor * factor
            sums[1] *= factor
            sums[2] *= square
            sums[3] *= square
            for i in range(outs.shape[1]):
                outs[0, i] *= factor
                outs[1, i] *= square
        sums[0] = highest
    highest = sums[0]
    total, variance = _ZERO, _ZERO
    for r in range(TILE_ROWS):
        w = fast_exp(logits[r] - highest) if logits[r] > _ABSENT_BELOW else _ZERO
        a = (_ONE - certain[r]) * w * w
        weights[r] = w
        variances[r] = a
        total += w
        variance += a
    sums[1] += total
    sums[2] += variance


@jit()
def add_values(weights, n, values, out):
    """out += sum of weights[r] * values[r] over the rows up to n, four at a time.

    Parameters
    ----------
    weights : array
        float32, (TILE_ROWS,); 0 beyond n.
    n : int
    values : array
        float32, (TILE_ROWS, head_dim); finite beyond n.
    out : array
        float32, (head_dim,); updated.
    """
    for first in range(0, n, 4):
        w0, w1, w2, w3 = weights[first], weights[first + 1], weights[first + 2], weights[first + 3]
        v0, v1, v2, v3 = values[first], values[first + 1], values[first + 2], values[first + 3]
        for i in range(out.shape[0]):
            out[i] += (w0 * v0[i] + w1 * v1[i]) + (w2 * v2[i] + w3 * v3[i])


@jit()
def attend_tile(task, tokens, n, n_bits, scratch, sums, outs):
    """Add one tile of rows to the running sums of every head.

    Parameters
    ----------
    task : tuple
        query, rows, mean (see `dot_tile`); q.m and 1/|q| per head, (GROUP_HEADS,); query_turns, log_u (see
        `log_inclusion`); scale, softcap.
    tokens : array
        int64, (TILE_ROWS,).
    n : int
        Rows in the tile.
    n_bits : int
        K; 0 for rows that are attended with certainty.
    scratch : tuple of array
        Of `tile_scratch`.
    sums : array
        float32, (GROUP_HEADS, 4); updated.
    outs : array
        float32, (GROUP_HEADS, 2, head_dim); updated.
    """
    query, rows, mean, centre_dot, inverse_norm, query_turns, log_u, scale, softcap = task
    key, values, pairs, lanes = scratch
    dots, turns = pairs[0], pairs[1]
    inverse_key_norm, logits, logs, certain = lanes[0], lanes[1], lanes[2], lanes[3]
    weights, variances, squares = lanes[4], lanes[5], lanes[6]
    n_heads, head_dim = query.shape
    dot_tile(query, rows, tokens, n, mean, key, dots, inverse_key_norm)
    for r in range(n):
        row = rows[tokens[r], 1]
        square = _ZERO
        for i in range(head_dim):
            x = from_bf16(row[i])
            values[r, i] = x
            square += x * x
        squares[r] = square
    for r in range(n, (n + 3) // 4 * 4):
        values[r] = _ZERO
    if n_bits:
        log_inclusion(dots, inverse_norm, inverse_key_norm, query_turns, n_bits, log_u, turns, lanes, logs)
        for r in range(TILE_ROWS):
            certain[r] = fast_exp(logs[r])
    else:
        for r in range(TILE_ROWS):
            logs[r] = _ZERO
            certain[r] = _ONE
    for head in range(n_heads):
        out = outs[head]
        weigh(
            dots[head],
            n,
            centre_dot[head],
            scale,
            softcap,
            logs,
            certain,
            logits,
            sums[head],
            out,
            weights,
            variances,
        )
        add_values(weights, n, values, out[0])
        if n_bits:
            threshold = sums[head, 0] + _NEGLIGIBLE_VARIANCE
            for r in range(n):
                a = variances[r]
                sums[head, 3] += a * squares[r]
                if logits[r] > threshold:
                    for i in range(head_dim):
                        out[1, i] += a * values[r, i]


@jit()
def tile_scratch(head_dim):
    """Scratch arrays of `attend_tile`, zeros, so that rows beyond a short tile stay finite."""
    return (
        np.zeros(head_dim, np.float32),
        np.zeros((TILE_ROWS, head_dim), np.float32),
        np.zeros((2, GROUP_HEADS, TILE_ROWS), np.float32),
        np.zeros((11, TILE_ROWS), np.float32),
    )
