"""Layers that order norm, attention and MLP differently from Eqs. 2 and 3.

post_norm   z' = z + LN(MSA(z)); z = z' + LN(MLP(z'))      a norm at the end of each branch: Liu et al. 2021,
                                                           arXiv:2111.09883, Fig. 1 (Swin V2); EVA-02's largest
parallel    z = z + MSA(LN(z)) + MLP(LN(z)), one LN        Dehghani et al. 2023, arXiv:2302.05442, Eq. 1 (ViT-22B)
twin        z' = z + MSA_1(LN_1(z)) + MSA_2(LN_2(z));      Touvron et al. 2022, arXiv:2203.09795, section 3
            z = z' + MLP_1(LN_3(z')) + MLP_2(LN_4(z'))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from vitrail.models.encoder import Block, Layout, Record

if TYPE_CHECKING:
    from vitrail.models.vit import ViTConfig


class PostNormBlock(Block):
    """Norms after attention and after the MLP."""

    def forward(
        self, z: Tensor, layout: Layout, record: Record | None = None, name: str = "", group: int = 1
    ) -> Tensor:
        y = self.attention(z, layout, record, name)
        z = z + self.branch(self.norm1(y), group, self.scale1)
        z = z + self.branch(self.norm2(self.mlp(z)), group, self.scale2)
        if record is not None:
            record[f"{name}.z"] = z
        return z


class ParallelBlock(Block):
    """Attention and MLP on the same norm, added together."""

    def __init__(self, c: ViTConfig, drop_path: float) -> None:
        super().__init__(c, drop_path)
        del self.norm2
        self.scale2 = None

    def forward(
        self, z: Tensor, layout: Layout, record: Record | None = None, name: str = "", group: int = 1
    ) -> Tensor:
        y = self.norm1(z)
        z = z + self.branch(self.attention(y, layout, record, name) + self.mlp(y), group, self.scale1)
        if record is not None:
            record[f"{name}.z"] = z
        return z


class TwinBlock(nn.Module):
    """Two attentions side by side, then two MLPs side by side: the parts of two layers."""

    def __init__(self, c: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.left, self.right = Block(c, drop_path), Block(c, drop_path)

    def forward(self, z: Tensor, layout: Layout, record: Record | None = None, name: str = "") -> Tensor:
        a, b = self.left, self.right
        y = a.branch(a.attention(a.norm1(z), layout, record, f"{name}.left"), scale=a.scale1)
        z = z + y + b.branch(b.attention(b.norm1(z), layout, record, f"{name}.right"), scale=b.scale1)
        y = a.branch(a.mlp(a.norm2(z)), scale=a.scale2)
        z = z + y + b.branch(b.mlp(b.norm2(z)), scale=b.scale2)
        if record is not None:
            record[f"{name}.z"] = z
        return z


OTHER_BLOCKS: dict[str, type[nn.Module]] = {
    "post_norm": PostNormBlock,
    "parallel": ParallelBlock,
    "twin": TwinBlock,
}
