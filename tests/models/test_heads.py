import torch

from tests.randomise import randomise
from vitrail.models.heads import AttentionPool, Head


def test_attention_pool_is_the_probe_attending_to_all_tokens():
    pool = randomise(AttentionPool(width=8, heads=2, mlp_dim=12, norm_eps=1e-6, activation="gelu_tanh"))
    z = torch.randn(3, 5, 8)
    k, v = pool.kv(z).chunk(2, dim=-1)
    q = pool.q(pool.probe)[0, 0]
    rows = []
    for b in range(3):
        heads = []
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            a = (k[b, :, part] @ q[part] / 2).softmax(0)
            heads.append(a @ v[b, :, part])
        rows.append(pool.out(torch.cat(heads)))
    y = torch.stack(rows)
    torch.testing.assert_close(pool(z), y + pool.mlp(pool.norm(y)), rtol=1e-4, atol=1e-5)


def test_head_with_and_without_its_parts():
    y = torch.randn(2, 8)
    whole = randomise(Head(8, pre_logits=6, classes=3))
    torch.testing.assert_close(whole(y), whole.classifier(torch.tanh(whole.pre_logits(y))))
    assert whole.representation(y).shape == (2, 6)
    assert randomise(Head(8, 0, 3)).representation(y) is y
    assert Head(8, 0, 0)(y) is y
