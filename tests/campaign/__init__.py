"""A campaign of faults: random damage, kills and wrong arguments, with a seed, for as long as one likes.

python -m tests.campaign --minutes 20 --seed 3            (all parts)
python -m tests.campaign --part fuzz --seed 3 --trial 17  (one trial again)
"""
