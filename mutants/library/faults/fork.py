"""Wrong copy: a fork lacks something, or is not independent of what it is a copy of."""

from kvfuzz.case.schedule import Fork, Padded, Switch
from kvfuzz.subjects.zoo import recurrence
from mutants.mutant import mutant, steps

NEEDS = {"cache": ("concatenated",), "mix": ("uniform", "alternating")}
BACK = (2, Fork(), 1, Switch(0), 1)


@mutant(".operations:copy", site="0.cache", witness=steps(*BACK))
def shares_its_storage(real):
    """The copy has a length of its own, and the keys and values of the original."""

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
    """The block that the next token goes into is the copy's alone: the original has a new one."""

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
    """In the copy every slot counts as text."""

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
    """Keys and values are copied, the state of the recurrent layer is not."""

    def copy(cache):
        copied = real(cache)
        copied.history = recurrence.reset(copied.history)
        return copied

    return copy


@mutant(".storage.concatenated:Concatenated.copy", site="0.cache", witness=steps(1, Fork(), 1))
def lacks_the_newest(real):
    """The last slot is not copied."""

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
    """The copy counts the slots of the original, and has none of what they hold."""

    def copy(self):
        copied = real(self)
        copied.crop(0, None)
        return copied

    return copy
