"""Models with parts that their code wants in float32, and models that have no float64 at all."""

import pytest
import torch

from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.transformers.factory import factory

llama = pytest.importorskip("transformers.models.llama.modeling_llama")


def test_parameters_that_ask_for_float32_are_float64_there(monkeypatch):
    """A router of float32 in a float64 model would meet float64 and raise."""
    real = llama.LlamaForCausalLM.__init__

    def init(self, config):
        real(self, config)
        self.lm_head.weight.data = self.lm_head.weight.data.float()

    monkeypatch.setattr(llama.LlamaForCausalLM, "__init__", init)
    made = factory("llama", Options())
    assert made.dtypes == ("float32", "float64")
    model = made.build(0, "float64", made.first_config()).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def test_a_model_that_does_not_run_in_float64_runs_in_its_own_dtype(monkeypatch):
    """The outcome says why, and what decided instead of the measured noise."""
    real = llama.LlamaMLP.forward

    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("no kernel for Double")
        return real(self, x)

    monkeypatch.setattr(llama.LlamaMLP, "forward", forward)
    made = factory("llama", Options(config={"cache": "dynamic"}))
    assert made.dtypes == ("float32",)
    text = hunt_text(fuzz(made, examples=10, seed=0, locate=False))
    assert "note: not run in float64: transformers:llama" in text
    assert "no kernel for Double" in text
    assert "tolerance: a constant" in text
