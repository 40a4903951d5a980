"""The figure of docs/large-batches.md: memory and time against the batch size."""

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from coterie.evaluation.canvas import COLOURS, MARKERS, blank, save

PANELS = {"peak": "peak memory of the process, MB", "per_sample": "CPU ms a sample"}


def draw_costs(rows, path):
    """Draw a sweep's rows (see `large_batches.sweep`): a panel each for memory and time."""
    figure = blank(9.0, 3.6)
    nets = list(dict.fromkeys(row["net"] for row in rows))
    for axes, (key, label) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        for number, net in enumerate(nets):
            for cached in (False, True):
                own = [row for row in rows if row["net"] == net and bool(row["micro"]) is cached]
                axes.plot(
                    [row["size"] for row in own],
                    [row[key] for row in own],
                    "-" if cached else "--",
                    color=COLOURS[number],
                    marker=MARKERS[cached],
                    markersize=5,
                    label=f"{net}, {'micro-batches of 64' if cached else 'plain'}",
                )
        sizes = sorted({row["size"] for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for ticks in (axes.xaxis, axes.yaxis):
            ticks.set_minor_locator(NullLocator())
        axes.tick_params(labelsize=8, which="both")
        axes.set_xlabel("batch size")
        axes.set_ylabel(label)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    return save(figure, path)
