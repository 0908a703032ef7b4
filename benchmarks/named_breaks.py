"""Guards of kvfuzz, each with a break that takes it away and the test that should then fail.

`breaks.py` makes the breaks. A break replaces text that its file has exactly once; when that text
has moved or changed, the script says so and the break has to be written anew.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Break:
    """A `guard`, what replaces the text `old` of `file`, and the `tests` that likely see it."""

    guard: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _break(guard: str, file: str, old: str, new: str, *tests: str) -> Break:
    return Break(guard, file, old, new, tests)


CONTRACT = (
    _break(
        "logits of the cached path are copied before the next call",
        "kvfuzz/subjects/run.py",
        'f"{name}.cached()").clone()',
        'f"{name}.cached()")',
        "tests/test_agreement.py::test_a_cache_that_writes_over_its_own_logits_is_judged_by_what_it_returned",
    ),
    _break(
        "logits of the uncached path are copied before the next call",
        "kvfuzz/subjects/run.py",
        'f"{name}.uncached()").clone()',
        'f"{name}.uncached()")',
        "tests/test_wild.py::test_views_of_one_buffer_are_read_when_they_are_returned",
    ),
    _break(
        "a case seeds torch's global generator",
        "kvfuzz/subjects/run.py",
        "torch.default_generator.manual_seed(seed)",
        "pass",
        "tests/test_agreement.py::test_what_a_subject_draws_from_the_global_generator_is_part_of_the_case",
    ),
    _break(
        "sys.exit() in a path is an error of that path",
        "kvfuzz/subjects/run.py",
        "except SystemExit as error:\n            raise CachedPathRaised",
        "except GeneratorExit as error:\n            raise CachedPathRaised",
        "tests/test_wild.py::test_a_path_that_ends_the_program_diverges",
    ),
    _break(
        "unused slots of a cache are poisoned before each call",
        "kvfuzz/subjects/run.py",
        "    _poison(subject, cache)\n",
        "",
        "tests/test_programs.py::test_unused_slots_are_poisoned_before_each_call",
    ),
    _break(
        "a saved state is really written and read",
        "kvfuzz/subjects/run.py",
        "pickle.loads(pickle.dumps(subject.save(cache)))",
        "subject.save(cache)",
        "tests/test_programs.py::test_a_state_is_really_written_and_read",
    ),
    _break(
        "the filling of unused slots is no operation of the subject",
        "kvfuzz/subjects/run.py",
        "with torch._C.DisableTorchFunction():  # keeps these",
        "if True:  # keeps these",
        "tests/test_programs.py::test_the_filling_of_unused_slots_is_no_operation_of_the_subject",
    ),
    _break(
        "NaN in one path diverges",
        "kvfuzz/oracle/compare.py",
        "entries.masked_fill(entries.isnan(), torch.inf)",
        "entries.masked_fill(entries.isnan(), 0.0)",
        "tests/test_agreement.py::test_nan_in_one_path_diverges",
    ),
    _break(
        "a causal reference is tested on one prefix alone",
        "kvfuzz/oracle/reference.py",
        "if length == 0 or agree(",
        "if True or agree(",
        "tests/test_agreement.py",
    ),
    _break(
        "an uncached path that is not causal is judged prefix by prefix",
        "kvfuzz/oracle/agreement.py",
        "if isinstance(alone, Tensor) and agree(alone, inside, bound):",
        "if True:",
        "tests/test_agreement.py",
        "tests/test_wild.py",
    ),
    _break(
        "a quick check runs the cached path once",
        "kvfuzz/oracle/agreement.py",
        "return _judge_logits(expected, cached, subject, case), expected",
        'return _judge_logits(expected, _try_cached(subject, case, "subject"), case), expected',
        "tests/test_agreement.py::test_a_quick_check_runs_the_cached_path_once",
    ),
    _break(
        "a model is judged by the dtype of its weights, whatever its logits are cast to",
        "kvfuzz/subjects/dtypes.py",
        "    if isinstance(model, torch.nn.Module):",
        "    if False:",
        "tests/test_wild.py::test_a_model_is_run_in_its_own_dtype_and_judged_by_it",
    ),
)

TOLERANCE = (
    _break(
        "the bound is kappa times the floor",
        "kvfuzz/oracle/tolerance.py",
        "bound = kappa(dtype) * leeway * floor",
        "bound = 2 * kappa(dtype) * leeway * floor",
        "tests/test_tolerance.py::test_the_bound_is_kappa_times_the_floor",
    ),
    _break(
        "an outlier does not count towards the scale",
        "kvfuzz/oracle/tolerance.py",
        "scale = sizes.masked_fill(outlier, 0.0).amax(-1)",
        "scale = sizes.amax(-1)",
        "tests/test_tolerance.py::test_an_outlier_is_judged_by_its_own_size",
    ),
    _break(
        "a position that could hide any fault is weak",
        "kvfuzz/oracle/tolerance.py",
        "WEAK = 0.3",
        "WEAK = 0.9",
        "tests/test_tolerance.py::test_where_three_tenths_of_the_scale_are_allowed_a_position_is_weak",
    ),
    _break(
        "the cached path cannot widen its own tolerance",
        "kvfuzz/oracle/agreement.py",
        "return compare(logits, found.table(uncached), tolerance.at(found.table), fed)",
        "bound = tolerance.at(found.table)\n"
        "    bound = replace(bound, allowed=bound.allowed + 1e-3 * logits.double().abs().amax())\n"
        "    return compare(logits, found.table(uncached), bound, fed)",
        "tests/test_tolerance.py",
    ),
    _break(
        "a calibration does not reach float64",
        "kvfuzz/oracle/reference.py",
        "leeway = 1.0 if dtype == torch.float64 else leeway",
        "leeway = leeway if dtype == torch.float64 else leeway",
        "tests/test_calibrating.py::test_a_leeway_does_not_reach_float64",
    ),
    _break(
        "weights are what they were after the noise is measured",
        "kvfuzz/subjects/perturb.py",
        "                weight.copy_(value)\n",
        "                pass\n",
        "tests/test_noise.py",
    ),
    _break(
        "embedded tokens are perturbed one by one",
        "kvfuzz/subjects/perturb.py",
        "moved = found * (1 + now[0] * sign.to(found.device))",
        "moved = found",
        "tests/test_noise.py::test_equal_neighbours_do_not_cancel_their_noise",
    ),
    _break(
        "float64 is offered only where no island rounds",
        "kvfuzz/subjects/native_dtype.py",
        "(small - large).norm() <= PROPORTIONAL * large.norm()",
        "(small - large).norm() <= torch.inf",
        "tests/test_float64.py::test_a_subject_that_keeps_an_island_is_not_put_into_float64",
    ),
    _break(
        "a cast that changes no value is no loss",
        "kvfuzz/subjects/precision.py",
        "return bool(((before != after) & usual).any())",
        "return True",
        "tests/test_sensitivity.py::test_what_is_no_loss_is_not_called_one",
    ),
    _break(
        "a lossy cast of the cached path diverges",
        "kvfuzz/oracle/sensitivity.py",
        "if (source, target) not in shared:",
        "if False:",
        "tests/test_sensitivity.py::test_a_lossy_cast_of_the_cached_path_diverges_though_the_logits_agree",
    ),
    _break(
        "a cast that both paths make is no loss",
        "kvfuzz/oracle/sensitivity.py",
        "if (source, target) not in shared:",
        "if True:",
        "tests/test_sensitivity.py",
        "tests/test_float64.py",
    ),
    _break(
        "a case that a corrupted cache would pass is vacuous",
        "kvfuzz/oracle/sensitivity.py",
        "return unnoticed(corrupting, first) and unnoticed(subject, other)",
        "return False",
        "tests/test_sensitivity.py",
    ),
    _break(
        "the cache is what it was after it was corrupted",
        "kvfuzz/oracle/sensitivity.py",
        "                    tensor.copy_(value)\n",
        "                    pass\n",
        "tests/test_sensitivity.py::test_the_cache_is_what_it_was_after_it_was_corrupted",
    ),
)

LAWS = (
    _break(
        "causality: later tokens change nothing",
        "kvfuzz/oracle/laws.py",
        "        places[:, :start] = True\n",
        "",
        "tests/test_laws.py",
        "tests/mutants/test_laws.py",
    ),
    _break(
        "isolation: the other rows are changed",
        "kvfuzz/oracle/laws.py",
        "token if own else (token + 1) % subject.vocab_size",
        "token",
        "tests/test_laws.py",
        "tests/mutants/test_laws.py",
    ),
    _break(
        "repeatability: not the last bit may differ",
        "kvfuzz/oracle/laws.py",
        "allowed=torch.zeros_like(tolerance.allowed)",
        "allowed=tolerance.allowed + 1",
        "tests/test_laws.py",
        "tests/mutants/test_laws.py",
    ),
    _break(
        "frame: a call changes no old entry",
        "kvfuzz/oracle/frame_law.py",
        "if not torch.equal(kept, now):",
        "if False:",
        "tests/test_laws.py::test_the_frame_law_names_the_step_and_the_slot",
    ),
    _break(
        "generation: the tokens are those without a cache",
        "kvfuzz/oracle/generation_law.py",
        "    if torch.equal(cached[0], uncached[0]):",
        "    if True:",
        "tests/test_laws.py::test_a_generation_that_differs_names_the_token",
    ),
)

HUNT = (
    _break(
        "a hunt that never read a cache is inconclusive",
        "kvfuzz/search/hunt.py",
        '"agreed" if tally.read else',
        '"agreed" if tally.cases else',
        "tests/test_hunt.py::test_a_hunt_that_never_read_a_cache_is_inconclusive",
    ),
    _break(
        "a known divergence excuses its own law alone",
        "kvfuzz/search/known_divergences.py",
        "verdict.law == self.law\n            and ",
        "",
        "tests/test_expectations.py",
    ),
    _break(
        "a file replayed that diverges is exit code 1",
        "kvfuzz/search/replay.py",
        '    if "diverged" in statuses:\n        return 1',
        '    if "diverged" in statuses:\n        return 0',
        "tests/test_replaying.py::test_it_still_diverges",
        "tests/test_cli.py",
    ),
    _break(
        "Hypothesis draws each case independently of loaded modules and earlier cases",
        "kvfuzz/search/hypothesis_run.py",
        "with suppress(Unsatisfiable), independent_draws():",
        "with suppress(Unsatisfiable):",
        "tests/test_strategies.py::test_cases_are_drawn_while_the_private_names_are_replaced",
    ),
    _break(
        "each case is drawn anew also where Hypothesis detects CI",
        "kvfuzz/search/hypothesis_run.py",
        "            derandomize=False,\n",
        "",
        "tests/test_ci.py::test_all_settings_state_derandomize",
    ),
    _break(
        "padding keeps the positions that it needs while a find is shrunk",
        "kvfuzz/search/shrink.py",
        "if key in self.tried or not has_required_args(case, self.space.offers):",
        "if key in self.tried:",
        "tests/test_programs.py::test_a_find_keeps_the_positions_that_padding_needs",
    ),
    _break(
        "the audit has its boundary",
        "kvfuzz/audit/audit.py",
        "BOUNDARY = 1e-5",
        "BOUNDARY = 1e-3",
        "tests/test_audit.py",
    ),
    _break(
        "no import points up",
        "kvfuzz/case/schedule.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\n\nimport kvfuzz.cli\n",
        "tests/test_layers.py::test_no_import_points_up",
    ),
)

CAMPAIGN = (
    _break(
        "a clean subject that diverges forbids a score",
        "mutants/campaign/score.py",
        "reason = check_baseline(self.prepared)",
        "reason = None",
        "tests/mutants/test_score.py::test_a_baseline_that_diverges_forbids_a_score",
    ),
    _break(
        "a placebo that is killed forbids a score",
        "mutants/campaign/score.py",
        '        if result.state != "survived":',
        "        if False:",
        "tests/mutants/test_score.py::test_a_placebo_that_is_killed_forbids_a_score",
    ),
    _break(
        "a canary that lives forbids a score",
        "mutants/campaign/score.py",
        '        if result.state != "killed":',
        "        if False:",
        "tests/mutants/test_campaign.py::test_a_canary_that_lives_forbids_a_score",
    ),
    _break(
        "a result that does not come back forbids a score",
        "mutants/campaign/score.py",
        "if missing and unsound is None:",
        "if False:",
        "tests/mutants/test_workers.py::test_a_result_that_does_not_come_back_forbids_a_score",
    ),
    _break(
        "a mutant that raises is not killed",
        "mutants/campaign/run.py",
        "        if outcome.error is not None:\n"
        "            self.errors.append(outcome.error)\n"
        "        elif outcome.killed:\n",
        "        if outcome.error or outcome.killed:\n",
        "tests/mutants/test_score.py::test_the_state_of_a_mutant",
    ),
    _break(
        "a mutant that leaves the subject changed is noticed",
        "mutants/campaign/run.py",
        "    if changed:\n",
        "    if False:\n",
        "tests/mutants/test_hostile.py::test_a_mutant_that_leaves_a_change_behind_forbids_a_score_in_one_process",
    ),
    _break(
        "the last case that ran is judged again",
        "mutants/campaign/run.py",
        "[max(result.ran - 1, 0)]",
        "[0]",
        "tests/mutants/test_hostile.py::test_what_is_judged_again_is_the_last_case_that_was_met",
    ),
    _break(
        "a kill counts more than a measurement of the design",
        "mutants/campaign/run.py",
        "if mutant.equivalent is not None and mutant.subject != ANY:",
        "if mutant.equivalent is not None:",
        "tests/mutants/test_anywhere.py::test_a_design_is_never_taken_from_what_survived",
    ),
    _break(
        "an invalid mutant is no full score",
        "mutants/campaign/result.py",
        'FAILED = (*NOT_KILLED, "invalid")',
        "FAILED = NOT_KILLED",
        "tests/mutants/test_hostile.py::test_an_invalid_mutant_exits_1",
    ),
    _break(
        "only mutants that did not begin are no score",
        "mutants/campaign/result.py",
        "all(result.reason == NOT_BEGUN for result in decided)",
        'all(result.state == "timed_out" for result in decided)',
        "tests/mutants/test_score.py::test_time_that_is_over_times_the_rest_out",
    ),
    _break(
        "known divergences are no cases of a campaign",
        "mutants/campaign/cases.py",
        "tuple(case for case in cases if not is_expected(plan, case))",
        "tuple(cases)",
        "tests/mutants/test_campaign.py::test_known_divergences_are_no_cases_of_a_campaign",
    ),
    _break(
        "the path of a calibration is no part of a campaign",
        "mutants/campaign/campaign.py",
        '_digest(settings["calibration"][0])',
        '_digest(settings["calibration"])',
        "tests/mutants/test_campaign.py",
    ),
    _break(
        "a mutant that swallows the signal of its time limit gets the signal again",
        "mutants/campaign/time_limit.py",
        "signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)",
        "signal.setitimer(signal.ITIMER_REAL, seconds)",
        "tests/mutants/test_hostile.py::test_the_alarm_rings_again",
    ),
    _break(
        "a journal whose creation was killed is used",
        "mutants/campaign/journal.py",
        "if tables and tables.isdisjoint(TABLES):",
        "if tables and tables != TABLES:",
        "tests/mutants/test_journal.py::test_the_database_of_another_program_is_left_alone",
    ),
    _break(
        "a resumed campaign judges only what is missing",
        "mutants/campaign/journal.py",
        "WHERE digest = ? AND judged IS NOT NULL",
        "WHERE digest = ? AND judged IS NULL AND 0",
        "tests/mutants/test_journal.py::test_a_resumed_campaign_judges_only_what_is_missing",
    ),
    _break(
        "a kill by a case that is missing is refused",
        "mutants/campaign/merge.py",
        "if not {*result.kills, *_first(result)} <= {*range(len(cases))}:",
        "if False:",
        "tests/mutants/test_merging.py::test_a_kill_by_a_case_that_is_not_there_is_refused",
    ),
    _break(
        "a mutant that a shard has twice is refused",
        "mutants/campaign/merge.py",
        "    if added:\n",
        "    if False:\n",
        "tests/mutants/test_merging.py",
    ),
    _break(
        "a state that there is not is refused",
        "mutants/campaign/merge.py",
        'if values["state"] not in STATES:',
        "if False:",
        "tests/mutants/test_merging.py",
    ),
    _break(
        "a shard is not written over by the merged report",
        "mutants/report/outputs.py",
        "if os.path.realpath(file) in needed:",
        "if False:",
        "tests/mutants/test_merging.py::test_a_shard_is_not_written_over",
    ),
    _break(
        "the design of a model is measured on rows as long as those drawn",
        "mutants/generic/equivalence_checks.py",
        "length = max(FEWEST, min(LONGEST, room))",
        "length = FEWEST",
        "tests/mutants/test_anywhere.py",
    ),
    _break(
        "bits of a cache are compared before it counts as shared",
        "mutants/generic/equivalence_checks.py",
        "pairs = [(first, again), *zip_longest(before, after)]",
        "pairs = [(first, again)]",
        "tests/mutants/test_anywhere.py",
    ),
    _break(
        "a norm that does nothing to its own output is measured",
        "mutants/generic/equivalence_checks.py",
        'return None if bool(found.diverges.any()) else "the last norm',
        'return None if True else "the last norm',
        "tests/mutants/test_anywhere.py",
    ),
    _break(
        "a softmax that is called by keyword is attention too",
        "mutants/generic/attention_hooks.py",
        'scores, *rest = args or (kwargs.pop("input"),)',
        "scores, *rest = args",
        "tests/mutants/test_anywhere_modules.py",
    ),
    _break(
        "a confirmed equivalent expires with the code of its fault",
        "mutants/equivalence/code_digest.py",
        "CONSTANT = (int, float, str, tuple, type(None))",
        "CONSTANT = ()",
        "tests/mutants/test_equivalents.py::test_a_confirmation_expires_with_the_faults_code",
    ),
)

PROCESSES = (
    _break(
        "the child of a fault that forks does not answer",
        "kvfuzz/search/pool.py",
        "        if os.getpid() != own:\n",
        "        if False:\n",
        "tests/mutants/test_workers.py::test_a_child_that_a_fault_forked_costs_no_process",
    ),
    _break(
        "bytes that a fault writes into the pipe are no message",
        "kvfuzz/search/pool.py",
        "except (OSError, ValueError, TypeError):",
        "except OSError:",
        "tests/mutants/test_workers.py::test_noise_in_the_pipe_costs_no_other_result",
    ),
    _break(
        "a message that a fault writes into the pipe is no result",
        "kvfuzz/search/pool.py",
        "if key != self.key:",
        "if False:",
        "tests/mutants/test_workers.py::test_noise_in_the_pipe_costs_no_other_result",
    ),
    _break(
        "what workers do counts in the order in which it was given out",
        "kvfuzz/search/pool.py",
        "given.append(item)",
        "given.appendleft(item)",
        "tests/test_pool.py::test_what_becomes_of_each_item_comes_in_order",
    ),
    _break(
        "what a subject started ends with its worker",
        "kvfuzz/search/pool.py",
        "    os.killpg(0, signal.SIGKILL)",
        "    os._exit(1)",
        "tests/test_pool.py::test_what_a_subject_started_ends_with_the_parent",
    ),
    _break(
        "what is known of a mutant outlives its process",
        "mutants/campaign/workers.py",
        '    if "known" in said:\n',
        "    if False:\n",
        "tests/mutants/test_workers.py::test_what_is_known_of_a_mutant_outlives_its_process",
    ),
    _break(
        "a mutant whose process died is judged again in a new one",
        "mutants/campaign/workers.py",
        "if spoiled and name not in again:",
        "if False:",
        "tests/mutants/test_workers.py::test_a_process_that_dies_between_two_mutants_is_not_the_next_ones_fault",
    ),
    _break(
        "the clean subject has more time than a mutant",
        "mutants/campaign/prepared_cases.py",
        "return max(SECONDS_FOR_CLEAN, self.campaign.limits.seconds)",
        "return self.campaign.limits.seconds",
        "tests/mutants/test_workers.py::test_the_clean_subject_has_more_time_than_a_mutant",
    ),
    _break(
        "what a mutant prints is no part of the report",
        "mutants/campaign/workers.py",
        "    _discard_output()\n",
        "",
        "tests/mutants/test_workers.py::test_what_a_mutant_prints_is_no_part_of_the_report",
    ),
)

NAMED = (*CONTRACT, *TOLERANCE, *LAWS, *HUNT, *CAMPAIGN, *PROCESSES)
