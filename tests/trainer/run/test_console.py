"""What a person sees of a run before its first figures."""


def test_lines_between_start_and_the_first_evaluation(train, tmp_path, capsys):
    train(tmp_path / "run")
    before = capsys.readouterr().err.partition("eval 0/")[0]
    assert "training samples; building" in before and "parameters; dry run of one step" in before
