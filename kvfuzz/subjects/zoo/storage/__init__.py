"""How the cached path stores keys and values: one kind per module."""

from __future__ import annotations

from kvfuzz.subjects.zoo.storage.base import Storage
from kvfuzz.subjects.zoo.storage.concatenated import Concatenated
from kvfuzz.subjects.zoo.storage.int8 import Int8
from kvfuzz.subjects.zoo.storage.paged import Paged
from kvfuzz.subjects.zoo.storage.prefix import Prefix
from kvfuzz.subjects.zoo.storage.ring import Ring
from kvfuzz.subjects.zoo.storage.static import Static

KINDS: dict[str, type[Storage]] = {
    "concatenated": Concatenated,
    "static": Static,
    "ring": Ring,
    "paged": Paged,
    "int8": Int8,
    "prefix": Prefix,
}
