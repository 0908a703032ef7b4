"""The law of generation: a search with a wrong cache, and one that shows nothing."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.oracle.beam_search import flattened, search
from kvfuzz.report.text import hunt_text
from kvfuzz.search.judge import check_law
from kvfuzz.subjects.float64 import Float64Subject

VOCAB, WIDTH = 24, 16
CASE = Case(((1, 2, 3, 4, 5), (6, 7, 8, 9, 10)), (3, 2))


class Searches:
    """One layer of attention, and a beam search over it that keeps keys and values."""

    vocab_size, max_length = VOCAB, 32
    reorders, forgets, spoils, gives_logits, refuses = True, False, 0.0, False, False

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = nn.ModuleDict(
            {"token": nn.Embedding(VOCAB, WIDTH), "place": nn.Embedding(40, WIDTH)}
            | {"mixed": nn.Linear(WIDTH, 3 * WIDTH), "head": nn.Linear(WIDTH, VOCAB, bias=False)}
        ).eval()
        with torch.no_grad():
            self.model["head"].weight.mul_(20)  # peaked logits, as random models often have

    def run(self, tokens, cache):
        held = cache[0].shape[1] if cache else 0
        where = torch.arange(held, held + tokens.shape[1])
        x = self.model["token"](tokens) + self.model["place"](where)
        q, k, v = self.model["mixed"](x).chunk(3, -1)
        if cache:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        far = where[:, None] < torch.arange(k.shape[1])
        weights = (q @ k.mT / WIDTH**0.5).masked_fill(far, -torch.inf).softmax(-1)
        return self.model["head"](x + weights @ v), (k, v)

    def uncached(self, tokens):
        return self.run(tokens, None)[0]

    def new_cache(self, batch):
        return ()

    def cached(self, tokens, cache):
        return self.run(tokens, cache)

    def generate(self, tokens, length, beams, cached):
        if self.refuses and beams > 1:
            raise NotImplementedError("no beams")
        rows, prompt = tokens.shape
        texts = tokens.repeat_interleave(beams, 0)
        scores = torch.full((rows, beams), -torch.inf)
        scores[:, 0] = 0
        cache, feed, logits = (), texts, []
        for step in range(length):
            if cached:
                last, cache = self.run(feed, cache)
            else:
                last = self.uncached(texts)
            last = last[:, -1] * (1 - self.spoils * (cached and step == 2))
            if self.forgets and cached and step:
                last = last.roll(1, -1)
            logits.append(last)
            totals = scores.reshape(-1, 1) + last.log_softmax(-1)
            scores, best = totals.reshape(rows, -1).topk(beams)
            source = (beams * torch.arange(rows)[:, None] + best // VOCAB).flatten()
            texts = torch.cat((texts[source], (best % VOCAB).reshape(-1, 1)), 1)
            feed = texts[:, -1:]
            if cached and self.reorders:
                cache = tuple(part[source] for part in cache)
        found = texts.reshape(rows, beams, -1)[:, 0, prompt:]
        given = self.gives_logits and beams == 1
        return found, torch.stack(logits, 1) if given else None


def made(**fields):
    return type("Made", (Searches,), fields)


def test_a_right_search_agrees_and_counts():
    """Greedy and with beams, in cases that would have shown a wrong cache."""
    hunt = kvfuzz.fuzz(Searches, seed=0, examples=60, folder=None)
    assert hunt.verdict == "agreed"
    assert hunt.exercised["generation"] >= 5


@pytest.mark.parametrize("seed", range(5))
def test_a_search_that_never_reorders_its_cache_diverges(seed):
    """Its beams never change places on the peaked logits that it is drawn with."""
    hunt = kvfuzz.fuzz(made(reorders=False), seed=seed, folder=None, locate=False)
    assert hunt.verdict == "diverged"
    assert hunt.failure.verdict.finding.startswith("generation: search with 2 beams: token ")


def test_flat_logits_show_what_peaked_ones_hide():
    """A search that never reorders gives other tokens in far more rows."""
    prompts = [(n, n + 1, n + 5) for n in range(12)]

    def rows_that_show_it(subject):
        found = search(subject, prompts, 6, 2)
        wrong = search(subject, prompts, 6, 2, "never reordered its cache")
        return int((wrong.tokens != found.tokens).any(1).sum())

    peaked = flat = 0
    for seed in range(4):
        subject = Searches(seed)
        peaked += rows_that_show_it(subject)
        with flattened(subject, 1 / 20, prompts):
            flat += rows_that_show_it(subject)
    assert flat >= 8 * max(1, peaked)


def test_our_search_is_that_of_a_right_beam_search():
    """Token for token, so that its gap is that of the subject's own."""
    subject = Searches()
    with flattened(subject, 1 / 20, CASE.prefix(3)):
        own = subject.generate(torch.tensor(CASE.prefix(3)), 6, 2, cached=False)[0]
        assert torch.equal(search(subject, CASE.prefix(3), 6, 2).tokens, own)


def test_logits_that_differ_count_where_the_tokens_are_the_same():
    """By the tolerance of the case."""
    wrong = made(gives_logits=True, spoils=1e-6)
    case = replace(CASE, dtype="float64")
    verdict = check_law("generation", Float64Subject(wrong()), case)
    assert "token 3 of row 0 is the same, after a prompt of 3; its logits differ by" in (
        verdict.finding
    )
    right = check_law("generation", Float64Subject(made(gives_logits=True)()), case)
    assert right.status == "agreed"


def test_refused_beams_do_not_hide_a_greedy_search():
    """A search that is refused counts for nothing; the other is judged."""
    assert check_law("generation", made(refuses=True)(), CASE).status == "agreed"
    verdict = check_law("generation", made(refuses=True, forgets=True)(), CASE)
    assert verdict.finding.startswith("generation: greedy search: token ")


def test_a_search_that_could_not_have_failed_is_vacuous_and_told():
    """Its logits do not depend on what a cache holds."""

    class LastTokenAlone(Searches):
        def run(self, tokens, cache):
            return self.model["head"](self.model["token"](tokens)), (tokens[..., None],)

    verdict = check_law("generation", LastTokenAlone(), CASE)
    assert (verdict.status, verdict.positions) == ("vacuous", 0)
    assert verdict.reason == "greedy search would choose the same tokens if it lost its cache"


@pytest.mark.parametrize("law", ["causality", "isolation"])
def test_a_law_whose_change_has_no_effect_is_vacuous(law):
    """Logits that depend on the position alone keep every such law."""

    class PlaceAlone(Searches):
        def run(self, tokens, cache):
            return super().run(torch.zeros_like(tokens), cache)

    verdict = check_law(law, PlaceAlone(), CASE)
    assert (verdict.status, verdict.law) == ("vacuous", law)
    assert check_law(law, Searches(), CASE).status == "agreed"


def test_a_hunt_says_which_law_was_vacuous():
    """In place of 'not drawn'."""

    class Greedy(Searches):
        def run(self, tokens, cache):
            logits, cache = super().run(tokens, cache)
            constant = torch.zeros(VOCAB, dtype=logits.dtype)
            constant[3] = 1e6
            return logits + constant, cache

    hunt = kvfuzz.fuzz(Greedy, seed=0, examples=40, folder=None)
    assert hunt.not_exercised()["generation"] == "vacuous"
    assert "  vacuous: generation" in hunt_text(hunt)
    assert hunt.to_json()["vacuous_laws"]["generation"] >= 3


@pytest.mark.parametrize("wrap", [lambda subject: subject, Float64Subject])
def test_weights_are_what_they_were_after_they_were_made_flat(wrap):
    """Bit for bit, also after an exception, in the dtype of the subject and in its twin."""
    own = Searches()
    before = {name: one.detach().clone() for name, one in own.model.named_parameters()}
    subject = wrap(own)
    tokens = torch.tensor(CASE.prefix(3))
    logits = subject.uncached(tokens)

    def stops():
        with flattened(subject, 0.1, CASE.prefix(3)) as could:
            assert could
            assert float(subject.uncached(tokens).std() / logits.std()) < 0.2
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stops()
    assert torch.equal(subject.uncached(tokens), logits)
    assert all(torch.equal(one, before[name]) for name, one in own.model.named_parameters())


def test_beams_that_tie_are_no_divergence_and_others_are_in_any_dtype():
    """The gap to the next beam is measured."""

    class Tied(Searches):
        def __init__(self, seed=0):
            super().__init__(seed)
            with torch.no_grad():
                half = VOCAB // 2  # each token has a double, up to its own place
                for name in ("token", "head"):
                    weight = self.model[name].weight
                    weight[half:] = weight[:half]

        def generate(self, tokens, length, beams, cached):
            found, logits = super().generate(tokens, length, beams, cached)
            return ((found + VOCAB // 2) % VOCAB if cached else found), logits

    case = replace(CASE, dtype="float32")
    assert not check_law("generation", Tied(), case).diverged
    verdict = check_law("generation", made(reorders=False)(), case)
    assert verdict.diverged
