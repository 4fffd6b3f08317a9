"""Fast paths on a GPU give what the plain text gives."""

import pytest
import torch
import torch.nn.functional as F

import vitrail
from vitrail.models import encoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler and its libraries
]


@pytest.mark.parametrize(("M", "N"), [(1, 1), (130, 300), (1000, 768)])
def test_gelu_backward(M, N):
    from vitrail.models import kernels

    h, dy = (torch.randn(M, N, device="cuda").bfloat16() for _ in range(2))
    dh, sums = kernels.gelu_backward(h, dy)
    x = h.double().requires_grad_()
    (wanted,) = torch.autograd.grad(F.gelu(x, approximate="tanh"), x, dy.double())
    torch.testing.assert_close(dh.double(), wanted, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(sums, dh.float().sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("layout", ["heads first", "tokens first", "with gaps"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (3, 5, 197, 64), (2, 3, 17, 80)])
def test_pack(shape, layout):
    from vitrail.models import kernels

    def gradient():
        B, h, T, d = shape
        if layout == "heads first":
            return torch.randn(B, h, T, d, device="cuda").bfloat16()
        gaps = torch.randn(B, T, 3, h, d, device="cuda").bfloat16()
        return (gaps[:, :, 1] if layout == "with gaps" else gaps[:, :, 1].contiguous()).transpose(1, 2)

    dq, dk, dv = (gradient() for _ in range(3))
    packed, sums = kernels.pack(dq, dk, dv)
    wanted = torch.stack([t.transpose(1, 2) for t in (dq, dk, dv)], dim=2).flatten(0, 1).flatten(1)
    assert torch.equal(packed, wanted)
    torch.testing.assert_close(sums, wanted.float().sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_gelu_inside_the_product(monkeypatch, compiled):
    torch.manual_seed(0)
    model = vitrail.create("Ti/16", classes=7, image_size=64, depth=2).cuda().bfloat16()
    torch.nn.init.normal_(model.head.classifier.weight, std=0.1)
    x = torch.randn(5, 3, 64, 64, device="cuda").bfloat16()
    used = []

    def logits(fusible):
        torch._dynamo.reset()
        monkeypatch.setattr(encoder, "is_gelu_fusible", fusible)
        with torch.no_grad():
            return (torch.compile(model) if compiled else model)(x).float()

    own = encoder.is_gelu_fusible
    fast = logits(lambda z, layer: used.append(own(z, layer)) or own(z, layer))
    plain = logits(lambda z, layer: False)
    assert compiled or all(used)
    assert (fast - plain).norm() < 2e-2 * plain.norm()


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_gradients_are_those_of_the_plain_text(monkeypatch, pool):
    torch.manual_seed(0)
    model = vitrail.create("Ti/16", classes=7, image_size=64, depth=3, pool=pool).cuda().bfloat16()
    torch.nn.init.normal_(model.head.classifier.weight, std=0.1)
    x = torch.randn(5, 3, 64, 64, device="cuda").bfloat16()

    def gradients(fusible):
        torch._dynamo.reset()
        monkeypatch.setattr(encoder, "is_fusible", fusible)
        loss = torch.compile(model)(x).float().logsumexp(1).sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    for fast, plain in zip(gradients(encoder.is_fusible), gradients(lambda z, w: False), strict=True):
        difference = (fast.float() - plain.float()).norm() / plain.float().norm().clamp(min=1e-3)
        assert difference < 3e-2
