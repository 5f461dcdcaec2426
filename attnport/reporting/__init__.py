"""What is shown of a value, and the report of a folder.

In order: `document`, the blocks of a description; `measures` and `facts`, numbers and sentences that several subjects
share; a file for each subject (`fusion`, `parity`, `layers`, `latency`, `choice`, `files`, `machines`); `report`, which
puts them together; `html`, with `markup`, `charts` and `heatmap`, and `markdown`, which render; `ci`, for systems that
read JUnit XML or annotations.
"""
