import torch
import torch.nn.functional as F

from vitrail.models.flexible import resample_patches, resize_matrix


def test_larger_patches_give_the_same_products():
    """Eq. 4: what a patch gives is what its resized form gives."""
    E, x = torch.randn(5, 3, 4, 4), torch.randn(7, 3, 4, 4)
    larger = F.interpolate(x, size=(7, 7), mode="bilinear", align_corners=False)
    same = torch.einsum("bcij,dcij->bd", larger, resample_patches(E, 7))
    assert torch.allclose(same, torch.einsum("bcij,dcij->bd", x, E), atol=1e-4)


def test_smaller_patches_are_the_least_squares_solution():
    E = torch.randn(1, 1, 6, 6)
    B, w = resize_matrix(6, 3), E.double().flatten()
    best = torch.linalg.lstsq(B.T, w[:, None]).solution.flatten()
    assert torch.allclose(resample_patches(E, 3).double().flatten(), best, atol=1e-6)


def test_the_own_size_changes_nothing():
    E = torch.randn(2, 3, 4, 4)
    assert resample_patches(E, 4) is E
