"""Secure sums: what the server gets, what it does not see, and what clients refuse."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from Crypto.Cipher import ChaCha20

from feddiverse import secagg
from feddiverse.client import secagg as client_side
from feddiverse.data.federation import Samples
from feddiverse.messages import TOTAL, AdvertiseKeys, FeatureMoments, Reply, ShareKeys, Summed, Task, Unmask
from feddiverse.server.secagg import SecureSums

STEPS = (AdvertiseKeys, ShareKeys, FeatureMoments, Unmask)
ANSWERS = {
    AdvertiseKeys: client_side.advertise_keys,
    ShareKeys: client_side.share_keys,
    Unmask: client_side.unmask,
}


class Members:
    """Clients with a vector each, and the real client code. `gone`: step → clients that are not there from then on."""

    def __init__(self, vectors: dict[int, np.ndarray], gone: dict[type[Task], set[int]] | None = None) -> None:
        self.vectors = vectors
        self.samples = {k: Samples(np.zeros((1, 1)), np.zeros(1, np.int64), None) for k in vectors}
        self.gone = gone or {}
        self.away: set[int] = set()
        self.seen: list[tuple[Task, Reply]] = []  # all that the server sends and gets

    def ask(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        self.away |= self.gone.get(type(task), set())
        for k in clients:
            reply = Reply(k, failure="gone") if k in self.away else self.answer(task.of(k), k)
            self.seen.append((task, reply))
            yield reply

    def answer(self, task: Task, k: int) -> Reply:
        try:
            if isinstance(task, Summed):
                return replace(client_side.masked(task, self.vectors[k], k, self.samples[k]), num_examples=10)
            return ANSWERS[type(task)](task, None, k, self.samples[k], None)
        except secagg.Broken as error:
            return Reply(k, failure=str(error))

    def total(self, settings: SecureSums = SecureSums()) -> tuple[Reply | None, dict[int, str]]:
        """The total, and who is not in it."""
        replies = list(settings.ask(FeatureMoments(0, 1), list(self.vectors), self.ask))
        totals = [reply for reply in replies if reply.client == TOTAL]
        return totals[0] if totals else None, {r.client: r.failure or "" for r in replies if r.client != TOTAL}


def vectors(num_clients: int, size: int = 50) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(num_clients)
    return {3 * k: rng.normal(size=size).astype(np.float32) for k in range(num_clients)}


def expected(parts: dict[int, np.ndarray], bits: int) -> np.ndarray:
    """The same sum by Python's own integers, of any length."""
    whole = [[round(float(x) * 2**bits) for x in part] for part in parts.values()]
    return np.array([sum(column) / 2**bits for column in zip(*whole, strict=True)]).astype(np.float32)


@pytest.mark.parametrize(("num_clients", "neighbours"), [(3, 20), (8, 20), (9, 4), (12, 5)])
def test_the_total_is_the_sum_of_all_parts(num_clients: int, neighbours: int) -> None:
    parts = vectors(num_clients)
    total, lost = Members(parts).total(SecureSums(neighbours=neighbours))
    assert total is not None
    assert total.vector is not None
    assert total.vector.tolist() == expected(parts, 32).tolist()
    assert (set(total.members), total.num_examples, lost) == (set(parts), 10 * num_clients, {})


def test_counts_are_exact_and_other_numbers_are_off_by_half_a_unit_at_most() -> None:
    parts = {k: np.concatenate([np.arange(5.0), part]) for k, part in vectors(6).items()}
    total, _ = Members(parts).total(SecureSums(bits=8))
    assert total is not None
    assert total.vector is not None
    assert total.vector[:5].tolist() == [0, 6, 12, 18, 24]
    plain = sum(parts.values())
    assert np.abs(total.vector - plain).max() <= 6 * 0.5 / 2**8 + 1e-6
    assert np.abs(total.vector - plain).max() > 0, "there is a fixed point"


@pytest.mark.parametrize("neighbours", [20, 6])
@pytest.mark.parametrize("step", STEPS)
def test_clients_may_go_away_at_every_step(step: type[Task], neighbours: int) -> None:
    parts = vectors(9)
    total, lost = Members(parts, {step: {6}}).total(SecureSums(neighbours=neighbours))
    stayed = {k: part for k, part in parts.items() if k != 6 or step is Unmask}
    assert total is not None
    assert total.vector is not None
    assert total.vector.tolist() == expected(stayed, 32).tolist()
    assert set(total.members) == set(stayed)
    assert set(lost) == set(parts) - set(stayed)


def test_one_may_go_away_at_every_step_of_the_same_sum() -> None:
    parts = vectors(15)
    gone = {AdvertiseKeys: {0}, ShareKeys: {3}, FeatureMoments: {6}, Unmask: {9}}
    total, _ = Members(parts, gone).total()
    assert total is not None
    assert total.vector is not None
    assert total.vector.tolist() == expected({k: p for k, p in parts.items() if k not in (0, 3, 6)}, 32).tolist()


@pytest.mark.parametrize("step", STEPS[1:])
def test_below_the_threshold_there_is_no_total(step: type[Task]) -> None:
    parts = vectors(9)
    settings = SecureSums(threshold=2 / 3)
    assert Members(parts, {step: {0, 3}}).total(settings)[0] is not None  # 7 of 9 stay; 6 of a client's 8 holders
    members = Members(parts, {step: {0, 3, 6, 9}})
    total, lost = members.total(settings)
    assert total is None
    assert set(lost) == set(parts)
    assert "5 clients are left of the 6 that it takes" in lost[12]


def test_two_clients_make_no_secure_sum() -> None:
    total, lost = Members(vectors(2)).total()
    assert total is None
    assert "2 clients are left of the 3" in lost[0]


def test_a_client_of_another_model_does_not_stand_for_the_others() -> None:
    parts = vectors(8)
    total, lost = Members(parts | {6: np.ones(7, np.float32)}).total()
    assert total is not None
    assert total.vector is not None
    assert total.vector.tolist() == expected({k: part for k, part in parts.items() if k != 6}, 32).tolist()
    assert lost == {6: "it sent 7 numbers where 50 are expected"}


def test_what_a_client_sends_says_nothing_of_its_numbers() -> None:
    """Zeros, masked, cannot be told from random words: the plain question would have shown them as they are."""
    members = Members({k: np.zeros(4000, np.float32) for k in range(5)})
    members.total()
    words = [np.frombuffer(r.payload, "<u8") for task, r in members.seen if isinstance(task, Summed)]
    assert len(words) == 5
    for word in words:
        ones = np.unpackbits(word.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(64 * 4000)  # six deviations of a fair coin
        assert len(np.unique(word)) == 4000


def test_nobody_but_a_neighbour_can_read_a_letter() -> None:
    members = Members(vectors(4))
    members.total()
    keys = {r.client: r.payload for task, r in members.seen if type(task) is AdvertiseKeys}
    letters = {r.client: r.payload for task, r in members.seen if type(task) is ShareKeys}
    sealed = letters[0][: secagg.LETTER]
    for secret in (bytes(16), keys[3][:16]):  # whoever has another secret: the server, say
        key = secagg.agreed_key(secret, keys[0][: secagg.KEY], "letter")
        with pytest.raises(secagg.Broken, match="not what it should be"):
            secagg.unseal(key, sealed, secagg.about_letter(1, 0, 3))


def test_a_changed_letter_is_noticed() -> None:
    class Meddling(Members):
        def answer(self, task: Task, k: int) -> Reply:
            reply = super().answer(task, k)
            if isinstance(task, ShareKeys) and k == 0:
                changed = bytearray(reply.payload)
                changed[20] ^= 1
                return replace(reply, payload=bytes(changed))
            return reply

    parts = vectors(9)
    total, lost = Meddling(parts).total()
    assert list(lost.values()) == ["client 0's letter to it cannot be read"]
    assert total is not None
    assert total.vector is not None
    assert total.vector.tolist() == expected({k: p for k, p in parts.items() if k not in lost}, 32).tolist()


class Liar(Members):
    """Client 3 sends zeros in place of what the step asks for."""

    def __init__(self, vectors: dict[int, np.ndarray], step: type[Task]) -> None:
        super().__init__(vectors)
        self.step = step

    def answer(self, task: Task, k: int) -> Reply:
        reply = super().answer(task, k)
        return replace(reply, payload=bytes(len(reply.payload))) if type(task) is self.step and k == 3 else reply


def test_a_false_share_gives_no_false_total() -> None:
    total, lost = Liar(vectors(4), Unmask).total(SecureSums(threshold=1))
    assert total is None
    assert "secret are not right" in lost[3]


def test_more_shares_than_needed_make_up_for_a_false_one() -> None:
    parts = vectors(7)
    total, lost = Liar(parts, Unmask).total(SecureSums(threshold=2 / 3))
    assert total is not None
    assert total.vector is not None
    assert total.vector.tolist() == expected(parts, 32).tolist()
    assert lost == {}


def test_public_keys_that_are_none_cost_that_client_only() -> None:
    """Nobody can agree with a key of zeros: without a check its neighbours would all give up."""
    parts = vectors(7)
    total, lost = Liar(parts, AdvertiseKeys).total()
    assert total is not None
    assert total.vector is not None
    assert total.vector.tolist() == expected({k: part for k, part in parts.items() if k != 3}, 32).tolist()
    assert lost == {3: "its public keys are none, or another's"}


def test_letters_that_cannot_be_read_end_the_sum_and_name_their_sender() -> None:
    total, lost = Liar(vectors(7), ShareKeys).total()
    assert total is None
    assert lost[0] == "client 3's letter to it cannot be read"


def asked_by_hand(num_clients: int = 5) -> tuple[Members, dict[type[Task], Task]]:
    """A sum that went well, and what was asked in its steps."""
    members = Members(vectors(num_clients))
    members.total()
    return members, {type(task): task for task, _ in members.seen}


def test_steps_are_answered_once_and_in_order() -> None:
    members, asked = asked_by_hand()
    for step in (ShareKeys, FeatureMoments, Unmask):  # the sum is over, and forgotten
        assert "not the next one" in (members.answer(asked[step].of(0), 0).failure or "")
    assert not members.samples[0].memory
    assert members.answer(asked[AdvertiseKeys], 0).failure is None
    assert "not the next one" in (members.answer(asked[Unmask], 0).failure or "")
    assert members.answer(asked[ShareKeys], 0).failure is None
    assert "not the next one" in (members.answer(asked[ShareKeys], 0).failure or ""), "other shares of the same secret"


def test_a_client_gives_no_share_where_too_few_parts_arrived() -> None:
    """Else a server could say that all but one went away, and have that one's numbers."""

    class Greedy(Members):
        def ask(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
            if isinstance(task, Unmask):
                task = replace(task, survivors=task.survivors[:2])
            return super().ask(task, clients)

    greedy = Greedy(vectors(6))
    assert greedy.total()[0] is None
    refused = [reply.failure or "" for task, reply in greedy.seen if isinstance(task, Unmask)]
    assert len(refused) == 6
    assert all("2 parts, too few to hide one of them" in why for why in refused)


class Isolating(Members):
    """A server that lies about who takes part, so as to see client 0's numbers alone.

    `alone`: it tells client 0 that all its neighbours went away before they shared keys, so that nobody's mask hides
    it but its own; those neighbours are told otherwise, and hold the shares of that mask's seed. Else it says
    afterwards that they all went away, and asks them all the same for their shares: of client 0's own mask, and of
    each other's keys.
    """

    def __init__(self, vectors: dict[int, np.ndarray], alone: bool) -> None:
        super().__init__(vectors)
        self.alone = alone
        self.neighbours: list[int] = []

    def ask(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        if isinstance(task, ShareKeys):
            self.neighbours = secagg.neighbours_of(0, task.members.tolist(), task.neighbours)
        if isinstance(task, Unmask) and not self.alone:
            task = replace(task, survivors=np.setdiff1d(task.survivors, self.neighbours))
        return super().ask(task, clients)

    def answer(self, task: Task, k: int) -> Reply:
        if self.alone and isinstance(task, Summed) and k == 0:
            others = np.setdiff1d(task.members, self.neighbours)
            task = replace(task, members=others, letters={0: np.zeros(0, np.uint8)})
        return super().answer(task, k)

    def seen_of_it(self) -> np.ndarray | None:
        """What the server can make of client 0's masked numbers with the shares that it was given."""
        (words,) = (np.frombuffer(r.payload, "<u8") for t, r in self.seen if isinstance(t, Summed) and r.client == 0)
        if not words.size:
            return None
        keys = {r.client: r.payload for t, r in self.seen if type(t) is AdvertiseKeys}
        (ring,) = {tuple(t.members.tolist()) for t, _ in self.seen if isinstance(t, ShareKeys)}
        held: dict[int, dict[int, bytes]] = {}  # client → place of a holder → its share
        for task, reply in self.seen:
            if isinstance(task, Unmask) and reply.failure is None:
                for place, other in enumerate(secagg.neighbours_of(reply.client, ring, 4)):
                    share = reply.payload[place * secagg.SHARE : (place + 1) * secagg.SHARE]
                    held.setdefault(other, {})[secagg.neighbours_of(other, ring, 4).index(reply.client)] = share
        words = words.astype(np.uint64)
        if len(held.get(0, {})) < 3:
            return None
        words -= secagg.mask(secagg.derive(secagg.combine(held[0]), "own mask"), words.size)
        for other in [] if self.alone else self.neighbours:
            secret = secagg.combine(held[other])
            agreed = secagg.agreed_key(secret, keys[0][secagg.KEY : 2 * secagg.KEY], "mask")
            words -= secagg.pair_mask(0, other, agreed, words.size)
        return secagg.decode(words, 32).astype(np.float32)


@pytest.mark.parametrize("alone", [True, False])
def test_a_server_cannot_take_a_clients_neighbours_away(alone: bool) -> None:
    members = Isolating(vectors(30), alone)
    members.total(SecureSums(neighbours=4))
    assert members.seen_of_it() is None
    asked, why = (Summed, "too few to hide it") if alone else (Unmask, "it is said that it, or too many")
    refused = {r.client: r.failure for task, r in members.seen if isinstance(task, asked) and r.failure}
    assert ({0} if alone else set(members.neighbours)) <= set(refused)
    assert all(why in reason for reason in refused.values())


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.5])
def test_more_than_half_of_the_holders_are_always_needed(threshold: float) -> None:
    """Else a server could ask one half for a client's key and the other half for the seed of its own mask."""
    assert all(2 * secagg.least_holders(n, threshold) > n for n in range(2, 60))


def test_two_members_with_the_same_keys_are_refused() -> None:
    members, asked = asked_by_hand()
    share = asked[ShareKeys]
    assert isinstance(share, ShareKeys)
    keys = share.keys.copy()
    keys[0] = keys[1]
    members.answer(asked[AdvertiseKeys], 0)
    assert "same keys" in (members.answer(replace(share, keys=keys), 0).failure or "")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**31])
def test_numbers_that_do_not_fit_leave_that_client_out(bad: float) -> None:
    parts = vectors(7)
    parts[6] = np.full(50, bad, np.float32)
    total, lost = Members(parts).total()
    assert total is not None
    assert set(lost) == {6}
    assert "set secure_bits lower" in lost[6]
    assert total.vector is not None
    assert total.vector.tolist() == expected({k: p for k, p in parts.items() if k != 6}, 32).tolist()


def test_the_largest_numbers_that_fit_do_not_overflow() -> None:
    most = np.float32(np.nextafter(np.float32(2.0**31 / 4), np.float32(0)))
    parts = {k: np.array([most, -most], np.float32) for k in range(4)}
    total, _ = Members(parts).total()
    assert total is not None
    assert total.vector is not None
    assert total.vector.tolist() == [4 * most, -4 * most]


def test_masks_are_chacha20_as_another_library_has_it() -> None:
    key = bytes(range(32))
    stream = ChaCha20.new(key=key, nonce=bytes(12)).encrypt(bytes(80))
    assert secagg.mask(key, 10).tobytes() == stream
    assert not (secagg.pair_mask(1, 2, key, 10) + secagg.pair_mask(2, 1, key, 10)).any()


def test_fewer_shares_than_needed_tell_nothing() -> None:
    secret = bytes(range(16))
    shares = dict(enumerate(secagg.split(secret, 4, 7)))
    assert secagg.combine({k: shares[k] for k in (1, 2, 5, 6)}) == secret
    assert secagg.combine({k: shares[k] for k in (1, 2, 5)}) != secret


@pytest.mark.parametrize("n", [3, 6, 7, 20])
def test_neighbours_are_mutual_and_never_oneself(n: int) -> None:
    members = list(range(100, 100 + n))
    for num in (2, 5, 6, 30):
        of = {k: secagg.neighbours_of(k, members, num) for k in members}
        assert all(k in of[other] for k in members for other in of[k])
        assert all(k not in of[k] and len(set(of[k])) == len(of[k]) == min(n - 1, 2 * (num // 2)) for k in members)
