"""A case is plain data, and refuses wrong values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidCase
from kvfuzz.search.strategies import Space, cases

SPACE = Space(64, 12, ("float32", "float64"), choices={"window": (None, 3)}, fixed={"heads": 2})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": ()}, "at least one row of at least one token"),
        ({"tokens": ((),)}, "at least one row of at least one token"),
        ({"tokens": ((1, 2), (1,))}, r"all rows of a case have one length, got lengths \[1, 2\]"),
        ({"schedule": (1, 2)}, r"schedule \[1, 2\] should be .* sum to the 2 tokens"),
        ({"schedule": (2, 0)}, "should be positive chunk sizes"),
        ({"schedule": ()}, "should be positive chunk sizes"),
        ({"dtype": "float8"}, "dtype 'float8' is not one of float64"),
    ],
)
def test_a_case_that_is_no_experiment_is_refused_with_the_value(change, message):
    """The message shows the wrong value."""
    good = {"tokens": ((1, 2),), "schedule": (1, 1)}
    with pytest.raises(InvalidCase, match=message):
        Case(**{**good, **change})


def test_steps_tile_the_positions_in_order():
    """A schedule 3, 1, 2 is a prefill, a decode and an extend."""
    steps = list(Case(((1, 2, 3, 4, 5, 6),), (3, 1, 2)).steps())
    assert [(s.kind, s.start, s.stop) for s in steps] == [
        ("prefill", 0, 3),
        ("decode", 3, 4),
        ("extend", 4, 6),
    ]


def test_a_first_step_of_one_token_is_a_prefill():
    """The first call on a cache is its prefill, whatever its size."""
    assert next(Case(((1,),), (1,)).steps()).kind == "prefill"


@given(cases(SPACE))
def test_a_case_survives_json(case):
    """What is written to a file is read back equal."""
    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["tokens", "schedule", "seed", "dtype", "config"]),
                inner,
                max_size=5,
            )
        ),
    )
)
def test_any_json_is_read_or_refused_in_one_line(data):
    """No JSON value makes another error than InvalidCase."""
    try:
        Case.from_json(data)
    except InvalidCase as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_only_integers_are_tokens(value):
    """A boolean is not a token, nor is a float."""
    data = Case(((1,),), (1,)).to_json() | {"tokens": [[value]]}
    with pytest.raises(InvalidCase, match="should hold integers"):
        Case.from_json(data)
