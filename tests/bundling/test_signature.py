"""The signature of a bundle: what it covers, which keys are taken, and what is said where it is not checked."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_folders import tree
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)
from refusing import call

from attnport.bundling.signing import PASSWORD, private_key, sign
from attnport.errors import MissingDependency, UsageError
from attnport.verbs.bundle import bundle
from attnport.verbs.verify import raise_for, verify
from attnport_bundle import BundleError, IntegrityError, RuntimeMissing, load
from attnport_bundle.format import files as signature
from attnport_bundle.model import selftest

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SPKI = PublicFormat.SubjectPublicKeyInfo
DER = KEY.public_key().public_bytes(Encoding.DER, SPKI)
P = 2**255 - 19


def private_pem(key: Ed25519PrivateKey, how: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how or NoEncryption())


def public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, SPKI)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.pem"
    path.write_bytes(private_pem(KEY))
    return path


@pytest.fixture
def public(tmp_path: Path) -> Path:
    path = tmp_path / "public.pem"
    path.write_bytes(public_pem(KEY.public_key()))
    return path


@pytest.fixture
def signed(app: Path, secret: Path) -> Path:
    sign(app, secret)
    return app


def test_a_signed_bundle_is_verified_and_loaded_with_its_key(signed: Path, public: Path) -> None:
    row = verify(signed, public).rows[0]
    fingerprint = hashlib.sha256(DER).hexdigest()[:16]
    assert (row.check, row.verdict, row.detail) == ("signature", "PASS", f"ed25519 {fingerprint}")
    with load(signed, require_signature=public) as model:
        assert model.io.inputs


def test_without_a_key_it_is_said_that_the_signature_was_not_checked(app: Path, secret: Path) -> None:
    before = verify(app)
    sign(app, secret)
    after = verify(app)
    said = [(result.exit_code, result.rows[0].verdict, result.rows[0].detail) for result in (before, after)]
    assert said == [(0, "NOT_RUN", "not signed"), (0, "NOT_RUN", "not checked: no --key")]
    assert [row.detail for row in selftest(app).rows if row.check == "signature"] == ["not checked: no --key"]


def test_signing_again_gives_the_same_64_bytes(signed: Path, secret: Path) -> None:
    first = (signed / "bundle.sig").read_bytes()
    sign(signed, secret)
    assert (signed / "bundle.sig").read_bytes() == first
    assert len(first) == signature.BYTES


def test_a_bundle_is_signed_as_it_is_made_and_made_twice_it_is_equal(
    artifact: Path, tmp_path: Path, secret: Path, public: Path
) -> None:
    made = [bundle(artifact, tmp_path / name, sign=secret) for name in ("one", "two")]
    assert tree(made[0]) == tree(made[1])
    raise_for(verify(made[0], public))


def test_a_key_that_is_not_taken_leaves_no_bundle(artifact: Path, tmp_path: Path, secret: Path) -> None:
    with pytest.raises(UsageError, match="proves nothing"):
        bundle(artifact, tmp_path / "new", sign=secret.rename(artifact / "secret.pem"))
    assert not (tmp_path / "new").exists()


def test_it_is_said_when_a_signed_bundle_is_replaced_by_one_that_is_not(signed: Path, artifact: Path) -> None:
    said: list[str] = []
    bundle(artifact, signed, progress=said.append)
    assert any("was signed" in line for line in said)
    assert not (signed / "bundle.sig").exists()


def test_a_signature_of_the_bare_manifest_is_not_taken(signed: Path, public: Path) -> None:
    # Without the prefix, whoever gets anything at all signed with the key has a signature of a manifest.
    (signed / "bundle.sig").write_bytes(KEY.sign((signed / "bundle.json").read_bytes()))
    with pytest.raises(IntegrityError, match="not one of this manifest"):
        verify(signed, public)


def test_trusting_the_disk_does_not_trust_the_signature(signed: Path, public: Path) -> None:
    load(signed, require_signature=public, check_files=False).close()
    (signed / "bundle.sig").write_bytes(bytes(64))
    load(signed, check_files=False).close()
    with pytest.raises(IntegrityError, match="not one of this manifest"):
        load(signed, require_signature=public, check_files=False)


def test_a_signed_bundle_with_a_changed_file_is_refused(signed: Path, public: Path) -> None:
    (signed / "README.md").write_text("other")
    with pytest.raises(IntegrityError, match=r"README.md: changed"):
        raise_for(verify(signed, public))


def test_an_artifact_folder_is_not_taken_for_a_bundle_that_was_to_be_signed(artifact: Path, public: Path) -> None:
    with pytest.raises(UsageError, match="bundles alone are signed"):
        verify(artifact, public)


def test_the_command_line_signs_and_verifies_with_a_key_from_outside(
    artifact: Path, tmp_path: Path, secret: Path, public: Path
) -> None:
    app, other = tmp_path / "new", tmp_path / "other.pem"
    other.write_bytes(public_pem(Ed25519PrivateKey.generate().public_key()))
    made = call("bundle", artifact, "-o", app, "--sign", secret)
    assert made.exit_code == 0, made.output
    good = call("verify", app, "--key", public, "--json")
    assert good.exit_code == 0, good.output
    (row,) = (row for row in json.loads(good.stdout)["rows"] if row["check"] == "signature")
    assert row["verdict"] == "PASS"
    assert call("verify", app, "--key", other).exit_code == 6
    unchecked = call("verify", app)
    assert unchecked.exit_code == 0
    assert "not checked" in " ".join(unchecked.stdout.split())


def test_the_command_line_refuses_a_key_for_what_is_not_signed(
    artifact: Path, app: Path, tmp_path: Path, public: Path
) -> None:
    assert call("verify", app, "--key", public).exit_code == 6
    assert call("verify", artifact, "--key", public).exit_code == 2
    assert call("verify", app, "--key", tmp_path / "no.pem").exit_code == 2
    assert call("bundle", artifact, "-o", tmp_path / "new", "--sign", public).exit_code == 2
    assert not (tmp_path / "new").exists()


def test_openssl_makes_the_keys_and_checks_the_signature(app: Path, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")

    def run(*arguments: str) -> str:
        return subprocess.run([openssl, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    run("genpkey", "-algorithm", "ed25519", "-out", "key.pem")
    run("pkey", "-in", "key.pem", "-pubout", "-out", "pub.pem")
    sign(app, tmp_path / "key.pem")
    raise_for(verify(app, tmp_path / "pub.pem"))
    (tmp_path / "text").write_bytes(b"attnport-bundle-signature-v1\0" + (app / "bundle.json").read_bytes())
    check = ["pkeyutl", "-verify", "-pubin", "-inkey", "pub.pem", "-rawin", "-in", "text", "-sigfile"]
    assert "Verified Successfully" in run(*check, str(app / "bundle.sig"))


RSA = generate_private_key(65537, 2048)
NO_PUBLIC_KEYS: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "not a public key in PEM form"),
    "text": (lambda: b"ssh-ed25519 AAAA", "not a public key in PEM form"),
    "raw bytes": (lambda: DER[-32:], "not a public key in PEM form"),
    "a private key": (lambda: private_pem(KEY), "not a public key in PEM form"),
    "RSA": (lambda: RSA.public_key().public_bytes(Encoding.PEM, SPKI), "expected an Ed25519 public key"),
    "small order": (lambda: public_pem(Ed25519PublicKey.from_public_bytes(bytes([1]) + bytes(31))), "small order"),
}


@pytest.mark.parametrize("kind", NO_PUBLIC_KEYS)
def test_a_key_that_is_none_is_refused_as_bad_input(signed: Path, public: Path, kind: str) -> None:
    content, says = NO_PUBLIC_KEYS[kind]
    public.write_bytes(content())
    with pytest.raises(BundleError, match=says) as raised:
        load(signed, require_signature=public)
    assert raised.value.exit_code == 2
    with pytest.raises(BundleError, match=says):
        verify(signed, public)


def test_a_key_file_that_is_not_there_or_a_folder_is_bad_input(signed: Path, tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none.pem", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(BundleError, match=says) as raised:
            load(signed, require_signature=path)
        assert raised.value.exit_code == 2
        with pytest.raises(UsageError, match=says):
            sign(signed, path)


NO_PRIVATE_KEYS: dict[str, tuple[Callable[[], bytes], str | None, str]] = {
    "text": (lambda: b"secret", None, "not a private key in PEM form"),
    "a public key": (lambda: public_pem(KEY.public_key()), None, "not a private key in PEM form"),
    "RSA": (lambda: RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), None, "expected an Ed25519"),
    "no password": (lambda: private_pem(KEY, BestAvailableEncryption(b"word")), None, "[Pp]assword"),
    "a wrong password": (lambda: private_pem(KEY, BestAvailableEncryption(b"word")), "other", "is not its password"),
    "a password too many": (lambda: private_pem(KEY), "word", "not encrypted"),
}


@pytest.mark.parametrize("kind", NO_PRIVATE_KEYS)
def test_what_cannot_sign_is_bad_input_and_leaves_no_signature(
    app: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    content, password, says = NO_PRIVATE_KEYS[kind]
    secret.write_bytes(content())
    if password is not None:
        monkeypatch.setenv(PASSWORD, password)
    with pytest.raises(UsageError, match=says):
        sign(app, secret)
    assert not (app / "bundle.sig").exists()


def test_an_encrypted_key_signs_with_its_password_from_the_environment(
    app: Path, secret: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret.write_bytes(private_pem(KEY, BestAvailableEncryption(b"word")))
    monkeypatch.setenv(PASSWORD, "word")
    sign(app, secret)
    raise_for(verify(app, public))


def moved(key: Path, app: Path) -> Path:
    return key.rename(app / "key.pem")


def link_in_bundle(key: Path, app: Path) -> Path:
    (app / "key.pem").symlink_to(key)
    return app / "key.pem"


def link_to_bundle(key: Path, app: Path) -> Path:
    link = key.with_name("link.pem")
    link.symlink_to(moved(key, app))
    return link


def through_a_linked_folder(key: Path, app: Path) -> Path:
    (app.parent / "alias").symlink_to(app, target_is_directory=True)
    return app.parent / "alias" / moved(key, app).name


PLACES = [moved, link_in_bundle, link_to_bundle, through_a_linked_folder]


@pytest.mark.parametrize("place", PLACES)
def test_a_public_key_of_the_bundle_proves_nothing(
    signed: Path, public: Path, place: Callable[[Path, Path], Path]
) -> None:
    with pytest.raises(BundleError, match="proves nothing") as raised:
        load(signed, require_signature=place(public, signed), check_files=False)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("place", PLACES)
def test_a_private_key_in_the_folder_is_not_signed_with(
    app: Path, secret: Path, place: Callable[[Path, Path], Path]
) -> None:
    with pytest.raises(UsageError, match="proves nothing"):
        private_key(place(secret, app), app)


def test_a_key_beside_the_bundle_is_taken_whatever_its_folder_is_called(signed: Path, public: Path) -> None:
    beside = signed.with_name(signed.name + "-keys")
    beside.mkdir()
    raise_for(verify(signed, public.rename(beside / "public.pem")))


def test_without_the_package_a_signature_that_is_wanted_is_refused(
    signed: Path, public: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeMissing, match="pip install cryptography"):
        load(signed, require_signature=public)
    with pytest.raises(MissingDependency) as raised:
        sign(signed, secret)
    assert raised.value.hint == "pip install cryptography"
    raise_for(verify(signed))


def encodings_of_small_order() -> list[bytes]:
    """Every spelling of the eight points of small order, by the curve's own addition (RFC 8032, section 5.1.4)."""
    d = -121665 * pow(121666, -1, P) % P

    def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        k = d * a[0] * b[0] * a[1] * b[1]
        x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + k, -1, P)
        return x % P, (a[1] * b[1] + a[0] * b[0]) * pow(1 - k, -1, P) % P

    # A point of order 8, as libsodium lists it: https://github.com/jedisct1/libsodium, ge25519_has_small_order.
    y = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
    x = pow((y * y - 1) * pow(d * y * y + 1, -1, P) % P, (P + 3) // 8, P)
    if (x * x * (d * y * y + 1) - (y * y - 1)) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    points = [(0, 1)]
    while (following := add(points[-1], (x, y))) != points[0]:
        points.append(following)
    assert len(points) == 8
    spelled = {value for _, y in points for value in (y, y + P) if value < 1 << 255}
    return [(value | bit).to_bytes(32, "little") for value in spelled for bit in (0, 1 << 255)]


def test_every_point_of_small_order_is_known_however_it_is_spelled() -> None:
    encodings = encodings_of_small_order()
    assert len(encodings) == 14
    assert all(signature.is_small_order(key) for key in encodings)


def test_keys_that_people_have_are_not_of_small_order() -> None:
    keys = [Ed25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(50)]
    assert not any(signature.is_small_order(key) for key in keys)


def test_a_key_of_small_order_would_take_any_text() -> None:
    point = bytes([1]) + bytes(31)
    pem = Ed25519PublicKey.from_public_bytes(point).public_bytes(Encoding.PEM, SPKI)
    key = load_pem_public_key(pem)
    assert isinstance(key, Ed25519PublicKey)
    for text in (b"one", b"other"):
        key.verify(point + bytes(32), text)
