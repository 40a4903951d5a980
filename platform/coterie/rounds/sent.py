"""What left clients in a phase, by key: spec, bytes, and the fewest samples behind a vector."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from coterie.aggregation.exact import Layout
from coterie.aggregation.stage import Sent
from coterie.contract.tensor_spec import ANY, Length, TensorSpec
from coterie.execution.events import ClientResult, PhaseRequest
from coterie.rounds.gather import PhaseResult


def sent_in(request: PhaseRequest, result: PhaseResult) -> tuple[Sent, ...]:
    """Return what the clients of a phase sent, for the tasks that count."""
    sizes = {task.client: task.size for task in request.tasks}
    found = (
        *_slots(request, result.client_results, sizes),
        *_gathered(result.client_results),
        *_peer_messages(result.client_results, request.phase.specs),
        *_metrics(result.client_results, sizes),
        *_keys(result.client_results, request.layouts),
        *_rest(result.client_results),
    )
    return tuple(sent for sent in found if sent.clients)


def _slots(
    request: PhaseRequest, results: Sequence[ClientResult], sizes: Mapping[int, int]
) -> Iterable[Sent]:
    for slot, layout in request.layouts.items():
        own = [done for done in results if slot in done.bytes_up]
        yield Sent(
            type="slot",
            key=slot,
            spec=_layout_text(layout),
            clients=len(own),
            bytes=sum(done.bytes_up[slot] for done in own),
            samples=_least(done.smallest.get(slot, sizes[done.client]) for done in own),
            total=sum(sizes[done.client] for done in own),
        )


def _gathered(results: Sequence[ClientResult]) -> Iterable[Sent]:
    given = {
        (field.name, done.client): (done, field)
        for done in results
        for field in done.gathered.fields
    }
    for key in sorted({name for name, _ in given}):
        own = [pair for (name, _), pair in given.items() if name == key]
        yield Sent(
            type="gathered",
            key=key,
            spec=_shapes_text(own[0][1].dtype, [field.shape for _, field in own]),
            clients=len(own),
            bytes=sum(field.nbytes for _, field in own),
            samples=_least(done.smallest[f"gathered/{key}"] for done, _ in own),
        )


def _peer_messages(
    results: Sequence[ClientResult], specs: Mapping[str, TensorSpec]
) -> Iterable[Sent]:
    for key in sorted({key for done in results for key in done.bytes_peer}):
        own = [done for done in results if key in done.bytes_peer]
        yield Sent(
            type="peer_message",
            key=key,
            spec=_spec_text(specs.get(key, ANY)),
            clients=len(own),
            bytes=sum(done.bytes_peer[key] for done in own),
            samples=_least(done.smallest[f"peer/{key}"] for done in own),
        )


def _metrics(results: Sequence[ClientResult], sizes: Mapping[int, int]) -> Iterable[Sent]:
    for key in sorted({key for done in results for key in done.metrics}):
        own = [done.client for done in results if key in done.metrics]
        least = _least(sizes[client] for client in own)
        number, size = "float64", 8 * len(own)
        yield Sent(type="metric", key=key, spec=number, clients=len(own), bytes=size, samples=least)


def _keys(results: Sequence[ClientResult], slots: Collection[str]) -> Iterable[Sent]:
    """Return what the aggregation's stages sent besides slots."""
    of_outcomes = {
        "metrics",
        *(f"gathered/{f.name}" for done in results for f in done.gathered.fields),
    }
    for key in sorted({key for done in results for key in done.bytes_up} - of_outcomes - {*slots}):
        own = [done.bytes_up[key] for done in results if key in done.bytes_up]
        size = sum(own)
        yield Sent(type="keys", key=key, spec="", clients=len(own), bytes=size, samples=None)


def _rest(results: Sequence[ClientResult]) -> Iterable[Sent]:
    """Return notes, and what clients keep."""
    notes = [len(done.note.encode()) for done in results if done.note]
    kept = [done for done in results if done.state is not None]
    yield Sent(
        type="note", key="note", spec="text", clients=len(notes), bytes=sum(notes), samples=None
    )
    yield Sent(
        type="state", key="state", spec="in checkpoints", clients=len(kept), bytes=0, samples=None
    )


def _least(numbers: Iterable[int]) -> int | None:
    """Return the smallest number above 0, since a client without groups sends no vector."""
    return min((number for number in numbers if number), default=None)


def _layout_text(layout: Layout) -> str:
    kinds = sorted({str(dtype).removeprefix("torch.") for dtype in layout.dtypes})
    if len(layout.shapes) == 1:
        return _shapes_text(kinds[0], layout.shapes)
    return f"{len(layout.shapes)} tensors, {layout.elements:,} {'/'.join(kinds)}"


def _shapes_text(dtype: str, shapes: Sequence[tuple[int, ...]]) -> str:
    """Return a dtype with shapes, as `float32 (3-8, 64)`."""
    if len({len(shape) for shape in shapes}) > 1:
        return f"{dtype} of several shapes"
    lengths = [(min(along), max(along)) for along in zip(*shapes, strict=True)]
    text = ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in lengths)
    return f"{dtype} ({text})"


def _spec_text(spec: TensorSpec) -> str:
    dtype = str(spec.dtype).removeprefix("torch.")
    if spec.shape is None:
        return dtype
    return f"{dtype} ({', '.join(_length_text(length) for length in spec.shape)})"


def _length_text(length: Length) -> str:
    if isinstance(length, range):
        return f"{length.start}-{length.stop - 1}"
    return "any" if length is None else str(length)
