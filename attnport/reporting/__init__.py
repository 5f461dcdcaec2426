"""What is shown of a value, and the report of a folder.

In order: `document`, the blocks of a description; `facts`, what several subjects share; a file for each subject
(`fusion`, `parity`, `layers`, `latency`, `choice`); `report`, which puts them together, with the model and its files;
`html`, with `markup` and `charts`, and `markdown`, which render; `ci`, for systems that read JUnit XML or annotations.
"""
