"""The trial of a kind of cache: a refusal is told, and any other error is a finding."""

import pytest

from kvfuzz.errors import UsageError
from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.transformers.factory import factory
from kvfuzz.subjects.transformers.probe import is_refusal

caches = pytest.importorskip("transformers.cache_utils")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")
if not hasattr(caches, "StaticLayer"):
    pytest.skip("this release has no layers of caches", allow_module_level=True)


@pytest.fixture
def raising(monkeypatch):
    """Makes the static caches of the library raise an error in each update."""

    def install(error, method="update"):
        def raises(*_args, **_kwargs):
            raise error

        monkeypatch.setattr(caches.StaticLayer, method, raises)

    return install


@pytest.mark.parametrize(
    "error",
    [NotImplementedError("no static cache yet"), ValueError("Llama does not support this")],
)
def test_a_refused_kind_of_cache_is_told_with_its_error(raising, error):
    """It is not drawn, and the outcome says why."""
    raising(error)
    made = factory("llama", Options())
    assert "static" not in made.choices["cache"]
    told = f"not offered: cache static ({type(error).__name__}: {error})"
    assert told in made.remarks
    assert f"  note: {told}" in hunt_text(fuzz(made, examples=2, seed=0, locate=False))


@pytest.mark.parametrize("error", [ValueError("3 is not 4"), IndexError("out of range")])
def test_an_error_that_refuses_nothing_is_a_finding(raising, error):
    """The kind of cache is drawn, and a case of it diverges with the error."""
    raising(error)
    made = factory("llama", Options(config={"cache": "static"}))
    hunt = fuzz(made, examples=10, seed=0, locate=False)
    assert hunt.verdict == "diverged"
    assert f"the cached path raised {type(error).__name__}: {error}" in hunt.failure.verdict.error
    assert "static" in factory("llama", Options()).choices["cache"]


def test_what_the_adapter_cannot_build_is_no_finding(raising):
    """It may lack what the constructor of a cache asks for: that is told."""
    raising(TypeError("needs a page size"), "__init__")
    made = factory("llama", Options())
    assert "static" not in made.choices["cache"]
    assert any(
        "cache static (Unbuildable: TypeError: needs a page size)" in r for r in made.remarks
    )
    with pytest.raises(UsageError, match="cannot have the cache static: Unbuildable"):
        factory("llama", Options(config={"cache": "static"}))


@pytest.mark.parametrize(
    ("error", "refuses"),
    [
        (ValueError("Model is not compatible with `cache` of this type"), True),
        (NotImplementedError(), True),
        (ValueError("expected 3 values"), False),
        (RuntimeError("this is not supported"), False),
    ],
)
def test_the_words_of_a_refusal(error, refuses):
    """The library refuses by these; any other error is its own."""
    assert is_refusal(error) is refuses


def test_logits_of_another_shape_diverge(monkeypatch):
    """kvfuzz called the model as its library does: that is no error of usage."""
    real = llama.LlamaForCausalLM.forward

    def forward(self, *args, **given):
        output = real(self, *args, **given)
        rows, fed = given["input_ids"].shape
        if given.get("past_key_values", given.get("cache")) is not None and fed == 1 and rows > 1:
            output["logits"] = output["logits"].expand(rows, rows, -1)
        return output

    forward.__signature__ = __import__("inspect").signature(real)
    monkeypatch.setattr(llama.LlamaForCausalLM, "forward", forward)
    hunt = fuzz(factory("llama", Options(config={"cache": "dynamic"})), examples=60, seed=0)
    assert hunt.verdict == "diverged"
    told = "the cached path raised RuntimeError: the model returned logits of shape (2, 2, 64) for "
    assert told + "tokens of shape (2, 1)" in hunt_text(hunt)
