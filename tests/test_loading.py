"""A name becomes a factory, or is refused in one line."""

from pathlib import Path

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError
from kvfuzz.search.calibrate import calibrate
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.loading import Options, as_factory, load
from tests.subjects import models

MODELS = Path(models.__file__)
CASE = Case(((1, 2),), (1, 1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zooo", r"unknown subject 'zooo' \(did you mean zoo\?\)"),
        ("zoo:rop", r"the zoo has no decoder 'rop' \(did you mean rope"),
        ("nosuch.module:thing", "there is no module 'nosuch'"),
        ("tests.subjects.models:", "unknown subject"),
        ("tests.subjects.models:Sumning", r"no attribute 'Sumning' \(did you mean Summing"),
        ("tests.subjects.models:a_number", "neither a subject nor a factory of one: it is a int"),
        ("tests.subjects.broken:x", "does not import: ZeroDivisionError: at import"),
        ("tests.subjects.raising:fails_to_build", "could not be built: OSError: no weights here$"),
        ("tests.subjects.raising:NoCacheMethod", r"has no method new_cache\(batch\)"),
        ("no/such/file.py:thing", "there is no file no/such/file.py"),
        ("", "unknown subject ''"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line_with_its_name(name, message):
    """The value and the way out, no traceback."""
    with pytest.raises(KvfuzzError, match=message) as caught:
        load(name).limits()
    assert "\n" not in str(caught.value)


def test_a_module_that_an_import_needs_is_not_blamed_on_the_subject(tmp_path):
    """A missing dependency of the user's file is named as what it is."""
    file = tmp_path / "mine.py"
    file.write_text("import nosuchdependency\n")
    with pytest.raises(
        InvalidSubject, match="mine.py does not import: ModuleNotFoundError: .*nosuchd"
    ):
        load(f"{file}:x")


def test_a_file_may_import_its_neighbours(tmp_path):
    """As it could if it were run as a script."""
    (tmp_path / "neighbour_of_mine.py").write_text("from tests.subjects.models import Summing\n")
    file = tmp_path / "mine.py"
    file.write_text("from neighbour_of_mine import Summing\n")
    assert load(f"{file}:Summing").limits().vocab_size == 11


def test_two_files_of_one_name_are_two_modules(tmp_path):
    """The second is not served from the first's place in sys.modules."""
    for folder, size in (("a", 5), ("b", 6)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(
            "from tests.subjects.models import Summing\n"
            f"class Mine(Summing):\n    max_length = {size}\n"
        )
    lengths = [load(f"{tmp_path}/{folder}/model.py:Mine").limits().max_length for folder in "ab"]
    assert lengths == [5, 6]


def test_a_factory_that_takes_a_seed_gives_other_weights_for_another_seed():
    """So that weights vary from case to case."""
    factory = load("tests.subjects.models:Summing")
    assert factory.seeded
    one, same, other = (factory.build(seed, "float32", {}) for seed in (1, 1, 2))
    assert torch.equal(one.table, same.table)
    assert not torch.equal(one.table, other.table)


def test_a_factory_without_a_seed_is_not_given_one():
    """Its weights are its own, and the case says seed 0."""
    assert not load("tests.subjects.models:unseeded").seeded


def test_a_subject_itself_is_used_as_it_is():
    """An attribute that is already a subject, or an object in Python."""
    assert load("tests.subjects.models:a_subject").subject(CASE) is models.a_subject
    assert as_factory(models.a_subject).subject(CASE) is models.a_subject


def test_the_choices_of_a_factory_are_drawn_and_a_setting_fixes_one():
    """What the user fixes is no longer drawn."""
    name = "tests.subjects.models:Summing"
    assert load(name).choices == {"flavour": ("plain", "salted")}
    fixed = load(name, Options(config={"flavour": "salted"}))
    assert (fixed.choices, fixed.fixed) == ({}, {"flavour": "salted"})


@pytest.mark.parametrize(
    "choices", [{"a": ()}, {"a": (object(),)}, {"a": 3}, ["a"], {"a": ({1: 2},)}, {"a": ((1,),)}]
)
def test_choices_that_a_file_could_not_hold_are_refused(choices):
    """They would be lost in the counterexample."""

    class Odd(models.Summing):
        pass

    Odd.choices = choices
    with pytest.raises(InvalidSubject, match=r"choices should map settings to non-empty lists"):
        as_factory(Odd)


def test_an_unknown_setting_is_refused_with_near_matches():
    """A misspelt setting would otherwise silently do nothing."""
    with pytest.raises(UsageError, match=r"takes no setting 'flavor' \(did you mean flavour\?\)"):
        load("tests.subjects.models:Summing", Options(config={"flavor": "salted"}))
    with pytest.raises(UsageError, match="zoo has no setting 'layer'"):
        load("zoo", Options(config={"layer": 2}))


def test_a_dtype_reaches_the_model_of_a_subject():
    """If the factory takes no dtype, the subject's torch module is cast."""
    factory = load("tests.subjects.models:ModuleBacked", Options(dtype="float64"))
    assert factory.dtypes == ("float64",)
    case = Case(((1, 2),), (1, 1), dtype="float64")
    assert factory.subject(case).uncached(torch.tensor([[1]])).dtype == torch.float64


def test_a_dtype_that_cannot_be_reached_is_refused():
    """An opaque subject stays in the dtype that it has."""
    with pytest.raises(UsageError, match="cannot be put in bfloat16: it exposes no torch module"):
        load("tests.subjects.models:Summing", Options(dtype="bfloat16"))


@pytest.mark.parametrize("device", ["nosuch", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device):
    """In one line, with its name."""
    with pytest.raises(UsageError, match=f"device '{device}' is not available") as caught:
        Options(device=device)
    assert "\n" not in str(caught.value)


def test_every_preset_of_the_zoo_loads():
    """And every value that the zoo draws makes a decoder."""
    from kvfuzz.subjects.zoo.presets import CHOICES, PRESETS

    for preset in PRESETS:
        assert load(f"zoo:{preset}").limits().vocab_size == 64
    factory = load("zoo")
    for field, values in CHOICES.items():
        for value in values:
            assert factory.build(0, "float32", {field: value}).vocab_size == 64


def test_a_fixed_setting_keeps_out_the_choices_that_do_not_fit_it():
    """Three heads cannot share two key/value heads."""
    factory = load("zoo", Options(config={"heads": 3, "kv_heads": 3}))
    assert "kv_heads" not in factory.choices
    factory = load("zoo", Options(config={"kv_heads": 2}))
    assert factory.choices["heads"] == (2, 4)


def test_the_factory_alone_checks_a_subject(monkeypatch):
    """Neither a hunt, nor the locator, nor a calibration checks its product again."""
    for module in ("kvfuzz.oracle.agreement", "kvfuzz.search.judge"):
        monkeypatch.setattr(f"{module}.require_protocol", lambda *_: pytest.fail("checked again"))
    hunt = fuzz(models.ForgetsOnDecode, seed=0)
    assert (hunt.verdict, hunt.explanation is not None) == ("diverged", True)
    assert calibrate("tests.subjects.models:Summing", examples=10, seed=0).lanes
