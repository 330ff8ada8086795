"""Pictures: colours by method, labels at lines, SVG and PNG."""

import itertools

import matplotlib.image
import numpy as np
import pytest

from candax.pictures import PALETTE, colors, label_ends, save_picture


def test_a_method_has_its_colour_in_every_picture_and_no_two_share_one():
    few = colors(["log_uniform", "full_softmax"])
    many = colors(["mine", "top_k", "uniform", "log_uniform", "full_softmax", "another"])
    assert few["log_uniform"] == many["log_uniform"]
    assert many["full_softmax"] == "#000000"
    assert len(set(many.values())) == len(many)
    assert len(colors([f"method {i}" for i in range(20)])) == 20


def test_colours_differ_in_brightness_or_hue_for_red_green_blindness_too():
    """Deuteranopia as Vienot et al. (1999) model it, in linear light: red and green fall together, these do not."""
    rgb = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in PALETTE]) ** 2.2
    seen = rgb @ np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]).T
    distances = [np.linalg.norm(one - other) for one, other in itertools.combinations(seen.clip(0, 1) ** (1 / 2.2), 2)]
    assert min(distances) > 0.2


@pytest.mark.parametrize("name", ["picture.svg", "picture.png"])
def test_labels_stand_at_lines_without_overlap(tmp_path, name):
    for _ in range(2):
        with save_picture(tmp_path / name, columns=1, size=(4, 3), share_y=False) as (axis,):
            for label, height in (("one", 1.0), ("two", 1.001), ("three", 0.0)):
                axis.plot([0, 1], [0, height], label=label)
            label_ends(axis, gap=0.1)
            places = sorted(text.get_position()[1] for text in axis.texts)
            first = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else None
    assert min(np.diff(places)) > 0.099
    if name.endswith("svg"):
        assert b"<svg" in first
        assert (tmp_path / name).read_bytes() == first  # nothing of the time or of chance is in it
    else:
        assert matplotlib.image.imread(tmp_path / name).shape[:2] == (360, 480)
