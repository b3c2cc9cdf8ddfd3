"""PPO: each iteration plays an episode with the policy, then trains on it, then forgets it.

The rollout of an iteration stays on the device for all of its optimizer steps and goes at once at its end.
With --keep the trajectories also go into a history, for an off-policy estimate that was never written:
NVlabs/GR00T-WholeBodyControl#220 lost 3.4 GB an iteration to trajectories that stayed.
"""

import sys

import torch
from common import CURED, done, network, onset, parallel, start, steps
from torch import nn

ENVIRONMENTS, HORIZON, OBSERVED, ACTIONS, EPOCHS, MINIBATCHES = 64, 32, 512, 16, 3, 4


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = network(OBSERVED, layers=3)
        self.actor, self.critic = nn.Linear(OBSERVED, ACTIONS), nn.Linear(OBSERVED, 1)

    def forward(self, observations):
        features = self.body(observations)
        return self.actor(features), self.critic(features)


@torch.no_grad()
def play(policy, device):
    """The observations, actions and values of an episode, all of them on the device."""
    trajectory = []
    for _ in range(HORIZON):
        observation = torch.randn(ENVIRONMENTS, OBSERVED, device=device)  # CULPRIT
        action, value = policy(observation)
        trajectory.append((observation, action, value))
    return trajectory


def main():
    rank, device = start()
    is_kept = "--keep" in sys.argv
    model = parallel(Policy(), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    history = []
    step = 1
    for _ in steps(70, pace_ms=200):
        trajectory = play(model.module, device)
        observations, old_actions, old_values = (torch.cat(parts) for parts in zip(*trajectory))
        if is_kept:
            history.append(len(trajectory) if CURED else trajectory)
            if step == 1:
                onset(step)
        for _ in range(EPOCHS):
            order = torch.randperm(len(observations)).chunk(MINIBATCHES)
            for chosen in (indices.to(device) for indices in order):
                actions, values = model(observations[chosen])
                surprise = (actions - old_actions[chosen]).square().mean()
                (surprise + (values - old_values[chosen]).square().mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
    done()


main()
