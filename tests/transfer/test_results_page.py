from vitrail.transfer.results_page import results_page

RESULTS = {
    "lr": 0.01,
    "sweep": {},
    "dev": None,
    "seeds": 1,
    "steps": 200,
    "scores": {"top1": {"mean": 0.5, "std": None, "values": [0.5]}},
    "test_split": "photos:test",
    "test_examples": 8,
    "train_examples": 64,
    "per_class": [
        {"name": "ant", "n": 5, "accuracy": 0.8},
        {"name": "n01234567_a|b", "n": 3, "accuracy": 0.0},
    ],
    "untested": [],
    "wrong": 4,
    "license": {"weights": "non-commercial | only"},
}


def lines(**fields):
    return results_page(RESULTS | fields).splitlines()


def test_each_class_the_worst_first_and_where_the_mistakes_are():
    said = lines()
    at = said.index("| class | images | accuracy |")
    assert said[at + 2 : at + 4] == [r"| a\|b | 3 | 0.0% |", "| ant | 5 | 80.0% |"]
    assert " 4, " in said[-1] and said[-1].endswith("mistakes.jsonl")
    assert "2,345" in lines(wrong=2345)[-1] and "1,000" in lines(wrong=2345)[-1]


def test_one_seed_has_an_interval_and_several_have_a_spread():
    assert lines()[:3] == ["| score | value |", "| --- | --- |", "| top-1 | 50.0% (15.7-84.3%, n = 8) |"]
    scores = {
        "top1": {"mean": 0.5, "std": 0.125, "values": [0.375, 0.625]},
        "loss": {"mean": None, "std": None},
    }
    scores["loss"]["values"] = [1.5, None]
    said = lines(seeds=2, scores=scores)
    assert said[0].startswith("| score | mean | std |")
    assert said[2:4] == ["| top-1 | 50.0% | 12.5% | 37.5%, 62.5% |", "| loss | - | - | 1.5000, - |"]
    assert "first seed" in said[-1] and "first seed" not in lines()[-1]


def test_the_license_of_what_was_trained():
    assert r"License: weights: non-commercial \| only; data: unknown" in lines()
    assert "License: weights: unknown; data: unknown" in lines(license={})


def test_what_was_not_tested():
    assert any("cat, dog" in line for line in lines(untested=["cat", "dog"]))
    assert not any("ot tested" in line for line in lines())
    said = lines(scores={}, test_split=None, per_class=[], wrong=None)
    assert any("64 images for 200 steps at lr 0.01; not tested" in line for line in said)


def test_how_the_rate_was_chosen():
    sweep = {"0.001": {"val_top1": 0.5, "val_loss": 1.5}, "0.01": {"val_top1": 0.5, "val_loss": 1.25}}
    said = lines(sweep=sweep, dev=0.1)
    at = said.index("| lr | val_top1 | val_loss | on 10% of train |")
    assert said[at + 2 : at + 4] == ["| 0.001 | 50.0% | 1.5000 |  |", "| 0.01 | 50.0% | 1.2500 | chosen |"]
    assert said[-1].startswith("lr 0.001, 0.01 have the same val_top1")
    sweep["0.001"]["val_top1"] = 0.25
    assert "same val_top1" not in lines(sweep=sweep, dev=0.1)[-1]
