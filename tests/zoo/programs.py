"""Random programs of everything that can be done to a cache of the built-in decoder, and a plain
account of what each row then holds."""

import pickle
import random

import torch

MOST_SLOTS = 24
POISON = 1e4
TOLERANCE = 1e-12


class Disagreement(AssertionError):
    """The decoder did not do what the account says, in the words of this."""


class Program:
    """Two caches on one `decoder`, used in turn as `seed` says.

    Calls are given what `given` names. Each row's logits must be those that `reference` has for its
    own tokens. `rows` is the account: of each cache, the tokens of each row, with None for padding.
    `done` are the words of all steps, `refused` those of the steps that the decoder refused.
    """

    def __init__(self, decoder, seed, *, given=("mask", "positions"), reference=None):
        self.decoder = decoder
        self.random = random.Random(seed)
        self.given = given
        self.reference = reference or decoder.uncached
        self.caches, self.rows = [], []
        self.current = 0
        self.done, self.refused = [], []
        for batch in (self.random.randint(1, 3), 2):
            self.caches.append(decoder.new_cache(batch))
            self.rows.append([[] for _ in range(batch)])

    def run(self, count):
        """Do `count` steps. Raises Disagreement at the first that goes wrong."""
        steps = [self.feed, self.feed, self.feed, self.crop, self.reorder, self.fork, self.restore]
        for _ in range(count):
            self.current = self.random.randrange(len(self.caches))
            self.random.choice([*steps, self.reset] if self.random.random() < 0.3 else steps)()
            self.check_frame()
        return self

    @property
    def cache(self):
        return self.caches[self.current]

    @property
    def length(self):
        return len(self.rows[self.current][0])

    def feed(self):
        """A call of one or several tokens; some are padding, on any side, where a mask is given."""
        batch, room = len(self.rows[self.current]), MOST_SLOTS - self.length
        if room < 1:
            return self.reset()
        count = min(room, self.random.choice((1, 1, 1, 2, 3, 5, 9)))
        table = [[self.random.randrange(64) for _ in range(count)] for _ in range(batch)]
        text = [self.padded(count) for _ in range(batch)]
        old = self.rows[self.current]
        new = [
            [token if real else None for token, real in zip(row, reals, strict=True)]
            for row, reals in zip(table, text, strict=True)
        ]
        rows = [before + after for before, after in zip(old, new, strict=True)]
        self.poison()
        before = self.view()
        logits, cache = self.decoder.cached(
            torch.tensor(table), self.cache, **self.arguments(rows, count)
        )
        self.done.append(f"{self.current}: feed {count} {text if self.given else ''}")
        self.caches[self.current], self.rows[self.current] = cache, rows
        self.check_logits(logits)
        self.check_kept(before, count)
        return None

    def padded(self, count):
        """Which of `count` new slots hold text."""
        if "mask" not in self.given or self.random.random() < 0.3:
            return [True] * count
        pads = self.random.randint(0, count)
        left, right = [False] * pads + [True] * (count - pads), [True] * (count - pads)
        mixed = [self.random.random() < 0.6 for _ in range(count)]
        return self.random.choice((left, right + [False] * pads, mixed))

    def arguments(self, rows, count):
        """The optional arguments of a call that leaves the account at `rows`. Where there is a
        choice, some calls are given less."""
        given = {}
        padded = any(token is None for row in rows for token in row[len(row) - count :])
        if "mask" in self.given and (padded or self.random.random() < 0.7):
            given["mask"] = torch.tensor([[token is not None for token in row] for row in rows])
        if "positions" in self.given and self.random.random() < 0.7:
            given["positions"] = torch.tensor(
                [
                    [len(text(row[:slot])) for slot in range(len(row) - count, len(row))]
                    for row in rows
                ]
            )
        return given

    def crop(self):
        count = self.random.choice((1, 1, 2, 3, 5, 50))
        kept = max(0, self.length - count)
        if self.attempt(f"crop {count}", lambda: self.decoder.crop(self.cache, count)):
            self.rows[self.current] = [row[:kept] for row in self.rows[self.current]]
        elif kept == 0:
            raise Disagreement(f"{self.done}: a crop of everything was refused")

    def reorder(self):
        old = self.rows[self.current]
        rows = [self.random.randrange(len(old)) for _ in range(self.random.randint(1, 3))]
        if self.random.random() < 0.4:
            rows = self.random.sample(range(len(old)), len(old))
        self.attempt(f"rows {rows}", lambda: self.decoder.reorder(self.cache, torch.tensor(rows)))
        self.rows[self.current] = [list(old[row]) for row in rows]

    def fork(self):
        """The copy takes the place of the other cache; the original goes on too."""
        copied = self.decoder.copy(self.cache)
        self.done.append(f"{self.current}: fork")
        other = 1 - self.current
        self.caches[other] = copied
        self.rows[other] = [list(row) for row in self.rows[self.current]]

    def restore(self):
        def restored():
            return self.decoder.load(pickle.loads(pickle.dumps(self.decoder.save(self.cache))))

        self.attempt("restore", restored)

    def reset(self):
        self.attempt("reset", lambda: self.decoder.reset(self.cache))
        self.rows[self.current] = [[] for _ in self.rows[self.current]]

    def attempt(self, words, action):
        """Whether `action`, which gives the cache to go on with, was done. If it is refused,
        nothing may have changed."""
        words = f"{self.current}: {words}"
        before = self.decoder.save(self.cache)
        try:
            cache = action()
        except NotImplementedError:
            self.refused.append(words)
            if not same(self.decoder.save(self.cache), before):
                raise Disagreement(f"{self.done}: {words} was refused, and it changed") from None
            return False
        self.caches[self.current] = cache
        self.done.append(words)
        return True

    def poison(self):
        """Fill all that holds nothing."""
        for slots in self.decoder.unused(self.cache):
            slots.fill_(POISON)

    def view(self):
        """What the current cache shows, in tensors of its own."""
        shown = self.decoder.view(self.cache)
        return [pair and tuple(tensor.clone() for tensor in pair) for pair in shown]

    def check_logits(self, logits):
        """Each row's are those of its own tokens."""
        count, rows = logits.shape[1], self.rows[self.current]
        if not bool(logits.isfinite().all()):
            raise Disagreement(f"{self.done}: logits are not finite")
        longest = max(1, *(len(text(row)) for row in rows))
        # Filled up on the right, where a causal path does not look.
        filled = [text(row) + [0] * (longest - len(text(row))) for row in rows]
        expected = self.reference(torch.tensor(filled))
        for number, row in enumerate(rows):
            new = [slot for slot in range(count) if row[slot - count] is not None]
            places = slice(len(text(row)) - len(new), len(text(row)))
            gap = (logits[number, new] - expected[number, places]).abs()
            if new and not float(gap.max()) <= TOLERANCE:
                raise Disagreement(f"{self.done}: row {number} differs by {float(gap.max()):.1e}")

    def check_kept(self, before, count):
        """A call changes nothing that was there before it, and keeps enough."""
        for layer, (old, new) in enumerate(zip(before, self.view(), strict=True)):
            if old is None:
                continue
            for was, now in zip(old, new, strict=True):
                stayed = min(was.shape[2], now.shape[2] - count)
                kept = now[:, :, now.shape[2] - count - stayed : now.shape[2] - count]
                if stayed > 0 and not torch.equal(kept, was[:, :, was.shape[2] - stayed :]):
                    raise Disagreement(f"{self.done}: layer {layer} changed earlier entries")

    def check_frame(self):
        """Every layer holds its window, or everything."""
        windows = self.decoder.windows
        for layer, (pair, window) in enumerate(zip(self.view(), windows, strict=True)):
            least = self.length if window is None else min(window, self.length)
            for tensor in pair or ():
                if not least <= tensor.shape[2] <= self.length:
                    held = tensor.shape[2]
                    raise Disagreement(f"{self.done}: layer {layer} holds {held} of {self.length}")


def text(row):
    """The tokens of `row` that are no padding."""
    return [token for token in row if token is not None]


def same(one, other):
    """Whether two saved states are equal, container by container."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


GIVEN = ((), ("mask",), ("positions",), ("mask", "positions"))
