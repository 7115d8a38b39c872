"""The lines of `longmix predict` and `longmix evaluate` while they answer."""

from longmix.trainer.prediction.progress import Progress


def test_a_line_about_every_ten_seconds_says_how_far_it_is(capsys):
    now = [100.0]
    progress = Progress(40_001, "row", clock=lambda: now[0])
    progress.skip(20_000)
    for _ in range(12):  # 400 rows in 2 seconds
        now[0] += 2
        progress.note(400)
    assert capsys.readouterr().err.splitlines() == [
        "longmix predict: 20,000 of 40,001 rows were answered before",
        "longmix predict: 22,000 of 40,001 rows, 200 rows/s, left 0:01:30",
        "longmix predict: 24,000 of 40,001 rows, 200 rows/s, left 0:01:20",
    ]


def test_what_is_not_known_is_not_told(capsys):
    now = [0.0]
    progress = Progress(None, "window", clock=lambda: now[0])
    now[0] = 20.0
    progress.note(1)
    assert capsys.readouterr().err == "longmix predict: 1 window, 0.05 windows/s\n"
