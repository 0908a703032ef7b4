"""Wrong save or load: the restored cache is not the one that was saved."""

from kvfuzz.case.schedule import Padded, Restore
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}


@mutant(
    ".operations:save",
    site="position",
    witness=steps(Padded(2, "left", (1,)), Restore(), 1),
    needs={"cache": ("concatenated", "static", "paged", "prefix")},
    seen_in="ml-explore/mlx-swift-lm#155",
)
def loses_which_slots_are_padding(real):
    """save leaves out which slots are padding: all come back as real tokens."""
    return lambda cache: {**real(cache), "places": None}


@mutant(
    ".operations:save",
    site="0.attention",
    witness=steps(1, Restore(), 1, mix="recurrent"),
    needs={"mix": ("recurrent",)},
)
def loses_the_recurrent_state(real):
    """The state of the recurrent layer comes back as zeros."""

    def save(cache):
        state = real(cache)
        blank = [tuple(tensor * 0 for tensor in each) for each in state["history"]]
        return {**state, "history": blank}

    return save


@mutant(
    ".storage.static:Static.save",
    site="0.cache",
    witness=steps(1, Restore(), 1, cache="static"),
    needs={"cache": ("static",)},
)
def saves_one_slot_too_few(real):
    """save leaves out the last slot."""
    return lambda self, length: real(self, length - 1)


@mutant(
    ".storage.concatenated:Concatenated.save",
    site="1.cache",
    witness=steps(1, Restore(), 1),
    needs={"layers": (2, 3)},
)
def saves_the_first_layer_for_all(real):
    """Every layer comes back with the keys and values of the first layer."""

    def save(self, length):
        state = real(self, length)
        return {name: [tensors[0]] * len(tensors) for name, tensors in state.items()}

    return save


@mutant(
    ".storage.ring:Ring.save",
    site="0.attention",
    witness=steps(2, Restore(), 1, cache="ring", window=3),
    needs={"cache": ("ring",), "window": (3, 5)},
)
def turns_the_ring(real):
    """The keys of a ring come back shifted by one entry."""

    def save(self, length):
        state = real(self, length)
        return {**state, "keys": [keys.roll(1, 2) for keys in state["keys"]]}

    return save


@mutant(
    ".storage.paged:Paged.save",
    site="0.cache",
    witness=steps(1, Restore(), 1, rows=2, cache="paged"),
    needs={"cache": ("paged",)},
)
def loses_all_tables_but_the_first(real):
    """Every row comes back with the block table of the first row."""

    def save(self, length):
        state = real(self, length)
        return {**state, "tables": [list(state["tables"][0]) for _ in state["tables"]]}

    return save


@mutant(
    ".operations:load",
    "position_index",
    site="position",
    witness=steps(1, Restore(), 1),
    seen_in="ggml-org/llama.cpp#23400",
    needs={"cache": ("concatenated", "static", "paged", "prefix")},
)
def goes_on_one_position_too_far(load, position_index):
    """After a restore, positions are one too high."""
    loaded = 0

    def watching_load(config, state):
        nonlocal loaded
        loaded = 1
        return load(config, state)

    def index(config, cache, tokens):
        found = position_index(config, cache, tokens) + loaded
        return found.clamp(max=config.max_length - 1)

    return watching_load, index


@mutant(
    ".storage.static:Static.save",
    needs={"cache": ("static",)},
    equivalent="slots past the length are hidden, whatever was saved in them",
)
def saves_empty_slots_too(real):
    """save includes all slots, empty ones too."""
    return lambda self, length: real(self, self.keys[-1].shape[2])
