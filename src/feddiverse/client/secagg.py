"""A client's part in a secure sum (`feddiverse.secagg`, docs/trust.md): four steps, each answered once, in order.

Secrets come from the operating system, not from the run's seed, and are forgotten when the sum is done or another
begins. The total does not depend on them, so runs stay reproducible.
"""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse import secagg
from feddiverse.data.federation import Samples
from feddiverse.messages import AdvertiseKeys, Reply, ShareKeys, Summed, Unmask, Vector
from feddiverse.models import FlatModel
from feddiverse.secagg import KEY, KEYS, LETTER, SECRET, SHARE, Broken

PREFIX = "secagg."
ADVERTISED, SHARED, MASKED = 1, 2, 3  # steps that are done


class Part:
    """What a client remembers of the sum it takes part in, as arrays in its memory."""

    def __init__(self, memory: dict[str, NDArray[Any]]) -> None:
        self._memory = memory

    def begin(self, number: int) -> None:
        self.forget()
        secrets = np.frombuffer(os.urandom(3 * SECRET), np.uint8)  # to seal letters, to agree on masks, its own mask
        self.keep(number=np.array(number), done=np.array(ADVERTISED), secrets=secrets)

    def check(self, number: int, done: int) -> None:
        """Refuse a step that is not the next one of the sum that was begun."""
        if PREFIX + "done" not in self._memory or int(self["number"]) != number or int(self["done"]) != done:
            raise Broken("it is asked for a step of a secure sum that is not the next one")

    def keep(self, **values: NDArray[Any]) -> None:
        self._memory.update({PREFIX + name: value for name, value in values.items()})

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._memory[PREFIX + name]

    def secret(self, place: int) -> bytes:
        return self["secrets"][place * SECRET : (place + 1) * SECRET].tobytes()

    def forget(self) -> None:
        for name in [name for name in self._memory if name.startswith(PREFIX)]:
            del self._memory[name]


SEALING, MASKING, OWN = range(3)


def advertise_keys(task: AdvertiseKeys, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """A public key for each of three secrets; the last only shows that its secret was put together rightly."""
    part = Part(samples.memory)
    part.begin(task.sum)
    keys = [secagg.public_key(part.secret(place)) for place in (SEALING, MASKING, OWN)]
    return Reply(client_id, payload=b"".join(keys))


def share_keys(task: ShareKeys, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """A letter to each neighbour: a share of what its masks with others are made of, and one of its own mask's seed."""
    part = Part(samples.memory)
    part.check(task.sum, ADVERTISED)
    members = task.members.tolist()
    if client_id not in members or len(set(members)) != len(members) or task.keys.shape != (len(members), KEYS):
        raise Broken("the list of members of a secure sum makes no sense")
    if len(members) < secagg.FEWEST:
        raise Broken(f"{len(members)} clients are too few for a secure sum: it takes {secagg.FEWEST}")
    neighbours = secagg.neighbours_of(client_id, members, task.neighbours)
    keys = np.stack([task.keys[members.index(other)] for other in neighbours])
    if len(np.unique(task.keys, axis=0)) != len(members):
        raise Broken("two members of a secure sum have the same keys")
    needed = secagg.least_holders(len(neighbours), task.threshold)
    shares = [secagg.split(part.secret(place), needed, len(neighbours)) for place in (MASKING, OWN)]
    letters = []
    for other, others, of_key, of_seed in zip(neighbours, keys, *shares, strict=True):
        key = secagg.agreed_key(part.secret(SEALING), others[:KEY].tobytes(), "letter")
        about = secagg.about_letter(task.sum, client_id, other)
        letters.append(secagg.seal(key, os.urandom(secagg.NONCE), of_key + of_seed, about))
    part.keep(
        done=np.array(SHARED), neighbours=np.array(neighbours), keys=keys, needed=np.array(needed),
        least=np.array(secagg.least_members(len(members), task.threshold)), members=task.members,
    )  # fmt: skip
    return Reply(client_id, payload=b"".join(letters))


def masked(task: Summed, vector: Vector, client_id: int, samples: Samples) -> Reply:
    """The client's numbers in fixed point, under masks that cancel in the sum. Letters are read and kept."""
    part = Part(samples.memory)
    part.check(task.sum, SHARED)
    members = set(task.members.tolist())
    if not members <= set(part["members"].tolist()) or client_id not in members or len(members) < int(part["least"]):
        raise Broken("too few clients shared their keys for a secure sum")
    keys = {other: key.tobytes() for other, key in zip(part["neighbours"].tolist(), part["keys"], strict=True)}
    active = [other for other in keys if other in members]
    if len(active) < int(part["needed"]):  # else a server could leave it alone with its own mask, and have that opened
        raise Broken(
            f"{len(active)} of its neighbours shared their keys, too few to hide it: at least {part['needed']}"
        )
    letters = task.letters[client_id].tobytes()
    if len(letters) != LETTER * len(active):
        raise Broken("its neighbours' letters are not all there")
    words = secagg.encode(vector, task.bits, len(members)) + secagg.mask(
        secagg.derive(part.secret(OWN), "own mask"), vector.size
    )
    shares = []
    for place, other in enumerate(active):
        to_seal, to_mask = keys[other][:KEY], keys[other][KEY : 2 * KEY]
        about = secagg.about_letter(task.sum, other, client_id)
        sealed = letters[place * LETTER : (place + 1) * LETTER]
        key = secagg.agreed_key(part.secret(SEALING), to_seal, "letter")
        try:
            shares.append(secagg.unseal(key, sealed, about))
        except Broken as error:
            raise Broken(f"client {other}'s letter to it cannot be read") from error
        agreed = secagg.agreed_key(part.secret(MASKING), to_mask, "mask")
        words += secagg.pair_mask(client_id, other, agreed, vector.size)
    part.keep(
        done=np.array(MASKED), active=np.array(active), took_part=task.members,
        shares=np.frombuffer(b"".join(shares), np.uint8).reshape(len(active), 2 * SHARE),
    )  # fmt: skip
    return Reply(client_id, payload=words.astype("<u8").tobytes())


def unmask(task: Unmask, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """For each neighbour one of the two shares it sent, never both; then the sum is forgotten."""
    part = Part(samples.memory)
    part.check(task.sum, MASKED)
    survivors = set(task.survivors.tolist())
    if not survivors <= set(part["took_part"].tolist()) or len(survivors) < int(part["least"]):
        raise Broken(f"the sum has {len(survivors)} parts, too few to hide one of them: at least {int(part['least'])}")
    around = sum(other in survivors for other in part["active"].tolist())
    if client_id not in survivors or around < int(part["needed"]):  # of a neighbour alone among these all could be told
        raise Broken("it is said that it, or too many of its neighbours, sent no part")
    shares = [
        share[SHARE:] if other in survivors else share[:SHARE]
        for other, share in zip(part["active"].tolist(), part["shares"], strict=True)
    ]
    part.forget()
    return Reply(client_id, payload=b"".join(share.tobytes() for share in shares))
