"""Triton kernels: passes over large activations that a compiler splits into several.

In a backward pass, the gradient of a dense layer's bias is a sum of columns of a gradient that was just computed.
torch.compile writes that gradient and then reads all of it again (or computes it twice) for the sum. These kernels
add up the columns while they write. Each program sums ROWS rows; the sums of all programs are added up by torch.

M rows (batch x tokens), N columns. models/fused.py has the functions around them. Offsets within a program, and in
one of dq, dk, dv, are 32-bit numbers: 64 bits would cost more than the arithmetic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows and columns of a program; rows that it holds at once, and how many of these loads are under way.
ROWS, COLUMNS, AT_ONCE, STAGES, WARPS = 256, 256, 16, 3, 8


@triton.jit
def gelu_backward_kernel(
    h_at, dy_at, dh_at, sums_at, M, N,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dh = dy gelu'(h) with gelu(h) = h s(2u), s the sigmoid, u = sqrt(2 / pi) (h + 0.044715 h^3)."""
    first = tl.program_id(0) * ROWS
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    base = first.to(tl.int64) * N
    total = tl.zeros((AT_ONCE, COLUMNS), tl.float32)
    for start in tl.range(0, ROWS, AT_ONCE, num_stages=STAGES):
        row = start + tl.arange(0, AT_ONCE)
        at = row[:, None] * N + column[None, :]
        inside = (first + row < M)[:, None] & (column < N)[None, :]
        h = tl.load(h_at + base + at, inside, 0.0).to(tl.float32)
        dy = tl.load(dy_at + base + at, inside, 0.0).to(tl.float32)
        square = h * h
        s = tl.sigmoid(h * (1.5957691216057308 + 0.07135481282598905 * square))  # of 2u
        slope = 1.5957691216057308 + 0.21406443847796716 * square  # 2 du/dh
        dh = (dy * s * (1 + h * (1 - s) * slope)).to(dh_at.dtype.element_ty)
        tl.store(dh_at + base + at, dh, inside)
        total += dh.to(tl.float32)
    tl.store(sums_at + tl.program_id(0) * N + column, tl.sum(total, 0), column < N)


@triton.jit
def pack_kernel(
    dq_at, dk_at, dv_at, packed_at, sums_at, M, T, D, per_example, per_head, per_token,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dq, dk, dv (B, h, T, d) -> (B T, 3 h d). `per_...`: their strides; that of d is 1."""
    which = tl.program_id(2)
    source = dq_at if which == 0 else (dk_at if which == 1 else dv_at)
    first = tl.program_id(0) * ROWS
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)  # of one of the three
    place = (column // HEAD) * per_head + column % HEAD
    base = first.to(tl.int64) * (3 * D) + which * D
    total = tl.zeros((AT_ONCE, COLUMNS), tl.float32)
    for start in tl.range(0, ROWS, AT_ONCE, num_stages=STAGES):
        row = start + tl.arange(0, AT_ONCE)
        inside = (first + row < M)[:, None] & (column < D)[None, :]
        token = ((first + row) // T) * per_example + ((first + row) % T) * per_token
        x = tl.load(source + token[:, None] + place[None, :], inside, 0.0)
        tl.store(packed_at + base + row[:, None] * (3 * D) + column[None, :], x, inside)
        total += x.to(tl.float32)
    tl.store(sums_at + tl.program_id(0) * (3 * D) + which * D + column, tl.sum(total, 0), column < D)


def gelu_backward(h: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """h, dy (M, N) -> dh (M, N) and its sums by column (N,), float32."""
    M, N = h.shape
    programs = triton.cdiv(M, ROWS)
    dh, sums = torch.empty_like(h), torch.empty(programs, N, device=h.device)
    grid = (programs, triton.cdiv(N, COLUMNS))
    gelu_backward_kernel[grid](h, dy, dh, sums, M, N, ROWS, COLUMNS, AT_ONCE, STAGES, num_warps=WARPS)
    return dh, sums.sum(0)


def pack(dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
    """dq, dk, dv (B, h, T, d) -> (B T, 3 h d) and its sums by column (3 h d,), float32."""
    B, heads, T, d = dq.shape
    M, D = B * T, heads * d
    if M * D >= 1 << 31:
        packed = torch.stack([t.transpose(1, 2) for t in (dq, dk, dv)], dim=2).reshape(M, 3 * D)
        return packed, packed.sum(0, dtype=torch.float32)
    if not dq.stride() == dk.stride() == dv.stride() or not is_dense(dq):
        dq, dk, dv = (t.contiguous() for t in (dq, dk, dv))
    programs = triton.cdiv(M, ROWS)
    packed, sums = dq.new_empty(M, 3 * D), torch.empty(programs, 3 * D, device=dq.device)
    grid = (programs, triton.cdiv(D, COLUMNS), 3)
    sizes = (M, T, D, *dq.stride()[:3], d, ROWS, COLUMNS, AT_ONCE, STAGES)
    pack_kernel[grid](dq, dk, dv, packed, sums, *sizes, num_warps=WARPS)
    return packed, sums.sum(0)


def is_dense(t: Tensor) -> bool:
    """Return True for (B, h, T, d) whose memory is that of (B, h, T, d) or of (B, T, h, d), without gaps."""
    _, h, T, d = t.shape
    return t.stride() in ((h * T * d, T * d, d, 1), (T * h * d, d, h * d, 1))
