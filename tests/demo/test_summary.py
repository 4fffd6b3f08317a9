"""Captions of the summary."""

from vitrail.demo.summary import captions


def test_names_are_shortened_to_the_width_of_a_picture():
    first, second, empty = captions(["n02165456 ladybug", "x" * 40], [[("a" * 40, 0.5)], [("bee", 1.0)]], 3)
    assert first == f"ladybug\n→ {'a' * 5}…{'a' * 5} 50%"
    assert [len(line) for line in second.split("\n")] == [18, 10] and second.endswith("→ bee 100%")
    assert empty == ""
