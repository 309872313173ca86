"""The formulas of plans as a recursion over the states of a model, without arrays and without levels."""

import math
from functools import cache
from itertools import product
from typing import Any

import numpy as np

TIE = 1e-12


class Recursion:
    """The formulas, word for word."""

    def __init__(self, model, counts, goals, humans, robot):
        self.m, self.counts, self.goals, self.h, self.r = model, counts, goals, humans, robot
        self.H, self.R = model.human_agent_indices, model.robot_agent_indices
        older = {None: None, False: "zero", True: "one"}[humans.credit_achieved]
        has_generator = getattr(model, "possible_goal_generator", None) is not None
        self.achieved = humans.achieved or older or ("stay" if has_generator else "zero")
        for name in ("q_h", "pi_h", "v_h", "v_he", "q_r", "pi_r", "v_r"):
            setattr(self, name, cache(getattr(self, name)))

    def all(self, agents):
        return [dict(zip(agents, acts, strict=True)) for acts in product(*(range(self.counts[i]) for i in agents))]

    def next(self, s, acts):  # [(p, s', duration)] for actions by agent
        joint = [acts[i] for i in range(len(self.counts))]
        outcome = self.m.transition_probabilities(s, joint)
        times = self.m.transition_durations(s, joint, outcome) if hasattr(self.m, "transition_durations") else None
        return [(p, t, times[k] if times else 1.0) for k, (p, t) in enumerate(outcome)]

    def ends(self, s):
        return self.m.transition_probabilities(s, [0] * len(self.counts)) is None

    def worth(self, s, acts, g, value):
        def discount(d):
            return self.h.gamma if self.h.rho is None else math.exp(-self.h.rho * d)

        return sum(p * (1.0 if g.is_achieved(t) else discount(d) * value(t)) for p, t, d in self.next(s, acts))

    def settled(self, s, g):  # the value where nothing is left to do, or None
        if g.is_achieved(s) and self.achieved in ("zero", "one"):
            return {"zero": 0.0, "one": 1.0}[self.achieved]
        return 0.0 if self.ends(s) else None

    def stays(self, s, g):
        return self.achieved == "stay" and g.is_achieved(s)

    def q_h(self, s, h, a, g):
        others = [i for i in self.H if i != h]
        over: Any = {"worst": min, "best": max, "mean": lambda x: sum(x) / len(x)}
        if self.h.believed_others_policy is None:
            profiles = [(1 / len(self.all(others)), p) for p in self.all(others)]
        else:
            profiles = self.h.believed_others_policy(s, h, a)
            profiles = [(p, {i: profile[i] for i in others}) for p, profile in profiles]
        return sum(
            b
            * over[self.h.robot](
                [self.worth(s, {h: a} | o | r, g, lambda t: self.v_h(t, h, g)) for r in self.all(self.R)]
            )
            for b, o in profiles
        )

    def pi_h(self, s, h, g):
        if self.stays(s, g):
            return np.eye(self.counts[h])[self.h.still]
        q = np.array([self.q_h(s, h, a, g) for a in range(self.counts[h])])
        w = (q >= q.max() - TIE).astype(float) if math.isinf(self.h.beta) else np.exp(self.h.beta * (q - q.max()))
        return w / w.sum()

    def v_h(self, s, h, g):
        if self.stays(s, g):
            return 0.0
        if (done := self.settled(s, g)) is not None:
            return done
        return sum(p * self.q_h(s, h, a, g) for a, p in enumerate(self.pi_h(s, h, g)))

    def prior(self, s, h):
        return sum(w * self.pi_h(s, h, g) for g, w in self.goals[h]) / sum(w for _, w in self.goals[h])

    def crowd(self, s, without=None):  # [(probability, actions of the humans but one)]
        some = [i for i in self.H if i != without]
        return [(math.prod(self.prior(s, i)[a[i]] for i in some), a) for a in self.all(some)]

    def q_r(self, s, k):
        r = self.all(self.R)[k]
        return sum(
            c * p * math.exp(-self.r.rho * d) * self.v_r(t) for c, o in self.crowd(s) for p, t, d in self.next(s, o | r)
        )

    def pi_r(self, s):
        logs = np.array([-math.log(-self.q_r(s, k)) for k in range(len(self.all(self.R)))])
        inf = math.isinf(self.r.beta)
        w = (logs >= logs.max() - TIE).astype(float) if inf else np.exp(self.r.beta * (logs - logs.max()))
        return w / w.sum()

    def v_he(self, s, h, g):
        if (done := self.settled(s, g)) is not None:
            return done
        return sum(
            p * c * r * self.worth(s, {h: a} | o | self.all(self.R)[k], g, lambda t: self.v_he(t, h, g))
            for a, p in enumerate(self.pi_h(s, h, g))
            for c, o in self.crowd(s, h)
            for k, r in enumerate(self.pi_r(s))
        )

    def x_h(self, s, h):
        return sum(w * self.v_he(s, h, g) ** self.r.zeta for g, w in self.goals[h])

    def v_r(self, s):
        if self.ends(s):
            return self.r.terminal_robot_value
        mean = sum(self.x_h(s, h) ** -self.r.xi for h in self.H) / len(self.H) if self.H else 0.0
        rho, moves = (
            self.r.rho,
            [
                (c * q, p, d)
                for c, o in self.crowd(s)
                for k, q in enumerate(self.pi_r(s))
                for p, _, d in self.next(s, o | self.all(self.R)[k])
            ],
        )
        w = sum(c * p * (1 - math.exp(-rho * d)) / rho for c, p, d in moves) if rho else 1.0
        return w * -(mean**self.r.eta) + sum(q * self.q_r(s, k) for k, q in enumerate(self.pi_r(s)))


class GivenRecursion(Recursion):
    """The same with given policies: ``people(s, h, g)`` of the humans, and optionally ``machine(s)`` of the robot."""

    def __init__(self, model, counts, goals, humans, robot, people, machine=None):
        self.people, self.machine = people, machine
        super().__init__(model, counts, goals, humans, robot)

    def pi_h(self, s, h, g):
        return np.asarray(self.people(s, h, g))

    def pi_r(self, s):
        return super().pi_r(s) if self.machine is None else np.asarray(self.machine(s))
