"""Draws the rates that `detection.py` measures (needs matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

Sizes = Mapping[str, list[float]]
"""The sizes of a fault, by dtype."""

PANELS = {
    "scale.values_too_large": "Cached values too large by a factor of 1 + size",
    "mask.leaks_attention_mass": "A share of the attention leaks to all slots",
}
STYLES = (  # colours of Okabe and Ito, distinguished by shape and dash too
    {"color": "#0072B2", "marker": "o", "linestyle": "-", "linewidth": 2.4},
    {"color": "#D55E00", "marker": "s", "linestyle": "--", "linewidth": 1.5},
    {"color": "#009E73", "marker": "^", "linestyle": ":", "linewidth": 3.2},
    {"color": "#CC79A7", "marker": "D", "linestyle": "-.", "linewidth": 1.5},
)


def load_pyplot() -> Any:
    """Imports matplotlib so that the same numbers give the same picture."""
    try:
        import matplotlib
    except ImportError:
        raise click.ClickException("--picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("svg")
    # Without these two a picture would differ from one run to the next.
    matplotlib.rcParams["svg.hashsalt"] = "kvfuzz"
    matplotlib.rcParams["svg.fonttype"] = "path"
    matplotlib.rcParams["font.size"] = 11
    from matplotlib import pyplot

    return pyplot


def draw_rates(studies: Mapping[str, Any], path: str, sizes: Sizes, share: int) -> None:
    """Draws into the SVG file at `path` what each policy catches by size, each at a bound that
    raises no false alarm: faults go down, dtypes across. `studies` are those of `detection.py`, by
    dtype, and `sizes` the sizes that it measured; a line marks the `share`, in %, that counts as
    caught."""
    pyplot = load_pyplot()
    shape = {"nrows": len(PANELS), "ncols": len(studies), "sharex": "col", "sharey": True}
    figure, axes = pyplot.subplots(**shape, figsize=(11.5, 8), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.12)
    for study, column in zip(studies.values(), axes.T, strict=True):
        shown = _sizes_to_draw(study, sizes[study.dtype])
        for (fault, title), panel in zip(PANELS.items(), column, strict=True):
            _draw_panel(panel, study, fault, shown, share)
            panel.set_title(f"{title}, {study.dtype}", loc="left", fontsize=11)
        column[-1].set_xlabel("size of the fault")
    for panel in axes[:, 0]:
        panel.set_ylabel("caught, % of random decoders")
    labels = (
        "kvfuzz: measured per case",
        "one fixed bound",
        "torch assert_close",
        "c · eps · scale",
    )
    figure.legend(
        axes[0, 0].get_lines()[: len(labels)],
        labels,
        loc="outside upper center",
        ncol=len(labels),
        frameon=False,
        title="Share of decoders on which a fault is caught, by bounds that raise no false alarm",
        title_fontsize=13,
    )
    figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_panel(panel: Any, study: Any, fault: str, sizes: list[float], share: int) -> None:
    for policy, style in enumerate(STYLES):
        panel.plot(sizes, _curve(study, fault, policy, sizes), zorder=5 - policy, **style)
    panel.axhline(share, color="#888888", linewidth=0.8, zorder=0)
    label = {"xycoords": ("axes fraction", "data"), "va": "top", "color": "#666666"}
    panel.annotate(f"{share} %", (0.01, share - 2), **label)
    panel.set_xscale("log")
    panel.minorticks_off()
    panel.set_ylim(-3, 103)
    panel.tick_params(labelbottom=True)
    panel.grid(color="#e4e4e4", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _sizes_to_draw(study: Any, sizes: list[float]) -> list[float]:
    """Returns those from where nothing is caught to where everything is."""
    curves = [_curve(study, fault, policy, sizes) for fault in PANELS for policy in range(4)]
    rates = list(zip(*curves, strict=True))
    first = max((i for i, found in enumerate(rates) if max(found) == 0), default=0)
    last = min(
        (i for i, found in enumerate(rates) if i > first and min(found) == 100),
        default=len(sizes) - 1,
    )
    return sizes[max(first - 1, 0) : last + 2]


def _curve(study: Any, fault: str, policy: int, sizes: list[float]) -> list[float]:
    bound = study.without_alarms(policy) if policy else 1.0
    return [study.percent((fault, size), policy, bound) for size in sizes]
