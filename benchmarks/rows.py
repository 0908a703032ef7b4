"""The rows of the table, in the order of docs/performance.md."""

from __future__ import annotations

from benchmarks.row import Row

BARE = "the bare passes of the same cases"
TORCH = "import torch"
LOCATED = (
    *((f"{n}-layers", f"a torch decoder of {n} layers", "decoder", (n,)) for n in (1, 4, 12)),
    ("zoo", "the built-in decoder", "zoo", ()),
    ("llama", "a copy of transformers' llama", "llama", ()),
)
PROGRAM_WORDS = {
    "prefill": "rows of 8, prefilled",
    "decode": "rows of 20, token by token",
    "long": "rows of 64, prefilled",
}

ROWS = (
    Row(
        "fuzz-loop.zoo",
        "the fuzz loop of the built-in decoder, 200 cases, all laws",
        BARE,
        2.5,
        "benchmarks.loop:fuzz_loop",
        ("zoo",),
        repeats=3,
    ),
    *(
        Row(
            f"fuzz-loop.{kind}",
            f"the fuzz loop of transformers:{kind}, 200 cases, all laws",
            BARE,
            2.0,
            "benchmarks.loop:fuzz_loop",
            (f"transformers:{kind}",),
            repeats=3,
        )
        for kind in ("llama", "gemma2", "mamba2")
    ),
    Row(
        "16-rows",
        "judging plain cases of 16 rows of the built-in decoder",
        BARE,
        1.2,
        "benchmarks.loop:many_rows",
        (16,),
    ),
    Row(
        "start.help",
        "`kvfuzz --help`",
        TORCH,
        0.05,
        "benchmarks.commands:help_text",
        repeats=9,
    ),
    Row(
        "start.planted-bug",
        "from the start to the verdict on a planted bug, shrunk, in a plain decoder of four layers",
        TORCH,
        1.8,
        "benchmarks.commands:planted_bug",
    ),
    Row(
        "clean-cases",
        "200 clean cases of a plain decoder of four layers, the whole command",
        TORCH,
        5.0,
        "benchmarks.commands:clean_cases",
        repeats=3,
    ),
    Row(
        "two-workers",
        "the wall time of 20 s of hunting with one worker, start included",
        "with two workers",
        1.85,
        "benchmarks.campaigns:two_workers",
        at_least=True,
        unit="s of wall time",
        repeats=1,
        slow=True,
    ),
    *(
        Row(
            f"noise-floor.{rows}-rows-{dtype}",
            f"the noise of a torch module, {rows} rows of 64 tokens in {dtype}",
            "one uncached pass of its dtype",
            4.0,
            "benchmarks.floor:module_floor",
            (dtype, rows),
            repeats=15,
        )
        for rows in (2, 8)
        for dtype in ("float64", "float32")
    ),
    *(
        Row(
            f"noise-floor.zoo-{dtype}",
            f"the noise of built-in decoders, 50 cases of a hunt in {dtype}",
            "one uncached pass of its dtype",
            4.0,
            "benchmarks.floor:zoo_floor",
            ("zoo", dtype),
            repeats=15,
        )
        for dtype in ("float64", "float32")
    ),
    *(
        Row(
            f"all-prefixes.{length}",
            f"checking every prefix of {length} tokens",
            "as many cached steps and one uncached pass",
            1.3,
            "benchmarks.loop:all_prefixes",
            (length,),
        )
        for length in (16, 32, 64, 128, 256, 512)
    ),
    Row(
        "locate-three-operations",
        "locating a bug in a decoder of three operations, with the import of kvfuzz",
        TORCH,
        0.3,
        "benchmarks.locate_cost:three_operations",
        repeats=7,
    ),
    *(
        Row(
            f"locate.{name}-{program}",
            f"locating a bug in {what}, {PROGRAM_WORDS[program]}",
            "the two plain runs",
            10.0,
            f"benchmarks.locate_cost:{function}",
            (*arguments, program),
            repeats=15,
        )
        for name, what, function, arguments in LOCATED
        for program in PROGRAM_WORDS
        if program != "long" or name == "4-layers"
    ),
    Row(
        "score.command",
        "`kvfuzz score zoo --seed 0`, the whole command with one worker",
        TORCH,
        15.0,
        "benchmarks.cost:score_command",
        repeats=3,
    ),
    Row(
        "score.first-kills",
        "a score until each first kill, the clean decoder judged again",
        "one bare cached run for each mutant",
        1.8,
        "benchmarks.cost:first_kills",
        (0,),
    ),
    Row(
        "score.mutmut",
        "mutants of a decoder file, switched in one process",
        "mutmut on the same mutants and property",
        0.08,
        "benchmarks.switching:against_mutmut",
        repeats=3,
    ),
    Row(
        "cases-to-kill",
        "cases until a mutant of the library is killed, the median",
        "uniform tokens, decode only",
        1 / 3,
        "benchmarks.kills:cases_to_kill",
        unit="cases",
        repeats=3,
    ),
    *(
        Row(
            f"memory.{name}",
            f"the peak of a hunt on {what}, less that of its imports",
            "four times the weights and 300 MB",
            1.0,
            f"benchmarks.memory:{function}",
            arguments,
            unit="MB",
            repeats=1,
        )
        for name, what, function, arguments in (
            ("tiny", "a plain decoder of 0.9 MB", "plain_peak", (False,)),
            ("200-MB", "a plain decoder of 200 MB", "plain_peak", (True,)),
            ("checkpoint", "a llama checkpoint of 200 MB", "checkpoint_peak", ()),
        )
    ),
    Row(
        "readme.try",
        "the README's first command after the installation, on two idle cores",
        "1 s of wall time",
        45.0,
        "benchmarks.commands:readme_command",
        ("try",),
        unit="s of wall time",
        repeats=1,
        slow=True,
    ),
    Row(
        "readme.test",
        "the README's test command after the installation, on two idle cores",
        "1 s of wall time",
        300.0,
        "benchmarks.commands:readme_command",
        ("test",),
        unit="s of wall time",
        repeats=1,
        slow=True,
    ),
)
