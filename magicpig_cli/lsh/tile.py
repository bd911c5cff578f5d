"""Attention over one tile of rows: logits, weights, and their sums, for the heads of a bundle.

The part of the attend kernel that computes. Rows arrive in the cache while the previous tile
is computed (`lsh.kernels`); a row is converted from bf16 once and used by every head that wants it.
"""

from __future__ import annotations

import numpy as np

from magicpig_cli.lsh.jit import bits_to_float, jit

# Rows whose logits, weights and values are handled together: two AVX2 registers of float32.
TILE_ROWS = 16
# Query heads of a group that share one pass over the rows; larger groups take several passes.
BUNDLE_HEADS = 16

# A logit that no head has: the row is not in that head's sample.
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


@jit(inline=True)
def fast_exp(x):
    """exp of a float32 <= 88, by exponent and polynomial; below -87 it gives about 1e-38."""
    t = max(x * _LOG2_E, _LOWEST_EXPONENT)
    whole = np.floor(t + np.float32(0.5))
    f = t - whole
    mantissa = np.float32(1.0) + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return bits_to_float(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23))) * mantissa


@jit(inline=True)
def from_bf16(word):
    """The float32 of a bf16 bit pattern."""
    return bits_to_float(np.uint32(word) << np.uint32(16))


@jit()
def dot_tile(query, rows, tokens, masks, n, mean, key, dots, inverse_key_norm):
    """q.(k - m) of every wanted pair, and 1/|k - m| of every row.

    Parameters
    ----------
    query : array
        float32, (n_heads, head_dim).
    rows : array
        uint16, (capacity, 2, head_dim).
    tokens, masks : array
        int64 and uint32, (TILE_ROWS,): rows, and which heads want each.
    n : int
        Rows in the tile.
    mean : array
        float32, (head_dim,): m.
    key : array
        float32, (head_dim,); scratch.
    dots : array
        float32, (BUNDLE_HEADS, TILE_ROWS); `_ABSENT` where a head does not want a row.
    inverse_key_norm : array
        float32, (TILE_ROWS,).
    """
    n_heads, head_dim = query.shape
    for head in range(n_heads):
        for r in range(TILE_ROWS):
            dots[head, r] = _ABSENT
    for r in range(n):
        row = rows[tokens[r], 0]
        square = np.float32(0.0)
        for i in range(head_dim):
            x = from_bf16(row[i]) - mean[i]
            key[i] = x
            square += x * x
        inverse_key_norm[r] = np.float32(1.0) / np.sqrt(max(square, np.float32(1e-30)))
        for head in range(n_heads):
            if (masks[r] >> np.uint32(head)) & np.uint32(1):
                dot = np.float32(0.0)
                for i in range(head_dim):
                    dot += query[head, i] * key[i]
                dots[head, r] = dot


@jit()
def correct_logits(
    dots, centre_dot, inverse_query_norm, inverse_key_norm, log_u, scale, softcap, logits, logs
):
    """Logits of one head's row of pairs, less log(u): the heart of the estimator (section 4.2).

    Parameters
    ----------
    dots : array
        float32, (TILE_ROWS,): q.(k - m).
    centre_dot, inverse_query_norm : float32
        q.m and 1/|q|.
    inverse_key_norm : array
        float32, (TILE_ROWS,).
    log_u : array
        float32: log inclusion probability at equidistant cosines.
    scale, softcap : float32
    logits, logs : array
        float32, (TILE_ROWS,): corrected logits and log(u); overwritten.
    """
    half = np.float32((log_u.shape[0] - 1) // 2)
    top = np.float32(log_u.shape[0] - 1) - np.float32(1e-3)
    for r in range(TILE_ROWS):
        cosine = dots[r] * inverse_query_norm * inverse_key_norm[r]
        position = min(max((cosine + np.float32(1.0)) * half, np.float32(0.0)), top)
        entry = np.int32(position)
        part = position - np.float32(entry)
        low = log_u[entry]
        logs[r] = low + part * (log_u[entry + 1] - low)
    for r in range(TILE_ROWS):
        logit = (dots[r] + centre_dot) * scale
        if softcap > np.float32(0.0):
            logit = softcap * np.float32(np.tanh(logit / softcap))
        logits[r] = logit - logs[r] if dots[r] > _ABSENT_BELOW else _ABSENT


@jit()
def plain_logits(dots, centre_dot, scale, softcap, logits, logs):
    """`correct_logits` for rows that are attended with certainty: log(u) is 0."""
    for r in range(TILE_ROWS):
        logit = (dots[r] + centre_dot) * scale
        if softcap > np.float32(0.0):
            logit = softcap * np.float32(np.tanh(logit / softcap))
        logits[r] = logit if dots[r] > _ABSENT_BELOW else _ABSENT
        logs[r] = np.float32(0.0)


@jit()
def weigh(logits, logs, sums, outs, weights, variances):
    """From logits of one head to weights relative to its running maximum; rescales when that rises.

    Parameters
    ----------
    logits, logs : array
        float32, (TILE_ROWS,).
    sums, outs : array
        The head's running sums (see `kernels.attend`); sums 0 to 2 and outs are updated.
    weights, variances : array
        float32, (TILE_ROWS,): w = e^logit and a = (1-u) w^2, relative; overwritten. 0 where absent.
    """
    highest = _ABSENT
    for r in range(TILE_ROWS):
        highest = max(highest, logits[r])
    if highest > sums[0]:
        if sums[1] > np.float32(0.0):
            factor = fast_exp(sums[0] - highest)
            sums[1] *= factor
            sums[2] *= factor * factor
            sums[3] *= factor * factor
            for i in range(outs.shape[1]):
                outs[0, i] *= factor
                outs[1, i] *= factor * factor
        sums[0] = highest
    highest = sums[0]
    total, variance = np.float32(0.0), np.float32(0.0)
    for r in range(TILE_ROWS):
        present = np.float32(1.0) if logits[r] > _ABSENT_BELOW else np.float32(0.0)
        w = fast_exp(logits[r] - highest) * present
        a = (np.float32(1.0) - fast_exp(logs[r])) * w * w
        weights[r] = w
        variances[r] = a
        total += w
        variance += a
    sums[1] += total
    sums[2] += variance


@jit()
def add_values(weights, chosen, n, values, out):
    """out += sum of weights[r] * values[r] over the n chosen rows, four at a time.

    Parameters
    ----------
    weights : array
        float32, (TILE_ROWS,).
    chosen : array
        int64, (TILE_ROWS + 3,): row numbers; up to three more entries are overwritten.
    n : int
    values : array
        float32, (TILE_ROWS + 1, head_dim); the last row is zeros.
    out : array
        float32, (head_dim,); updated.
    """
    for extra in range(n, (n + 3) // 4 * 4):
        chosen[extra] = TILE_ROWS
    for first in range(0, n, 4):
        r0, r1, r2, r3 = chosen[first], chosen[first + 1], chosen[first + 2], chosen[first + 3]
        w0, w1, w2, w3 = weights[r0], weights[r1], weights[r2], weights[r3]
        v0, v1, v2, v3 = values[r0], values[r1], values[r2], values[r3]
        for i in range(out.shape[0]):
            out[i] += (w0 * v0[i] + w1 * v1[i]) + (w2 * v2[i] + w3 * v3[i])


@jit()
def attend_tile(
    query,
    rows,
    tokens,
    masks,
    n,
    mean,
    centre_dot,
    inverse_norm,
    log_u,
    sampled,
    scale,
    softcap,
    scratch,
    sums,
    outs,
):
    """Add one tile of rows to the running sums of every head.

    Parameters
    ----------
    query, rows, tokens, masks, n, mean
        As in `dot_tile`.
    centre_dot, inverse_norm : array
        float32, (BUNDLE_HEADS,): q.m and 1/|q| per head.
    log_u, scale, softcap
        As in `correct_logits`.
    sampled : bool
        Whether rows carry 1/u, or are attended with certainty.
    scratch : tuple of array
        Of `tile_scratch`.
    sums : array
        float32, (BUNDLE_HEADS, 4); updated.
    outs : array
        float32, (BUNDLE_HEADS, 2, head_dim); updated.
    """
    key, dots, inverse_key_norm, logits, logs, weights, variances, values, squares, chosen = scratch
    n_heads, head_dim = query.shape
    dot_tile(query, rows, tokens, masks, n, mean, key, dots, inverse_key_norm)
    for r in range(n):
        row = rows[tokens[r], 1]
        square = np.float32(0.0)
        for i in range(head_dim):
            x = from_bf16(row[i])
            values[r, i] = x
            square += x * x
        squares[r] = square
    for head in range(n_heads):
        if sampled:
            correct_logits(
                dots[head],
                centre_dot[head],
                inverse_norm[head],
                inverse_key_norm,
                log_u,
                scale,
                softcap,
                logits,
                logs,
            )
        else:
            plain_logits(dots[head], centre_dot[head], scale, softcap, logits, logs)
        weigh(logits, logs, sums[head], outs[head], weights, variances)
        count = 0
        for r in range(n):
            chosen[count] = r
            count += 1 if weights[r] > np.float32(0.0) else 0
        add_values(weights, chosen, count, values, outs[head, 0])
        if sampled:
            count = 0
            for r in range(n):
                sums[head, 3] += variances[r] * squares[r]
                chosen[count] = r
                count += 1 if logits[r] > sums[head, 0] + _NEGLIGIBLE_VARIANCE else 0
            add_values(variances, chosen, count, values, outs[head, 1])


@jit()
def tile_scratch(head_dim):
    """Scratch arrays of `attend_tile`; initialised so that rows beyond a short tile count for nothing."""
    return (
        np.zeros(head_dim, np.float32),
        np.zeros((BUNDLE_HEADS, TILE_ROWS), np.float32),
        np.ones(TILE_ROWS, np.float32),
        np.zeros(TILE_ROWS, np.float32),
        np.zeros(TILE_ROWS, np.float32),
        np.zeros(TILE_ROWS + 1, np.float32),
        np.zeros(TILE_ROWS + 1, np.float32),
        np.zeros((TILE_ROWS + 1, head_dim), np.float32),
        np.zeros(TILE_ROWS, np.float32),
        np.zeros(TILE_ROWS + 3, np.int64),
    )
