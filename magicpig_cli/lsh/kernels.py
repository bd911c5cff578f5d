"""The two kernels of a decode step: find the sampled keys, and attend to them.

`retrieve` hashes the queries and marks, in one bitmap per query head, the keys that collide in
at least two tables. `attend` walks the bitmaps in ascending order, reads each row of keys and
values once for all query heads of its group, and leaves output, log-sum-exp and estimated
error. Both take and return flat arrays; all allocation is the caller's (`lsh.layer`).
"""

from __future__ import annotations

import numba
import numpy as np

from magicpig_cli.lsh.hashing import hash_tile
from magicpig_cli.lsh.jit import fetch_add, jit, prefetch, trailing_zeros
from magicpig_cli.lsh.tile import BUNDLE_HEADS, TILE_ROWS, attend_tile, tile_scratch

# How far ahead a bucket's offsets and ids are asked for, in tables.
_OFFSETS_AHEAD = 16
_IDS_AHEAD = 8
# A bucket's first cache lines to ask for; longer buckets are sequential and the hardware follows.
_LINE_IDS = 32
_MOST_LINES_AHEAD = 4
_LINE_WORDS = 32


@jit()
def hash_all_queries(query, signs, n_bits, tiles, codes):
    """Codes of every query head.

    Parameters
    ----------
    query : array
        float32, (n_q_heads, head_dim).
    signs : array
        float32, (n_kv_heads, 2 + n_blocks, padded_dim).
    n_bits : int
    tiles : array
        float32, (2, padded_dim, lanes); scratch.
    codes : array
        uint16, (n_kv_heads, ceil(group / lanes), n_tables, lanes); overwritten.
    """
    n_q_heads, head_dim = query.shape
    n_kv_heads = signs.shape[0]
    group = n_q_heads // n_kv_heads
    lanes = tiles.shape[2]
    tile, work = tiles[0], tiles[1]
    for kv_head in range(n_kv_heads):
        for bundle in range(codes.shape[1]):
            tile[:] = 0.0
            first = bundle * lanes
            for lane in range(min(lanes, group - first)):
                for i in range(head_dim):
                    tile[i, lane] = query[kv_head * group + first + lane, i]
            hash_tile(tile, work, signs[kv_head], n_bits, codes[kv_head, bundle])


@jit(parallel=True)
def retrieve(codes, first_key, offsets, ids, n_workers, counter, bits):
    """Mark the keys of one block that collide with a query once, and at least twice.

    Parameters
    ----------
    codes : array
        uint16, (n_kv_heads, n_bundles, n_tables, lanes), of `hash_all_queries`.
    first_key : int
        Bit of the block's first key.
    offsets, ids : array
        The block's tables (`lsh.tables.TableBlock`).
    n_workers : int
        Threads to work on it.
    counter : array
        int64, (1,), 0: heads taken so far.
    bits : array
        uint64, (n_q_heads, n_words, 2): collided at least once, at least twice. Updated; the block at
        bit 0 clears them first.
    """
    n_q_heads = bits.shape[0]
    n_kv_heads, lanes = codes.shape[0], codes.shape[3]
    group = n_q_heads // n_kv_heads
    for _worker in numba.prange(n_workers):
        head = fetch_add(counter, 1)
        while head < n_q_heads:
            kv_head, member = head // group, head % group
            if first_key == 0:
                bits[head] = np.uint64(0)
            mark_head(
                codes[kv_head, member // lanes],
                member % lanes,
                first_key,
                offsets[kv_head],
                ids[kv_head],
                bits[head],
            )
            head = fetch_add(counter, 1)


@jit()
def mark_head(codes, lane, first_key, offsets, ids, bits):
    """`retrieve` for one query head: codes (n_tables, lanes), offsets (n_tables, n_codes + 1), ids
    (n_tables, n_keys), bits (n_words, 2)."""
    n_tables = codes.shape[0]
    for table in range(min(_OFFSETS_AHEAD, n_tables)):
        prefetch(offsets, table * offsets.shape[1] + codes[table, lane])
    for table in range(min(_IDS_AHEAD, n_tables)):
        prefetch(ids, table * ids.shape[1] + offsets[table, codes[table, lane]])
    for table in range(n_tables):
        ahead = table + _OFFSETS_AHEAD
        if ahead < n_tables:
            prefetch(offsets, ahead * offsets.shape[1] + codes[ahead, lane])
        ahead = table + _IDS_AHEAD
        if ahead < n_tables:
            begin = np.int64(offsets[ahead, codes[ahead, lane]])
            end = np.int64(offsets[ahead, codes[ahead, lane] + 1])
            for i in range(begin, min(end, begin + _LINE_IDS * _MOST_LINES_AHEAD), _LINE_IDS):
                prefetch(ids, ahead * ids.shape[1] + i)
        begin = np.int64(offsets[table, codes[table, lane]])
        end = np.int64(offsets[table, codes[table, lane] + 1])
        for i in range(begin, end):
            key = first_key + np.int64(ids[table, i])
            word = key >> 6
            bit = np.uint64(1) << np.uint64(key & 63)
            once = bits[word, 0]
            bits[word, 1] |= once & bit
            bits[word, 0] = once | bit


@jit(parallel=True)
def attend(
    query,
    rows,
    exact,
    bits,
    first_token,
    mean,
    log_u,
    scale,
    softcap,
    n_parts,
    n_workers,
    counter,
    partial_sums,
    partial_outs,
    n_sampled,
):
    """Partial attention of every task: one KV head, one bundle of its query heads, one part of the keys.

    Parameters
    ----------
    query : array
        float32, (n_q_heads, head_dim).
    rows : array
        uint16 bf16 bit patterns, (n_kv_heads, capacity, 2, head_dim).
    exact : array
        int64, (n_ranges, 2): token ranges that are attended with weight 1.
    bits : array
        uint64, (n_q_heads, n_words, 2), of `retrieve`.
    first_token : int
        Token of bit 0.
    mean : array
        float32, (n_kv_heads, head_dim): m_c.
    log_u : array
        float32: log inclusion probability over the cosine (`lsh.estimator`).
    scale, softcap : float32
    n_parts : int
        Parts per KV head. It fixes the order of summation, so results do not depend on threads.
    n_workers : int
        Threads to work on it.
    counter : array
        int64, (1,), 0: tasks taken so far.
    partial_sums : array
        float32, (n_tasks, BUNDLE_HEADS, 4): maximum logit, sum of weights, and of the sampled keys
        with a = (1-u) w^2: sum of a, sum of a |v|^2. Overwritten.
    partial_outs : array
        float32, (n_tasks, BUNDLE_HEADS, 2, head_dim): sum of w v, sum of a v. Overwritten.
    n_sampled : array
        int64, (n_tasks, BUNDLE_HEADS). Overwritten.
    """
    n_kv_heads = rows.shape[0]
    group = query.shape[0] // n_kv_heads
    n_bundles = (group + BUNDLE_HEADS - 1) // BUNDLE_HEADS
    n_tasks = n_kv_heads * n_bundles * n_parts
    for _worker in numba.prange(n_workers):
        task = fetch_add(counter, 1)
        while task < n_tasks:
            part = task % n_parts
            kv_head = task // n_parts // n_bundles
            first = kv_head * group + (task // n_parts % n_bundles) * BUNDLE_HEADS
            last = min(first + BUNDLE_HEADS, (kv_head + 1) * group)
            attend_task(
                query[first:last],
                rows[kv_head],
                exact,
                bits[first:last],
                first_token,
                mean[kv_head],
                log_u,
                scale,
                softcap,
                part,
                n_parts,
                partial_sums[task],
                partial_outs[task],
                n_sampled[task],
            )
            task = fetch_add(counter, 1)


@jit()
def attend_task(
    query,
    rows,
    exact,
    bits,
    first_token,
    mean,
    log_u,
    scale,
    softcap,
    part,
    n_parts,
    sums,
    outs,
    n_sampled,
):
    """`attend` for one task: the part's share of the exact ranges, then of the bitmaps' words."""
    n_heads = query.shape[0]
    centre_dot = np.empty(BUNDLE_HEADS, np.float32)  # q.m_c
    inverse_norm = np.empty(BUNDLE_HEADS, np.float32)  # 1/|q|
    for head in range(n_heads):
        dot, square = np.float32(0.0), np.float32(0.0)
        for i in range(query.shape[1]):
            dot += query[head, i] * mean[i]
            square += query[head, i] * query[head, i]
        centre_dot[head] = dot
        inverse_norm[head] = 1.0 / np.sqrt(square) if square > 0.0 else 0.0
        sums[head, 0] = -np.inf
        sums[head, 1:] = 0.0
        outs[head] = 0.0
        n_sampled[head] = 0

    tokens = np.empty((2, TILE_ROWS), np.int64)
    masks = np.empty((2, TILE_ROWS), np.uint32)
    counts = np.zeros(2, np.int64)
    all_heads = np.uint32((np.uint64(1) << np.uint64(n_heads)) - np.uint64(1))
    row_elements = 2 * rows.shape[2]
    scratch = tile_scratch(query.shape[1])
    slot = 0

    n_exact = 0
    for r in range(exact.shape[0]):
        n_exact += exact[r, 1] - exact[r, 0]
    skip = n_exact * part // n_parts
    left = n_exact * (part + 1) // n_parts - skip
    for r in range(exact.shape[0]):
        length = exact[r, 1] - exact[r, 0]
        begin = exact[r, 0] + min(skip, length)
        end = min(exact[r, 1], begin + left)
        skip -= begin - exact[r, 0]
        left -= end - begin
        for token in range(begin, end, TILE_ROWS):
            n = min(TILE_ROWS, end - token)
            for i in range(n):
                tokens[0, i] = token + i
                masks[0, i] = all_heads
            # Rows in sequence: the hardware prefetches them.
            attend_tile(
                query,
                rows,
                tokens[0],
                masks[0],
                n,
                mean,
                centre_dot,
                inverse_norm,
                log_u,
                False,
                scale,
                softcap,
                scratch,
                sums,
                outs,
            )

    n_words = bits.shape[1]
    for word in range(n_words * part // n_parts, n_words * (part + 1) // n_parts):
        union = np.uint64(0)
        for head in range(n_heads):
            union |= bits[head, word, 1]
        while union != np.uint64(0):
            bit = trailing_zeros(union)
            union &= union - np.uint64(1)
            mask = np.uint32(0)
            for head in range(n_heads):
                member = np.uint32((bits[head, word, 1] >> np.uint64(bit)) & np.uint64(1))
                mask |= member << np.uint32(head)
                n_sampled[head] += np.int64(member)
            token = first_token + word * 64 + bit
            n = counts[slot]
            tokens[slot, n] = token
            masks[slot, n] = mask
            counts[slot] = n + 1
            for line in range(0, row_elements, _LINE_WORDS):
                prefetch(rows, token * row_elements + line)
            if n + 1 == TILE_ROWS:
                # This tile's rows are on their way; meanwhile the one before is computed.
                slot = 1 - slot
                if counts[slot]:
                    attend_tile(
                        query,
                        rows,
                        tokens[slot],
                        masks[slot],
                        counts[slot],
                        mean,
                        centre_dot,
                        inverse_norm,
                        log_u,
                        True,
                        scale,
                        softcap,
                        scratch,
                        sums,
                        outs,
                    )
                    counts[slot] = 0
    for _ in range(2):
        slot = 1 - slot
        if counts[slot]:
            attend_tile(
                query,
                rows,
                tokens[slot],
                masks[slot],
                counts[slot],
                mean,
                centre_dot,
                inverse_norm,
                log_u,
                True,
                scale,
                softcap,
                scratch,
                sums,
                outs,
            )


@jit()
def reduce_tasks(sums, outs, task_sampled, n_parts, group, out, lse, n_sampled, squared_error):
    """Merge the parts of every head by their log-sum-exp, in the order of the keys.

    Parameters
    ----------
    sums, outs, task_sampled : array
        Of `attend`.
    n_parts, group : int
        Parts per bundle, query heads per KV head.
    out, lse, n_sampled, squared_error : array
        As in `lsh.layer.StepResult`; overwritten.
    """
    head_dim = out.shape[1]
    n_bundles = (group + BUNDLE_HEADS - 1) // BUNDLE_HEADS
    direction = np.empty(head_dim, np.float32)
    for head in range(out.shape[0]):
        member = head % group
        first = ((head // group) * n_bundles + member // BUNDLE_HEADS) * n_parts
        slot = member % BUNDLE_HEADS
        highest = np.float32(-np.inf)
        count = 0
        for task in range(first, first + n_parts):
            highest = max(highest, sums[task, slot, 0])
            count += task_sampled[task, slot]
        n_sampled[head] = count
        total, spread, spread_square = np.float32(0.0), np.float32(0.0), np.float32(0.0)
        out[head] = 0.0
        direction[:] = 0.0
        for task in range(first, first + n_parts):
            if sums[task, slot, 1] == np.float32(0.0):
                continue
            factor = np.float32(np.exp(sums[task, slot, 0] - highest))
            square = factor * factor
            total += factor * sums[task, slot, 1]
            spread += square * sums[task, slot, 2]
            spread_square += square * sums[task, slot, 3]
            for i in range(head_dim):
                out[head, i] += factor * outs[task, slot, 0, i]
                direction[i] += square * outs[task, slot, 1, i]
        lse[head] = highest + np.log(total) if total > np.float32(0.0) else -np.inf
        inverse = np.float32(1.0) / total if total > np.float32(0.0) else np.float32(0.0)
        norm, along = np.float32(0.0), np.float32(0.0)
        for i in range(head_dim):
            out[head, i] *= inverse
            norm += out[head, i] * out[head, i]
            along += out[head, i] * direction[i]
        variance = (spread_square - np.float32(2.0) * along + norm * spread) * inverse * inverse
        squared_error[head] = max(variance, np.float32(0.0)) / norm if norm > np.float32(0.0) else 0.0
