"""Decoders that take only some calls, or return only some of the logits."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, ROOM = 31, 8, 40


class Decoder(nn.Module):
    """One layer of attention over a cache of keys and values."""

    vocab_size, max_length = VOCAB, ROOM

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.token, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(ROOM, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def states(self, tokens, past):
        held = 0 if past is None else past[0].shape[1]
        index = torch.arange(held, held + tokens.shape[1])
        x = self.token(tokens) + self.place(index)
        query, key, value = self.project(x).chunk(3, -1)
        if past is not None:
            key, value = torch.cat((past[0], key), 1), torch.cat((past[1], value), 1)
        seen = index[:, None] >= torch.arange(key.shape[1])
        return x + F.scaled_dot_product_attention(query, key, value, attn_mask=seen), (key, value)

    def uncached(self, tokens):
        return self.out(self.states(tokens, None)[0])

    def new_cache(self, batch):
        return None

    def cached(self, tokens, cache):
        self.refuse(tokens.shape[1], cache)
        x, cache = self.states(tokens, cache)
        return self.out(x), cache

    def refuse(self, count, cache):
        """Raises for a call that the design cannot make."""

    def crop(self, cache, count):
        left = cache[0].shape[1] - count
        return tuple(x[:, :left] for x in cache) if left > 0 else None

    def reset(self, cache):
        return None


class Short(Decoder):
    """A scratch buffer of five tokens."""

    longest_call = 5

    def refuse(self, count, cache):
        assert count <= 5


class ShortAndWrong(Short):
    """Forgets the oldest entry in a call of five tokens."""

    def states(self, tokens, past):
        if past is not None and tokens.shape[1] == 5:
            past = tuple(torch.cat((0 * x[:, :1], x[:, 1:]), 1) for x in past)  # fault
        return super().states(tokens, past)


class PrefillThenDecode(Decoder):
    """A decode kernel for one token, and a prefill kernel for an empty cache."""

    chunks = False

    def refuse(self, count, cache):
        assert cache is None or count == 1


class InBlocks(Decoder):
    """A kernel that works on blocks of four tokens, and one for single tokens."""

    multiple_of = 4

    def refuse(self, count, cache):
        assert count == 1 or count % 4 == 0


class InFewBlocks(InBlocks):
    longest_call, chunks = 9, False

    def refuse(self, count, cache):
        super().refuse(count, cache)
        assert count <= 9
        assert cache is None or count == 1


class Padded(Short):
    """Takes a mask, and derives positions from it."""

    positions_from_mask = True

    def cached(self, tokens, cache, *, mask=None):
        if mask is not None and not bool(mask.all()):
            raise NotImplementedError("padding")
        return super().cached(tokens, cache)


class UndeclaredLast(Decoder):
    """Returns the logits of the last position alone, as a serving engine does."""

    def cached(self, tokens, cache):
        x, cache = self.states(tokens, cache)
        return self.out(x[:, -1:]), cache


class Last(UndeclaredLast):
    last_only = True


class LastByTotal(Last):
    """Finds the last position among all tokens: none is left on a filled cache."""

    def cached(self, tokens, cache):
        held = 0 if cache is None else cache[0].shape[1]
        x, cache = self.states(tokens, cache)
        return self.out(x[:, held + x.shape[1] - 1 :]), cache  # fault


class LastIsFirst(Last):
    """Returns the logits of the first position of the call."""

    def cached(self, tokens, cache):
        x, cache = self.states(tokens, cache)
        return self.out(x[:, :1]), cache  # fault


class LastAndShifted(Last):
    """Counts positions of a later chunk from one too far."""

    def states(self, tokens, past):
        x, held = super().states(tokens, past)
        return (x + 0.5 * self.place.weight[1] if past is not None else x), held  # fault


class Whole(Decoder):
    """Declares what it does not do."""

    last_only = True


class Keeps(Decoder):
    """Computes the logits of the last positions alone, if it is told how many."""

    def cached(self, tokens, cache, *, logits_to_keep=0):
        x, after = self.states(tokens, cache)
        return self.out(self.kept(x, cache, logits_to_keep)), after

    def kept(self, x, cache, count):
        return x[:, -count:] if count else x


class CountsFromTheStart(Keeps):
    """Finds the first position that is kept among all tokens, not among those of the call."""

    def kept(self, x, cache, count):
        held = 0 if cache is None else cache[0].shape[1]
        return x[:, held + x.shape[1] - count :] if count else x  # fault


class KeepsTheFirst(Keeps):
    def kept(self, x, cache, count):
        return x[:, :count] if count else x  # fault


class KeepsOneEarlier(Keeps):
    """The right number, one position too early where there is room."""

    def kept(self, x, cache, count):
        spare = int(x.shape[1] > count)
        return x[:, x.shape[1] - count - spare : x.shape[1] - spare] if count else x  # fault


class IgnoresTheNumber(Keeps):
    def kept(self, x, cache, count):
        return x  # fault


class OverlaysKept(Decoder):
    """Returns all logits; the last ones come from a second call that computes no others."""

    def cached(self, tokens, cache):
        x, after = self.states(tokens, cache)
        first = (0 if cache is None or not self.by_total else cache[0].shape[1]) + x.shape[1] - 1
        return torch.cat((self.out(x[:, :-1]), self.out(x[:, first:])), 1), after

    by_total = False


class OverlaysKeptByTotal(OverlaysKept):
    by_total = True  # fault


class TwoRows(Decoder):
    """Buffers for two rows, which both paths use."""

    max_rows = 2

    def states(self, tokens, past):
        assert len(tokens) <= 2, len(tokens)
        return super().states(tokens, past)

    def new_cache(self, batch):
        assert batch <= 2, batch

    def reorder(self, cache, rows):
        return None if cache is None else tuple(x[rows] for x in cache)


class OneRow(TwoRows):
    max_rows = 1

    def states(self, tokens, past):
        assert len(tokens) == 1
        return super().states(tokens, past)


class SlotWindow(nn.Module):
    """A window of four slots, padding among them."""

    vocab_size, max_length = VOCAB, ROOM
    padding_between, positions_from_mask, at_end = False, True, True

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.token, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(ROOM, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def uncached(self, tokens):
        return self.cached(tokens, self.new_cache(len(tokens)))[0]

    def new_cache(self, batch):
        return torch.zeros(2, batch, 0, WIDTH), torch.zeros(batch, 0, dtype=torch.bool)

    def cached(self, tokens, cache, *, mask=None):
        (keys, values), text = cache
        size = tokens.shape[1]
        if mask is None:
            mask = torch.cat((text, torch.ones_like(tokens).bool()), 1)
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -size:]
        x = self.token(tokens) + self.place(positions)
        query, key, value = self.project(x).chunk(3, -1)
        keys, values = torch.cat((keys, key), 1), torch.cat((values, value), 1)
        held = keys.shape[1]
        far = torch.arange(held - size, held)[:, None] - torch.arange(held)
        shown = mask[:, None, -held:] if self.at_end else mask[:, None, :held]
        seen = (far >= 0) & (far < 4) & shown | (far == 0)
        x = x + F.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        return self.out(x), (torch.stack((keys, values))[:, :, -3:], mask)


class SlotWindowAtHead(SlotWindow):
    at_end = False  # fault: the mask covers all that was fed, and the window its end


class SlotWindowUndeclared(SlotWindow):
    padding_between = True
