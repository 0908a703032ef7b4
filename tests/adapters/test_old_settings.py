"""Settings that the library itself takes are taken: those of old files, and a whole file."""

import json

import pytest

from kvfuzz.errors import UsageError
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.transformers.factory import factory

transformers = pytest.importorskip("transformers")
phi3 = pytest.importorskip("transformers.models.phi3")

SCALING = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def built(model_type, /, **config):
    made = factory(model_type, Options(config={"cache": "dynamic", **config}))
    return made, made.build(0, "float32", made.first_config()).model.config


def test_a_field_that_is_stored_under_another_name_is_taken():
    """`rope_scaling` of old files; what is stored is what the library makes of it."""
    made, config = built("phi3", rope_scaling=SCALING)
    assert not [remark for remark in made.remarks if "does not know" in remark]
    parameters = getattr(config, "rope_parameters", None) or config.rope_scaling
    assert parameters["rope_type"] == "longrope"
    assert parameters["long_factor"] == [2.0] * 4


def test_a_whole_file_is_taken_and_what_it_holds_besides_is_named(tmp_path):
    """As `from_pretrained` takes it: the file of a tiny model, with fields of another release."""
    tiny = built("phi3", rope_scaling=SCALING)[1]
    tiny.save_pretrained(tmp_path)
    file = json.loads((tmp_path / "config.json").read_text())
    made, config = built("phi3", **file, _name_or_path="elsewhere", use_flash_attn=True)
    told = "this release does not know, and ignores: _name_or_path, use_flash_attn"
    assert told in made.remarks
    assert config.hidden_size == tiny.hidden_size


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hiden_size": 8}, r"has no setting 'hiden_size' \(did you mean hidden_size"),
        ({"rope_scalling": None}, r"has no setting 'rope_scalling'"),
        ({"use_flash_attn": True}, "has no setting 'use_flash_attn'"),
        ({"model_type": "llama", "hidden_size": 8}, "settings of another model type, 'llama'"),
    ],
)
def test_what_is_typed_wrong_by_hand_is_refused(config, message):
    """With the word that was meant."""
    with pytest.raises(UsageError, match=message):
        built("phi3", **config)
