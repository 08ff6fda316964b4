"""Random epoch orders, for Hypothesis."""

from hypothesis import strategies as st

from ringfeed.pipeline.order.epoch_order import EpochOrder, Geometry


@st.composite
def orders(draw: st.DrawFn) -> EpochOrder:
    streams = draw(st.integers(1, 6))
    piece = draw(st.integers(1, 8))
    shards = draw(st.lists(st.integers(1, 60), min_size=1, max_size=12))
    remainder = draw(st.sampled_from(["drop", "pad", "wrap"]))
    least = streams * piece if remainder == "drop" else streams
    if sum(shards) < least:
        shards.append(least)
    geometry = Geometry(
        records=sum(shards),
        batch_size=streams * piece,
        streams=streams,
        window_shards=draw(st.integers(1, 3)),
        remainder=remainder,
        shuffle=draw(st.booleans()),
    )
    return EpochOrder(geometry, shards, seed=draw(st.integers(0, 99)), epoch=draw(st.integers(0, 5)))
