"""What left clients in a phase, key by key: its form, bytes, and how few samples it tells of."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from coterie.aggregation.exact import Layout
from coterie.aggregation.stage import Sent
from coterie.contract.form import ANY, Form, Length
from coterie.execution.events import Order, TurnDone
from coterie.rounds.gather import PhaseResult


def sent_in(order: Order, result: PhaseResult) -> tuple[Sent, ...]:
    """What the clients of a phase sent, of the turns that count."""
    sizes = {turn.client: turn.size for turn in order.turns}
    found = (
        *_slots(order, result.turns, sizes),
        *_records(result.turns),
        *_mail(result.turns, order.phase.forms),
        *_metrics(result.turns, sizes),
        *_keys(result.turns, order.layouts),
        *_rest(result.turns),
    )
    return tuple(sent for sent in found if sent.clients)


def _slots(order: Order, turns: Sequence[TurnDone], sizes: Mapping[int, int]) -> Iterable[Sent]:
    for slot, layout in order.layouts.items():
        own = [turn for turn in turns if slot in turn.bytes_up]
        yield Sent(
            kind="slot",
            key=slot,
            form=_layout_text(layout),
            clients=len(own),
            bytes=sum(turn.bytes_up[slot] for turn in own),
            samples=_least(turn.smallest.get(slot, sizes[turn.client]) for turn in own),
            total=sum(sizes[turn.client] for turn in own),
        )


def _records(turns: Sequence[TurnDone]) -> Iterable[Sent]:
    given = {
        (field.name, turn.client): (turn, field) for turn in turns for field in turn.records.fields
    }
    for key in sorted({name for name, _ in given}):
        own = [pair for (name, _), pair in given.items() if name == key]
        yield Sent(
            kind="record",
            key=key,
            form=_shapes_text(own[0][1].dtype, [field.shape for _, field in own]),
            clients=len(own),
            bytes=sum(field.nbytes for _, field in own),
            samples=_least(turn.smallest[f"records/{key}"] for turn, _ in own),
        )


def _mail(turns: Sequence[TurnDone], forms: Mapping[str, Form]) -> Iterable[Sent]:
    for key in sorted({key for turn in turns for key in turn.bytes_peer}):
        own = [turn for turn in turns if key in turn.bytes_peer]
        yield Sent(
            kind="mail",
            key=key,
            form=_form_text(forms.get(key, ANY)),
            clients=len(own),
            bytes=sum(turn.bytes_peer[key] for turn in own),
            samples=_least(turn.smallest[f"mail/{key}"] for turn in own),
        )


def _metrics(turns: Sequence[TurnDone], sizes: Mapping[int, int]) -> Iterable[Sent]:
    for key in sorted({key for turn in turns for key in turn.metrics}):
        own = [turn.client for turn in turns if key in turn.metrics]
        least = _least(sizes[client] for client in own)
        number, size = "float64", 8 * len(own)
        yield Sent(kind="metric", key=key, form=number, clients=len(own), bytes=size, samples=least)


def _keys(turns: Sequence[TurnDone], slots: Collection[str]) -> Iterable[Sent]:
    """What stages of the aggregation have sent besides slots."""
    of_outcomes = {"metrics", *(f"records/{f.name}" for turn in turns for f in turn.records.fields)}
    for key in sorted({key for turn in turns for key in turn.bytes_up} - of_outcomes - {*slots}):
        own = [turn.bytes_up[key] for turn in turns if key in turn.bytes_up]
        size = sum(own)
        yield Sent(kind="keys", key=key, form="", clients=len(own), bytes=size, samples=None)


def _rest(turns: Sequence[TurnDone]) -> Iterable[Sent]:
    """Notes, and what clients keep."""
    notes = [len(turn.note.encode()) for turn in turns if turn.note]
    kept = [turn for turn in turns if turn.state is not None]
    yield Sent(
        kind="note", key="note", form="text", clients=len(notes), bytes=sum(notes), samples=None
    )
    yield Sent(
        kind="state", key="state", form="in checkpoints", clients=len(kept), bytes=0, samples=None
    )


def _least(numbers: Iterable[int]) -> int | None:
    """The smallest number above 0: a client that has no group has sent no vector."""
    return min((number for number in numbers if number), default=None)


def _layout_text(layout: Layout) -> str:
    kinds = sorted({str(dtype).removeprefix("torch.") for dtype in layout.dtypes})
    if len(layout.shapes) == 1:
        return _shapes_text(kinds[0], layout.shapes)
    return f"{len(layout.shapes)} tensors, {layout.elements:,} {'/'.join(kinds)}"


def _shapes_text(dtype: str, shapes: Sequence[tuple[int, ...]]) -> str:
    """A dtype with shapes, as `float32 (3-8, 64)`."""
    if len({len(shape) for shape in shapes}) > 1:
        return f"{dtype} of several shapes"
    lengths = [(min(along), max(along)) for along in zip(*shapes, strict=True)]
    text = ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in lengths)
    return f"{dtype} ({text})"


def _form_text(form: Form) -> str:
    dtype = str(form.dtype).removeprefix("torch.")
    if form.shape is None:
        return dtype
    return f"{dtype} ({', '.join(_length_text(length) for length in form.shape)})"


def _length_text(length: Length) -> str:
    if isinstance(length, range):
        return f"{length.start}-{length.stop - 1}"
    return "any" if length is None else str(length)
