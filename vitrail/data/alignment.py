"""Score pairs of thumbnails: how surely both show the same picture. At most 1.

Last step of the search in copies.py. A pair is two thumbnails in grey levels, `f` of one set and `g` of
the other (already mirrored where the search found it so), and the scale at which the search found them alike.

  pose (s, t)  f(s x + t) looks like g(x), with x in [-1, 1] along each axis: scale and shift, per axis
  register     Gauss-Newton on  g = gain f(s x + t) + bias  for (gain, bias, s, t), at half, then full size
  correlate    the two gradient fields where the pictures overlap, each divided by its local strength.
               Luminance alone would call any two framed pictures alike, because the frame outweighs its
               holds; divided so, every textured part counts the same, and flat parts count little.
  score        a lower bound of that correlation: DOUBT standard errors less (Fisher's z), where the textured
               places of the picture are the sample. Two thin lines on white agree by chance; two crowds do not.

Most pairs are clearly different, and are dropped at half size. benchmarks/dedup.py measures the scores of copies and
of different pictures.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

HOPELESS = 0.5  # correlation at half size below which a pair is dropped
STRETCH = 0.2  # how far registration may stretch, as a part of the scale it starts from
SHIFT = 0.25  # and move, in half sides
DOUBT = 3.0
PLACE = 9.0  # pixels that make one independent place, after the blur


def same_picture(f: Tensor, g: Tensor, scale: Tensor) -> Tensor:
    """Return the scores (n,) of n pairs: thumbnails f and g (n, S, S), scales along x and y to start from (n, 2)."""
    if not len(f):
        return torch.zeros(0)
    f, g = f.float(), g.float()
    start = torch.cat((scale, torch.zeros_like(scale)), 1)  # (n, 4)
    f_half, g_half = functional.avg_pool2d(f, 2), functional.avg_pool2d(g, 2)  # (n, S/2, S/2)
    reach = torch.cat((scale * STRETCH, torch.full_like(scale, SHIFT)), 1)  # (n, 4)
    moved = _register(f_half, g_half, start, start - reach, start + reach, steps=3)
    both = [_correlation(f_half, g_half, pose, near=3, floor=0.1)[0] for pose in (start, moved)]
    coarse = torch.stack(both)  # (2, n)
    score = coarse.amax(0) - 1.0  # negative for what is dropped here, so below any threshold
    keep = (coarse.amax(0) >= HOPELESS).nonzero()[:, 0]
    f, g = _blur(f[keep]), _blur(g[keep])
    moved = torch.where((coarse[1] > coarse[0])[:, None], moved, start)[keep]  # (m, 4)
    start, reach = start[keep], reach[keep]
    moved = _register(f, g, moved, start - reach, start + reach, steps=4)
    # The search's own pose is tried too: registration can slide along a picture of stripes.
    fine = torch.stack([_surely(*_correlation(f, g, pose, near=5, floor=0.05)) for pose in (start, moved)])
    score[keep] = fine.amax(0)
    return score


def _surely(correlation: Tensor, textured: Tensor) -> Tensor:
    """Return the correlation less DOUBT standard errors: (n,)."""
    z = torch.atanh(correlation.clamp(-0.9999, 0.9999)) - DOUBT / (textured / PLACE).sqrt()
    return torch.tanh(z)


def _register(f: Tensor, g: Tensor, pose: Tensor, least: Tensor, most: Tensor, *, steps: int) -> Tensor:
    """Find the pose (n, 4) that best explains g by f, starting from `pose` and within the bounds."""
    size = f.shape[-1]
    x = _coordinates(size)
    for _ in range(steps):
        warped, inside = _warp(f, pose, mode="bilinear")
        along_y, along_x = torch.gradient(warped, spacing=2 / size, dim=(1, 2))
        along_x, along_y = along_x / pose[:, 0, None, None], along_y / pose[:, 1, None, None]
        terms = (warped, torch.ones_like(warped), along_x * x, along_y * x[:, None], along_x, along_y)
        J = torch.stack(terms, 1).flatten(2)  # (n, 6, S*S)
        weighed = J * inside.flatten(1)[:, None]  # (n, 6, S*S)
        H = weighed @ J.mT  # (n, 6, 6)
        H = H + torch.diag_embed(H.diagonal(dim1=1, dim2=2) * 1e-4 + 1e-3)
        solved = torch.linalg.solve(H, weighed @ g.flatten(1)[..., None])[..., 0]  # (n, 6)
        step = (solved[:, 2:] / solved[:, :1].clamp(min=0.3)).clamp(-0.06, 0.06)
        pose = torch.clamp(pose + step, least, most)
    return pose


def _correlation(f: Tensor, g: Tensor, pose: Tensor, *, near: int, floor: float) -> tuple[Tensor, Tensor]:
    """Correlate the gradients of f, brought to the pose, and g, each over its local strength; count textured pixels.

    Both (n,). `near` is the side of the neighbourhood; `floor`, in standard deviations of the picture, is the
    gradient that counts as noise.
    """
    warped, inside = _warp(f, pose, mode="bicubic")
    a = _local_gradient(warped, inside, near, floor)
    b = _local_gradient(g, inside, near, floor)
    # A difference is taken between two neighbours; it counts when both are inside.
    both = inside * functional.pad(inside[:, 1:], (0, 0, 0, 1)) * functional.pad(inside[:, :, 1:], (0, 1))
    ab, aa, bb = ((u * both[:, None]).flatten(1).sum(1) for u in (a * b, a * a, b * b))  # (n,) each
    # Over its local strength a gradient has size 1 on average where there is texture: the squares count pixels.
    textured = (aa * bb).sqrt().clamp(min=1e-6)
    return ab / textured, textured


def _local_gradient(image: Tensor, inside: Tensor, near: int, floor: float) -> Tensor:
    count = inside.sum((1, 2)).clamp(min=1)[:, None, None]
    mean = (image * inside).sum((1, 2), keepdim=True) / count
    deviation = (((image - mean) ** 2 * inside).sum((1, 2), keepdim=True) / count).sqrt().clamp(min=1)
    image = image / deviation
    along_x = functional.pad(image[:, :, 1:] - image[:, :, :-1], (0, 1))
    along_y = functional.pad(image[:, 1:] - image[:, :-1], (0, 0, 0, 1))
    energy = (along_x**2 + along_y**2)[:, None]  # (n, 1, S, S)
    energy = functional.avg_pool2d(energy, near, stride=1, padding=near // 2, count_include_pad=False)
    return torch.stack((along_x, along_y), 1) / (energy + floor**2).sqrt()  # (n, 2, S, S)


def _warp(f: Tensor, pose: Tensor, *, mode: str) -> tuple[Tensor, Tensor]:
    """Sample f at s x + t, and mark with 1 where that is inside f: both (n, S, S)."""
    n, size, _ = f.shape
    x = _coordinates(size)
    at_x = pose[:, 0, None] * x + pose[:, 2, None]  # (n, S)
    at_y = pose[:, 1, None] * x + pose[:, 3, None]  # (n, S)
    along = (at_x[:, None].expand(n, size, size), at_y[:, :, None].expand(n, size, size))
    grid = torch.stack(along, -1)  # (n, S, S, 2)
    sample = functional.grid_sample(f[:, None], grid, mode=mode, padding_mode="border", align_corners=False)
    inside = (at_y.abs() <= 1)[:, :, None] & (at_x.abs() <= 1)[:, None]  # (n, S, S)
    return sample[:, 0], inside.float()


def _blur(image: Tensor) -> Tensor:
    """Apply the binomial filter 1 2 1 along both axes: (n, S, S). It removes what resampling cannot keep."""
    image = functional.pad(image[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    image = (image[:, :, :-2] + 2 * image[:, :, 1:-1] + image[:, :, 2:]) / 4
    return (image[:, :-2] + 2 * image[:, 1:-1] + image[:, 2:]) / 4


def _coordinates(size: int) -> Tensor:
    """Return the centres of `size` pixels that span [-1, 1]."""
    return (torch.arange(size) + 0.5) * (2 / size) - 1
