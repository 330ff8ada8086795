"""What a sampled loss lacks: more candidates, and two losses in turn."""

import matplotlib.image
import pytest

import candax as cx
from candax.experiments import race_gap
from candax.experiments.race_gap import Gap, gap
from tests.commands import write_shop


def test_more_candidates_and_two_losses_in_turn(tmp_path, monkeypatch):
    """Each training has all the steps, the later part as those that follow the earlier."""
    done, fit = [], cx.training.fit

    def counted(model, optimizer, batches, **options):
        fitted = fit(model, optimizer, batches, **options, progress=False)
        done.append(int(optimizer.params_state.step))
        return fitted

    monkeypatch.setattr(race_gap.cx.training, "fit", counted)
    path, sizes = str(write_shop(tmp_path)), (8,)
    rows = gap(Gap(dataset=path, quick=True, num_sampled=sizes, epochs=4.0, out=tmp_path / "gap"))
    names = ["8 candidates", "20 candidates"]
    turns = ["8, then 20", "8, then full softmax", "full softmax, then 8"]
    assert [row["method"] for row in rows] == ["full_softmax", *names, *turns]
    (steps,) = {row["steps"] for row in rows}
    first = round(0.75 * steps)
    assert done == [steps] * 3 + [first, steps] * 3
    for row in rows:
        # Each item follows from the last one.
        assert row["ndcg@10"] > 0.4
        assert row["of_full"] == pytest.approx(row["ndcg@10"] / rows[0]["ndcg@10"])
    assert all(row["class_gradient_noise"] > 0 for row in rows[1:3])
    # What was trained is there when a study that was cut off goes on.
    settings = Gap(dataset=path, quick=True, epochs=0.5).ready()
    found = race_gap.sequences.sequences_of(settings.recipe(None))
    parts = settings.methods(found.num_items)["full softmax, then 16"]
    trained, again = (
        race_gap._trained(settings, found, parts, "full, then 16", 0, tmp_path / "parts")[1:] for _ in range(2)
    )
    assert again == trained  # the seconds, too
    assert matplotlib.image.imread(tmp_path / "gap" / "race_gap.png").shape[0] > 200


def test_the_whole_training_may_have_one_loss(tmp_path):
    assert list(Gap(num_sampled=(64, 16), last=1.0).methods(32)) == [
        "full_softmax",
        "16 candidates",
        "32 candidates",
    ]
