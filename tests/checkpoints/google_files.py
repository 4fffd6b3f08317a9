"""Checkpoints as Google's codes write them, by the names and shapes that are documented of them.

Made here from the documentation alone, independently of the package's own table of names.
"""

import numpy as np

D, H, M, P, DEPTH, K = 24, 3, 40, 8, 2, 5  # width, heads, mlp_dim, patch, layers, classes


def vit_shapes(
    *, names="original", tokens=5, cls=True, pre_logits=False, top=False, head=True, embedded=3, patch=P
):
    attention, norm2, mlp = {
        "original": ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
        "linen": ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
    }[names]
    shapes = {"embedding/kernel": (patch, patch, embedded, D), "embedding/bias": (D,)}
    if cls:
        shapes["cls"] = (1, 1, D)
    shapes["pos_embedding" if top else "Transformer/posembed_input/pos_embedding"] = (1, tokens, D)
    for i in range(DEPTH):
        block = f"Transformer/encoderblock_{i}"
        shapes |= block_shapes(block, attention, "LayerNorm_0", norm2, mlp)
    shapes |= {"Transformer/encoder_norm/scale": (D,), "Transformer/encoder_norm/bias": (D,)}
    if pre_logits:
        shapes |= {"pre_logits/kernel": (D, D), "pre_logits/bias": (D,)}
    if head:
        shapes |= {"head/kernel": (D, K), "head/bias": (K,)}
    return shapes


def block_shapes(block, attention, norm1, norm2, mlp):
    shapes = {}
    for norm in (norm1, norm2):
        shapes |= {f"{block}/{norm}/scale": (D,), f"{block}/{norm}/bias": (D,)}
    for part in ("query", "key", "value"):
        shapes |= {
            f"{block}/{attention}/{part}/kernel": (D, H, D // H),
            f"{block}/{attention}/{part}/bias": (H, D // H),
        }
    shapes |= {f"{block}/{attention}/out/kernel": (H, D // H, D), f"{block}/{attention}/out/bias": (D,)}
    shapes |= {f"{block}/{mlp}/Dense_0/kernel": (D, M), f"{block}/{mlp}/Dense_0/bias": (M,)}
    return shapes | {f"{block}/{mlp}/Dense_1/kernel": (M, D), f"{block}/{mlp}/Dense_1/bias": (D,)}


def map_head_shapes():
    shapes = block_shapes(
        "MAPHead_0", "MultiHeadDotProductAttention_0", "LayerNorm_0", "LayerNorm_0", "MlpBlock_0"
    )
    return {"MAPHead_0/probe": (1, 1, D)} | shapes


def stem_shapes(units=(1, 2), old_norms=False):
    width = 32

    def norm(name, channels):
        shape = (1, 1, 1, channels) if old_norms else (channels,)
        return {f"{name}/scale": shape, f"{name}/bias": shape}

    shapes, inputs = {"conv_root/kernel": (7, 7, 3, width)} | norm("gn_root", width), width
    for s, count in enumerate(units, 1):
        middle = width * 2 ** (s - 1)
        for u in range(1, count + 1):
            unit = f"block{s}/unit{u}"
            shapes |= {
                f"{unit}/conv1/kernel": (1, 1, inputs, middle),
                f"{unit}/conv2/kernel": (3, 3, middle, middle),
                f"{unit}/conv3/kernel": (1, 1, middle, 4 * middle),
            }
            shapes |= (
                norm(f"{unit}/gn1", middle) | norm(f"{unit}/gn2", middle) | norm(f"{unit}/gn3", 4 * middle)
            )
            if u == 1:
                shapes |= {f"{unit}/conv_proj/kernel": (1, 1, inputs, 4 * middle)} | norm(
                    f"{unit}/gn_proj", 4 * middle
                )
            inputs = 4 * middle
    return shapes


def bit_shapes(units=(1, 2), numbered=False):
    width, count = 32, iter(range(1000))

    def conv(name):
        suffix = f"_{next(count)}" if numbered else ""
        return f"resnet/{name}/standardized_conv2d{suffix}/kernel"

    shapes, inputs = {conv("root_block"): (7, 7, 3, width)}, width
    for s, units_here in enumerate(units, 1):
        middle = width * 2 ** (s - 1)
        for u in range(1, units_here + 1):
            unit = f"block{s}/unit{u:02}"
            parts = {"a": (1, inputs, middle), "b": (3, middle, middle), "c": (1, middle, 4 * middle)}
            for letter, (kernel, channels, outputs) in parts.items():
                shapes[conv(f"{unit}/{letter}")] = (kernel, kernel, channels, outputs)
                shapes[f"resnet/{unit}/{letter}/group_norm/gamma"] = (channels,)
                shapes[f"resnet/{unit}/{letter}/group_norm/beta"] = (channels,)
            if u == 1:
                shapes[conv(f"{unit}/a/proj")] = (1, 1, inputs, 4 * middle)
            inputs = 4 * middle
    shapes |= {"resnet/group_norm/gamma": (inputs,), "resnet/group_norm/beta": (inputs,)}
    return shapes | {"resnet/head/conv2d/kernel": (1, 1, inputs, K), "resnet/head/conv2d/bias": (K,)}


def filled(shapes, dtype=np.float32, prefix="", scan=False, fortran=False):
    """Distinct random values for every array."""
    rng = np.random.default_rng(0)
    arrays = {}
    for key, shape in shapes.items():
        around = 1.0 if key.endswith(("scale", "gamma")) else 0.0
        arrays[key] = (around + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    if scan:
        layers = [k for k in arrays if k.startswith("Transformer/encoderblock_0/")]
        for key in layers:
            rest = key.removeprefix("Transformer/encoderblock_0/")
            parts = [arrays.pop(f"Transformer/encoderblock_{i}/{rest}") for i in range(DEPTH)]
            arrays[f"Transformer/encoderblock/{rest}"] = np.stack(parts)
    order = "F" if fortran else "C"
    return {prefix + k: np.asarray(stored(a, dtype), order=order) for k, a in arrays.items()}


def stored(a, dtype):
    if dtype == "bfloat16":  # as JAX saves it: the upper two bytes, which numpy reads as opaque
        return (a.view(np.uint32) >> 16).astype(np.uint16).view("V2")
    return a.astype(dtype)
