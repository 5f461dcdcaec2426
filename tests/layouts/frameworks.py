"""Run by the Python of LangChain and LlamaIndex: a query's vector and those of texts, as each asks a bundle for them.

python frameworks.py APP < TEXTS.json
"""

from __future__ import annotations

import asyncio
import json
import sys

sys.path.append(f"{sys.argv[1]}/python")
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.embeddings.langchain import LangchainEmbedding

from attnport_bundle import load

texts = json.load(sys.stdin)
model = load(sys.argv[1])


def stored(store: InMemoryVectorStore, ids: list[str]) -> list[list[float]]:
    """The vectors that a store keeps."""
    return [store.store[each]["vector"] for each in ids]


async def awaited() -> dict[str, object]:
    """As applications that await everything ask."""
    store, index = InMemoryVectorStore(embedding=model), LangchainEmbedding(model)
    return {
        "langchain awaited": (
            await store.embedding.aembed_query(texts[0]),
            stored(store, await store.aadd_texts(texts)),
        ),
        "llama_index awaited": (
            await index.aget_query_embedding(texts[0]),
            await index.aget_text_embedding_batch(texts),
        ),
    }


store, index = InMemoryVectorStore(embedding=model), LangchainEmbedding(model)
found: dict[str, object] = {
    "langchain": (store.embedding.embed_query(texts[0]), stored(store, store.add_texts(texts))),
    "llama_index": (index.get_query_embedding(texts[0]), index.get_text_embedding_batch(texts)),
}
print(json.dumps(found | asyncio.run(awaited())))
