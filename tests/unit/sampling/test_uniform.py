"""Stateless random numbers."""

from radixcache_engine.sampling.uniform import uniform


def test_a_number_depends_on_its_name_alone():
    """Equal seed, sequence and position: equal number; any other: another."""
    names = [(seed, i, p) for seed in (0, 1, -1, 2**62) for i in (0, 1) for p in (0, 1, 9)]
    numbers = [uniform(*name) for name in names]

    assert numbers == [uniform(*name) for name in names]
    assert len(set(numbers)) == len(names)


def test_the_first_numbers_never_change():
    """Same seed, same text holds across versions: these values are part of the contract."""
    assert uniform(0, 0, 0) == 0.156742553465558
    assert uniform(-(2**63), 127, 8191) == 0.46965241208019515


def test_numbers_fill_the_unit_interval_evenly():
    """Twenty equal parts of [0, 1) get equal shares, over positions and over seeds alike."""
    for numbers in (
        [uniform(7, 0, position) for position in range(20_000)],
        [uniform(seed, 0, 0) for seed in range(20_000)],
    ):
        shares = [0] * 20
        for number in numbers:
            shares[int(number * 20)] += 1
        chi_square = sum((share - 1000) ** 2 / 1000 for share in shares)

        assert 0.0 <= min(numbers) <= max(numbers) < 1.0
        assert chi_square < 50.0  # 19 degrees of freedom: 1 in 10,000 is above 50.8
