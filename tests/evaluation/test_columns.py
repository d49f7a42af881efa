"""Columns: what files and tables call them."""

from utils.evaluation.columns import LOW_RANK, OWN, REBASED, SAMPLE, VIEWS, Column, columns_of

NAMES = {"hmc": "HMC", "vi": "VI"}


def test_columns_have_a_key_for_files_and_a_title_for_tables():
    columns = [Column("hmc", SAMPLE), Column("hmc", LOW_RANK), Column("vi", OWN)]
    assert [column.key for column in columns] == ["hmc_sample", "hmc_low_rank", "vi"]
    assert [column.title(NAMES) for column in columns] == ["HMC", "HMC q_r, low rank", "VI q"]


def test_columns_are_found_by_key_whatever_the_names():
    """One name may begin as another does."""
    columns = columns_of(["swag", "swag_multi"])
    assert columns["swag_multi_rebased"] == Column("swag_multi", REBASED)
    assert columns["swag"] == Column("swag", OWN)
    assert len(columns) == 2 * len(VIEWS)
