"""Wrong copy: a fork lacks something, or shares storage with its original."""

from kvfuzz.case.schedule import Fork, Padded, Switch
from kvfuzz.subjects.zoo import recurrence
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}
BACK = (2, Fork(), 1, Switch(0), 1)


@mutant(".operations:copy", site="0.cache", witness=steps(*BACK))
def shares_its_storage(real):
    """A fork has its own length, but shares keys and values with the original."""

    def copy(cache):
        copied = real(cache)
        copied.storage = cache.storage
        return copied

    return copy


@mutant(
    ".storage.paged:Paged.copy",
    site="0.cache",
    witness=steps(2, Fork(), 1, Switch(0), 1, cache="paged"),
    needs={"cache": ("paged",)},
)
def takes_the_last_block_with_it(real):
    """The fork takes the last block of each row; the original gets an unwritten one in its
    place."""

    def copy(self):
        copied = real(self)
        for table in self.tables:
            table[-1] = self.allocate()
        return copied

    return copy


@mutant(
    ".operations:copy",
    site="position",
    witness=steps(Padded(2, "left", (1,)), Fork(), 1),
    needs={"cache": ("concatenated", "static", "paged", "prefix")},
)
def forgets_which_slots_are_padding(real):
    """A fork forgets which slots are padding: all count as real tokens."""

    def copy(cache):
        copied = real(cache)
        copied.places = None
        return copied

    return copy


@mutant(
    ".operations:copy",
    site="0.attention",
    witness=steps(1, Fork(), 1, mix="recurrent"),
    needs={"mix": ("recurrent",)},
)
def starts_the_recurrent_state_anew(real):
    """A fork copies keys and values, but resets the state of the recurrent layer."""

    def copy(cache):
        copied = real(cache)
        copied.history = recurrence.reset(copied.history)
        return copied

    return copy


@mutant(".storage.concatenated:Concatenated.copy", site="0.cache", witness=steps(1, Fork(), 1))
def lacks_the_newest(real):
    """A fork lacks the newest slot."""

    def copy(self):
        copied = real(self)
        copied.crop(self.keys[0].shape[2] - 1, None)
        return copied

    return copy


@mutant(
    ".storage.concatenated:Concatenated.copy",
    site="0.cache",
    witness=steps(1, Fork(), 1),
    seen_in="turboderp-org/exllamav2#226",
)
def holds_nothing(real):
    """A fork copies the length, but none of the keys and values."""

    def copy(self):
        copied = real(self)
        copied.crop(0, None)
        return copied

    return copy
