from roundhouse_sim.metrics import Histogram


def test_a_value_on_an_edge_belongs_to_that_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.total == 12.0


def test_several_equal_values_at_once() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, times=4)
    assert (histogram.buckets()[-1], histogram.total) == (("+Inf", 4.0), 2.0)
