"""The cached path of the built-in decoder: computes each token once, and stores the rest.

Every stage is a function of this module, and is called through the module: a mutant replaces one
stage, and a reader follows the path from top to bottom. The path shares weights and arithmetic with
the uncached path, but not positions, masks and storage.

Positions are [n], the same for all rows, or [batch, n] once a call was given a mask or positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvfuzz.subjects.trace import Note
from kvfuzz.subjects.zoo import maths, recurrence
from kvfuzz.subjects.zoo.cache import Cache
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.places import NOWHERE, Places, counted, distances, filled_up, placed, table
from kvfuzz.subjects.zoo.weights import Weights


def logits(
    config: DecoderConfig,
    weights: Weights,
    tokens: Tensor,
    cache: Cache,
    note: Note,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Returns logits [batch, n, vocab] for the new `tokens` [batch, n]; `cache` grows by n."""
    admit(cache, tokens, mask, positions)
    index = position_index(config, cache, tokens)
    x = embed(config, weights, tokens, index)
    note("position", None, x, index if index.dim() == 1 else index[..., None])
    for layer in range(config.layers):
        x = block(config, weights, layer, x, index, cache, note)
    x = final_norm(config, weights, x)
    note("final_norm", None, x)
    answer = readout(weights, x)
    note("logits", None, answer)
    advance(cache, tokens.shape[1])
    return answer


def block(
    config: DecoderConfig,
    weights: Weights,
    layer: int,
    x: Tensor,
    index: Tensor,
    cache: Cache,
    note: Note,
) -> Tensor:
    """Runs one layer, attention over the cache and then the MLP. [batch, n, width] in and out."""
    normed = attention_norm(config, weights, layer, x)
    note("norm", layer, normed)
    if config.recurs(layer):
        attention = recur(config, weights, layer, normed, cache, note)
    elif config.crosses(layer):
        attention = look_aside(config, weights, layer, normed, cache, note)
    else:
        attention = look_back(config, weights, layer, normed, index, cache, note)
    note("attention", layer, attention)
    x = attention_residual(x, attention)
    note("residual", layer, x)
    normed = mlp_norm(config, weights, layer, x)
    note("mlp_norm", layer, normed)
    hidden = mlp(weights, layer, normed)
    note("mlp", layer, hidden)
    x = mlp_residual(x, hidden)
    note("mlp_residual", layer, x)
    return x


def look_back(
    config: DecoderConfig,
    weights: Weights,
    layer: int,
    normed: Tensor,
    index: Tensor,
    cache: Cache,
    note: Note,
) -> Tensor:
    """Stores the new entries and attends to all of them. [batch, n, width] in and out."""
    query, key, value = project(config, weights, layer, normed, index)
    source = config.source(layer)
    if source == layer:
        note("kv", layer, query, key, value)
        store(cache, layer, key, value)
    else:
        note("kv", layer, query)
    keys, values = fetch(cache, source)
    in_order = cache.storage.in_order(source, (keys, values), cache.length + normed.shape[1])
    if in_order is not None:
        note("cache", layer, *in_order)
    entries = entry_places(cache, source, keys.shape[2])
    places = index if entries is None else Places(index, entries)
    if cache.branches is not None and isinstance(places, Places):
        alone = (
            attend(config, weights, layer, query[:, :, n : n + 1], keys, values, own)
            for n, own in enumerate(branch_places(cache, places))
        )
        return torch.cat(list(alone), dim=1)
    return attend(config, weights, layer, query, keys, values, places)


def look_aside(
    config: DecoderConfig, weights: Weights, layer: int, normed: Tensor, cache: Cache, note: Note
) -> Tensor:
    """Attends to the side input of each row. [batch, n, width] in and out."""
    assert cache.cross is not None
    query = maths.split_heads(normed @ weights.layers[layer].query, config.head_dim)
    note("kv", layer, query)
    keys, values = cache.cross
    seen = torch.ones(normed.shape[1], keys.shape[2], dtype=torch.bool, device=normed.device)
    return maths.attend(query, keys, values, seen, None) @ weights.layers[layer].out


def cross_of(config: DecoderConfig, weights: Weights, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the keys and values [batch, kv_heads, frames, head_dim] of the side inputs `sides`
    [batch], for the last layer."""
    states, layer = maths.side_states(weights.token, sides), weights.layers[-1]
    keys, values = (
        maths.split_heads(states @ matrix, config.head_dim) for matrix in (layer.key, layer.value)
    )
    return keys, values


def take_sides(config: DecoderConfig, weights: Weights, cache: Cache, sides: Tensor) -> None:
    """Stores the keys and values of the side inputs `sides` [batch] of the rows that hold nothing
    yet; the others have theirs. For a decoder with a layer that reads them."""
    if not config.crosses(config.layers - 1):
        return
    if cache.cross is None or cache.length == 0:
        cache.cross = cross_of(config, weights, sides)
        return
    begins = empty_rows(cache, sides)
    if bool(begins.any()):
        keys, values = cross_of(config, weights, sides)
        begins = begins[:, None, None, None]
        cache.cross = (
            torch.where(begins, keys, cache.cross[0]),
            torch.where(begins, values, cache.cross[1]),
        )


def empty_rows(cache: Cache, sides: Tensor) -> Tensor:
    """Returns which rows hold no text, bool [batch]."""
    return counted(table(cache.places, len(sides), cache.length, sides.device)) == 0


def recur(
    config: DecoderConfig, weights: Weights, layer: int, normed: Tensor, cache: Cache, note: Note
) -> Tensor:
    """Mixes tokens by recurrence in place of attention. [batch, n, width] in and out."""
    matrices = weights.layers[layer]
    assert matrices.convolution is not None
    query, gate, value = (normed @ m for m in (matrices.query, matrices.key, matrices.value))
    note("kv", layer, query, gate, value)
    text = None if cache.places is None else cache.places[:, cache.length :] != NOWHERE
    hidden, cache.history = recurrence.steps(cache.history, gate, value, matrices.convolution, text)
    return maths.gated(query, hidden, config.head_dim) @ matrices.out


def branches_of(parents: Tensor) -> Tensor:
    """Returns which candidates each of n follows or is, bool [n, n], by the `parents` [n]."""
    branches = torch.eye(len(parents), dtype=torch.bool, device=parents.device)
    for number, parent in enumerate(parents.tolist()):
        if parent >= 0:
            branches[number] |= branches[parent]
    return branches


def candidate_positions(cache: Cache, tokens: Tensor) -> Tensor:
    """Returns the positions [batch, n] of the candidates `tokens` [batch, n]: each comes after the
    text of its row and the candidates that it follows."""
    assert cache.branches is not None
    held = counted(table(cache.places, len(tokens), cache.length, tokens.device))
    return held[:, None] + cache.branches.sum(1) - 1


def branch_places(cache: Cache, places: Places) -> list[Places]:
    """Returns, for each candidate, its position and those of the entries that it may see: without
    the candidates of other branches."""
    assert cache.branches is not None
    count, entries = len(cache.branches), places.entries
    new = slice(cache.length, cache.length + count)
    found = []
    for number, branch in enumerate(cache.branches):
        seen = entries.clone()
        seen[:, new] = seen[:, new].masked_fill(~branch, NOWHERE)
        found.append(Places(places.queries[:, number : number + 1], seen))
    return found


def text_of(cache: Cache, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Returns which slots hold text, bool [batch, slots + n], after a call in which each row gets
    its first `lengths` [batch] of the `tokens` [batch, n]."""
    batch, count = tokens.shape
    before = table(cache.places, batch, cache.length, tokens.device) != NOWHERE
    new = torch.arange(count, device=tokens.device) < lengths[:, None]
    return torch.cat((before, new), dim=1)


def admit(cache: Cache, tokens: Tensor, mask: Tensor | None, positions: Tensor | None) -> None:
    """Makes room for the new `tokens` [batch, n]. Records their positions, unless every slot so far
    is text at the position that is its number."""
    places = cache.places
    if mask is not None or positions is not None or places is not None:
        places = placed(places, cache.length, tokens, mask, positions)
    cache.storage.make_room(cache.length, tokens.shape[1], places)
    cache.places = places


def position_index(config: DecoderConfig, cache: Cache, tokens: Tensor) -> Tensor:  # noqa: ARG001
    """Returns the absolute positions [n], or [batch, n], of the new `tokens` [batch, n]; below
    `config.max_length`, and 0 for padding."""
    if cache.places is not None:
        places = cache.places[:, cache.length :]
        return places.masked_fill(places == NOWHERE, 0)
    return torch.arange(cache.length, cache.length + tokens.shape[1], device=tokens.device)


def embed(config: DecoderConfig, weights: Weights, tokens: Tensor, index: Tensor) -> Tensor:
    """Returns token plus position embeddings [batch, n, width]."""
    x = weights.token[tokens]
    return x + weights.position[index] if config.positions == "learned" else x


def attention_norm(config: DecoderConfig, weights: Weights, layer: int, x: Tensor) -> Tensor:
    """Returns the normalised input [batch, n, width] of query, key and value."""
    return maths.normalise(config.norm, weights.layers[layer].attention_norm, x)


def project(
    config: DecoderConfig, weights: Weights, layer: int, normed: Tensor, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns query [batch, heads, n, head_dim], key and value [batch, kv_heads, n, head_dim]."""
    matrices = weights.layers[layer]
    query = maths.split_heads(normed @ matrices.query, config.head_dim)
    key = maths.split_heads(normed @ matrices.key, config.head_dim)
    value = maths.split_heads(normed @ matrices.value, config.head_dim)
    if config.positions == "rope":
        angles = rope_angles(config, index, normed)
        query, key = maths.rotated(query, angles), maths.rotated(key, angles)
    return query, key, value


def rope_angles(config: DecoderConfig, index: Tensor, like: Tensor) -> Tensor:
    """Returns the rotary angle of each pair at each new position [n, head_dim / 2], or [batch, 1,
    n, head_dim / 2], in radians."""
    angles = index.to(like.dtype).unsqueeze(-1) * maths.rope_frequencies(config.head_dim, like)
    return angles if index.dim() == 1 else angles[:, None]


def store(cache: Cache, layer: int, key: Tensor, value: Tensor) -> None:
    """Puts the new key and value [batch, kv_heads, n, head_dim] into the cache of `layer`."""
    cache.storage.write(layer, cache.length, key, value)


def fetch(cache: Cache, layer: int) -> tuple[Tensor, Tensor]:
    """Returns all keys and values of `layer` so far [batch, kv_heads, entries, head_dim]."""
    return cache.storage.read(layer)


def entry_places(cache: Cache, layer: int, count: int) -> Tensor | None:
    """Returns the position [batch, count] of each of the `count` entries that `fetch` returns; None
    if it is its number. Entries after the slots so far hold nothing, unless a fault stored too
    many."""
    places = cache.storage.entries(layer, cache.places)
    return places if places is None else filled_up(places[:, :count], count)


def attend(
    config: DecoderConfig,
    weights: Weights,
    layer: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    index: Tensor | Places,
) -> Tensor:
    """Returns what the new positions read from the cache [batch, n, width]. `index` has their
    positions, and those of the entries too where these are not their numbers."""
    if isinstance(index, Places):
        index, slots = index
    else:
        slots = torch.arange(keys.shape[2], device=index.device)
    config = config.at(layer)
    bias = alibi_bias(config, index, slots, query) if config.positions == "alibi" else None
    mixed = maths.attend(query, keys, values, visible(config, index, slots), bias)
    return mixed @ weights.layers[layer].out


def visible(config: DecoderConfig, index: Tensor, slots: Tensor) -> Tensor:
    """Returns which entries of the cache, at the positions `slots` [m], each new position [n] may
    see: bool [n, m], or [batch, 1, n, m]."""
    distance = distances(index, slots)
    seen = distance >= 0
    return seen if config.window is None else seen & (distance < config.window)


def alibi_bias(config: DecoderConfig, index: Tensor, slots: Tensor, like: Tensor) -> Tensor:
    """Returns the penalty of each new position [n] for each entry at `slots` [m]: [heads, n, m], or
    [batch, heads, n, m]."""
    distance = distances(index, slots).to(like.dtype)
    return -maths.alibi_slopes(config.heads, like) * distance


def attention_residual(x: Tensor, attention: Tensor) -> Tensor:
    """Returns the residual stream after attention [batch, n, width]."""
    return x + attention


def mlp_norm(config: DecoderConfig, weights: Weights, layer: int, x: Tensor) -> Tensor:
    """Returns the normalised input [batch, n, width] of the MLP."""
    return maths.normalise(config.norm, weights.layers[layer].mlp_norm, x)


def mlp(weights: Weights, layer: int, normed: Tensor) -> Tensor:
    """Returns the output of the MLP [batch, n, width]."""
    return maths.feed_forward(weights.layers[layer], normed)


def mlp_residual(x: Tensor, hidden: Tensor) -> Tensor:
    """Returns the residual stream after the MLP [batch, n, width]."""
    return x + hidden


def final_norm(config: DecoderConfig, weights: Weights, x: Tensor) -> Tensor:
    """Returns the normalised input [batch, n, width] of the readout."""
    return maths.normalise(config.norm, weights.final_norm, x)


def readout(weights: Weights, x: Tensor) -> Tensor:
    """Returns logits [batch, n, vocab], by the tied embedding."""
    return x @ weights.token.T


def kept(cache: Cache, answer: Tensor, count: int) -> Tensor:  # noqa: ARG001
    """Returns the last `count` of the logits `answer` [batch, n, vocab] of a call."""
    return answer[:, -count:]


def advance(cache: Cache, count: int) -> None:
    """Counts `count` more slots as fed."""
    cache.length += count
