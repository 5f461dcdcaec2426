"""Modules around an encoder: pooling, two towers, sets, graphs, and heads of tasks."""

from __future__ import annotations

import torch
from door_blocks import WIDTH, Block, Encoder, SelfAttention, hidden_keys, mean_pool
from door_case import MORE, Sizes, door, right_padding, ten
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as users write it

X, IDS, MASK = "x=float32[batch,seq,32]", "ids=int64[batch,seq]:high=100", "mask=int64[batch,seq]:padding"


class Pools(nn.Module):
    """The first token, the mean, the largest, and the last token by the length."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mix = Encoder(1), nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.encoder(ids, mask)
        last = x[torch.arange(x.shape[0], device=x.device), mask.sum(1) - 1]
        most = x.masked_fill(mask[..., None] == 0, -1e9).max(dim=1)[0]
        pooled = torch.stack([x[:, 0], mean_pool(x, mask), most, last], dim=-1)
        return F.normalize(self.mix(pooled).squeeze(-1), p=2, dim=-1)


@door(IDS, MASK)
def pooling_heads() -> nn.Module:
    torch.manual_seed(7)
    return Pools()


class Towers(nn.Module):
    """Queries and documents through one encoder; all pairs are scored."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.scale = Encoder(1), nn.Parameter(torch.tensor(2.0))

    def embed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.normalize(mean_pool(self.encoder(ids, mask), mask), dim=-1)

    def forward(
        self, query: torch.Tensor, query_mask: torch.Tensor, doc: torch.Tensor, doc_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        query, doc = self.embed(query, query_mask), self.embed(doc, doc_mask)
        return {"query": query, "doc": doc, "scores": query @ doc.T * self.scale.exp()}


def _mask(batch: str, seq: str) -> object:
    return lambda sizes, generator: right_padding({"batch": sizes[batch], "seq": sizes[seq]}, generator)


@door(
    "query=int64[queries,q_len]:high=100",
    "query_mask=int64[queries,q_len]:padding",
    "doc=int64[docs,d_len]:high=100",
    "doc_mask=int64[docs,d_len]:padding",
    sizes=ten(
        batch=(), seq=(), queries=(3, 1, 2, 5, 4, 1, 7, 2, 6, 8), q_len=MORE, docs=MORE[::-1], d_len=(11, *MORE[:9])
    ),
    values={"query_mask": _mask("queries", "q_len"), "doc_mask": _mask("docs", "d_len")},
)
def two_towers() -> nn.Module:
    torch.manual_seed(7)
    return Towers()


class SetTransformer(nn.Module):
    """Inducing points, then pooling by a seed; a set without order."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.seed = nn.Parameter(torch.randn(1, 6, WIDTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.read, self.write, self.pool = SelfAttention(), SelfAttention(), SelfAttention()

    def forward(self, items: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        real = torch.arange(items.shape[1])[None] < counts[:, None]
        added = torch.zeros_like(real, dtype=items.dtype).masked_fill(~real, -1e9)[:, None, None]
        held = self.read(self.points.expand(items.shape[0], -1, -1), added, items)
        items = items + self.write(items, memory=held)
        return self.pool(self.seed.repeat(items.shape[0], 1, 1), added, items)[:, 0]


@door("items=float32[batch,seq,32]", "counts=int64[batch]:padding:lengths")
def set_transformer() -> nn.Module:
    torch.manual_seed(7)
    return SetTransformer()


class GraphAttention(nn.Module):
    """Nodes attend along edges; the softmax is over the edges that arrive at a node."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x, (source, target) = self.project(nodes), edges
        score = F.leaky_relu(self.score(torch.cat([x[source], x[target]], dim=-1))).squeeze(-1)
        largest = score.new_full((nodes.shape[0],), -1e9).scatter_reduce(0, target, score, "amax")
        weight = (score - largest[target]).exp()
        total = torch.zeros_like(largest).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-9)
        return torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None])


def _edges(sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, sizes["nodes"], (2, sizes["links"]), generator=generator)


@door(
    "nodes=float32[nodes,32]",
    "edges=int64[2,links]",
    sizes=ten(batch=(), seq=(), nodes=(7, 1, 2, 5, 16, 33, 64, 3, 9, 12), links=(11, 1, 2, 7, 30, 3, 77, 5, 1, 128)),
    values={"edges": _edges},
)
def graph_attention() -> nn.Module:
    torch.manual_seed(7)
    return GraphAttention()


class Pointer(nn.Module):
    """Sizes as Python numbers, by len, int, size() and unpacking, and a constant of the batch's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.scores = Block(), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = len(x), int(x.size(1)), x.size()[-1]
        x = self.block(x) * torch.tensor(length, dtype=x.dtype).rsqrt()
        picked = self.scores(x).view(batch, length).softmax(dim=1)
        return torch.matmul(picked.view(batch, 1, length), x).view(-1, width)


@door(X)
def python_sizes() -> nn.Module:
    torch.manual_seed(7)
    return Pointer()


class Reranker(nn.Module):
    """A loop over layers that stops early by a setting, an assertion on sizes, and a sigmoid of one score."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.depth = Encoder(2), nn.Sequential(nn.Dropout(), nn.Linear(WIDTH, 1)), 1

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert ids.shape == mask.shape, "a mask for each token"
        x = self.encoder.embed(ids)
        for number, block in enumerate(self.encoder.blocks):
            if number > self.depth:
                break
            x = block(x, hidden_keys(mask))
        return self.head(x[:, 0]).squeeze(-1).sigmoid()


@door(IDS, MASK)
def reranker() -> nn.Module:
    torch.manual_seed(7)
    return Reranker()


class Joins(nn.Module):
    """Text and image patches in one sequence, with a mask for the text alone and kinds of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image, self.kinds = Encoder(1), nn.Linear(48, WIDTH), nn.Embedding(2, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True, activation="gelu")

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.text.embed(ids), self.image(patches)], dim=1)
        kinds = torch.cat([torch.zeros_like(ids), ids.new_ones(patches.shape[:2])], dim=1)
        real = torch.cat([mask.bool(), mask.new_ones(patches.shape[:2]).bool()], dim=1)
        return self.layer(both + self.kinds(kinds), src_key_padding_mask=~real)


@door(IDS, MASK, "patches=float32[batch,patch,48]", sizes=ten(patch=MORE))
def text_and_patches() -> nn.Module:
    torch.manual_seed(7)
    return Joins()
