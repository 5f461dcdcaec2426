"""`bundle --sign` and `verify --key`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attnport.cli import cli

serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")


def keys(folder: Path, seed: int) -> tuple[Path, Path]:
    """A private and a public key, as `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    private, public = folder / f"{seed}.pem", folder / f"{seed}.pub"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_a_bundle_is_signed_and_verified_with_a_key_from_outside(artifact: Path, tmp_path: Path) -> None:
    private, public = keys(tmp_path, 1)
    _, other = keys(tmp_path, 2)
    app = tmp_path / "app"
    made = call("bundle", artifact, "-o", app, "--sign", private)
    assert made.exit_code == 0, made.output
    good = call("verify", app, "--key", public, "--json")
    assert good.exit_code == 0, good.output
    (row,) = (row for row in json.loads(good.stdout)["rows"] if row["check"] == "signature")
    assert row["verdict"] == "PASS"
    assert call("verify", app, "--key", other).exit_code == 6
    unchecked = call("verify", app)
    assert unchecked.exit_code == 0
    assert "not checked" in " ".join(unchecked.stdout.split())


def test_a_key_for_what_is_not_signed(artifact: Path, app: Path, tmp_path: Path) -> None:
    _, public = keys(tmp_path, 1)
    assert call("verify", app, "--key", public).exit_code == 6
    assert call("verify", artifact, "--key", public).exit_code == 2
    assert call("verify", app, "--key", tmp_path / "no.pub").exit_code == 2
    assert call("bundle", artifact, "-o", tmp_path / "new", "--sign", public).exit_code == 2
    assert not (tmp_path / "new").exists()
