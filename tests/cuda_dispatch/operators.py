"""Every operator on CUDA's autocast lists, called once with small tensors.

Each case takes `t(*shape)`, which makes a floating-point tensor, and `n(*shape)`, which makes an integer one.
"""

import torch
from torch.nn import functional as F

aten = torch.ops.aten

LOWER_PRECISION = {
    "_convolution.deprecated": lambda t, n: aten._convolution.deprecated(
        t(2, 4, 8), t(6, 4, 3), t(6), [1], [0], [1], False, [0], 1, False, False, True),
    "_convolution": lambda t, n: torch._convolution(
        t(2, 4, 8), t(6, 4, 3), t(6), [1], [0], [1], False, [0], 1, False, False, True, True),
    "conv1d": lambda t, n: F.conv1d(t(2, 4, 8), t(6, 4, 3), t(6)),
    "conv2d": lambda t, n: F.conv2d(t(2, 4, 8, 8), t(6, 4, 3, 3), t(6)),
    "conv2d padding": lambda t, n: F.conv2d(t(2, 4, 8, 8), t(6, 4, 3, 3), t(6), padding="same"),
    "conv3d": lambda t, n: F.conv3d(t(2, 4, 8, 8, 8), t(6, 4, 3, 3, 3), t(6)),
    "conv_tbc": lambda t, n: torch.conv_tbc(t(8, 2, 4), t(3, 4, 6), t(6)),
    "conv_transpose1d": lambda t, n: F.conv_transpose1d(t(2, 4, 8), t(4, 6, 3), t(6)),
    "conv_transpose2d": lambda t, n: F.conv_transpose2d(t(2, 4, 8, 8), t(4, 6, 3, 3), t(6)),
    "conv_transpose3d": lambda t, n: F.conv_transpose3d(t(2, 4, 8, 8, 8), t(4, 6, 3, 3, 3), t(6)),
    "convolution": lambda t, n: aten.convolution(t(2, 4, 8), t(6, 4, 3), t(6), [1], [0], [1], False, [0], 1),
    "prelu": lambda t, n: F.prelu(t(2, 4, 8), t(4)),
    "addmm": lambda t, n: torch.addmm(t(5), t(2, 4), t(4, 5)),
    "addmv": lambda t, n: torch.addmv(t(2), t(2, 4), t(4)),
    "addr": lambda t, n: torch.addr(t(2, 4), t(2), t(4)),
    "matmul": lambda t, n: torch.matmul(t(3, 2, 4), t(4, 5)),
    "einsum": lambda t, n: torch.einsum("bij,bjk->bik", t(3, 2, 4), t(3, 4, 5)),
    "einsum of three": lambda t, n: torch.einsum("bij,bjk,bk->bi", t(3, 2, 4), t(3, 4, 5), t(3, 5)),
    "mm": lambda t, n: torch.mm(t(2, 4), t(4, 5)),
    "mv": lambda t, n: torch.mv(t(2, 4), t(4)),
    "linalg_vecdot": lambda t, n: torch.linalg.vecdot(t(2, 4), t(2, 4)),
    "linear": lambda t, n: F.linear(t(3, 2, 4), t(5, 4), t(5)),
    "linear without bias": lambda t, n: F.linear(t(3, 2, 4), t(5, 4)),
    "addbmm": lambda t, n: torch.addbmm(t(2, 5), t(3, 2, 4), t(3, 4, 5)),
    "baddbmm": lambda t, n: torch.baddbmm(t(3, 2, 5), t(3, 2, 4), t(3, 4, 5)),
    "bmm": lambda t, n: torch.bmm(t(3, 2, 4), t(3, 4, 5)),
    "chain_matmul": lambda t, n: aten.chain_matmul([t(2, 4), t(4, 5), t(5, 6)]),
    "linalg_multi_dot": lambda t, n: torch.linalg.multi_dot([t(2, 4), t(4, 5)]),
    "lstm_cell": lambda t, n: torch.lstm_cell(t(2, 4), (t(2, 5), t(2, 5)), t(20, 4), t(20, 5), t(20), t(20)),
    "gru_cell": lambda t, n: torch.gru_cell(t(2, 4), t(2, 5), t(15, 4), t(15, 5), t(15), t(15)),
    "rnn_tanh_cell": lambda t, n: torch.rnn_tanh_cell(t(2, 4), t(2, 5), t(5, 4), t(5, 5), t(5), t(5)),
    "rnn_relu_cell": lambda t, n: torch.rnn_relu_cell(t(2, 4), t(2, 5), t(5, 4), t(5, 5), t(5), t(5)),
    "_thnn_fused_lstm_cell": lambda t, n: torch._thnn_fused_lstm_cell(t(2, 20), t(2, 20), t(2, 5), t(20), t(20)),
    "_thnn_fused_gru_cell": lambda t, n: torch._thnn_fused_gru_cell(t(2, 15), t(2, 15), t(2, 5), t(15), t(15)),
    "_scaled_dot_product_flash_attention": lambda t, n: aten._scaled_dot_product_flash_attention(
        *(t(2, 4, 16, 64) for _ in range(3))),
    "scaled_dot_product_attention": lambda t, n: F.scaled_dot_product_attention(*(t(2, 4, 16, 64) for _ in range(3))),
}
FLOAT32 = {
    **{name: (lambda t, n, name=name: getattr(torch, name)(t(2, 4))) for name in (
        "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
        "sinh", "tan")},
    "pow.Tensor_Scalar": lambda t, n: torch.pow(t(2, 4), 2),
    "pow.Tensor_Tensor": lambda t, n: torch.pow(t(2, 4), t(2, 4)),
    "pow.Scalar": lambda t, n: torch.pow(2, t(2, 4)),
    "softplus": lambda t, n: F.softplus(t(2, 4)),
    "layer_norm": lambda t, n: F.layer_norm(t(2, 4), [4], t(4), t(4)),
    "native_layer_norm": lambda t, n: torch.native_layer_norm(t(2, 4), [4], t(4), t(4), 1e-5),
    "rms_norm": lambda t, n: F.rms_norm(t(2, 4), [4], t(4)),
    "group_norm": lambda t, n: F.group_norm(t(2, 4, 8), 2, t(4), t(4)),
    "frobenius_norm.dim": lambda t, n: torch.frobenius_norm(t(2, 4), [1]),
    "nuclear_norm": lambda t, n: torch.nuclear_norm(t(4, 4)),
    "nuclear_norm.dim": lambda t, n: torch.nuclear_norm(t(4, 4), [0, 1]),
    "cosine_similarity": lambda t, n: F.cosine_similarity(t(2, 4), t(2, 4)),
    "poisson_nll_loss": lambda t, n: F.poisson_nll_loss(t(2, 4), t(2, 4)),
    "cosine_embedding_loss": lambda t, n: F.cosine_embedding_loss(t(2, 4), t(2, 4), n(2)),
    "nll_loss": lambda t, n: F.nll_loss(t(2, 4), n(2)),
    "nll_loss2d": lambda t, n: F.nll_loss(t(2, 4, 3, 3), n(2, 3, 3)),
    "cross_entropy": lambda t, n: F.cross_entropy(t(2, 4), n(2)),
    "cross_entropy with smoothing": lambda t, n: F.cross_entropy(t(2, 4), n(2), label_smoothing=0.1),
    "cross_entropy of probabilities": lambda t, n: F.cross_entropy(t(2, 4), t(2, 4)),
    "hinge_embedding_loss": lambda t, n: F.hinge_embedding_loss(t(2, 4), n(2, 4)),
    "kl_div": lambda t, n: F.kl_div(t(2, 4), t(2, 4), reduction="batchmean"),
    "l1_loss": lambda t, n: F.l1_loss(t(2, 4), t(2, 4)),
    "smooth_l1_loss": lambda t, n: F.smooth_l1_loss(t(2, 4), t(2, 4)),
    "huber_loss": lambda t, n: F.huber_loss(t(2, 4), t(2, 4)),
    "mse_loss": lambda t, n: F.mse_loss(t(2, 4), t(2, 4)),
    "margin_ranking_loss": lambda t, n: F.margin_ranking_loss(t(2), t(2), n(2)),
    "multilabel_margin_loss": lambda t, n: F.multilabel_margin_loss(t(2, 4), n(2, 4)),
    "soft_margin_loss": lambda t, n: F.soft_margin_loss(t(2, 4), t(2, 4)),
    "triplet_margin_loss": lambda t, n: F.triplet_margin_loss(t(2, 4), t(2, 4), t(2, 4)),
    "multi_margin_loss": lambda t, n: F.multi_margin_loss(t(2, 4), n(2)),
    "binary_cross_entropy_with_logits": lambda t, n: F.binary_cross_entropy_with_logits(t(2, 4), t(2, 4)),
    "dist": lambda t, n: torch.dist(t(2, 4), t(2, 4)),
    "pdist": lambda t, n: F.pdist(t(3, 4)),
    "cdist": lambda t, n: torch.cdist(t(3, 4), t(5, 4)),
    "renorm": lambda t, n: torch.renorm(t(3, 4), 2, 0, 1.0),
    "logsumexp": lambda t, n: torch.logsumexp(t(3, 4), -1),
    "upsample_nearest1d": lambda t, n: F.interpolate(t(2, 4, 8), scale_factor=2, mode="nearest"),
    "_upsample_nearest_exact1d": lambda t, n: F.interpolate(t(2, 4, 8), scale_factor=2, mode="nearest-exact"),
    "upsample_nearest2d": lambda t, n: F.interpolate(t(2, 4, 8, 8), scale_factor=2, mode="nearest"),
    "_upsample_nearest_exact2d": lambda t, n: F.interpolate(t(2, 4, 8, 8), scale_factor=2, mode="nearest-exact"),
    "upsample_nearest3d": lambda t, n: F.interpolate(t(2, 4, 8, 8, 8), scale_factor=2, mode="nearest"),
    "_upsample_nearest_exact3d": lambda t, n: F.interpolate(t(2, 4, 8, 8, 8), scale_factor=2, mode="nearest-exact"),
    "upsample_linear1d": lambda t, n: F.interpolate(t(2, 4, 8), scale_factor=2, mode="linear"),
    "upsample_bilinear2d": lambda t, n: F.interpolate(t(2, 4, 8, 8), scale_factor=2, mode="bilinear"),
    "_upsample_bilinear2d_aa": lambda t, n: F.interpolate(t(2, 4, 8, 8), size=4, mode="bilinear", antialias=True),
    "upsample_trilinear3d": lambda t, n: F.interpolate(t(2, 4, 8, 8, 8), scale_factor=2, mode="trilinear"),
    "upsample_bicubic2d": lambda t, n: F.interpolate(t(2, 4, 8, 8), scale_factor=2, mode="bicubic"),
    "_upsample_bicubic2d_aa": lambda t, n: F.interpolate(t(2, 4, 8, 8), size=4, mode="bicubic", antialias=True),
}
FLOAT32_OUTPUT = {
    "prod": lambda t, n: torch.prod(t(2, 4)),
    "prod.dim_int": lambda t, n: torch.prod(t(2, 4), 1),
    "softmax.int": lambda t, n: torch.softmax(t(2, 4), -1),
    "softmax to a dtype": lambda t, n: torch.softmax(t(2, 4), -1, dtype=torch.float32),
    "softmax to float64": lambda t, n: torch.softmax(t(2, 4), -1, dtype=torch.float64),
    "log_softmax.int": lambda t, n: torch.log_softmax(t(2, 4), -1),
    "cumprod": lambda t, n: torch.cumprod(t(2, 4), 1),
    "cumsum": lambda t, n: torch.cumsum(t(2, 4), 1),
    "cumsum to a dtype": lambda t, n: torch.cumsum(t(2, 4), 1, dtype=torch.float16),
    "linalg_vector_norm": lambda t, n: torch.linalg.vector_norm(t(2, 4)),
    "linalg_matrix_norm": lambda t, n: torch.linalg.matrix_norm(t(2, 4)),
    "linalg_matrix_norm.str_ord": lambda t, n: torch.linalg.matrix_norm(t(2, 4), "fro"),
    "sum": lambda t, n: torch.sum(t(2, 4)),
    "sum.dim_IntList": lambda t, n: torch.sum(t(2, 4), 1),
    "sum of integers": lambda t, n: torch.sum(n(2, 4)),
    "norm": lambda t, n: torch.norm(t(2, 4)),
    "norm.Scalar": lambda t, n: aten.norm.Scalar(t(2, 4), 2),
    "norm.ScalarOpt_dim": lambda t, n: aten.norm.ScalarOpt_dim(t(2, 4), 2, [1]),
}
# The second maker of the promote list gives float32, so that inputs mix.
PROMOTE = {
    "addcdiv": lambda t, n, w: torch.addcdiv(t(2, 4), w(2, 4), t(2, 4)),
    "addcmul": lambda t, n, w: torch.addcmul(t(2, 4), t(2, 4), w(2, 4)),
    "atan2": lambda t, n, w: torch.atan2(t(2, 4), w(2, 4)),
    "bilinear": lambda t, n, w: F.bilinear(t(2, 4), w(2, 5), t(3, 4, 5), t(3)),
    "cross": lambda t, n, w: torch.cross(t(2, 3), w(2, 3), dim=1),
    "dot": lambda t, n, w: torch.dot(t(4), w(4)),
    "vdot": lambda t, n, w: torch.vdot(t(4), w(4)),
    "grid_sampler": lambda t, n, w: F.grid_sample(t(2, 3, 4, 4), w(2, 5, 5, 2), align_corners=False),
    "index_put": lambda t, n, w: torch.index_put(t(4), [n(2)], w(2)),
    "tensordot": lambda t, n, w: torch.tensordot(t(2, 4), w(4, 5), dims=1),
    "scatter_add": lambda t, n, w: torch.scatter_add(t(2, 4), 1, n(2, 4), w(2, 4)),
}
# On no list: they run in the dtype that they are given, or promote as they would without autocast.
UNLISTED = {
    "add": lambda t, n, w: t(2, 4) + w(2, 4),
    "cat": lambda t, n, w: torch.cat([t(2, 4), w(2, 4)]),
    "stack": lambda t, n, w: torch.stack([t(2, 4), w(2, 4)]),
    "where": lambda t, n, w: torch.where(n(2, 4) > 0, t(2, 4), w(2, 4)),
    **{name: (lambda t, n, w, name=name: getattr(F, name)(t(2, 4))) for name in (
        "gelu", "relu", "silu", "tanh", "sigmoid", "elu")},
    "mean": lambda t, n, w: t(2, 4).mean(),
    "dropout": lambda t, n, w: F.dropout(t(2, 4), 0.1),
    "embedding": lambda t, n, w: F.embedding(n(3), t(7, 4)),
    "batch_norm": lambda t, n, w: F.batch_norm(t(2, 4, 8), w(4), w(4), w(4), w(4), training=True),
    "max_pool2d": lambda t, n, w: F.max_pool2d(t(2, 4, 8, 8), 2),
    "index_copy": lambda t, n, w: torch.index_copy(t(4, 2), 0, n(2), t(2, 2)),
    "square": lambda t, n, w: t(2, 4).square(),
    "sqrt": lambda t, n, w: t(2, 4).sqrt(),
    "std": lambda t, n, w: t(2, 4).std(-1),
    "var": lambda t, n, w: t(2, 4).var(-1),
}


def cases():
    """Name, list and function of each case; it takes makers of tensors, of integers and of float32 tensors."""
    lists = (("lower precision", LOWER_PRECISION), ("float32", FLOAT32), ("float32 output", FLOAT32_OUTPUT))
    for group, table in lists:
        for name, case in table.items():
            yield name, group, lambda t, n, w, case=case: case(t, n)
    for group, table in (("promote", PROMOTE), ("unlisted", UNLISTED)):
        for name, case in table.items():
            yield f"{name}, mixed", group, case
            yield name, group, lambda t, n, w, case=case: case(t, n, t)
    yield "binary_cross_entropy", "banned", lambda t, n, w: F.binary_cross_entropy(t(2, 4), t(2, 4))


def run_case(case, device: torch.device, autocast_dtype: torch.dtype, input_dtype: torch.dtype) -> dict:
    """Dtypes that one call gives under autocast, and what it allocates."""
    from tests.cuda_dispatch.allocations import Allocations, dtypes

    made = []

    def maker(dtype):
        def make(*shape):
            made.append(torch.empty(shape, dtype=dtype, device=device))
            return made[-1]
        return make

    allocations = Allocations(device)
    with torch.autocast(device.type, dtype=autocast_dtype), allocations:
        try:
            out = case(maker(input_dtype), maker(torch.int64), maker(torch.float32))
        except Exception as error:  # what an operator refuses is a fact about it, too
            return {"error": type(error).__name__}
    rows = [row for row in allocations.rows if row[0] != "aten.empty.memory_format"]
    return {"dtypes": dtypes(out), "allocations": rows}
