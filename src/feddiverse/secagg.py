"""Sums of which nobody sees the parts: what clients and server of secure aggregation both need (docs/trust.md).

The protocol is SecAgg+ (Bonawitz et al., CCS 2017; Bell et al., CCS 2020), as in Flower. Every pair of neighbours
agrees on a mask that one adds and the other subtracts; each client adds one more of its own. Secrets behind the masks
are shared among neighbours, so that the sum can be unmasked although some clients went away. Numbers are integers
modulo 2⁶⁴ (fixed point): masks cancel exactly, so the total does not depend on them, nor on the order of clients.

Nothing here is cryptography of our own: X25519, HKDF, ChaCha20 and ChaCha20-Poly1305 are those of `cryptography`,
Shamir's shares those of pycryptodome, the libraries beneath `flwr.common.secure_aggregation`. Its own mask generator is
not used: it seeds a Mersenne twister with 32 bits, which a server can try out.
"""

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError, how_to_install

if TYPE_CHECKING:  # libraries that only secure sums need
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

KEY = 32  # bytes of a public key, and of a key that two agreed on
KEYS = 3 * KEY  # to seal letters with, to agree on masks, and that of the own mask, by which its seed is recognised
SECRET = 16  # bytes: 128 bits, as strong as the curve
SHARE = 16  # bytes of a share of a secret
NONCE = 12
LETTER = NONCE + 2 * SHARE + 16  # bytes: nonce, the shares of two secrets, authentication tag
FEWEST = 3  # clients in a sum: with two, each could take its own part away


class Broken(Exception):
    """The protocol cannot go on for this client; the message says why."""


def check_installed() -> None:
    """Say what to install where the libraries are missing."""
    if missing := [name for name in ("cryptography", "Crypto") if find_spec(name) is None]:
        raise UserError(
            f"Secure sums need two libraries more (there is no {missing[0]}): pip install cryptography pycryptodome, or"
            f" {how_to_install('privacy')}."
        )


def encode(values: NDArray[np.floating], bits: int, num_members: int) -> Words:
    """Numbers in fixed point with `bits` binary places. Refuses what could make a sum of so many members overflow."""
    limit = 2.0 ** (63 - bits) / num_members
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) >= limit:
        raise Broken(f"its numbers are not within ±{limit:.3g}, where {bits} binary places end: set secure_bits lower")
    return np.rint(np.asarray(values, np.float64) * 2.0**bits).astype(np.int64).view(np.uint64)


def decode(total: Words, bits: int) -> Floats:
    """A sum of encoded numbers as floats."""
    return total.view(np.int64) / 2.0**bits


def neighbours_of(client: int, members: Sequence[int], num_neighbours: int) -> list[int]:
    """Whom a client shares masks and secrets with: those nearest on the ring of `members`; everybody, if few."""
    place, n = list(members).index(client), len(members)
    half = num_neighbours // 2
    offsets = range(1, n) if 2 * half >= n - 1 else [*range(1, half + 1), *range(n - half, n)]
    return [members[(place + offset) % n] for offset in offsets]


def least_holders(num_neighbours: int, threshold: float) -> int:
    """How many holders of shares it takes to find a secret: the share `threshold` of them, always more than half.

    More than half: so no secret can be asked of one part of the holders, and its counterpart of the others.
    """
    return max(num_neighbours // 2 + 1, math.ceil(threshold * num_neighbours - 1e-9))


def least_members(num_members: int, threshold: float) -> int:
    """How many parts a sum must have before a client helps to unmask it."""
    return max(FEWEST, least_holders(num_members, threshold))


def derive(secret: bytes, purpose: str) -> bytes:
    """A key of 32 bytes for one purpose."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(hashes.SHA256(), KEY, salt=None, info=b"feddiverse " + purpose.encode()).derive(secret)


def public_key(secret: bytes) -> bytes:
    """What others may know of a secret."""
    return _private(secret).public_key().public_bytes_raw()


def agreed_key(secret: bytes, others: bytes, purpose: str) -> bytes:
    """The key that both ends find, each from its own secret and the other's public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return derive(_private(secret).exchange(X25519PublicKey.from_public_bytes(others)), purpose)
    except ValueError as error:
        raise Broken("a public key is none") from error


def are_keys(public: bytes) -> bool:
    """Whether each of these public keys is one that others can agree with: a point of small order is none."""
    try:
        for start in range(0, len(public), KEY):
            agreed_key(bytes(SECRET), public[start : start + KEY], "check")
    except Broken:
        return False
    return True


def _private(secret: bytes) -> "X25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(derive(secret, "private key"))


def mask(key: bytes, size: int) -> Words:
    """`size` numbers modulo 2⁶⁴ that nobody without the key can tell from random ones. A key makes one mask only."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<u8").astype(np.uint64, copy=False)


def pair_mask(client: int, other: int, key: bytes, size: int) -> Words:
    """The mask of two neighbours as `client` adds it: the other adds its negative."""
    words = mask(key, size)
    return words if client < other else np.negative(words)


def split(secret: bytes, needed: int, num_shares: int) -> list[bytes]:
    """Shares of a secret, of which any `needed` tell it and fewer tell nothing."""
    from Crypto.Protocol.SecretSharing import Shamir

    return [share for _, share in Shamir.split(needed, num_shares, secret, ssss=False)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind shares: place among those that `split` gave → share."""
    from Crypto.Protocol.SecretSharing import Shamir

    try:
        return bytes(Shamir.combine([(place + 1, share) for place, share in shares.items()], ssss=False))
    except ValueError as error:
        raise Broken("shares do not fit together") from error


def seal(key: bytes, nonce: bytes, text: bytes, about: bytes) -> bytes:
    """A letter that only the other holder of the key can read, and nobody can change. `about`: what it belongs to."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, about)


def unseal(key: bytes, letter: bytes, about: bytes) -> bytes:
    """What the letter says; refuses one that was not sealed with this key about this."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(letter[:NONCE], letter[NONCE:], about)
    except InvalidTag as error:
        raise Broken("a neighbour's letter is not what it should be") from error


def about_letter(number: int, sender: int, receiver: int) -> bytes:
    """Which sum a letter belongs to, from whom and to whom."""
    return f"{number} {sender} {receiver}".encode()
