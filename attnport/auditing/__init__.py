"""Finds what a file reveals: where and by whom it was made, notes and source lines, data among its constants.

In order: `text`, a finding and what any text reveals; `onnx_file`, all else that an ONNX file holds, and how its notes
are removed.
"""
