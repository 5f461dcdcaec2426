"""Modules of packages that people publish, each made small with random weights, for `sweep_packages.py`.

`benchmarks/packages.txt` pins the packages. They are imported when a module is made.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

PICTURE = "float32[batch,3,height,width]"
ROWS = "float32[batch,seq,32]"
IDS = "int64[batch,seq]:high=64"
KEEP = "bool[batch,seq]:padding"
_DECLARED = re.compile(r"(?:(\w+)=)?(\w+)\[([^\]]*)\](.*)")


@dataclass(frozen=True)
class Published:
    """A module, and what its forward is called with.

    Attributes:
        package: As it is installed.
        make: `package.module:Class`, or a function that returns the module.
        options: What the class is called with.
        inputs: Declarations as `--input` takes them, in the order of the forward's parameters; `NAME=` before one that
            is given by name.
        dims: The sizes of the example; the batch has 2 items.
        constants: Further arguments, by name.
    """

    package: str
    make: str | Callable[[], nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = (ROWS,)
    dims: Mapping[str, int] = field(default_factory=lambda: {"seq": 12})
    constants: Mapping[str, Any] = field(default_factory=dict)

    def module(self) -> nn.Module:
        """The module in eval mode; no weight is zero, as wrong numbers could look right then."""
        torch.manual_seed(0)
        made = called(self.make, self.options) if isinstance(self.make, str) else self.make()
        with torch.no_grad():
            for weight in made.parameters():
                if weight.is_floating_point() and weight.numel():
                    if not float(weight.abs().max()) < 100:  # memory that nobody has written to
                        weight.zero_()
                    weight.add_(0.02 * torch.randn(weight.shape))
        return made.float().eval()

    def declared(self, forward: Callable[..., Any]) -> dict[str, Given]:
        """What is declared of each input, by the name of its parameter."""
        positions = iter(inspect.signature(forward).parameters)
        found: dict[str, Given] = {}
        for text in self.inputs:
            match = _DECLARED.fullmatch(text)
            assert match is not None, text
            name, dtype, dims, marks = match.groups()
            sizes = tuple(int(dim) if dim.isdigit() else dim for dim in dims.split(",") if dim)
            found[name or next(positions)] = Given(dtype, sizes, marks)
        return found


@dataclass(frozen=True)
class Given:
    """What is declared of an input: its type, its dims, and its marks."""

    dtype: str
    dims: tuple[int | str, ...]
    marks: str

    def text(self, fixed: Mapping[str, int]) -> str:
        """The declaration, with the sizes of the dims that are `fixed`."""
        dims = ",".join(str(fixed.get(str(dim), dim)) for dim in self.dims)
        return f"{self.dtype}[{dims}]{self.marks}"

    def tensor(self, sizes: Mapping[str, int], seed: int) -> torch.Tensor:
        """A value of these sizes; a mask hides the last third of its first row."""
        shape = [dim if isinstance(dim, int) else sizes[dim] for dim in self.dims]
        generator = torch.Generator().manual_seed(seed)
        if "padding" in self.marks:
            shown = torch.ones(shape, dtype=torch.bool)
            shown[0, ..., shape[-1] - shape[-1] // 3 :] = False
            return (~shown if "hide" in self.marks else shown).to(getattr(torch, self.dtype))
        if self.dtype == "bool":
            allowed = torch.rand(shape, generator=generator) < 0.7
            allowed[..., 0] = True
            return allowed
        if self.dtype == "int64":
            high = re.search(r"high=(\d+)", self.marks)
            return torch.randint(0, int(high[1]) if high else 2, shape, generator=generator)
        return torch.randn(shape, generator=generator)


def called(path: str, options: Mapping[str, Any]) -> Any:
    """What a class or function of a package returns, called with options."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)(**options)


def of(
    package: str, make: str | Callable[[], nn.Module], *inputs: str, constants: Any = None, **given: Any
) -> Published:
    """A module; the sizes of its example are the options that end in `_`."""
    dims = {name[:-1]: value for name, value in given.items() if name.endswith("_")}
    options = {name: value for name, value in given.items() if not name.endswith("_")}
    usual = {"height": 32, "width": 32} if PICTURE in inputs else {"seq": 12}
    return Published(package, make, options, inputs or (ROWS,), {"batch": 2, **usual, **dims}, constants or {})


def _layers(kind: str, **options: Any) -> Any:
    """Attention layers of x-transformers."""
    return called(f"x_transformers:{kind}", {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8, **options})


def _x_text(kind: str, **options: Any) -> nn.Module:
    made: nn.Module = called(
        "x_transformers:TransformerWrapper",
        {"num_tokens": 64, "max_seq_len": 64, "attn_layers": _layers(kind, **options)},
    )
    return made


def _x_picture() -> nn.Module:
    sizes = {"image_size": 32, "patch_size": 8, "num_classes": 5, "attn_layers": _layers("Encoder")}
    made: nn.Module = called("x_transformers:ViTransformerWrapper", sizes)
    return made


def _x_rows() -> nn.Module:
    sizes = {"dim_in": 32, "dim_out": 8, "max_seq_len": 64, "attn_layers": _layers("Encoder", rotary_pos_emb=True)}
    made: nn.Module = called("x_transformers:ContinuousTransformerWrapper", sizes)
    return made


VIT = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64}
TIMM = {"pretrained": False, "img_size": 32, "num_classes": 5}
NARROW = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}


def _cvt() -> nn.Module:
    sizes = {f"s{at}_{name}": value for at in (1, 2, 3) for name, value in
             {"emb_dim": 16, "heads": 1, "depth": 1, "mlp_mult": 2}.items()}  # fmt: skip
    made: nn.Module = called("vit_pytorch.cvt:CvT", {"num_classes": 5, **sizes})
    return made


def _open_clip(part: str) -> nn.Module:
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
    text = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 4, "layers": 2}
    made = called("open_clip.model:CLIP", {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text})
    if part == "visual":
        found: nn.Module = made.visual
        return found
    return OfText(made)


class OfText(nn.Module):
    """The text side of CLIP, as applications call it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, text: torch.Tensor) -> Any:
        """As of the package."""
        return self.model.encode_text(text)


def _whisper(part: str) -> nn.Module:
    names = ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer",
             "n_vocab", "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer")  # fmt: skip
    dims = called("whisper.model:ModelDimensions", dict(zip(names, (80, 50, 32, 4, 2, 64, 48, 32, 4, 2), strict=True)))
    model = called("whisper.model:Whisper", {"dims": dims})
    found: nn.Module = model if part == "" else getattr(model, part)
    return found


def _esm(kind: str) -> nn.Module:
    import esm

    if kind == "esm2":
        made: nn.Module = esm.ESM2(num_layers=2, embed_dim=32, attention_heads=4, alphabet="ESM-1b")
        return made
    alphabet = esm.Alphabet.from_architecture(kind)
    sizes = SimpleNamespace(num_layers=2, layers=2, embed_dim=32, ffn_embed_dim=64, attention_heads=4, max_positions=64,
                            arch="roberta_large" if kind == "ESM-1b" else kind, dropout=0.0, attention_dropout=0.0,
                            activation_dropout=0.0, embed_positions_msa=True, max_tokens_per_msa=1 << 14,
                            logit_bias=True, emb_layer_norm_before=True, token_dropout=True,
                            max_tokens=1 << 14)  # fmt: skip
    model: nn.Module = (esm.MSATransformer if kind == "msa_transformer" else esm.ProteinBertModel)(sizes, alphabet)
    return model


def _enformer() -> nn.Module:
    import enformer_pytorch

    made: nn.Module = enformer_pytorch.Enformer.from_hparams(
        dim=96, depth=1, heads=4, output_heads={"human": 5}, target_length=-1, num_downsamples=3, dim_divisible_by=8,
        use_tf_gamma=False,
    )  # fmt: skip
    return made


def _retnet() -> nn.Module:
    from yet_another_retnet.retnet import RetNetDecoder, RetNetDecoderLayer

    made: nn.Module = RetNetDecoder(RetNetDecoderLayer(d_model=32, nhead=4, dim_feedforward=64), num_layers=2)
    return made


def _tabular(cat: bool) -> nn.Module:
    from rtdl_revisiting_models import FTTransformer

    sizes = {**FTTransformer.get_default_kwargs(n_blocks=2), "d_block": 32, "attention_n_heads": 4}
    made: nn.Module = FTTransformer(n_cont_features=6, cat_cardinalities=[4, 4] if cat else [], d_out=3, **sizes)
    return made


class Conv(nn.Module):
    """A layer of torch-geometric over edges."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = called(f"torch_geometric.nn:{kind}", {"in_channels": 16, "out_channels": 8, "heads": 2})

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
        """As of the package."""
        return self.layer(x, edges)


def _with_lora() -> nn.Module:
    import peft
    import transformers

    config = transformers.BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=64, max_position_embeddings=64)  # fmt: skip
    lora = peft.LoraConfig(r=4, target_modules=["query", "value"])
    made: nn.Module = peft.get_peft_model(transformers.BertModel(config), lora)
    return made


def _with_prefix() -> nn.Module:
    import peft
    import transformers

    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                      intermediate_size=64, max_position_embeddings=64)  # fmt: skip
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    made: nn.Module = peft.get_peft_model(transformers.LlamaForCausalLM(config), prompt)
    made.config.use_cache = False
    return made


def _litgpt(kind: str) -> nn.Module:
    from litgpt import GPT, Config

    own: dict[str, Any] = {"pythia": {}, "llama": {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP",
                           "n_query_groups": 2, "bias": False, "intermediate_size": 64},
                           "gemma": {"norm_class_name": "RMSNorm", "mlp_class_name": "GemmaMLP", "bias": False,
                                     "n_query_groups": 1, "intermediate_size": 64, "scale_embeddings": True,
                                     "attention_logit_softcapping": 50.0, "sliding_window_size": 8,
                                     "sliding_window_indices": [1, 0]}}[kind]  # fmt: skip
    made: nn.Module = GPT(Config(block_size=64, n_layer=2, n_embd=32, n_head=4, padded_vocab_size=64, **own))
    return made


def _keras_attention(kind: str) -> nn.Module:
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    if kind == "rows":
        rows = keras.Input((None, 32))
        attended = keras.layers.MultiHeadAttention(4, 8)(rows, rows)
        made: nn.Module = keras.Model(rows, keras.layers.LayerNormalization()(rows + attended))
        return made
    ids = keras.Input((None,), dtype="int64")
    vectors = keras.layers.Embedding(64, 32)(ids)
    attended = keras.layers.GroupQueryAttention(8, 4, 2)(vectors, vectors, use_causal_mask=True)
    text: nn.Module = keras.Model(ids, keras.layers.Dense(64)(vectors + attended))
    return text


class OfKeras(nn.Module):
    """A model of Keras by its call, whose own forward takes any arguments."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.model = _keras_attention(kind)

    def forward(self, x: torch.Tensor) -> Any:
        """As of the package."""
        return self.model(x)


def _patch_tst() -> nn.Module:
    from gluonts.torch.distributions import StudentTOutput
    from gluonts.torch.model.patch_tst.module import PatchTSTModel

    made: nn.Module = PatchTSTModel(
        prediction_length=4, context_length=32, patch_len=8, stride=8, padding_patch="end", d_model=32, nhead=4,
        dim_feedforward=64, dropout=0.0, activation="gelu", norm_first=False, num_encoder_layers=2,
        num_feat_dynamic_real=0, scaling="mean",
        distr_output=StudentTOutput(),
    )  # fmt: skip
    return made


def _i_transformer() -> nn.Module:
    from gluonts.torch.distributions import StudentTOutput
    from gluonts.torch.model.i_transformer.module import ITransformerModel

    made: nn.Module = ITransformerModel(
        prediction_length=4, context_length=32, d_model=32, nhead=4, dim_feedforward=64, dropout=0.0,
        activation="gelu", norm_first=False, num_encoder_layers=2, scaling="mean",
        distr_output=StudentTOutput(),
    )  # fmt: skip
    return made


def _torchscale(kind: str) -> nn.Module:
    from torchscale.architecture import config, decoder, encoder, retnet

    if kind == "encoder":
        sizes = {"encoder_embed_dim": 32, "encoder_attention_heads": 4, "encoder_ffn_embed_dim": 64,
                 "encoder_layers": 2, "vocab_size": 64}  # fmt: skip
        made: nn.Module = encoder.Encoder(config.EncoderConfig(**sizes), embed_tokens=nn.Embedding(64, 32),
                                          is_encoder_decoder=False)  # fmt: skip
        return made
    if kind == "decoder":
        sizes = {"decoder_embed_dim": 32, "decoder_attention_heads": 4, "decoder_ffn_embed_dim": 64,
                 "decoder_layers": 2, "vocab_size": 64}  # fmt: skip
        text: nn.Module = decoder.Decoder(config.DecoderConfig(**sizes), embed_tokens=nn.Embedding(64, 32))
        return text
    sizes = {"decoder_embed_dim": 32, "decoder_value_embed_dim": 64, "decoder_retention_heads": 4,
             "decoder_ffn_embed_dim": 64, "decoder_layers": 2, "vocab_size": 64}  # fmt: skip
    kept: nn.Module = retnet.RetNetDecoder(config.RetNetConfig(**sizes), embed_tokens=nn.Embedding(64, 32))
    return kept


class Rotated(nn.Module):
    """Self-attention with rotary positions, as the package's page shows it."""

    def __init__(self) -> None:
        super().__init__()
        from rotary_embedding_torch import RotaryEmbedding

        self.rotary, self.joint, self.out = RotaryEmbedding(dim=8), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As of the package."""
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.joint(x).chunk(3, dim=-1))
        q, k = self.rotary.rotate_queries_or_keys(q), self.rotary.rotate_queries_or_keys(k)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        done: torch.Tensor = self.out(found.transpose(1, 2).flatten(2))
        return done


class OfSentences(nn.Module):
    """A sentence-transformers model, whose own forward takes a dict."""

    def __init__(self) -> None:
        super().__init__()
        import transformers
        from sentence_transformers import models

        config = transformers.BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                         intermediate_size=64, max_position_embeddings=64)  # fmt: skip
        self.bert, self.pooling = transformers.BertModel(config), models.Pooling(32, "mean")
        self.dense, self.norm = models.Dense(32, 16), models.Normalize()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """As of the package."""
        features = {"attention_mask": attention_mask, "token_embeddings": self.bert(input_ids, attention_mask)[0]}
        found: torch.Tensor = self.norm(self.dense(self.pooling(features)))["sentence_embedding"]
        return found


def _sam_masks() -> nn.Module:
    from segment_anything.modeling import MaskDecoder, TwoWayTransformer

    inner = TwoWayTransformer(depth=2, embedding_dim=32, num_heads=4, mlp_dim=64)
    made: nn.Module = MaskDecoder(transformer_dim=32, transformer=inner, num_multimask_outputs=3)
    return made


def _mvit() -> nn.Module:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    def block(kernel: list[int], stride: list[int]) -> Any:
        return MSBlockConfig(num_heads=2, input_channels=16, output_channels=16, kernel_q=kernel, kernel_kv=kernel,
                             stride_q=stride, stride_kv=[1, 2, 2])  # fmt: skip

    made: nn.Module = MViT(
        (32, 32), 8, [block([3, 3, 3], [1, 1, 1]), block([3, 3, 3], [1, 2, 2])], residual_pool=True,
        residual_with_cls_embed=False, rel_pos_embed=True, proj_after_attn=True, num_classes=5,
    )  # fmt: skip
    return made


def _joey(kind: str) -> nn.Module:
    if kind == "encoder":
        from joeynmt.encoders import TransformerEncoder

        made: nn.Module = TransformerEncoder(hidden_size=32, ff_size=64, num_layers=2, num_heads=4)
        return made
    from joeynmt.decoders import TransformerDecoder

    text: nn.Module = TransformerDecoder(num_layers=2, num_heads=4, hidden_size=32, ff_size=64, vocab_size=64)
    return text


def _fuser() -> nn.Module:
    made: nn.Module = called("gliner.modeling.layers:CrossFuser", {
        "d_model": 32, "query_dim": 32, "num_heads": 4, "num_layers": 2})  # fmt: skip
    return made


def _coca() -> nn.Module:
    sizes = {"dim": 32, "image_dim": 32, "num_tokens": 64, "num_img_queries": 4, "dim_head": 8, "heads": 4}
    made: nn.Module = called("coca_pytorch:CoCa", {**sizes, "unimodal_depth": 1, "multimodal_depth": 1})
    return made


LATENT = "float32[batch,4,height,width]"
STEP = "float32[batch]"
STATES = "float32[batch,text,32]"
AS_TUPLE = {"return_dict": False}
PERCEIVER = {"depth": 1, "num_latents": 8, "latent_dim": 32, "cross_heads": 1, "latent_heads": 4, "cross_dim_head": 8,
             "latent_dim_head": 8}  # fmt: skip
SIZES_16 = {"height_": 16, "width_": 16}

MODULES: dict[str, Published] = {
    "x-transformers decoder": of("x-transformers", lambda: _x_text("Decoder"), IDS),
    "x-transformers encoder, mask": of("x-transformers", lambda: _x_text("Encoder"), IDS, "mask=" + KEEP),
    "x-transformers rotary": of("x-transformers", lambda: _x_text("Decoder", rotary_pos_emb=True), IDS),
    "x-transformers ALiBi, grouped": of(
        "x-transformers", lambda: _x_text("Decoder", alibi_pos_bias=True, attn_kv_heads=2), IDS
    ),
    "x-transformers flash": of("x-transformers", lambda: _x_text("Encoder", attn_flash=True), IDS, "mask=" + KEEP),
    "x-transformers picture": of("x-transformers", _x_picture, PICTURE),
    "x-transformers rows, mask": of("x-transformers", _x_rows, ROWS, "mask=" + KEEP),
    "vit-pytorch ViT": of("vit-pytorch", "vit_pytorch:ViT", PICTURE, **VIT),
    "vit-pytorch SimpleViT": of("vit-pytorch", "vit_pytorch:SimpleViT", PICTURE, **VIT),
    "vit-pytorch DeepViT": of("vit-pytorch", "vit_pytorch.deepvit:DeepViT", PICTURE, **VIT),
    "vit-pytorch CaiT": of("vit-pytorch", "vit_pytorch.cait:CaiT", PICTURE, **VIT, cls_depth=1),
    "vit-pytorch CvT": of("vit-pytorch", _cvt, PICTURE),
    "vit-pytorch XCiT": of("vit-pytorch", "vit_pytorch.xcit:XCiT", PICTURE, **VIT, cls_depth=1),
    "vit-pytorch MaxViT": of(
        "vit-pytorch", "vit_pytorch.max_vit:MaxViT", PICTURE, num_classes=5, dim_conv_stem=16, dim=16, dim_head=8,
        depth=(1, 1), window_size=2, mbconv_expansion_rate=2, mbconv_shrinkage_rate=0.25
    ),
    "vit-pytorch T2T": of(
        "vit-pytorch", "vit_pytorch.t2t:T2TViT", PICTURE, dim=32, image_size=32, depth=2, heads=4, mlp_dim=64,
        num_classes=5, t2t_layers=((7, 4), (3, 2))
    ),
    "vit-pytorch ViViT": of(
        "vit-pytorch", "vit_pytorch.vivit:ViViT", "float32[batch,3,frames,height,width]", image_size=32,
        image_patch_size=8, frames=4, frame_patch_size=2, num_classes=5, dim=32, spatial_depth=1, temporal_depth=1,
        heads=4, mlp_dim=64, frames_=4, height_=32, width_=32
    ),
    "timm ViT": of("timm", "timm:create_model", PICTURE, model_name="vit_tiny_patch16_224", **TIMM, **NARROW),
    "timm ViT, any size": of(
        "timm", "timm:create_model", PICTURE, model_name="vit_tiny_patch16_224", **TIMM, **NARROW, dynamic_img_size=True
    ),
    "timm Swin": of(
        "timm", "timm:create_model", PICTURE, model_name="swin_tiny_patch4_window7_224", **TIMM, window_size=4,
        embed_dim=16, depths=(2, 2), num_heads=(2, 4)
    ),
    "timm BEiT": of("timm", "timm:create_model", PICTURE, model_name="beit_base_patch16_224", **TIMM, **NARROW),
    "timm EVA02": of("timm", "timm:create_model", PICTURE, model_name="eva02_tiny_patch14_224", **TIMM, **NARROW),
    "timm CaiT": of("timm", "timm:create_model", PICTURE, model_name="cait_xxs24_224", **TIMM, **NARROW),
    "timm XCiT": of("timm", "timm:create_model", PICTURE, model_name="xcit_nano_12_p8_224", **TIMM, embed_dim=32,
                    depth=2, num_heads=4),
    "timm MaxViT": of(
        "timm", "timm:create_model", PICTURE, model_name="maxvit_rmlp_pico_rw_256", pretrained=False, num_classes=5,
        img_size=64, embed_dim=(32, 32), depths=(1, 1), height_=64, width_=64
    ),
    "timm Hiera": of("timm", "timm:create_model", PICTURE, model_name="hiera_tiny_224", pretrained=False, num_classes=5,
                     img_size=(64, 64), embed_dim=16, num_heads=1, stages=(1, 1), q_pool=1, height_=64, width_=64,
                     mask_unit_size=(8, 8), mask_unit_attn=(True, False)),
    "torchvision ViT": of(
        "torchvision", "torchvision.models.vision_transformer:VisionTransformer", PICTURE, image_size=32, patch_size=8,
        num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=5
    ),
    "torchvision Swin": of(
        "torchvision", "torchvision.models.swin_transformer:SwinTransformer", PICTURE, patch_size=[4, 4], embed_dim=16,
        depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=5
    ),
    "torchvision MaxVit": of(
        "torchvision", "torchvision.models.maxvit:MaxVit", PICTURE, input_size=(64, 64), stem_channels=16,
        partition_size=4, block_channels=[16, 32], block_layers=[1, 1], head_dim=8, stochastic_depth_prob=0.0,
        num_classes=5, height_=64, width_=64
    ),
    "torchvision MViT": of(
        "torchvision", _mvit, "float32[batch,3,frames,height,width]", frames_=8, height_=32, width_=32
    ),
    "diffusers Transformer2D": of(
        "diffusers", "diffusers:Transformer2DModel", LATENT, "encoder_hidden_states=" + STATES, constants=AS_TUPLE,
        num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=1, cross_attention_dim=32,
        norm_num_groups=2, height_=16, width_=16, text_=7
    ),
    "diffusers DiT": of(
        "diffusers", "diffusers:DiTTransformer2DModel", LATENT, "timestep=int64[batch]:high=1000",
        "class_labels=int64[batch]:high=10", constants=AS_TUPLE, num_attention_heads=4, attention_head_dim=8,
        in_channels=4, num_layers=2, sample_size=16, patch_size=2, num_embeds_ada_norm=10, height_=16, width_=16
    ),
    "diffusers UNet": of(
        "diffusers", "diffusers:UNet2DConditionModel", LATENT, "int64[batch]:high=1000", STATES, constants=AS_TUPLE,
        sample_size=16, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=32, norm_num_groups=4,
        attention_head_dim=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), height_=16, width_=16, text_=7
    ),
    "diffusers VAE": of(
        "diffusers", "diffusers:AutoencoderKL", PICTURE, constants=AS_TUPLE, block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4
    ),
    "diffusers SD3": of(
        "diffusers", "diffusers:SD3Transformer2DModel", LATENT, STATES, "float32[batch,16]", STEP, constants=AS_TUPLE,
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4, height_=16,
        width_=16, text_=7
    ),
    "diffusers PixArt": of(
        "diffusers", "diffusers:PixArtTransformer2DModel", LATENT, STATES, "int64[batch]:high=1000",
        constants={**AS_TUPLE, "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}, sample_size=16,
        num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
        cross_attention_dim=32, caption_channels=32, use_additional_conditions=False, height_=16, width_=16, text_=7
    ),
    "diffusers Flux": of(
        "diffusers", "diffusers:FluxTransformer2DModel", "float32[batch,pixels,16]", STATES, "float32[batch,16]", STEP,
        "img_ids=float32[pixels,3]", "txt_ids=float32[text,3]", constants=AS_TUPLE, patch_size=1, in_channels=16,
        num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=4, joint_attention_dim=32,
        pooled_projection_dim=16, axes_dims_rope=(2, 2, 4), pixels_=16, text_=7
    ),
    "open-clip picture": of("open-clip-torch", lambda: _open_clip("visual"), PICTURE),
    "open-clip text": of("open-clip-torch", lambda: _open_clip("text"), "int64[batch,seq]:high=64", seq_=16),
    "whisper encoder": of("openai-whisper", lambda: _whisper("encoder"), "float32[batch,80,frames]", frames_=100),
    "whisper decoder": of("openai-whisper", lambda: _whisper("decoder"), IDS, "float32[batch,frames,32]", frames_=50),
    "whisper": of("openai-whisper", lambda: _whisper(""), "float32[batch,80,frames]", "int64[batch,seq]:high=64",
                  frames_=100),
    "SAM picture": of(
        "segment-anything", "segment_anything.modeling:ImageEncoderViT", PICTURE, img_size=64, patch_size=8,
        embed_dim=32, depth=2, num_heads=4, out_chans=16, use_rel_pos=True, window_size=4, global_attn_indexes=(1,),
        height_=64, width_=64
    ),
    "SAM masks": of(
        "segment-anything", _sam_masks, "float32[1,32,side,side]", "float32[1,32,side,side]",
        "float32[points,2,32]", "float32[points,32,side,side]", constants={"multimask_output": True}, side_=8, points_=2
    ),
    "SAM TwoWay": of(
        "segment-anything", "segment_anything.modeling:TwoWayTransformer", "float32[batch,32,height,width]",
        "float32[batch,32,height,width]", "float32[batch,points,32]", depth=2, embedding_dim=32, num_heads=4,
        mlp_dim=64, height_=8, width_=8, points_=5
    ),
    "ESM2": of("fair-esm", lambda: _esm("esm2"), "int64[batch,seq]:high=33"),
    "ESM-1b": of("fair-esm", lambda: _esm("ESM-1b"), "int64[batch,seq]:high=33"),
    "ESM MSA": of("fair-esm", lambda: _esm("msa_transformer"), "int64[batch,rows,seq]:high=33", rows_=4),
    "conformer block": of("conformer", "conformer:ConformerBlock", ROWS, dim=32, dim_head=8, heads=4),
    "conformer": of("conformer", "conformer:Conformer", ROWS, dim=32, dim_head=8, heads=4, depth=2),
    "performer": of("performer-pytorch", "performer_pytorch:Performer", ROWS, dim=32, depth=1, heads=4, dim_head=8),
    "performer text": of(
        "performer-pytorch", "performer_pytorch:PerformerLM", IDS, "mask=" + KEEP, num_tokens=64, max_seq_len=64,
        dim=32, depth=1, heads=4, dim_head=8
    ),
    "local attention": of(
        "local-attention", "local_attention:LocalAttention", *["float32[batch,4,seq,8]"] * 3, dim=8, window_size=4,
        causal=True, autopad=True, seq_=16
    ),
    "local transformer": of(
        "local-attention", "local_attention:LocalTransformer", IDS, num_tokens=64, dim=32, depth=2, max_seq_len=64,
        causal=True, local_attn_window_size=4, heads=4, dim_head=8, seq_=16
    ),
    "perceiver": of(
        "perceiver-pytorch", "perceiver_pytorch:Perceiver", "float32[batch,height,width,3]", input_channels=3,
        input_axis=2, num_freq_bands=2, max_freq=4.0, num_classes=5, **PERCEIVER, height_=8, width_=8
    ),
    "perceiver IO": of(
        "perceiver-pytorch", "perceiver_pytorch:PerceiverIO", ROWS, "queries=float32[batch,asked,16]", dim=32,
        queries_dim=16, logits_dim=5, **PERCEIVER, asked_=6
    ),
    "perceiver text": of(
        "perceiver-pytorch", "perceiver_pytorch:PerceiverLM", IDS, "mask=" + KEEP, num_tokens=64, dim=32,
        max_seq_len=64, **PERCEIVER
    ),
    "memory efficient": of(
        "memory-efficient-attention-pytorch", "memory_efficient_attention_pytorch:Attention", ROWS, dim=32, dim_head=8,
        heads=4, memory_efficient=True, q_bucket_size=4, k_bucket_size=4
    ),
    "memory efficient, mask": of(
        "memory-efficient-attention-pytorch", "memory_efficient_attention_pytorch:Attention", ROWS, "mask=" + KEEP,
        dim=32, dim_head=8, heads=4
    ),
    "tab transformer": of(
        "tab-transformer-pytorch", "tab_transformer_pytorch:TabTransformer", "int64[batch,2]:high=4",
        "float32[batch,6]", categories=(4, 4), num_continuous=6, dim=32, depth=2, heads=4, dim_head=8, dim_out=3,
        mlp_act=nn.ReLU()
    ),
    "tab transformer, FT": of(
        "tab-transformer-pytorch", "tab_transformer_pytorch:FTTransformer", "int64[batch,2]:high=4",
        "float32[batch,6]", categories=(4, 4), num_continuous=6, dim=32, depth=2, heads=4, dim_head=8, dim_out=3
    ),
    "linear attention": of(
        "linear-attention-transformer", "linear_attention_transformer:LinearAttentionTransformerLM", IDS,
        num_tokens=64, dim=32, depth=2, max_seq_len=64, heads=4, dim_head=8, n_local_attn_heads=2,
        local_attn_window_size=4, seq_=16
    ),
    "linear attention, causal": of(
        "linear-attention-transformer", "linear_attention_transformer:LinearAttentionTransformerLM", IDS,
        num_tokens=64, dim=32, depth=2, max_seq_len=64, heads=4, dim_head=8, causal=True, seq_=16
    ),
    "reformer": of(
        "reformer-pytorch", "reformer_pytorch:ReformerLM", IDS, num_tokens=64, dim=32, depth=2, max_seq_len=64,
        heads=4, dim_head=8, bucket_size=4, n_hashes=2, ff_chunks=1, seq_=16
    ),
    "reformer, full": of(
        "reformer-pytorch", "reformer_pytorch:ReformerLM", IDS, num_tokens=64, dim=32, depth=2, max_seq_len=64,
        heads=4, dim_head=8, bucket_size=4, use_full_attn=True, causal=True, ff_chunks=1, seq_=16
    ),
    "enformer": of("enformer-pytorch", _enformer, "float32[batch,seq,4]", seq_=64),
    "soft MoE": of("soft-moe-pytorch", "soft_moe_pytorch:SoftMoE", ROWS, dim=32, seq_len=12, num_experts=4),
    "soft MoE, any length": of("soft-moe-pytorch", "soft_moe_pytorch:DynamicSlotsSoftMoE", ROWS, dim=32, num_experts=4),
    "retnet": of("yet-another-retnet", _retnet, ROWS),
    "retention": of(
        "yet-another-retnet", "yet_another_retnet.retention:MultiScaleRetention", *[ROWS] * 3, embed_dim=32, num_heads=4
    ),
    "FT-Transformer": of("rtdl-revisiting-models", lambda: _tabular(False), "float32[batch,6]",
                         constants={"x_cat": None}),
    "FT-Transformer, classes": of(
        "rtdl-revisiting-models", lambda: _tabular(True), "float32[batch,6]", "int64[batch,2]:high=4"
    ),
    **{
        f"geometric {kind}": of(
            "torch-geometric", lambda kind=kind: Conv(kind), "float32[nodes,16]", "int64[2,edges]:high=6", nodes_=6,
            edges_=9
        )
        for kind in ("GATConv", "GATv2Conv", "TransformerConv")
    },
    "geometric set": of(
        "torch-geometric", "torch_geometric.nn.aggr.utils:MultiheadAttentionBlock", ROWS, "float32[batch,other,32]",
        "x_mask=" + KEEP, channels=32, heads=4, other_=5
    ),
    "peft LoRA": of("peft", _with_lora, "input_ids=" + IDS, "attention_mask=int64[batch,seq]:padding"),
    "peft prompt": of("peft", _with_prefix, "input_ids=" + IDS, "attention_mask=int64[batch,seq]:padding"),
    "gliner fuser": of("gliner", _fuser, ROWS, "float32[batch,other,32]", other_=5),
    "gliner spans": of(
        "gliner", "gliner.modeling.span_rep:SpanRepLayer", ROWS, "int64[batch,spans,2]:high=3", hidden_size=32,
        max_width=3, span_mode="markerV0", dropout=0.0, spans_=6
    ),
    "litgpt Pythia": of("litgpt", lambda: _litgpt("pythia"), IDS),
    "litgpt Llama": of("litgpt", lambda: _litgpt("llama"), IDS),
    "litgpt Gemma": of("litgpt", lambda: _litgpt("gemma"), IDS),
    "ultralytics AIFI": of(
        "ultralytics", "ultralytics.nn.modules:AIFI", "float32[batch,32,height,width]", c1=32, cm=64, num_heads=4,
        height_=8, width_=8
    ),
    "ultralytics C2PSA": of(
        "ultralytics", "ultralytics.nn.modules:C2PSA", "float32[batch,128,height,width]", c1=128, c2=128, height_=8,
        width_=8
    ),
    "ultralytics A2C2f": of(
        "ultralytics", "ultralytics.nn.modules:A2C2f", "float32[batch,64,height,width]", c1=64, c2=64, n=1, a2=True,
        area=4, height_=8, width_=8
    ),
    "kornia ViT": of(
        "kornia", "kornia.models.vit:VisionTransformer", PICTURE, image_size=32, patch_size=8, in_channels=3,
        embed_dim=32, depth=2, num_heads=4
    ),
    "kornia LoFTR": of(
        "kornia", "kornia.feature.loftr.loftr_module.transformer:LocalFeatureTransformer", ROWS,
        "float32[batch,other,32]", config={"d_model": 32, "nhead": 4, "layer_names": ["self", "cross"],
                                           "attention": "linear"}, other_=9
    ),
    "kornia full attention": of(
        "kornia", "kornia.feature.loftr.loftr_module.linear_attention:FullAttention", "float32[batch,seq,4,8]",
        "float32[batch,other,4,8]", "float32[batch,other,4,8]", other_=9
    ),
    "keras attention": of("keras", lambda: OfKeras("rows"), ROWS),
    "keras grouped, causal": of("keras", lambda: OfKeras("text"), IDS),
    "gluonts PatchTST": of("gluonts", _patch_tst, "float32[batch,seq]", "float32[batch,seq]", seq_=32),
    "gluonts iTransformer": of("gluonts", _i_transformer, "float32[batch,seq,series]", "float32[batch,seq,series]",
                               seq_=32, series_=3),
    "gluonts variables": of(
        "gluonts", "gluonts.torch.model.tft.layers:GatedResidualNetwork", ROWS, d_hidden=16, d_input=32
    ),
    "torchscale encoder": of("torchscale", lambda: _torchscale("encoder"), IDS),
    "torchscale decoder": of("torchscale", lambda: _torchscale("decoder"), IDS),
    "torchscale RetNet": of("torchscale", lambda: _torchscale("retnet"), IDS),
    "joeynmt encoder": of("joeynmt", lambda: _joey("encoder"), ROWS, "mask=bool[batch,1,seq]:padding",
                          constants={"src_length": None}),
    "joeynmt decoder": of(
        "joeynmt", lambda: _joey("decoder"), ROWS, "encoder_output=float32[batch,other,32]",
        "src_mask=bool[batch,1,other]:padding", "trg_mask=bool[batch,seq,seq]",
        constants={"encoder_hidden": None, "unroll_steps": None, "hidden": None}, other_=7
    ),
    "rotary": of("rotary-embedding-torch", Rotated, ROWS),
    "linformer": of("linformer", "linformer:Linformer", ROWS, dim=32, seq_len=12, depth=2, heads=4, k=6),
    "linformer text": of(
        "linformer", "linformer:LinformerLM", IDS, num_tokens=64, dim=32, seq_len=12, depth=2, heads=4, k=6
    ),
    "nystrom": of("nystrom-attention", "nystrom_attention:NystromAttention", ROWS, "mask=" + KEEP, dim=32, dim_head=8,
                  heads=4, num_landmarks=4),
    "axial": of(
        "axial-attention", "axial_attention:AxialAttention", "float32[batch,32,height,width]", dim=32, dim_index=1,
        heads=4, num_dimensions=2, height_=8, width_=6
    ),
    "iTransformer": of(
        "itransformer", "iTransformer:iTransformer", "float32[batch,32,3]", num_variates=3, lookback_len=32, dim=32,
        depth=2, heads=4, dim_head=8, pred_length=4
    ),
    "recurrent memory": of(
        "recurrent-memory-transformer-pytorch", "recurrent_memory_transformer_pytorch:RecurrentMemoryTransformer", IDS,
        num_tokens=64, num_memory_tokens=4, dim=32, depth=2, seq_len=16, dim_head=8, heads=4
    ),
    "CoCa": of("coca-pytorch", _coca, IDS, "image_tokens=float32[batch,patches,32]", patches_=9),
    "sentence-transformers": of(
        "sentence-transformers", OfSentences, IDS, "int64[batch,seq]:padding"
    ),
}  # fmt: skip
"""By name, a module of each kind that a package has."""
