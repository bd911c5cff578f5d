"""The two kernels of a decode step: find the sampled keys, and attend to them.

`retrieve` counts, per group of query heads, in how many tables a key falls into a bucket of the
group's queries. `attend` walks the counts in ascending order, and where one is large enough
reads the key's row of key and value once for the whole group, and leaves output, log-sum-exp and
estimated error. Both take and return flat arrays; all allocation is the caller's (`lsh.layer`).
"""

from __future__ import annotations

import numba
import numpy as np

from magicpig_cli.lsh.estimator import DESIGN_EFFECT, UNIFORM_MIXER, UNIFORM_STRIDE
from magicpig_cli.lsh.hashing import hash_tile
from magicpig_cli.lsh.jit import fetch_add, jit, prefetch, trailing_zeros
from magicpig_cli.lsh.tile import GROUP_HEADS, TILE_ROWS, attend_tile, half_turns, tile_scratch

# How far ahead a bucket's offsets and ids are asked for, in tables.
_OFFSETS_AHEAD = 16
_IDS_AHEAD = 8
# A bucket's first cache lines to ask for; longer buckets are sequential and the hardware follows.
_LINE_IDS = 32
_MOST_LINES_AHEAD = 4

# Counts are bytes; eight of them are read at once.
COUNTS_PER_WORD = 8
_MIXER = np.uint64(UNIFORM_MIXER)
_LOW_BITS, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)

_DESIGN_EFFECT = np.float32(DESIGN_EFFECT)


@jit(inline=True)
def group_heads(group, n_groups, n_q_heads):
    """First and last + 1 query head of a group; groups of one KV head are neighbours."""
    return n_q_heads * group // n_groups, n_q_heads * (group + 1) // n_groups


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
        float32, (2, padded_dim, GROUP_HEADS); scratch.
    codes : array
        uint16, (n_groups, n_tables, GROUP_HEADS); overwritten.
    """
    n_q_heads, head_dim = query.shape
    n_groups = codes.shape[0]
    per_kv_head = n_groups // signs.shape[0]
    tile, work = tiles[0], tiles[1]
    for group in range(n_groups):
        first, last = group_heads(group, n_groups, n_q_heads)
        tile[:] = 0.0
        for head in range(first, last):
            for i in range(head_dim):
                tile[i, head - first] = query[head, i]
        hash_tile(tile, work, signs[group // per_kv_head], n_bits, codes[group])


@jit(parallel=True)
def retrieve(codes, n_q_heads, first_key, offsets, ids, most, n_workers, counter, counts):
    """Count in how many tables the keys of one block collide with a group's queries.

    One key in UNIFORM_STRIDE counts as often enough wherever it lies.

    Parameters
    ----------
    codes : array
        uint16, (n_groups, n_tables, GROUP_HEADS), of `hash_all_queries`.
    n_q_heads, first_key : int
        Place of the block's first key among the counts.
    offsets, ids : array
        The block's tables (`lsh.tables.TableBlock`).
    most : int
        Where a count stops: M, as no more is asked.
    n_workers : int
        Threads to work on it.
    counter : array
        int64, (1,), 0: tasks taken so far.
    counts : array
        uint8, (n_groups, n_splits, n_counts): tables of a split in which a key collided.
        Updated; the block at place 0 clears them first. The tables of a group are split so that
        many threads share few KV heads.
    """
    n_groups, n_splits, n_tables = counts.shape[0], counts.shape[1], codes.shape[1]
    per_kv_head = n_groups // ids.shape[0]
    for _worker in numba.prange(n_workers):
        task = fetch_add(counter, 1)
        while task < n_groups * n_splits:
            group, split = task // n_splits, task % n_splits
            if first_key == 0:
                counts[group, split] = np.uint8(0)
            if split == 0:
                phase = uniform_phase(codes[group])
                begin = first_key + (phase - first_key) % UNIFORM_STRIDE
                for place in range(begin, first_key + ids.shape[2], UNIFORM_STRIDE):
                    counts[group, 0, place] = np.uint8(most)
            first, last = group_heads(group, n_groups, n_q_heads)
            count(
                codes[group],
                last - first,
                n_tables * split // n_splits,
                n_tables * (split + 1) // n_splits,
                offsets[group // per_kv_head],
                ids[group // per_kv_head],
                np.uint8(most),
                counts[group, split, first_key:],
            )
            task = fetch_add(counter, 1)


@jit(inline=True)
def uniform_phase(codes):
    """Where a group's evenly spread keys begin, 0 to UNIFORM_STRIDE - 1; codes is (n_tables, GROUP_HEADS).

    The codes of a query are as good as drawn, and give the same sample whenever a step is computed again.
    """
    mixed = np.uint64(0)
    for table in range(codes.shape[0]):
        mixed = (mixed ^ np.uint64(codes[table, 0])) * _MIXER
    return np.int64(mixed >> np.uint64(32)) % UNIFORM_STRIDE


@jit()
def count(codes, n_heads, first_table, last_table, offsets, ids, most, counts):
    """`retrieve` for one group and split: tables first_table to last_table - 1.

    codes is (n_tables, GROUP_HEADS), offsets (n_tables, n_codes + 1), ids (n_tables, n_keys), counts
    (at least n_keys,).
    """
    for table in range(first_table, min(first_table + _OFFSETS_AHEAD, last_table)):
        for head in range(n_heads):
            prefetch(offsets, table * offsets.shape[1] + codes[table, head])
    for table in range(first_table, last_table):
        ahead = table + _OFFSETS_AHEAD
        if ahead < last_table:
            for head in range(n_heads):
                prefetch(offsets, ahead * offsets.shape[1] + codes[ahead, head])
        ahead = table + _IDS_AHEAD
        if ahead < last_table:
            for head in range(n_heads):
                begin = np.int64(offsets[ahead, codes[ahead, head]])
                end = np.int64(offsets[ahead, codes[ahead, head] + 1])
                for i in range(begin, min(end, begin + _LINE_IDS * _MOST_LINES_AHEAD), _LINE_IDS):
                    prefetch(ids, ahead * ids.shape[1] + i)
        for head in range(n_heads):
            code = codes[table, head]
            # Heads with one code share a bucket, and a key counts once per table.
            known = False
            for other in range(head):
                known |= codes[table, other] == code
            if known:
                continue
            for i in range(np.int64(offsets[table, code]), np.int64(offsets[table, code + 1])):
                so_far = counts[ids[table, i]]
                counts[ids[table, i]] = so_far + np.uint8(so_far < most)


@jit(inline=True)
def sampled_word(counts, word, least):
    """One word's keys whose counts over all splits reach M, by the highest bit of their byte.

    counts is uint64, (n_splits, n_words), eight keys in a word; `least` is 128 - M in every byte. Counts
    stop at M, so for M up to MOST_COLLISIONS and 8 splits no byte overflows.
    """
    total = np.uint64(0)
    for split in range(counts.shape[0]):
        total += counts[split, word]
    return (total + least) & _HIGH_BITS


@jit(parallel=True)
def attend(
    query,
    rows,
    exact,
    counts,
    min_collisions,
    first_token,
    mean,
    n_bits,
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
    """Partial attention of every task: one group of query heads, one part of the keys.

    Parameters
    ----------
    query : array
        float32, (n_q_heads, head_dim).
    rows : array
        uint16 bf16 bit patterns, (n_kv_heads, capacity, 2, head_dim).
    exact : array
        int64, (n_ranges, 2): token ranges that are attended with weight 1.
    counts : array
        uint64, (n_groups, n_splits, n_words): those of `retrieve`, COUNTS_PER_WORD in a word.
    min_collisions : int
        M.
    first_token : int
        Token of the first count.
    mean : array
        float32, (n_kv_heads, head_dim): m_c.
    n_bits : int
        K.
    log_u : array
        float32: log inclusion probability (`estimator.log_sampling_table`).
    scale, softcap : float32
    n_parts : int
        Parts per group. It fixes the order of summation, so results do not depend on threads.
    n_workers : int
        Threads to work on it.
    counter : array
        int64, (1,), 0: tasks taken so far.
    partial_sums : array
        float32, (n_tasks, GROUP_HEADS, 4): maximum logit, sum of weights, and of the sampled keys
        with a = (1-u) w^2: sum of a, sum of a |v|^2. Overwritten.
    partial_outs : array
        float32, (n_tasks, GROUP_HEADS, 2, head_dim): sum of w v, sum of a v. Overwritten.
    n_sampled : array
        int64, (n_tasks,). Overwritten.
    """
    n_q_heads, n_groups = query.shape[0], counts.shape[0]
    per_kv_head = n_groups // rows.shape[0]
    for _worker in numba.prange(n_workers):
        space = part_scratch(query.shape[1])
        task = fetch_add(counter, 1)
        while task < n_groups * n_parts:
            group = task // n_parts
            first, last = group_heads(group, n_groups, n_q_heads)
            n_sampled[task] = attend_part(
                query[first:last],
                rows[group // per_kv_head],
                exact,
                counts[group],
                min_collisions,
                first_token,
                mean[group // per_kv_head],
                n_bits,
                log_u,
                scale,
                softcap,
                task % n_parts,
                n_parts,
                space,
                partial_sums[task],
                partial_outs[task],
            )
            task = fetch_add(counter, 1)


@jit()
def part_scratch(head_dim):
    """Arrays of `attend_part` that a worker reuses from task to task."""
    return (
        np.zeros((GROUP_HEADS, head_dim), np.float32),  # queries, zeros for heads that are not there
        np.zeros((2, GROUP_HEADS), np.float32),  # q.m_c, 1/|q|
        np.zeros((GROUP_HEADS, GROUP_HEADS), np.float32),  # angles between queries
        np.zeros((2, TILE_ROWS), np.int64),  # tokens of two tiles
        tile_scratch(),
    )


@jit(counted=False)
def attend_part(
    query,
    rows,
    exact,
    counts,
    min_collisions,
    first_token,
    mean,
    n_bits,
    log_u,
    scale,
    softcap,
    part,
    n_parts,
    space,
    sums,
    outs,
):
    """`attend` for one task: the part's share of the exact ranges, then of the counts' words.

    Returns how many keys were sampled.
    """
    padded, query_figures, query_turns, tokens, scratch = space
    centre_dot, inverse_norm = query_figures[0], query_figures[1]
    n_heads, head_dim = query.shape
    mean_square = np.float32(0.0)
    for i in range(head_dim):
        mean_square += mean[i] * mean[i]
    for head in range(GROUP_HEADS):
        sums[head, 0] = -np.inf
        sums[head, 1:] = 0.0
        outs[head] = 0.0
        for i in range(head_dim):
            padded[head, i] = query[head, i] if head < n_heads else np.float32(0.0)
    # Copying and summing in one loop would be compiled twice, for arrays that may overlap and for others,
    # with sums in different orders: the last bits of a step would depend on where its arrays lie.
    for head in range(n_heads):
        dot, square = np.float32(0.0), np.float32(0.0)
        for i in range(head_dim):
            dot += padded[head, i] * mean[i]
            square += padded[head, i] * padded[head, i]
        centre_dot[head] = dot
        inverse_norm[head] = 1.0 / np.sqrt(square) if square > 0.0 else 0.0
        for other in range(head):
            dot = np.float32(0.0)
            for i in range(head_dim):
                dot += padded[head, i] * padded[other, i]
            query_turns[other, head] = half_turns(dot * inverse_norm[head] * inverse_norm[other])
    tokens[:] = first_token  # whatever is asked for in advance exists
    task = (
        padded,
        n_heads,
        rows,
        mean,
        mean_square,
        centre_dot,
        inverse_norm,
        query_turns,
        log_u,
        scale,
        softcap,
    )

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
            # Rows in sequence: the hardware finds the next ones by itself.
            attend_tile(task, tokens[0], n, tokens[0], 0, scratch, sums, outs)

    least = np.uint64(128 - min_collisions) * _LOW_BITS
    n_words = counts.shape[1]
    n_sampled = 0
    slot = n = 0
    waiting = False
    for word in range(n_words * part // n_parts, n_words * (part + 1) // n_parts):
        left_bits = sampled_word(counts, word, least)
        while left_bits != np.uint64(0):
            token = first_token + word * COUNTS_PER_WORD + (trailing_zeros(left_bits) >> 3)
            left_bits &= left_bits - np.uint64(1)
            tokens[slot, n] = token
            n += 1
            n_sampled += 1
            if n == TILE_ROWS:
                # This tile's rows are asked for while the one before is computed.
                slot = 1 - slot
                if waiting:
                    attend_tile(task, tokens[slot], n, tokens[1 - slot], n_bits, scratch, sums, outs)
                waiting = True
                n = 0
    if waiting:
        attend_tile(task, tokens[1 - slot], TILE_ROWS, tokens[slot], n_bits, scratch, sums, outs)
    if n:
        attend_tile(task, tokens[slot], n, tokens[slot], n_bits, scratch, sums, outs)
    return n_sampled


@jit()
def reduce_parts(sums, outs, part_sampled, n_groups, n_parts, out, lse, n_sampled, squared_error):
    """Merge the parts of every head by their log-sum-exp, in the order of the keys.

    Parameters
    ----------
    sums, outs, part_sampled : array
        Of `attend`.
    n_groups, n_parts : int
    out, lse, n_sampled, squared_error : array
        As in `lsh.layer.StepResult`; overwritten.
    """
    n_q_heads, head_dim = out.shape
    direction = np.empty(head_dim, np.float32)
    for group in range(n_groups):
        first_head, last_head = group_heads(group, n_groups, n_q_heads)
        tasks = range(group * n_parts, (group + 1) * n_parts)
        count = 0
        for task in tasks:
            count += part_sampled[task]
        for head in range(first_head, last_head):
            n_sampled[head] = count
            slot = head - first_head
            highest = np.float32(-np.inf)
            for task in tasks:
                highest = max(highest, sums[task, slot, 0])
            total, spread, spread_square = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            out[head] = 0.0
            direction[:] = 0.0
            for task in tasks:
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
            for i in range(head_dim):
                norm += out[head, i] * out[head, i]
                along += out[head, i] * direction[i]
            # sum of a |v - out|^2 over the squared denominator, relative to |out|^2: estimator.squared_error.
            variance = (spread_square - np.float32(2.0) * along + norm * spread) * inverse * inverse
            variance *= _DESIGN_EFFECT
            squared_error[head] = max(variance, np.float32(0.0)) / norm if norm > np.float32(0.0) else 0.0
