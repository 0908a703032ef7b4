"""One test per mutant, which passes if the mutant is killed: `pytest --pyargs mutants.suite`.

--kvfuzz-subject names the subject, --kvfuzz-seed the cases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from kvfuzz.errors import KvfuzzError
from kvfuzz.subjects.loading import Options, load
from mutants.campaign.cases import draw_decidable_cases, prepare_cases
from mutants.campaign.prepared_cases import PreparedCases, check_baseline
from mutants.campaign.run import check_unchanged, run_mutant
from mutants.campaign.score import control_failure
from mutants.campaign.witness import add_witness
from mutants.library.registry import find, select
from mutants.mutant import ANY


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    subject = metafunc.config.option.kvfuzz_subject
    try:
        load(subject)
        scored, controls = select(subject)
    except KvfuzzError as error:
        raise pytest.UsageError(str(error)) from None
    if "mutant_id" in metafunc.fixturenames:
        metafunc.parametrize("mutant_id", [mutant.id for mutant in scored])
    if "placebo_id" in metafunc.fixturenames:
        metafunc.parametrize("placebo_id", [mutant.id for mutant in controls if mutant.placebo])
    if "canary_id" in metafunc.fixturenames:
        metafunc.parametrize("canary_id", [mutant.id for mutant in controls if mutant.canary])


@pytest.fixture(scope="session")
def prepared(
    kvfuzz_subject: str, kvfuzz_options: Options, kvfuzz_seed: int, kvfuzz_examples: int | None
) -> PreparedCases:
    """The cases, drawn once per worker, before any mutant runs."""
    drawn = prepare_cases(kvfuzz_subject, kvfuzz_options, kvfuzz_examples, kvfuzz_seed)
    return draw_decidable_cases(drawn) if select(kvfuzz_subject)[0][0].subject == ANY else drawn


@pytest.fixture(scope="session")
def clean(prepared: PreparedCases) -> Callable[[], str | None]:
    """Returns why there can be no score; judged once per pytest worker, when first asked."""
    return functools.cache(lambda: check_baseline(prepared))


@pytest.fixture(scope="session")
def unsound() -> list[str]:
    """Why every later result of this pytest worker would be wrong."""
    return []


def test_baseline_agrees(clean: Callable[[], str | None]) -> None:
    """The unmutated subject agrees on every case."""
    assert clean() is None


def test_placebo_survives(placebo_id: str, prepared: PreparedCases) -> None:
    """A mutant that changes nothing survives; skipped if no case reaches it."""
    result = run_mutant(prepared, find(placebo_id))
    if result.state == "unreached":
        pytest.skip(f"unreached: {result.reason}")
    assert control_failure([result], []) is None


def test_canary_is_killed(canary_id: str, prepared: PreparedCases) -> None:
    """A mutant that changes every logit is killed."""
    assert control_failure([], [run_mutant(prepared, find(canary_id))]) is None


def test_mutant_is_killed(
    mutant_id: str,
    prepared: PreparedCases,
    clean: Callable[[], str | None],
    unsound: list[str],
    record_property: Callable[[str, object], None],
) -> None:
    """Cached logits differ from uncached ones on some case, or a law is broken."""
    if unsound or clean() is not None:
        pytest.fail(f"no score: {unsound[0] if unsound else clean()}")
    mutant = find(mutant_id)
    result = add_witness(prepared, mutant, run_mutant(prepared, mutant))
    if (changed := check_unchanged(prepared, mutant, result)) is not None:
        unsound.append(changed)
        pytest.fail(f"no score: {changed}")
    for name in ("operator", "state", "site", "killed_by", "excess"):
        record_property(name, getattr(result, name))
    if result.state == "equivalent":
        pytest.skip(f"equivalent: {result.reason}")
    assert result.state == "killed", f"{mutant_id} is {result.state}: {result.reason}"
