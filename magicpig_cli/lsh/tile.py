"""Attention over one tile of rows, for all query heads of a group: the part of the step that computes.

Rows arrive in the cache while the previous tile is computed (`lsh.kernels`). A row is converted
from bf16 once and serves every head of the group.
"""

from __future__ import annotations

import numpy as np

from magicpig_cli.lsh.estimator import LOG_U_OCTAVES, LOG_U_PER_OCTAVE
from magicpig_cli.lsh.jit import bits_to_float, float_to_bits, from_bf16, jit, prefetch

# Rows whose logits, weights and values are handled together: two AVX2 registers of float32.
TILE_ROWS = 16
# Query heads that sample together; larger GQA groups are split evenly. Pairs of queries enter the
# inclusion probability, so its cost grows with the square.
GROUP_HEADS = 8

# The logit of a row that a short tile does not have.
_ABSENT = np.float32(-1e30)
_ABSENT_BELOW = np.float32(-1e29)
# The error estimate follows every sampled value whose logit is within this of the maximum. Of those
# below, whose terms are under 1/400 of the largest, a tile's last one lends its value to all of the tile:
# following each of them cost as much as the attention itself.
_HEAVY = np.float32(-3.0)
# The next tile's rows are asked for a few cache lines at a time, all along the work on this one. Asking
# for a whole tile at once fills the buffers for outstanding misses, and the core waits instead of
# computing: a step over 96,000 keys then took 18 ms, spread out 5.
_LINE_ELEMENTS = 32

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
    """exp of a float32 that is not positive, by exponent and polynomial; below -87 it gives about 1e-38."""
    t = max(x * _LOG2_E, _LOWEST_EXPONENT)
    # Truncation rounds to nearest here, since t - 1/2 is negative; a call of floor would not become a vector.
    whole = np.int32(t - _HALF)
    f = t - np.float32(whole)
    mantissa = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return bits_to_float(np.uint32((whole + np.int32(127)) << np.int32(23))) * mantissa


@jit(inline=True)
def half_turns(cosine):
    """arccos(cosine) / pi, float32."""
    x = min(abs(cosine), _ONE)
    poly = _A0 + x * (_A1 + x * (_A2 + x * (_A3 + x * (_A4 + x * (_A5 + x * (_A6 + x * _A7))))))
    small = np.sqrt(_ONE - x) * poly
    return small if cosine >= _ZERO else _ONE - small


@jit(inline=True)
def _power(x, exponent):
    """x ** exponent for an exponent from 1 to 31; no loop, so that it becomes a vector over rows."""
    result = x if exponent & 1 else _ONE
    x = x * x
    result = result * x if exponent & 2 else result
    x = x * x
    result = result * x if exponent & 4 else result
    x = x * x
    result = result * x if exponent & 8 else result
    x = x * x
    return result * x if exponent & 16 else result


@jit(inline=True, counted=False)
def ask(rows, token, first_eighth, last_eighth):
    """Prefetch some eighths of the cache lines of a token's key and value."""
    elements = 2 * rows.shape[2]
    lines = (elements + _LINE_ELEMENTS - 1) // _LINE_ELEMENTS
    for line in range(lines * first_eighth // 8, lines * last_eighth // 8):
        prefetch(rows, token * elements + line * _LINE_ELEMENTS)


@jit(counted=False)
def dot_tile(query, n_heads, rows, tokens, n, following, mean, mean_square, dots, inverse_key_norm):
    """q.k of every pair, and 1/|k - m| of every row.

    Parameters
    ----------
    query : array
        float32, (GROUP_HEADS, head_dim); heads beyond n_heads are zeros.
    n_heads : int
    rows : array
        uint16, (capacity, 2, head_dim).
    tokens : array
        int64, (TILE_ROWS,).
    n : int
        Rows in the tile.
    following : array
        int64, (TILE_ROWS,): rows of the next tile, which are asked for meanwhile.
    mean : array
        float32, (head_dim,): m.
    mean_square : float32
        |m|^2.
    dots : array
        float32, (GROUP_HEADS, TILE_ROWS); columns beyond n are left as they are.
    inverse_key_norm : array
        float32, (TILE_ROWS,); likewise.
    """
    head_dim = query.shape[1]
    for r in range(n):
        ask(rows, following[r], 0, 3)
        row = rows[tokens[r], 0]
        q0, q1, q2, q3 = query[0], query[1], query[2], query[3]
        d0, d1, d2, d3, square, along = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
        for i in range(head_dim):
            x = from_bf16(row[i])
            d0 += q0[i] * x
            d1 += q1[i] * x
            d2 += q2[i] * x
            d3 += q3[i] * x
            along += mean[i] * x
            square += x * x
        dots[0, r], dots[1, r], dots[2, r], dots[3, r] = d0, d1, d2, d3
        # |k - m|^2 = |k|^2 - 2 k.m + |m|^2
        centred = square - np.float32(2.0) * along + mean_square
        inverse_key_norm[r] = _ONE / np.sqrt(max(centred, np.float32(1e-20)))
        if n_heads > 4:
            q0, q1, q2, q3 = query[4], query[5], query[6], query[7]
            d0, d1, d2, d3 = _ZERO, _ZERO, _ZERO, _ZERO
            for i in range(head_dim):
                x = from_bf16(row[i])
                d0 += q0[i] * x
                d1 += q1[i] * x
                d2 += q2[i] * x
                d3 += q3[i] * x
            dots[4, r], dots[5, r], dots[6, r], dots[7, r] = d0, d1, d2, d3


@jit(counted=False)
def log_inclusion(
    dots,
    centre_dot,
    inverse_query_norm,
    inverse_key_norm,
    query_turns,
    n_heads,
    n_bits,
    log_u,
    turns,
    lanes,
    logs,
):
    """log(u) of every row of the tile: `estimator.collision_prob`, then the table of `estimator`.

    Parameters
    ----------
    dots : array
        float32, (GROUP_HEADS, TILE_ROWS): q.k.
    centre_dot, inverse_query_norm : array
        float32, (GROUP_HEADS,): q.m and 1/|q|.
    inverse_key_norm : array
        float32, (TILE_ROWS,): 1/|k - m|.
    query_turns : array
        float32, (GROUP_HEADS, GROUP_HEADS): angles between queries over pi.
    n_heads, n_bits : int
    log_u : array
        float32, of `estimator.log_sampling_table`.
    turns : array
        float32, (GROUP_HEADS, TILE_ROWS); scratch.
    lanes : array
        float32, (9, TILE_ROWS); its last two rows are scratch.
    logs : array
        float32, (TILE_ROWS,); overwritten.
    """
    first, collision = lanes[7], lanes[8]
    for r in range(TILE_ROWS):
        collision[r] = _ZERO
    for g in range(n_heads):
        own, centre, inverse = turns[g], centre_dot[g], inverse_query_norm[g]
        for r in range(TILE_ROWS):
            turn = half_turns((dots[g, r] - centre) * inverse * inverse_key_norm[r])
            own[r] = turn
            first[r] = _power(_ONE - turn, n_bits)
        for j in range(g):
            other, between = turns[j], query_turns[j, g]
            for r in range(TILE_ROWS):
                together = _ONE - _HALF * (other[r] + own[r] + between)
                agree = max(_ONE - own[r], np.float32(1e-6))
                first[r] *= _ONE - _power(min(max(together / agree, _ZERO), _ONE), n_bits)
        for r in range(TILE_ROWS):
            collision[r] += first[r]
    for r in range(TILE_ROWS):
        bits = float_to_bits(min(max(collision[r], _SMALLEST_COLLISION), _ONE)) - _LOG_U_FIRST
        entry = bits >> _LOG_U_SHIFT
        part = np.float32(bits & _LOG_U_MASK) * _LOG_U_FRACTION
        low = log_u[entry]
        logs[r] = low + part * (log_u[entry + 1] - low)


@jit(counted=False)
def weigh(dots, n, scale, softcap, logs, certain, logits, sums, outs, weights, variances):
    """From dots of one head to weights relative to its running maximum; rescales when that rises.

    Parameters
    ----------
    dots : array
        float32, (TILE_ROWS,): q.k.
    n : int
        Rows in the tile.
    scale, softcap : float32
        What multiplies q.k; its cap, 0 for none.
    logs, certain : array
        float32, (TILE_ROWS,): log(u) and u.
    logits : array
        float32, (TILE_ROWS,): q.k scaled, less log(u) (section 4.2); overwritten.
    sums, outs : array
        The head's running sums (see `kernels.attend`); sums 0 and 1 are updated, all are rescaled.
    weights, variances : array
        float32, (TILE_ROWS,): w = e^logit and a = (1-u) w^2, relative; overwritten. 0 beyond n.
    """
    for r in range(TILE_ROWS):
        logits[r] = dots[r] * scale
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
    total = _ZERO
    for r in range(TILE_ROWS):
        w = fast_exp(logits[r] - highest) if logits[r] > _ABSENT_BELOW else _ZERO
        weights[r] = w
        variances[r] = (_ONE - certain[r]) * w * w
        total += w
    sums[1] += total


@jit(counted=False)
def add_values(weights, first_head, rows, tokens, n, following, outs):
    """outs[h, 0] += sum of weights[h, r] * v[r] for four heads from first_head on, four rows at a time.

    Parameters
    ----------
    weights : array
        float32, (GROUP_HEADS, TILE_ROWS); 0 beyond n and for heads that are not there.
    first_head : int
        0 or 4.
    rows : array
        uint16, (capacity, 2, head_dim).
    tokens : array
        int64, (TILE_ROWS,); valid rows beyond n as well.
    n : int
    following : array
        int64, (TILE_ROWS,): rows of the next tile, which are asked for meanwhile.
    outs : array
        float32, (GROUP_HEADS, 2, head_dim); updated.
    """
    a, b, c, d = (
        weights[first_head],
        weights[first_head + 1],
        weights[first_head + 2],
        weights[first_head + 3],
    )
    out_a, out_b = outs[first_head, 0], outs[first_head + 1, 0]
    out_c, out_d = outs[first_head + 2, 0], outs[first_head + 3, 0]
    head_dim = outs.shape[2]
    for r in range(0, n, 4):
        if first_head == 0:
            for ahead in range(r, r + 4):
                ask(rows, following[ahead], 6, 8)
        v0, v1, v2, v3 = (
            rows[tokens[r], 1],
            rows[tokens[r + 1], 1],
            rows[tokens[r + 2], 1],
            rows[tokens[r + 3], 1],
        )
        a0, a1, a2, a3 = a[r], a[r + 1], a[r + 2], a[r + 3]
        b0, b1, b2, b3 = b[r], b[r + 1], b[r + 2], b[r + 3]
        c0, c1, c2, c3 = c[r], c[r + 1], c[r + 2], c[r + 3]
        d0, d1, d2, d3 = d[r], d[r + 1], d[r + 2], d[r + 3]
        for i in range(head_dim):
            x0, x1, x2, x3 = from_bf16(v0[i]), from_bf16(v1[i]), from_bf16(v2[i]), from_bf16(v3[i])
            out_a[i] = a3 * x3 + (a2 * x2 + (a1 * x1 + (a0 * x0 + out_a[i])))
            out_b[i] = b3 * x3 + (b2 * x2 + (b1 * x1 + (b0 * x0 + out_b[i])))
            out_c[i] = c3 * x3 + (c2 * x2 + (c1 * x1 + (c0 * x0 + out_c[i])))
            out_d[i] = d3 * x3 + (d2 * x2 + (d1 * x1 + (d0 * x0 + out_d[i])))


@jit(counted=False)
def add_variance(variance, row, sums, out):
    """Follow one sampled value for the error estimate: sums[2] += a, sums[3] += a |v|^2, out += a v.

    `row` is uint16, (head_dim,); `sums` float32, (4,); `out` float32, (head_dim,).
    """
    square = _ZERO
    for i in range(out.shape[0]):
        x = from_bf16(row[i])
        square += x * x
    for i in range(out.shape[0]):
        out[i] += variance * from_bf16(row[i])
    sums[2] += variance
    sums[3] += variance * square


@jit(counted=False)
def attend_tile(task, tokens, n, following, n_bits, scratch, sums, outs):
    """Add one tile of rows to the running sums of every head.

    Parameters
    ----------
    task : tuple
        query, n_heads, rows, mean, mean_square (see `dot_tile`); q.m and 1/|q| per head and query_turns (see
        `log_inclusion`); log_u, scale, softcap.
    tokens : array
        int64, (TILE_ROWS,); entries beyond n may be overwritten.
    n : int
        Rows in the tile, at least 1.
    following : array
        int64, (TILE_ROWS,): valid rows, those of the next tile or any that are near.
    n_bits : int
        K; 0 for rows that are attended with certainty.
    scratch : tuple of array
        Of `tile_scratch`.
    sums : array
        float32, (GROUP_HEADS, 4); updated.
    outs : array
        float32, (GROUP_HEADS, 2, head_dim); updated.
    """
    query, n_heads, rows, mean, mean_square, centre_dot, inverse_norm, query_turns, log_u, scale, softcap = (
        task
    )
    dots, turns, weights, lanes = scratch
    inverse_key_norm, logits, logs, certain, variances = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4]
    for r in range(n, (n + 3) // 4 * 4):
        tokens[r] = tokens[0]
    dot_tile(query, n_heads, rows, tokens, n, following, mean, mean_square, dots, inverse_key_norm)
    if n_bits:
        log_inclusion(
            dots,
            centre_dot,
            inverse_norm,
            inverse_key_norm,
            query_turns,
            n_heads,
            n_bits,
            log_u,
            turns,
            lanes,
            logs,
        )
        for r in range(TILE_ROWS):
            certain[r] = fast_exp(logs[r])
            ask(rows, following[r], 3, 4)
    else:
        for r in range(TILE_ROWS):
            logs[r] = _ZERO
            certain[r] = _ONE
    for head in range(n_heads):
        for r in range(TILE_ROWS * head // n_heads, TILE_ROWS * (head + 1) // n_heads):
            ask(rows, following[r], 4, 6)
        out = outs[head]
        weigh(dots[head], n, scale, softcap, logs, certain, logits, sums[head], out, weights[head], variances)
        if n_bits:
            heavy = sums[head, 0] + _HEAVY
            light, stand_in = _ZERO, -1
            for r in range(n):
                if logits[r] > heavy:
                    add_variance(variances[r], rows[tokens[r], 1], sums[head], out[1])
                else:
                    light += variances[r]
                    stand_in = r
            if stand_in >= 0:
                add_variance(light, rows[tokens[stand_in], 1], sums[head], out[1])
    add_values(weights, 0, rows, tokens, n, following, outs)
    if n_heads > 4:
        add_values(weights, 4, rows, tokens, n, following, outs)


@jit()
def tile_scratch():
    """Scratch arrays of `attend_tile`, zeros, so that rows beyond a short tile stay finite."""
    return (
        np.zeros((GROUP_HEADS, TILE_ROWS), np.float32),
        np.zeros((GROUP_HEADS, TILE_ROWS), np.float32),
        np.zeros((GROUP_HEADS, TILE_ROWS), np.float32),
        np.zeros((9, TILE_ROWS), np.float32),
    )
