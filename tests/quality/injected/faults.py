"""The table of all injected faults."""

from tests.quality.injected.fault import ARCHITECTURES, Fault
from tests.quality.injected.faults_attention import ALIBI, GPT2, NEOX, WINDOWED
from tests.quality.injected.faults_llama import LLAMA
from tests.quality.injected.faults_recurrent import RECURRENT
from tests.quality.injected.faults_uncached import UNCACHED

__all__ = ["ARCHITECTURES", "FAULTS", "Fault"]

FAULTS = (*LLAMA, *GPT2, *ALIBI, *WINDOWED, *NEOX, *RECURRENT, *UNCACHED)
