"""Scores as users write them for their own evaluations."""


def worst_agent(outcome):
    return min(returns.mean() for returns in outcome.returns.values())


def negative(outcome):
    return -outcome.team


def broken(outcome):
    return float("nan")
