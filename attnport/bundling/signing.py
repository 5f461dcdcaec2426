"""Signs a bundle: writes `bundle.sig` beside its manifest, with an Ed25519 private key from outside the bundle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.errors import UsageError
from attnport.optional import require
from attnport_bundle.errors import BundleError
from attnport_bundle.format.files import message, read_key, refuse_inside
from attnport_bundle.format.manifest import MANIFEST, SIGNATURE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PASSWORD = "ATTNPORT_KEY_PASSWORD"
"""The environment variable with the password of an encrypted key; every user of a machine can see arguments."""
_HOW = "Make one with: openssl genpkey -algorithm ed25519 -out KEY"


def sign(folder: Path, key: Path) -> None:
    """Writes the signature of the bundle `folder`; the same key and manifest always give the same bytes.

    Args:
        key: The private key: PEM, PKCS 8; the password of an encrypted key is in `$ATTNPORT_KEY_PASSWORD`.

    Raises:
        UsageError: the key cannot be read, is not an Ed25519 private key, or lies in the bundle.
        MissingDependency: the package cryptography is not installed.
    """
    signature = private_key(key, folder).sign(message((folder / MANIFEST).read_bytes()))
    (folder / SIGNATURE).write_bytes(signature)


def private_key(path: Path, *folders: Path) -> Ed25519PrivateKey:
    """Reads a private key, which may not lie in any of the folders; raises as `sign`."""
    require("cryptography")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    password = os.environ.get(PASSWORD)
    try:
        for folder in folders:
            refuse_inside(path, folder)
        key = load_pem_private_key(read_key(path), None if password is None else password.encode())
    except BundleError as err:
        raise UsageError(str(err)) from err
    except TypeError as err:  # an encrypted key without a password, or the reverse
        raise UsageError(f"{path}: {err}", hint=f"The password of a key is read from ${PASSWORD}.") from err
    except (ValueError, UnsupportedAlgorithm) as err:
        raise UsageError(
            f"{path} is not a private key in PEM form, or ${PASSWORD} is not its password.", hint=_HOW
        ) from err
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path}: got {type(key).__name__}; expected an Ed25519 private key.", hint=_HOW)
    return key
