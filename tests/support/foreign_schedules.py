"""Schedules as other libraries and users write them: none of this knows motet."""

import math


def cosine(step):
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(step, 1_000) / 1_000))


def polynomial_schedule(init_value, end_value, power, transition_steps):
    """As in optax: a closure."""

    def schedule(count):
        count = min(max(count, 0), transition_steps)
        return (init_value - end_value) * (1 - count / transition_steps) ** power + end_value

    return schedule


square = polynomial_schedule(1.0, 0.1, 2, 500)


class StepDecay:
    """As in Keras: an object."""

    def __init__(self, rate, every):
        self.rate, self.every = rate, every

    def __call__(self, step):
        return self.rate ** (step // self.every)


halves = StepDecay(0.5, 100)
grows = lambda step: 0.5 + step  # noqa: E731
breaks = lambda step: 1.0 if step < 50 else math.nan  # noqa: E731
constant = 0.3
