"""Attentions with relative positions in the scores, against transformers on equal weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_reference import attend, distances, heads, inputs, kept, project_out, query_key_value, run
from torch import nn

from attnport.masks import numpy_biases
from attnport.models.base import build
from attnport.models.self_attention import DisentangledAttention, RelativeBiasAttention

LENGTHS = [1, 2, 7, 150]


@pytest.mark.parametrize("seq", LENGTHS)
def test_relative_bias_attention_equals_transformers_t5_on_equal_weights(seq: int) -> None:
    pytest.importorskip("transformers")
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    module, given = build(RelativeBiasAttention), inputs(2, seq, right=seq // 3)
    config = T5Config(d_model=64, d_kv=16, num_heads=4, dropout_rate=0.0)
    config._attn_implementation = "eager"
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    for name, projection in (("q", "query"), ("k", "key"), ("v", "value")):
        getattr(theirs, name).load_state_dict(getattr(module.project, projection).state_dict())
    theirs.o.load_state_dict(module.out.state_dict())
    theirs.relative_attention_bias.load_state_dict(module.positions.table.state_dict())
    hidden = torch.where(given["attention_mask"] == 0, torch.finfo(torch.float32).min, 0.0)[:, None, None].float()
    with torch.no_grad():
        expected = theirs(given["x"].float(), mask=hidden)[0].numpy()
        got = module(given["x"].float(), given["attention_mask"]).numpy()
    np.testing.assert_allclose(got, expected, atol=2e-5)
    assert abs(expected).mean() > 0.1


def test_relative_bias_attention_equals_its_formula() -> None:
    module, given = build(lambda: RelativeBiasAttention(buckets=8, max_distance=9)), inputs(3, 21, right=4)
    table = module.positions.table.weight.detach().double().numpy()
    bias = numpy_biases.t5_bias(table, 21, 21, max_distance=9)
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), kept(given), bias, 1.0))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


@pytest.mark.parametrize("seq", LENGTHS)
def test_disentangled_attention_equals_transformers_deberta_on_equal_weights(seq: int) -> None:
    pytest.importorskip("transformers")
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    module, given = build(DisentangledAttention), inputs(2, seq, right=seq // 3)
    theirs = DisentangledSelfAttention(  # type: ignore[no-untyped-call]
        DebertaV2Config(  # type: ignore[call-arg]
            hidden_size=64,
            num_attention_heads=4,
            relative_attention=True,
            max_relative_positions=32,
            position_buckets=-1,
            pos_att_type=["c2p", "p2c"],
            share_att_key=False,
            attention_probs_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
        )
    ).eval()
    for name in ("query", "key", "value"):
        getattr(theirs, f"{name}_proj").load_state_dict(getattr(module.project, name).state_dict())
    theirs.pos_key_proj.load_state_dict(module.position_key.state_dict())
    theirs.pos_query_proj.load_state_dict(module.position_query.state_dict())
    with torch.no_grad():
        keep = given["attention_mask"].bool()[:, None, None]
        mixed, _ = theirs(given["x"].float(), keep, rel_embeddings=module.positions.weight)
        expected = module.out(mixed).numpy()
        got = module(given["x"].float(), given["attention_mask"]).numpy()
    np.testing.assert_allclose(got, expected, atol=5e-5)
    assert abs(expected).mean() > 0.1


def test_disentangled_attention_equals_its_formula() -> None:
    module, given = build(lambda: DisentangledAttention(reach=3)), inputs(2, 9, right=2)
    q, k, v = query_key_value(module.project, given["x"])
    table = module.positions.weight.detach().double()[None]
    kr, qr = heads(module.position_key, table)[0], heads(module.position_query, table)[0]
    d = np.where(distances(9) <= -3, 0, np.where(distances(9) >= 3, 5, distances(9) + 3))
    bias = np.zeros((2, 4, 9, 9))
    for i in range(9):
        for j in range(9):
            bias[:, :, i, j] += np.einsum("bhd,hd->bh", q[:, :, i], kr[:, d[i, j]])
            bias[:, :, i, j] += np.einsum("bhd,hd->bh", k[:, :, j], qr[:, d[i, j]])
    scale = (3 * 16) ** -0.5
    expected = project_out(module.out, attend(q, k, v, kept(given), bias * scale, scale))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


@pytest.mark.parametrize("attention", [RelativeBiasAttention, DisentangledAttention])
def test_relative_positions_do_not_see_where_a_sequence_stands(attention: type[nn.Module]) -> None:
    module, given = build(attention), inputs(1, 10)
    moved = {
        "x": torch.cat([torch.randn(1, 6, 64, dtype=torch.float64), given["x"]], dim=1),
        "attention_mask": torch.tensor([[0] * 6 + [1] * 10]),
    }
    np.testing.assert_allclose(run(module, **moved)[:, 6:], run(module, **given), atol=1e-12)
