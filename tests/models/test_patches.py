import torch

from vitrail.models.patches import PatchEmbedding, patchify


def test_patchify_orders_patches_by_row_and_pixels_by_row_column_channel():
    x = torch.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    x_p = patchify(x, 2)
    assert x_p.shape == (2, 6, 12)
    # patch 4 is the second of the lower row: rows 2-3, columns 2-3
    expected = [x[1, c, i, j].item() for i in (2, 3) for j in (2, 3) for c in range(3)]
    assert x_p[1, 4].tolist() == expected


def test_embedding_is_x_p_times_E():
    torch.manual_seed(0)
    embedding = PatchEmbedding(channels=3, width=10, patch_size=4)
    x = torch.randn(2, 3, 8, 12)
    E = embedding.weight.permute(2, 3, 1, 0).reshape(4 * 4 * 3, 10)  # (P*P*C, D)
    torch.testing.assert_close(embedding(x), patchify(x, 4) @ E + embedding.bias, rtol=1e-5, atol=1e-5)
