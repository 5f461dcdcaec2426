"""From texts to a model's inputs: `tokenizer` makes ids, masks and padding; `wordpiece` reads BERT's files itself."""
