"""The server's side of a secure sum: clients' answers to one question, of which it sees only the total (docs/trust.md).

A question whose answers are summed becomes four: keys, shares of secrets, the masked answers, and shares again, of what
is left to take away. Whoever asked gets one reply, that of `TOTAL`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from feddiverse import secagg, seeding
from feddiverse.messages import TOTAL, AdvertiseKeys, Ask, Reply, ShareKeys, Summed, Task, Unmask
from feddiverse.secagg import KEY, KEYS, LETTER, SHARE, Broken, Words


@dataclass(frozen=True)
class SecureSums:
    """How sums are hidden. `threshold`: share of a client's neighbours that must stay to the end; `neighbours`: how
    many a client has; `bits`: binary places of the fixed point.

    More places are more exact and leave less room: totals must be below 2^(63 − bits).
    """

    threshold: float = 2 / 3
    neighbours: int = 20
    bits: int = 32

    def ask(self, task: Summed, clients: Sequence[int], ask: Ask) -> Iterator[Reply]:
        """The failures of single clients, then one reply with the total; or a failure of everybody."""
        return _Sum(self, task, ask).run(list(clients))


@dataclass
class _Sum:
    settings: SecureSums
    task: Summed
    ask: Ask
    lost: dict[int, str] = field(default_factory=dict)  # client → why its part is not in the sum

    def run(self, clients: list[int]) -> Iterator[Reply]:
        try:
            total = self._total(clients)
        except Broken as error:
            self.lost |= {
                client: f"its part of a secure sum is of no use: {error}"
                for client in clients
                if client not in self.lost
            }
            total = None
        for client, why in self.lost.items():
            yield Reply(client, failure=why)
        if total is not None:
            yield total

    def _total(self, clients: list[int]) -> Reply:
        seed, round = self.task.seed, self.task.round
        # Another number for each sum, and another ring: fixed by what is asked, so that a run can be told again.
        rng = seeding.rng(seed, f"secure sum {type(self.task).__name__}", round, len(clients))
        number = int(rng.integers(2**62))
        ring = rng.permutation(sorted(clients)).tolist()

        keys = self._keys(AdvertiseKeys(seed, round, number), ring)
        ring = [client for client in ring if client in keys]
        self._enough(len(ring), secagg.FEWEST)
        neighbours = {client: secagg.neighbours_of(client, ring, self.settings.neighbours) for client in ring}
        share = ShareKeys(
            seed, round, number,
            members=np.array(ring), keys=np.stack([np.frombuffer(keys[client], np.uint8) for client in ring]),
            neighbours=self.settings.neighbours, threshold=self.settings.threshold,
        )  # fmt: skip
        length = LETTER * len(neighbours[ring[0]])
        sent = {reply.client: reply.payload for reply in self._replies(share, ring, length)}
        least = secagg.least_members(len(ring), self.settings.threshold)
        self._enough(len(sent), least)

        members = [client for client in ring if client in sent]
        active = {client: [other for other in neighbours[client] if other in sent] for client in members}
        letters = {client: self._letters(client, active[client], neighbours, sent) for client in members}
        asked = replace(self.task, sum=number, bits=self.settings.bits, members=np.array(members), letters=letters)
        # In the order that was asked for: the largest first, so that none is left alone at the end.
        words, survivors, num_examples = self._add_up(asked, [client for client in clients if client in sent])
        self._enough(len(survivors), least)

        shares = self._shares(Unmask(seed, round, number, survivors=np.array(survivors)), active, survivors)
        words -= self._masks(keys, neighbours, active, set(survivors), shares, words.size)
        vector = secagg.decode(words, self.settings.bits).astype(np.float32)
        return Reply(TOTAL, num_examples, vector, members=tuple(survivors))

    def _keys(self, task: AdvertiseKeys, clients: list[int]) -> dict[int, bytes]:
        """Everybody's public keys, without those that no other client could agree with, or that another has."""
        keys: dict[int, bytes] = {}
        for reply in self._replies(task, clients, KEYS):
            if reply.payload in keys.values() or not secagg.are_keys(reply.payload):
                self.lost[reply.client] = "its public keys are none, or another's"
            else:
                keys[reply.client] = reply.payload
        return keys

    def _replies(self, task: Task, clients: list[int], length: int) -> Iterator[Reply]:
        """Answers of `length` bytes; whoever gives another is out."""
        for reply in self.ask(task, clients):
            if reply.failure is not None:
                self.lost[reply.client] = reply.failure
            elif len(reply.payload) != length:
                self.lost[reply.client] = f"it sent {len(reply.payload):,} bytes where {length:,} are expected"
            else:
                yield reply

    def _enough(self, there: int, needed: int) -> None:
        if there < needed:
            raise Broken(f"{there} clients are left of the {needed} that it takes")

    @staticmethod
    def _letters(
        client: int, senders: list[int], neighbours: Mapping[int, list[int]], sent: Mapping[int, bytes]
    ) -> np.ndarray:
        """What the client's neighbours sealed for it, in their order."""
        places = {sender: LETTER * neighbours[sender].index(client) for sender in senders}
        return np.frombuffer(b"".join(sent[s][place : place + LETTER] for s, place in places.items()), np.uint8)

    def _add_up(self, asked: Summed, clients: list[int]) -> tuple[Words, list[int], int]:
        """The sum of masked answers, whose they are, and how many samples these clients have.

        Most clients tell how long an answer is: one of another model does not stand for the others.
        """
        totals: dict[int, Words] = {}
        whose: dict[int, dict[int, int]] = {}
        for reply in self.ask(asked, clients):
            size = len(reply.payload) // 8
            if reply.failure is not None or not size or len(reply.payload) % 8:
                self.lost[reply.client] = reply.failure or "it sent no masked numbers"
                continue
            words = np.frombuffer(reply.payload, "<u8").astype(np.uint64)
            totals[size] = totals[size] + words if size in totals else words
            whose.setdefault(size, {})[reply.client] = reply.num_examples
        if not totals:
            raise Broken("nobody answered")
        size = max(totals, key=lambda size: (len(whose[size]), size))
        for other in whose.keys() - {size}:
            self.lost |= dict.fromkeys(whose[other], f"it sent {other:,} numbers where {size:,} are expected")
        return totals[size], list(whose[size]), sum(whose[size].values())

    def _shares(
        self, task: Unmask, active: Mapping[int, list[int]], survivors: list[int]
    ) -> dict[int, dict[int, bytes]]:
        """Client → who holds a share of its secret → that share. Who does not answer now is in the sum all the same."""
        found: dict[int, dict[int, bytes]] = {client: {} for client in active}
        for reply in self.ask(task, survivors):
            if reply.failure is None and len(reply.payload) == SHARE * len(active[reply.client]):
                for place, other in enumerate(active[reply.client]):
                    found[other][reply.client] = reply.payload[place * SHARE : (place + 1) * SHARE]
        return found

    def _masks(
        self,
        keys: Mapping[int, bytes],
        neighbours: Mapping[int, list[int]],
        active: Mapping[int, list[int]],
        survivors: set[int],
        shares: Mapping[int, Mapping[int, bytes]],
        size: int,
    ) -> Words:
        """What is left of the masks in the sum: each survivor's own, and those shared with clients that went away."""
        left = np.zeros(size, np.uint64)
        for client in active:
            place = 2 * KEY if client in survivors else KEY
            held = [(neighbours[client].index(holder), share) for holder, share in shares[client].items()]
            needed = secagg.least_holders(len(neighbours[client]), self.settings.threshold)
            secret = self._secret(client, held, needed, keys[client][place : place + KEY])
            if client in survivors:
                left += secagg.mask(secagg.derive(secret, "own mask"), size)
                continue
            for other in set(active[client]) & survivors:
                agreed = secagg.agreed_key(secret, keys[other][KEY : 2 * KEY], "mask")
                left += secagg.pair_mask(other, client, agreed, size)
        return left

    def _secret(self, client: int, held: list[tuple[int, bytes]], needed: int, public: bytes) -> bytes:
        """A client's secret, recognised by its public key. More shares than needed make up for a few false ones."""
        self._enough(len(held), needed)
        for start in range(len(held)):
            some = [held[(start + step) % len(held)] for step in range(needed)]
            with suppress(Broken):
                secret = secagg.combine(dict(some))
                if secagg.public_key(secret) == public:
                    return secret
        raise Broken(f"the shares of client {client}'s secret are not right")
