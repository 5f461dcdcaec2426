"""What `verify` says of a bundle whose files are fine."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.bundling.python import selftest
from attnport.bundling.python.errors import RuntimeMissing
from attnport.errors import UnavailableError
from attnport.pipeline.verify import raise_for, verify


def test_a_bundle_in_which_no_model_ran_is_not_passed(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_runtime(*_: object, **__: object) -> object:
        raise RuntimeMissing("onnxruntime is not installed.")

    monkeypatch.setattr(selftest, "open_form", no_runtime)
    found = verify(app)
    assert (found.verdict, found.exit_code) == ("NOT_RUN", 3)
    with pytest.raises(UnavailableError, match=r"no model of it can run here: .*: onnxruntime is not installed"):
        raise_for(found)
